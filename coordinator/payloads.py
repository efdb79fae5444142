"""Content-addressed bytes in chunk rows: written once, read in pieces, collected when nobody refers to them.

Refuses to know what the bytes are. There are two ways in: `store` puts known bytes down inside the caller's
transaction; a `Staged` payload grows over many short transactions, has no digest until it is adopted, and is
collected when it never is.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, BinaryIO

from sqlalchemy import bindparam, delete, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from coordinator.alignment_tables import AnchorsRow, PackRow
from coordinator.crash import may_crash
from coordinator.database import Database, driver_of, now, run
from coordinator.tables import (
    CHUNK_BYTES,
    FoldRow,
    PayloadRow,
    RoundRow,
    UpdateRow,
    WeightsRow,
)
from coordinator.times import clock
from coordinator.weights_tables import CodedWeightsRow
from schemas.wire.digests import digest_from_hash, digest_of

_COLLECTED_AT_ONCE = 200
GRACE = timedelta(hours=1)
"""How long a payload that nobody refers to is left alone: it may be in the making."""

# A block of an aggregation is a small part of each payload, and SQLite follows a chunk from its beginning:
# of the largest chunks it would read several times what is wanted.
_WRITTEN_BYTES = 2**18

SENT_BYTES = 2**17
"""What is read of a payload at a time for one who takes it slowly, and so what he keeps in memory."""

_REFERENCES = (
    UpdateRow.payload_id,
    UpdateRow.state_payload_id,
    WeightsRow.payload_id,
    CodedWeightsRow.payload_id,
    FoldRow.payload_id,
    AnchorsRow.payload_id,
    PackRow.payload_id,
)
# What is being written may be a running aggregation's, however long that takes.
_IN_THE_MAKING = PayloadRow.digest.is_(None) & exists().where(RoundRow.state == "aggregating")
_UNREFERENCED = select(PayloadRow.id).where(
    ~or_(*(exists().where(column == PayloadRow.id) for column in _REFERENCES)), ~_IN_THE_MAKING
)
_WITH_DIGEST = select(PayloadRow.id).where(PayloadRow.digest == bindparam("digest"))
_SHARED = _WITH_DIGEST.with_for_update(read=True, key_share=True)
# SQLite's clock has another form than the times it keeps; asking for it is a function call, not a round trip.
_NEW = {
    kind: start.on_conflict_do_nothing(index_elements=["digest"]).returning(PayloadRow.id)
    for kind, start in (
        ("sqlite", sqlite.insert(PayloadRow)),
        ("postgresql", postgresql.insert(PayloadRow).values(created_at=clock())),
    )
}
_PUT_ON_SQLITE = "INSERT INTO payload_chunks (payload_id, begin, data) VALUES (?, ?, ?)"
_PUT_ON_POSTGRES = "INSERT INTO payload_chunks (payload_id, begin, data) VALUES (%s, %s, %b)"
_CUT = f"""
    SELECT begin, substr(data, (greatest(%(begin)s - begin, 0) + 1)::integer, %(size)s::integer)
    FROM payload_chunks
    WHERE payload_id = %(payload)s AND begin < %(end)s AND begin > %(begin)s - {CHUNK_BYTES}
    ORDER BY begin
"""


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Read a file from its beginning, as much at a time as is written."""
    file.seek(0)
    while piece := file.read(_WRITTEN_BYTES):
        yield piece


def store(session: Session, digest: str, size: int, content: Iterable[bytes]) -> int:
    """Put down `size` bytes whose digest is known, unless they are there already; give the payload's id.

    Whoever refers to it must do so in the same transaction.
    """
    while True:
        created = _insert(session, digest, size)
        if created is not None:
            _append(session, created, 0, content)
            return created
        # Locked against collection until the reference is there; gone again if the collector was first.
        there = run(session, _SHARED, {"digest": digest}).scalar()
        if there is not None:
            return there


