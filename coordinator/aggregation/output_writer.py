"""Stage new weights: receivers of equal values share one payload, each with a head of its own.

A thread hashes and writes while the next values are computed; both take about as long as the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Final, Self

import numpy as np
from sqlalchemy.orm import Session

from coordinator.aggregation.part import StagedWeights
from coordinator.aggregation.state_reader import Values, portions
from coordinator.db.engine import Database
from coordinator.observability.fault_points import may_crash
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Weights, modules_of
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_from_hash

BATCH_BYTES: Final = 16 * 2**20
"""Bytes that are worth a transaction: a deep model has thousands of modules."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A client that is served new weights: its layout, and the beginning of their body."""

    client: str
    layout: Layout
    head: bytes


class StagedBody:
    """One payload for receivers of equal values; it begins with the first one's head."""

    def __init__(self, staged: StagedPayload, receivers: Sequence[Receiver]) -> None:
        self.receivers = receivers
        self._staged = staged
        # Each body has the digest of its own head and the common values; the first one's is that of the
        # payload.
        self._hashes = [sha256(receiver.head) for receiver in receivers[1:]]

    def update_digest(self, values: memoryview) -> None:
        """Hash values for each receiver, behind its own head."""
        self._staged.update_digest(values)
        for running in self._hashes:
            running.update(values)

    def write(self, session: Session, values: memoryview) -> None:
        self._staged.write(session, values)

    def outputs(self) -> dict[str, StagedWeights]:
        first, begin = self.receivers[0], len(self.receivers[0].head)
        bodies = {
            first.client: StagedWeights(
                first.head, self._staged, begin, self._staged.digest, self._staged.size
            )
        }
        for receiver, running in zip(self.receivers[1:], self._hashes, strict=True):
            size = len(receiver.head) + self._staged.size - begin
            digest = digest_from_hash(running.hexdigest())
            bodies[receiver.client] = StagedWeights(receiver.head, self._staged, begin, digest, size)
        return bodies


Product = tuple[Sequence[StagedBody], Values]
"""Rows of values (bodies, block), a row for each body."""


def begin(staging: Staging, weights: Weights, receivers: Sequence[Receiver]) -> list[StagedBody]:
    """Stage a payload for each set of receivers with equal weights."""
    groups = _groups(weights, receivers)
    staged = staging.stage_all([equal[0].head for equal in groups])
    return [StagedBody(payload, equal) for payload, equal in zip(staged, groups, strict=True)]


def outputs(bodies: Iterable[StagedBody]) -> dict[str, StagedWeights]:
    return {client: output for body in bodies for client, output in body.outputs().items()}


def hash_rows(bodies: Sequence[StagedBody], values: Values) -> None:
    for body, row in zip(bodies, values, strict=True):
        body.update_digest(_bytes_of(row))


def write(database: Database, products: Iterable[Product]) -> None:
    rows = [pair for bodies, values in products for pair in zip(bodies, values, strict=True)]
    longest = max((row.nbytes for _, row in rows), default=0)
    # In portions, since one transaction for all bodies would keep other writers waiting.
    for portion in portions(rows, longest):
        with database.write() as session:
            for body, row in portion:
                body.write(session, _bytes_of(row))
        may_crash("block-staged")


class Writer:
    """A thread that hashes and writes products in the order in which they were submitted.

    SQLite's rollback journal shuts readers out while it writes. So a caller calls `flush` after reading, and
    `wait` before it reads again.

    Args:
        batch_bytes: the least that is worth a transaction; smaller amounts are buffered.
    """

    def __init__(self, database: Database, *, batch_bytes: int) -> None:
        self._database = database
        self._batch_bytes = batch_bytes
        # One thread only: values are hashed and written in the order of the layout.
        self._thread = ThreadPoolExecutor(1, "aggregation-writer")
        self._buffered: list[Product] = []
        self._futures: list[Future[None]] = []
        self._written: list[Values] = []
        self._spare: Values | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, writing what is queued would only delay it.
        self._thread.shutdown(cancel_futures=kind is not None)

    def spare(self) -> Values | None:
        spare, self._spare = self._spare, None
        return spare

    def submit(self, bodies: Sequence[StagedBody], values: Values) -> None:
        """Accept values (bodies, block), which must not change from now on, and start hashing them."""
        self._buffered.append((bodies, values))
        self._futures.append(self._thread.submit(hash_rows, bodies, values))

    def flush(self, *, at_least: int | None = None) -> None:
        """Start writing the buffered values, unless they are fewer bytes than this; a batch by default."""
        threshold = self._batch_bytes if at_least is None else at_least
        if sum(values.nbytes for _, values in self._buffered) >= threshold:
            self._futures.append(self._thread.submit(write, self._database, self._buffered))
            self._written += [values for _, values in self._buffered]
            self._buffered = []

    def wait(self) -> None:
        """Wait until everything submitted is done; raise the error of whatever failed."""
        futures, self._futures = self._futures, []
        for future in futures:
            future.result()
        # The memory of written values serves the next product.
        self._spare = max(self._written, key=lambda values: values.size, default=None)
        self._written = []


def _groups(weights: Weights, receivers: Sequence[Receiver]) -> list[list[Receiver]]:
    """Group receivers whose rows of G are equal: same layout, same weights in every module of it."""
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    modules = sorted({module for receiver in receivers for module in modules_of(receiver.layout)})
    hashes = {receiver.client: sha256(repr(receiver.layout).encode()) for receiver in receivers}
    for module in modules:
        module_weights = np.ascontiguousarray(weights.of_module(module))
        for receiver in receivers:
            hashes[receiver.client].update(module_weights[rows[receiver.client]])
    groups: dict[bytes, list[Receiver]] = {}
    for receiver in receivers:
        groups.setdefault(hashes[receiver.client].digest(), []).append(receiver)
    return list(groups.values())


def _bytes_of(row: Values) -> memoryview:
    return row.astype("<f4", copy=False).data.cast("B")
