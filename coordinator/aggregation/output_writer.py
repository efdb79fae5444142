"""Stage new weights: receivers of equal values share one payload, each with a head of its own.

A thread hashes and writes while the next values are computed; both take about as long as the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.aggregation.state_reader import Values, portions
from coordinator.db.engine import Database
from coordinator.http.downloads import Stored
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from coordinator.strategies.base import Weights, modules_of
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import MEDIA_TYPE

BATCH_BYTES: Final = 8 * 2**20
"""Bytes that are worth a transaction: a deep model has thousands of modules."""

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A client that is served new weights: its layout, and the beginning of their body."""

    client: str
    layout: Layout
    head: bytes


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """A new body: `head`, then `staged` from `begin` on; digest and size are those of the whole body."""

    head: bytes
    staged: Staged
    begin: int
    digest: str
    size: int

    def adopted(self, payload_id: int) -> Stored:
        return Stored(payload_id, self.digest, self.size, MEDIA_TYPE, head=self.head, begin=self.begin)


class Written(Protocol):
    """An object with a staged payload."""

    @property
    def staged(self) -> Staged: ...


def discard(database: Database, outputs: Iterable[Written]) -> None:
    """Delete staged payloads that will not be published.

    A failing database is only logged: often another error is being raised, and garbage collection deletes
    the payloads later.
    """
    staged = {output.staged.payload_id: output.staged for output in outputs}
    try:
        payloads.discard(database, staged.values())
    except SQLAlchemyError as error:
        log.warning("discarding-failed", bodies=len(staged), error=type(error).__name__)


@contextmanager
def replacing(
    database: Database,
    before: Mapping[str, StagedOutput],
    after: Mapping[str, StagedOutput],
    beside: Collection[Written],
) -> Iterator[None]:
    """Discard bodies `before` a step that are not `after` it; if it raises, both, and all `beside` them."""
    try:
        yield
    except BaseException:
        discard(database, [*before.values(), *after.values(), *beside])
        raise
    in_use = {body.staged.payload_id for body in after.values()}
    discard(database, [body for body in before.values() if body.staged.payload_id not in in_use])


class StagedBody:
    """One payload for receivers of equal values; it begins with the first one's head."""

    def __init__(self, staged: Staged, receivers: Sequence[Receiver]) -> None:
        self.receivers = receivers
        self._staged = staged
        self._hashes = [sha256(receiver.head) for receiver in receivers[1:]]

    def update_digest(self, values: memoryview) -> None:
        """Hash values for each receiver, behind its own head."""
        self._staged.update_digest(values)
        for running in self._hashes:
            running.update(values)

    def write(self, session: Session, values: memoryview) -> None:
        self._staged.write(session, values)

    def outputs(self) -> dict[str, StagedOutput]:
        first, begin = self.receivers[0], len(self.receivers[0].head)
        bodies = {
            first.client: StagedOutput(
                first.head, self._staged, begin, self._staged.digest, self._staged.size
            )
        }
        for receiver, running in zip(self.receivers[1:], self._hashes, strict=True):
            size = len(receiver.head) + self._staged.size - begin
            digest = digest_from_hash(running.hexdigest())
            bodies[receiver.client] = StagedOutput(receiver.head, self._staged, begin, digest, size)
        return bodies


Product = tuple[Sequence[StagedBody], Values]
"""Rows of values (bodies, block), a row for each body."""


def begin(database: Database, weights: Weights, receivers: Sequence[Receiver]) -> list[StagedBody]:
    bodies = []
    with database.write() as session:
        for equal in _groups(weights, receivers):
            staged = payloads.stage(session)
            staged.append(session, equal[0].head)
            bodies.append(StagedBody(staged, equal))
    return bodies


def outputs(bodies: Iterable[StagedBody]) -> dict[str, StagedOutput]:
    return {client: output for body in bodies for client, output in body.outputs().items()}


def hash_rows(bodies: Sequence[StagedBody], values: Values) -> None:
    for body, row in zip(bodies, values, strict=True):
        body.update_digest(_bytes_of(row))


def write(database: Database, products: Iterable[Product]) -> None:
    rows = [pair for bodies, values in products for pair in zip(bodies, values, strict=True)]
    longest = max((row.nbytes for _, row in rows), default=0)
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
        self._thread = ThreadPoolExecutor(1, "aggregation-writer")
        self._buffered: list[Product] = []
        self._under_way: list[Future[None]] = []
        self._written: list[Values] = []
        self._spare: Values | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)

    def spare(self) -> Values | None:
        spare, self._spare = self._spare, None
        return spare

    def submit(self, bodies: Sequence[StagedBody], values: Values) -> None:
        """Accept values (bodies, block), which must not change from now on, and start hashing them."""
        self._buffered.append((bodies, values))
        self._under_way.append(self._thread.submit(hash_rows, bodies, values))

    def flush(self, *, at_least: int | None = None) -> None:
        """Start writing the buffered values, unless they are fewer bytes than this; a batch by default."""
        threshold = self._batch_bytes if at_least is None else at_least
        if sum(values.nbytes for _, values in self._buffered) >= threshold:
            self._under_way.append(self._thread.submit(write, self._database, self._buffered))
            self._written += [values for _, values in self._buffered]
            self._buffered = []

    def wait(self) -> None:
        """Wait until everything submitted is done; raise the error of whatever failed."""
        under_way, self._under_way = self._under_way, []
        for future in under_way:
            future.result()
        self._spare = max(self._written, key=lambda values: values.size, default=None)
        self._written = []


def _groups(weights: Weights, receivers: Sequence[Receiver]) -> list[list[Receiver]]:
    """Group receivers whose rows of G are equal: same layout, same weights in every module of it."""
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    modules = sorted({module for receiver in receivers for module in modules_of(receiver.layout)})
    hashes = {receiver.client: sha256(repr(receiver.layout).encode()) for receiver in receivers}
    for module in modules:
        of_module = np.ascontiguousarray(weights.of_module(module))
        for receiver in receivers:
            hashes[receiver.client].update(of_module[rows[receiver.client]])
    groups: dict[bytes, list[Receiver]] = {}
    for receiver in receivers:
        groups.setdefault(hashes[receiver.client].digest(), []).append(receiver)
    return list(groups.values())


def _bytes_of(row: Values) -> memoryview:
    return row.astype("<f4", copy=False).data.cast("B")
