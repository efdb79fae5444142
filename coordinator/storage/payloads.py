"""Content-addressed bytes in chunk rows: written once, read in pieces (`garbage_collection` deletes them).

Refuses to know what the bytes are. There are two ways in: `store` puts known bytes down inside the caller's
transaction; a `Staged` payload grows over many short transactions, has no digest until it is adopted, and is
collected when it never is.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.db.clock import clock
from coordinator.db.engine import Database, driver_of, now, run
from coordinator.db.tables.federations import PayloadRow
from coordinator.errors import Unavailable
from schemas.wire.digests import digest_from_hash, digest_of

# A block of an aggregation is a small part of each payload, and SQLite follows a chunk from its beginning:
# of the largest chunks it would read several times what is wanted.
_WRITTEN_BYTES = 2**18

SENT_BYTES = 2**17
"""What is read of a payload at a time for one who takes it slowly, and so what he keeps in memory."""

_COLLECTED = "what was being written was taken for old, as the clock was set; try again"
_WITH_DIGEST = select(PayloadRow.id).where(PayloadRow.digest == bindparam("digest"))
_AMONG = select(PayloadRow.digest).where(PayloadRow.digest.in_(bindparam("digests", expanding=True)))
_FINISHED = (
    update(PayloadRow)
    .where(PayloadRow.id == bindparam("payload"))
    .values(digest=bindparam("digest"), bytes=bindparam("size"))
)
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
    """A payload in the making: `append` in short transactions, `adopt` in the one that refers to it.

    What is appended may be looked at before it is written, in the same order, by whoever has time then.
    """

    payload_id: int
    size: int = 0
    _seen: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """The digest of what was looked at so far."""
        return digest_from_hash(self._seen.hexdigest())

    def append(self, session: Session, content: bytes | memoryview) -> None:
        """Look at further bytes and write them."""
        self.look_at(content)
        self.write(session, content)

    def look_at(self, content: bytes | memoryview) -> None:
        """Hash further bytes."""
        self._seen.update(content)

    def write(self, session: Session, content: bytes | memoryview) -> None:
        """Write further bytes that are looked at before the payload is adopted.

        Raises:
            Unavailable: the payload was collected, as old by a clock that was set meanwhile.
        """
        try:
            _append(session, self.payload_id, self.size, [content])
        except session.get_bind().dialect.loaded_dbapi.IntegrityError as error:
            raise Unavailable(_COLLECTED) from error
        self.size += len(content)

    def adopt(self, session: Session) -> int:
        """Finish: give the id of the payload with these bytes, this one or an older equal one.

        Raises:
            Unavailable: the payload was collected, as old by a clock that was set meanwhile.
        """
        older = run(session, _SHARED, {"digest": self.digest}).scalar()
        if older is None:
            try:
                with session.begin_nested():
                    values = {"payload": self.payload_id, "digest": self.digest, "size": self.size}
                    if not run(session, _FINISHED, values).rowcount:
                        raise Unavailable(_COLLECTED)
            except IntegrityError:  # somebody else finished the same bytes meanwhile
                older = run(session, _WITH_DIGEST, {"digest": self.digest}).scalar_one()
        if older is None:
            return self.payload_id
        session.execute(delete(PayloadRow).where(PayloadRow.id == self.payload_id))
        return older


def adopt_all(session: Session, staged: Iterable[Staged]) -> dict[int, int]:
    """Finish payloads in few statements; give by id of each what its `adopt` gives."""
    waiting = {one.payload_id: one for one in staged}
    digests = {one.digest for one in waiting.values()}
    older = set(run(session, _AMONG, {"digests": [*digests]}).scalars())
    new = [one for one in waiting.values() if one.digest not in older]
    try:
        with session.begin_nested():
            rows = [
                {"payload": one.payload_id, "digest": one.digest, "size": one.size}
                for one in sorted(
                    new, key=lambda one: one.digest
                )  # two that do this wait for each other once
            ]
            if rows:
                run(session, _FINISHED, rows)
    except IntegrityError:  # two of them are equal, or somebody else finished the same bytes meanwhile
        new = []
    finished = {one.payload_id for one in new}
    return {key: key if key in finished else one.adopt(session) for key, one in waiting.items()}


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