def read(session: Session, payload_id: int, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to `end`; a short range does not fetch whole chunks.

    Raises:
        LookupError: the payload does not reach that far.
    """
    return _read(driver_of(session), payload_id, begin, end)


def read_into(driver: Any, payload_id: int, begin: int, target: memoryview) -> None:
    """Fill `target` with the bytes from `begin` on, over the driver's connection.

    Raises:
        LookupError: the payload does not reach that far.
    """
    at = 0
    for part in _parts(driver, payload_id, begin, begin + len(target)):
        target[at : at + len(part)] = part
        at += len(part)
    if at != len(target):
        raise LookupError(f"payload {payload_id} has no bytes {begin} to {begin + len(target)}")


def stream(database: Database, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Read a range piece by piece, each in a transaction of its own: none is open while bytes travel."""
    for at in range(begin, end, SENT_BYTES):
        yield read_alone(database, payload_id, at, min(end, at + SENT_BYTES))


def read_alone(database: Database, payload_id: int, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to `end` in a transaction of their own.

    Raises:
        LookupError: the payload does not reach that far.
    """
    with database.read_past_sessions() as driver:
        return _read(driver, payload_id, begin, end)


@dataclass(slots=True)
class Staged:
    """A payload in the making: `append` in short transactions, `adopt` in the one that refers to it."""

    payload_id: int
    size: int = 0
    _seen: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """The digest of what was written so far."""
        return digest_from_hash(self._seen.hexdigest())

    def append(self, session: Session, content: bytes | memoryview) -> None:
        """Write further bytes."""
        _append(session, self.payload_id, self.size, [content])
        self._seen.update(content)
        self.size += len(content)

    def adopt(self, session: Session) -> int:
        """Finish: give the id of the payload with these bytes, this one or an older equal one."""
        older = run(session, _SHARED, {"digest": self.digest}).scalar()
        if older is None:
            try:
                with session.begin_nested():
                    session.execute(
                        update(PayloadRow)
                        .where(PayloadRow.id == self.payload_id)
                        .values(digest=self.digest, bytes=self.size)
                    )
            except IntegrityError:  # somebody else finished the same bytes meanwhile
                older = run(session, _WITH_DIGEST, {"digest": self.digest}).scalar_one()
        if older is None:
            return self.payload_id
        session.execute(delete(PayloadRow).where(PayloadRow.id == self.payload_id))
        return older


def stage(session: Session) -> Staged:
    """Begin a payload whose bytes are not known yet."""
    row = PayloadRow(digest=None, bytes=0, created_at=now(session))
    session.add(row)
    session.flush()
    return Staged(row.id)


def discard(database: Database, staged: Iterable[Staged]) -> None:
    """Forget payloads that will not be finished, each in a transaction of its own: others write between."""
    for one in staged:
        with database.write() as session:
            session.execute(
                delete(PayloadRow).where(PayloadRow.id == one.payload_id, PayloadRow.digest.is_(None))
            )


def let_go(session: Session, *payload_ids: int) -> None:
    """Say that references go: who is reading has a grace from now on, however old a payload is."""
    session.execute(
        update(PayloadRow)
        .where(PayloadRow.id.in_(payload_ids))
        .values(created_at=now(session))
        .execution_options(synchronize_session=False)
    )


def collect(database: Database, *, grace: timedelta = GRACE) -> int:
    """Delete some payloads that nobody refers to and that are older than `grace`; give their number.

    When that is 0 there are no more. Those in the making stay while any round is being aggregated.
    """
    with database.read() as session:
        old = _UNREFERENCED.where(PayloadRow.created_at < now(session) - grace)
        candidates = list(session.scalars(old.limit(_COLLECTED_AT_ONCE)))
    collected = 0
    for payload_id in candidates:
        with database.write() as session:
            # The lock waits for who is about to refer to it, and the second look then sees the reference.
            session.scalar(select(PayloadRow.id).where(PayloadRow.id == payload_id).with_for_update())
            if session.scalar(_UNREFERENCED.where(PayloadRow.id == payload_id)) is not None:
                session.execute(delete(PayloadRow).where(PayloadRow.id == payload_id))
                collected += 1
                may_crash("collection-deleted")
    return collected


def store_bytes(session: Session, body: bytes) -> tuple[int, str]:
    """Put down bytes that are in memory; give the payload's id and digest."""
    digest = digest_of(body)
    return store(session, digest, len(body), [body]), digest


def _insert(session: Session, digest: str, size: int) -> int | None:
    kind, values = session.get_bind().dialect.name, {"digest": digest, "bytes": size}
    if kind == "sqlite":
        values["created_at"] = now(session)
    return run(session, _NEW[kind], values).scalar()


def _read(driver: Any, payload_id: int, begin: int, end: int) -> bytes:
    found = b"".join(_parts(driver, payload_id, begin, end))
    if len(found) != end - begin:
        raise LookupError(f"payload {payload_id} has no bytes {begin} to {end}")
    return found


def _parts(driver: Any, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    parts = _parts_on_sqlite if isinstance(driver, sqlite3.Connection) else _parts_on_postgres
    return parts(driver, payload_id, begin, end)


def _parts_on_postgres(driver: Any, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Cut what is wanted out of each chunk; PostgreSQL fetches no more, and sends bytes, not their text."""
    wanted = {"payload": payload_id, "begin": begin, "end": end, "size": end - begin}
    with driver.cursor(binary=True) as cursor:
        for start, data in cursor.execute(_CUT, wanted):
            yield data[: end - max(begin, start)]


def _parts_on_sqlite(driver: sqlite3.Connection, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Do the same through handles on blobs: SQLite's SQL reads and copies whole chunks, whatever is cut."""
    chunks = driver.execute(
        "SELECT rowid, begin FROM payload_chunks"
        " WHERE payload_id = ? AND begin < ? AND begin > ? ORDER BY begin",
        (payload_id, end, begin - CHUNK_BYTES),
    ).fetchall()
    for row, start in chunks:
        with driver.blobopen("payload_chunks", "data", row, readonly=True) as data:
            first, last = max(begin - start, 0), min(end - start, len(data))
            if first < last:
                data.seek(first)
                yield data.read(last - first)


def _append(session: Session, payload_id: int, begin: int, content: Iterable[bytes | memoryview]) -> None:
    driver = driver_of(session)
    put = _PUT_ON_SQLITE if isinstance(driver, sqlite3.Connection) else _PUT_ON_POSTGRES
    for piece in content:
        view = memoryview(piece)
        for at in range(0, len(view), _WRITTEN_BYTES):
            driver.execute(put, (payload_id, begin + at, view[at : at + _WRITTEN_BYTES]))
        begin += len(view)
