"""Store content-addressed bytes in chunk rows, and read them there or in the object store that has them now.

`store` writes known bytes in the caller's transaction. A `StagedPayload` grows over many short transactions,
and gets its digest when it is adopted.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.db.clock import clock
from coordinator.db.engine import Database, database_time, driver_of, run
from coordinator.db.tables.federations import PayloadRow
from coordinator.errors import Unavailable
from coordinator.storage import object_store
from schemas.wire.digests import digest_from_hash, digest_of

# A block of an aggregation is a small part of each payload, and SQLite scans a chunk from its start:
# with the largest chunks it would read several times the requested bytes.
_WRITTEN_BYTES = 2**18

SENT_BYTES = 2**17
"""Bytes read at a time for a slow reader, and so its share of memory."""

_COLLECTED = "the payload was deleted as old, since the database's clock was set; retry"
_WITH_DIGEST = select(PayloadRow.id).where(PayloadRow.digest == bindparam("digest"))
_AMONG = select(PayloadRow.digest).where(PayloadRow.digest.in_(bindparam("digests", expanding=True)))
_FINISHED = (
    update(PayloadRow)
    .where(PayloadRow.id == bindparam("payload"))
    .values(digest=bindparam("digest"), bytes=bindparam("size"))
)
_SHARED = _WITH_DIGEST.with_for_update(read=True, key_share=True)
# SQLite's clock has another format than its stored times; reading it is a function call, not a round trip.
_NEW = {
    kind: start.on_conflict_do_nothing(index_elements=["digest"]).returning(PayloadRow.id)
    for kind, start in (
        ("sqlite", sqlite.insert(PayloadRow)),
        ("postgresql", postgresql.insert(PayloadRow).values(created_at=clock())),
    )
}
_PUT_ON_SQLITE = "INSERT INTO payload_chunks (payload_id, begin, data) VALUES (?, ?, ?)"
_PUT_ON_POSTGRES = "INSERT INTO payload_chunks (payload_id, begin, data) VALUES (%s, %s, %b)"
_PLACED_ON_SQLITE = "SELECT place, bytes, substr(piece_digests, ?, ?) FROM payloads WHERE id = ?"
_PLACED_ON_POSTGRES = """
    SELECT place, bytes, substr(piece_digests, %s::integer, %s::integer) FROM payloads WHERE id = %s
"""
_ReadObject = Callable[[object_store.CheckedObject, int, int], Iterator[bytes]]
_CUT = f"""
    SELECT begin, substr(data, (greatest(%(begin)s - begin, 0) + 1)::integer, %(size)s::integer)
    FROM payload_chunks
    WHERE payload_id = %(payload)s AND begin < %(end)s AND begin > %(begin)s - {CHUNK_BYTES}
    ORDER BY begin
"""


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file from its beginning, in pieces of the write size."""
    file.seek(0)
    while piece := file.read(_WRITTEN_BYTES):
        yield piece


def store(session: Session, digest: str, size: int, content: Iterable[bytes]) -> int:
    """Store `size` bytes with a known digest unless they exist; return the payload's id.

    The caller must add a reference in the same transaction.
    """
    while True:
        created = _insert(session, digest, size)
        if created is not None:
            append(session, created, 0, content)
            return created
        # Locked against collection until the reference exists; absent if the collector was first.
        existing = run(session, _SHARED, {"digest": digest}).scalar()
        if existing is not None:
            return existing


def read(session: Session, payload_id: int, begin: int, end: int) -> bytes:
    return _read(driver_of(session), payload_id, begin, end)


def read_into(driver: Any, payload_id: int, begin: int, target: memoryview) -> None:
    """Fill `target` with the bytes from `begin` on, over the driver's connection, or from the object store.

    Raises:
        LookupError: the payload is shorter.
    """
    position = 0
    for part in _parts(driver, payload_id, begin, begin + len(target), object_store.ranged):
        target[position : position + len(part)] = part
        position += len(part)
    if position != len(target):
        raise LookupError(f"payload {payload_id} has no bytes {begin} to {begin + len(target)}")


