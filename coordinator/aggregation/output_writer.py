"""Bodies in the making: staged payloads that receivers of equal values share, each with a head of its own.

Hashing and writing need no product and take about as long: both are done while the next values are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Protocol, Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.aggregation.state_reader import Values, portions
from coordinator.db.engine import Database
from coordinator.http.downloads import Stored
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import MEDIA_TYPE

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who gets weights: its layout, and the beginning of the body they are put in."""

    client: str
    layout: Layout
    head: bytes


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """A new body: `head`, then what `staged` has from `begin` on; digest and size are the whole body's."""

    head: bytes
    staged: Staged
    begin: int
    digest: str
    size: int

    def adopted(self, payload_id: int) -> Stored:
        """Say where the body is once what was staged is the payload `payload_id`."""
        return Stored(payload_id, self.digest, self.size, MEDIA_TYPE, head=self.head, begin=self.begin)


class Written(Protocol):
    """Something that is staged."""

    @property
    def staged(self) -> Staged:
        """What was written so far."""


def discard(database: Database, made: Iterable[Written]) -> None:
    """Forget bodies that will not be given to anybody.

    A database that fails now is no error: there is often another one on its way, and what stays is collected.
    """
    staged = {one.staged.payload_id: one.staged for one in made}
    try:
        payloads.discard(database, staged.values())
    except SQLAlchemyError as error:
        log.warning("discarding-failed", bodies=len(staged), error=type(error).__name__)


class Body:
    """What receivers of equal values get: one payload, beginning with the first one's head."""

    def __init__(self, staged: Staged, receivers: Sequence[Receiver]) -> None:
        self.receivers = receivers
        self._staged = staged
        self._seen = [sha256(one.head) for one in receivers[1:]]

    def look_at(self, values: memoryview) -> None:
        """Hash values, for each receiver behind its own head."""
        self._staged.update_digest(values)
        for seen in self._seen:
            seen.update(values)

    def write(self, session: Session, values: memoryview) -> None:
        """Write values that were looked at."""
        self._staged.write(session, values)

    def made(self) -> dict[str, StagedOutput]:
        """Give what each receiver gets."""
        first, begin = self.receivers[0], len(self.receivers[0].head)
        made = {
            first.client: StagedOutput(
                first.head, self._staged, begin, self._staged.digest, self._staged.size
            )
        }
        for one, seen in zip(self.receivers[1:], self._seen, strict=True):
            size = len(one.head) + self._staged.size - begin
            made[one.client] = StagedOutput(
                one.head, self._staged, begin, digest_from_hash(seen.hexdigest()), size
            )
        return made


Product = tuple[Sequence[Body], Values]
"""Rows of values (bodies, block), a row for each body."""


def begin(database: Database, groups: Sequence[Sequence[Receiver]]) -> list[Body]:
    """Stage a body for each group of receivers of equal values, with the first one's head."""
    bodies = []
    with database.write() as session:
        for receivers in groups:
            staged = payloads.stage(session)
            staged.append(session, receivers[0].head)
            bodies.append(Body(staged, receivers))
    return bodies


def append(database: Database, bodies: Sequence[Body], values: Values) -> None:
    """Hash and write a row of values (bodies, block) to each body."""
    look_at(bodies, values)
    write(database, [(bodies, values)])


def look_at(bodies: Sequence[Body], values: Values) -> None:
    """Hash a row of values (bodies, block) for each body."""
    for body, row in zip(bodies, values, strict=True):
        body.look_at(_bytes_of(row))


def write(database: Database, products: Iterable[Product]) -> None:
    """Write rows of values that were looked at to their bodies, in transactions that are short."""
    rows = [pair for bodies, values in products for pair in zip(bodies, values, strict=True)]
    longest = max((row.nbytes for _, row in rows), default=0)
    for some in portions(rows, longest):
        with database.write() as session:
            for body, row in some:
                body.write(session, _bytes_of(row))
        may_crash("block-staged")


class Writer:
    """Hashes and writes products in a thread of its own, in the order in which they are given.

    Reading waits for nobody's writing, where a database shuts readers out meanwhile (SQLite's rollback
    journal): whoever reads what is multiplied next says `flush` behind it, and `wait` before it reads again.

    Args:
        batch_bytes: how much is held back until it is worth a transaction, which costs as much however
            little is in it.
    """

    def __init__(self, database: Database, *, batch_bytes: int) -> None:
        self._database = database
        self._batch_bytes = batch_bytes
        self._thread = ThreadPoolExecutor(1, "aggregation-writer")
        self._held: list[Product] = []
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
        """Give away the memory of values that were taken and are written, if there is any."""
        spare, self._spare = self._spare, None
        return spare

    def take(self, bodies: Sequence[Body], values: Values) -> None:
        """Take values (bodies, block), which nobody changes from now on; hashing them begins."""
        self._held.append((bodies, values))
        self._under_way.append(self._thread.submit(look_at, bodies, values))

    def flush(self, *, at_least: int | None = None) -> None:
        """Begin to write what is held, unless it is less than this many bytes; a batch's by default."""
        enough = self._batch_bytes if at_least is None else at_least
        if sum(values.nbytes for _, values in self._held) >= enough:
            self._under_way.append(self._thread.submit(write, self._database, self._held))
            self._written += [values for _, values in self._held]
            self._held = []

    def wait(self) -> None:
        """Wait until everything that was begun is done; raises what went wrong."""
        under_way, self._under_way = self._under_way, []
        for one in under_way:
            one.result()
        self._spare = max(self._written, key=lambda values: values.size, default=None)
        self._written = []


def _bytes_of(row: Values) -> memoryview:
    return row.astype("<f4", copy=False).data.cast("B")
