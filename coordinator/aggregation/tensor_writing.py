"""Write tensors to staged payloads in few transactions, hashing them on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from coordinator.db.engine import Database
from coordinator.observability.fault_points import may_crash

BATCH_BYTES: Final = 8 * 2**20
"""Bytes that are worth a transaction: a deep model has thousands of modules."""


class Sink(Protocol):
    """A staged payload that grows by values in order."""

    def update_digest(self, values: memoryview) -> None: ...

    def write(self, session: Session, values: memoryview) -> None: ...


def write_tensors(
    database: Database,
    tensors: Iterable[tuple[Sink, NDArray[np.float32]]],
    between: Callable[[], None],
) -> None:
    """Hash and write tensors, each to its sink; `between` is called after every one."""
    buffered: list[tuple[Sink, memoryview]] = []

    def flush() -> None:
        with database.write() as session:
            for sink, view in buffered:
                sink.write(session, view)
        buffered.clear()
        may_crash("block-staged")

    for sink, values in tensors:
        view = values.astype("<f4", copy=False).reshape(-1).data.cast("B")
        sink.update_digest(view)
        buffered.append((sink, view))
        if sum(len(view) for _, view in buffered) >= BATCH_BYTES:
            flush()
        between()
    flush()