def stream(database: Database, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield a range in pieces, each read in a transaction of its own: none is open while bytes travel."""
    for position in range(begin, end, SENT_BYTES):
        yield read_alone(database, payload_id, position, min(end, position + SENT_BYTES))


def read_alone(database: Database, payload_id: int, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to `end` in a transaction of their own.

    Raises:
        LookupError: the payload is shorter.
    """
    with database.driver_connection() as driver:
        return _read(driver, payload_id, begin, end)


@dataclass(slots=True)
class StagedPayload:
    """An unfinished payload: `append` in short transactions, `adopt` in the transaction that refers to it.

    Bytes may be hashed before they are written, in the same order.
    """

    payload_id: int
    size: int = 0
    _hasher: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        return digest_from_hash(self._hasher.hexdigest())

    def append(self, session: Session, content: bytes | memoryview) -> None:
        self.update_digest(content)
        self.write(session, content)

    def update_digest(self, content: bytes | memoryview) -> None:
        self._hasher.update(content)

    def write(self, session: Session, content: bytes | memoryview) -> None:
        """Write bytes that were or will be hashed before the payload is adopted.

        Raises:
            Unavailable: the payload was collected, since the clock was set meanwhile.
        """
        try:
            append(session, self.payload_id, self.size, [content])
        except session.get_bind().dialect.loaded_dbapi.IntegrityError as error:
            raise Unavailable(_COLLECTED) from error
        self.size += len(content)

    def adopt(self, session: Session) -> int:
        """Finish the payload; return its id, or that of an older payload with the same bytes.

        Raises:
            Unavailable: the payload was collected, since the clock was set meanwhile.
        """
        older = run(session, _SHARED, {"digest": self.digest}).scalar()
        if older is None:
            try:
                with session.begin_nested():
                    values = {"payload": self.payload_id, "digest": self.digest, "size": self.size}
                    if not run(session, _FINISHED, values).rowcount:
                        raise Unavailable(_COLLECTED)
            except IntegrityError:  # another transaction finished the same bytes meanwhile
                older = run(session, _WITH_DIGEST, {"digest": self.digest}).scalar_one()
        if older is None:
            return self.payload_id
        session.execute(delete(PayloadRow).where(PayloadRow.id == self.payload_id))
        return older


def adopt_all(session: Session, staged: Iterable[StagedPayload]) -> dict[int, int]:
    """Finish payloads in few statements; return by id what `adopt` returns."""
    payloads_by_id = {payload.payload_id: payload for payload in staged}
    digests = {payload.digest for payload in payloads_by_id.values()}
    older = set(run(session, _AMONG, {"digests": [*digests]}).scalars())
    new = [payload for payload in payloads_by_id.values() if payload.digest not in older]
    try:
        with session.begin_nested():
            rows = [
                {"payload": payload.payload_id, "digest": payload.digest, "size": payload.size}
                for payload in sorted(new, key=lambda payload: payload.digest)  # one order avoids deadlocks
            ]
            if rows:
                run(session, _FINISHED, rows)
    except IntegrityError:  # two of them are equal, or another transaction finished the same bytes meanwhile
        new = []
    finished = {payload.payload_id for payload in new}
    return {
        key: key if key in finished else payload.adopt(session) for key, payload in payloads_by_id.items()
    }


def stage(session: Session) -> StagedPayload:
    row = PayloadRow(digest=None, bytes=0, created_at=database_time(session))
    session.add(row)
    session.flush()
    return StagedPayload(row.id)


def discard(database: Database, staged: Iterable[StagedPayload]) -> None:
    """Delete unfinished payloads, each in a transaction of its own, so that writers are not blocked."""
    for payload in staged:
        with database.write() as session:
            session.execute(
                delete(PayloadRow).where(PayloadRow.id == payload.payload_id, PayloadRow.digest.is_(None))
            )


def start_grace(session: Session, *payload_ids: int) -> None:
    session.execute(
        update(PayloadRow)
        .where(PayloadRow.id.in_(payload_ids))
        # The age of an unreferenced payload counts from now on.
        .values(created_at=database_time(session))
        .execution_options(synchronize_session=False)
    )


def store_bytes(session: Session, body: bytes) -> tuple[int, str]:
    digest = digest_of(body)
    return store(session, digest, len(body), [body]), digest


def _insert(session: Session, digest: str, size: int) -> int | None:
    kind, values = session.get_bind().dialect.name, {"digest": digest, "bytes": size}
    if kind == "sqlite":
        values["created_at"] = database_time(session)
    return run(session, _NEW[kind], values).scalar()


def _read(driver: Any, payload_id: int, begin: int, end: int) -> bytes:
    content = b"".join(_parts(driver, payload_id, begin, end, object_store.read_ahead))
    if len(content) != end - begin:
        raise LookupError(f"payload {payload_id} has no bytes {begin} to {end}")
    return content


def _parts(driver: Any, payload_id: int, begin: int, end: int, read_object: _ReadObject) -> Iterator[bytes]:
    """Yield a range from rows, or from the object store if the payload has none there."""
    is_sqlite = isinstance(driver, sqlite3.Connection)
    # The rows first: nearly all reads are of payloads that are not moved.
    is_in_rows = False
    for part in (_parts_on_sqlite if is_sqlite else _parts_on_postgres)(driver, payload_id, begin, end):
        is_in_rows = True
        yield part
    if not is_in_rows and begin < end:
        first, count = _pieces_read(begin, end)
        digest_bytes = object_store.PIECE_DIGEST_BYTES
        row = driver.execute(
            _PLACED_ON_SQLITE if is_sqlite else _PLACED_ON_POSTGRES,
            (first * digest_bytes + 1, count * digest_bytes, payload_id),
        ).fetchone()
        if row is not None and row[0] is not None:
            place, size, digests = row
            stored = object_store.CheckedObject(place, size, bytes(digests), first)
            yield from read_object(stored, begin, min(size, end))


def _pieces_read(begin: int, end: int) -> tuple[int, int]:
    """Return the number of the first piece, and the number of pieces, of the blocks that have a range."""
    pieces_per_block = object_store.BLOCK_BYTES // object_store.PIECE_BYTES
    first = begin // object_store.BLOCK_BYTES
    last = -(-end // object_store.BLOCK_BYTES)
    return first * pieces_per_block, (last - first) * pieces_per_block


def _parts_on_postgres(driver: Any, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield the requested part of each chunk, cut by PostgreSQL and sent in binary format."""
    parameters = {"payload": payload_id, "begin": begin, "end": end, "size": end - begin}
    with driver.cursor(binary=True) as cursor:
        for start, data in cursor.execute(_CUT, parameters):
            yield data[: end - max(begin, start)]


def _parts_on_sqlite(driver: sqlite3.Connection, payload_id: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield the requested part of each chunk through blob handles: SQL would copy whole chunks."""
    chunks = driver.execute(
        "SELECT rowid, begin FROM payload_chunks"
        " WHERE payload_id = ? AND begin < ? AND begin > ? ORDER BY begin",
        (payload_id, end, begin - CHUNK_BYTES),
    ).fetchall()
    for place, (row, start) in enumerate(chunks):
        # The query allows for the longest chunks. A handle costs as much as reading 64 KiB through it.
        if place + 1 < len(chunks) and chunks[place + 1][1] <= begin:
            continue
        with driver.blobopen("payload_chunks", "data", row, readonly=True) as data:
            first, last = max(begin - start, 0), min(end - start, len(data))
            if first < last:
                data.seek(first)
                yield data.read(last - first)


def append(session: Session, payload_id: int, begin: int, content: Iterable[bytes | memoryview]) -> None:
    """Write rows of a payload from byte `begin` on."""
    driver = driver_of(session)
    put = _PUT_ON_SQLITE if isinstance(driver, sqlite3.Connection) else _PUT_ON_POSTGRES
    for piece in content:
        view = memoryview(piece)
        for offset in range(0, len(view), _WRITTEN_BYTES):
            driver.execute(put, (payload_id, begin + offset, view[offset : offset + _WRITTEN_BYTES]))
        begin += len(view)
