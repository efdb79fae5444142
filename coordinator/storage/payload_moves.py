"""Move payloads between rows and an object store, and delete objects that no payload has.

A payload is moved by copying: the object is written and read back, then one transaction sets the place and
deletes the rows. Killed in between, only an object without a payload is left, which `sweep` deletes.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.sql.dml import Update

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ChunkRow, PayloadRow
from coordinator.db.tables.identity import ServerIdentityRow
from coordinator.errors import Unavailable
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.observability.metrics import Metrics
from coordinator.storage import object_store, payloads, payloads_in_use
from coordinator.storage.garbage_collection import GRACE
from coordinator.storage.ownership import NotOwner, Ownership
from schemas.identity.keys import thumbprint
from schemas.wire.digests import digest_from_hash

PASS_SECONDS = 60.0
"""Interval of passes."""

_SWEEP_EVERY_SECONDS = 3600.0
_AWAY = "the payload store does not answer, so older tensors cannot be read; the log has the reason"
log = logger(__name__)

ROWS = "rows"
SMALLEST = 2**20
"""Bytes below which a payload stays in rows: a request would take longer than the bytes."""

SETTLED = timedelta(minutes=10)
"""Age at which a coordinator moves a payload by itself, unless a round still reads it (`payloads_in_use`)."""

_UNUSED = GRACE + timedelta(hours=1)
_BATCH = 100
_PIECE = 2**20


@dataclass(frozen=True, slots=True)
class _MovablePayload:
    """A payload to move."""

    id: int
    digest: str
    size: int
    place: str | None


def home(database: Database, url: str) -> str:
    """Return the folder of this database's objects in a store; two databases may share a store."""
    with database.read() as session:
        key = session.scalars(select(ServerIdentityRow.public_key)).one()
    return f"{url.rstrip('/')}/{thumbprint(key)[:16]}"


def move(
    database: Database, destination: str, *, smallest: int = SMALLEST, min_age: timedelta | None = None
) -> Iterator[int]:
    """Move all finished payloads to rows or to a store; yield the bytes of each. May be stopped at any time.

    Args:
        destination: `rows`, or the URL of a store.
        smallest: payloads of fewer bytes are not moved.
        min_age: younger payloads, and payloads that an open round or the next one reads, are not moved
            either; None = no such limit.

    Raises:
        Unavailable: the store does not answer; repeat the call.
        NotOwner: another database claims the store.
        LookupError: a payload's bytes are missing, or are not those of its digest.
    """
    folder = None if destination == ROWS else home(database, destination)
    owner = None if folder is None else Ownership(database, folder)
    after = 0
    while batch := _elsewhere(database, folder, smallest, min_age, after):
        for payload in batch:
            after = payload.id
            if folder is None or owner is None:
                moved = _move_to_rows(database, payload)
            else:
                owner.keep()
                # A new name for each attempt, so that no replica overwrites an object.
                moved = _move_to_store(database, payload, f"{folder}/{payload.id}-{secrets.token_hex(8)}")
            if moved:
                yield payload.size


def move_settled(
    database: Database, destination: str, is_stopping: Callable[[], bool], *, min_age: timedelta = SETTLED
) -> None:
    """Move the payloads that are older than `min_age` and that no open round reads, until a stop."""
    moved_bytes = 0
    for size in move(database, destination, min_age=min_age):
        moved_bytes += size
        if is_stopping():
            break
    if moved_bytes:
        log.info("payloads-moved", bytes=moved_bytes)


def sweep(database: Database, url: str, *, unused: timedelta = _UNUSED) -> int:
    """Delete this database's objects that are older than `unused` and hold no payload; return their number.

    Such objects remain after a payload was collected or moved, and after a kill between upload and commit.

    Raises:
        NotOwner: another database claims the store.
        Unavailable: the store does not answer.
    """
    folder, deleted = home(database, url), 0
    owner = Ownership(database, folder)
    owner.keep()
    for batch in object_store.listed(folder):
        owner.keep()
        with database.read() as session:
            oldest = database_time(session) - unused
            # Another database that uses the folder gets time to dispute it.
            if owner.owned_since(session) >= oldest:
                return 0
            old_places = [place for place, changed in batch if changed < oldest]
            in_use = set(session.scalars(select(PayloadRow.place).where(PayloadRow.place.in_(old_places))))
        orphans = [place for place in old_places if place not in in_use]
        object_store.delete(orphans)
        deleted += len(orphans)
    if deleted:
        log.info("objects-swept", objects=deleted)
    return deleted


def missing(database: Database, *, digests: bool = False) -> Iterator[str]:
    """Yield a sentence for each payload whose object is missing or too short, as after a restored backup.

    With `digests` all objects are read, and those that do not have their digest are reported as well.
    """
    for payload in _placed(database):
        try:
            if digests:
                _piece_digests(payload, str(payload.place))
            else:
                object_store.read(str(payload.place), payload.size - 1, payload.size)
        except LookupError as error:
            yield f"payload {payload.id}: {str(error).removeprefix(f'payload {payload.id} at ')}"


def _placed(database: Database) -> Iterator[_MovablePayload]:
    """Yield the payloads whose bytes are in an object store."""
    after = 0
    columns = (PayloadRow.id, PayloadRow.digest, PayloadRow.bytes, PayloadRow.place)
    placed = select(*columns).where(PayloadRow.place.is_not(None))
    while True:
        with database.read() as session:
            query = placed.where(PayloadRow.id > after).order_by(PayloadRow.id).limit(_BATCH)
            batch = [
                _MovablePayload(key, str(digest), size, place)
                for key, digest, size, place in session.execute(query)
            ]
        if not batch:
            return
        yield from batch
        after = batch[-1].id


def _elsewhere(
    database: Database, folder: str | None, smallest: int, min_age: timedelta | None, after: int
) -> list[_MovablePayload]:
    column = PayloadRow.place
    is_elsewhere = (
        column.is_not(None) if folder is None else or_(column.is_(None), ~column.startswith(f"{folder}/"))
    )
    with database.read() as session:
        query = (
            select(PayloadRow.id, PayloadRow.digest, PayloadRow.bytes, PayloadRow.place)
            .where(
                PayloadRow.digest.is_not(None),
                PayloadRow.bytes >= max(1, smallest),
                PayloadRow.id > after,
                is_elsewhere,
            )
            .order_by(PayloadRow.id)
            .limit(_BATCH)
        )
        if min_age is not None:
            age = PayloadRow.created_at <= database_time(session) - min_age
            query = query.where(age, ~payloads_in_use.is_current())
        return [
            _MovablePayload(payload_id, str(digest), size, place)
            for payload_id, digest, size, place in session.execute(query)
        ]


def _move_to_store(database: Database, payload: _MovablePayload, place: str) -> bool:
    """Copy, read back, then commit; False if the payload was collected or moved meanwhile."""
    # Verified while it is copied: a damaged payload must not replace its rows.
    object_store.put(place, _verified(payload, payloads.stream(database, payload.id, 0, payload.size)))
    may_crash("payload-put")
    digests = _piece_digests(payload, place)
    with database.write() as session:
        values = _claim(payload).values(place=place, piece_digests=digests)
        is_moved = session.connection().execute(values).rowcount == 1
        if is_moved:
            session.execute(delete(ChunkRow).where(ChunkRow.payload_id == payload.id))
            may_crash("payload-moved")
    return is_moved


def _move_to_rows(database: Database, payload: _MovablePayload) -> bool:
    with tempfile.TemporaryFile() as spool:  # no transaction is open while bytes travel
        for piece in _verified(payload, _object(str(payload.place), payload.size)):
            spool.write(piece)
        with database.write() as session:
            values = _claim(payload).values(place=None, piece_digests=None)
            is_moved = session.connection().execute(values).rowcount == 1
            if is_moved:
                payloads.append(session, payload.id, 0, payloads.pieces(spool))
    return is_moved


def _piece_digests(payload: _MovablePayload, place: str) -> bytes:
    """Read an object, and return the digests of its pieces.

    Raises:
        LookupError: it does not have the payload's digest.
    """
    pieces = _verified(payload, _object(place, payload.size))
    return b"".join([object_store.piece_digests(piece) for piece in pieces])


def _claim(payload: _MovablePayload) -> Update:
    """Return an SQL update of a payload, which changes no row if the payload was moved meanwhile."""
    is_unmoved = PayloadRow.place.is_not_distinct_from(payload.place)
    return update(PayloadRow).where(PayloadRow.id == payload.id, is_unmoved)


def _object(place: str, size: int) -> Iterator[bytes]:
    for begin in range(0, size, _PIECE * 8):
        yield object_store.read(place, begin, min(size, begin + _PIECE * 8))


def _verified(payload: _MovablePayload, content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content; raise at its end unless it has the payload's digest."""
    hasher = hashlib.sha256()
    for piece in content:
        hasher.update(piece)
        yield piece
    if digest_from_hash(hasher.hexdigest()) != payload.digest:
        place = payload.place or ROWS
        raise LookupError(f"payload {payload.id} at {place} does not have its digest; restore a backup")


def require(database: Database, url: str) -> None:
    """Raise unless a store answers.

    Raises:
        SettingsUnusable, Unavailable: see `object_store.require_store`.
    """
    object_store.require_store(home(database, url))


def ownership(database: Database, url: str) -> Ownership:
    """Return the claim of a database to its folder in a store."""
    return Ownership(database, home(database, url))


class PayloadMover:
    """Moves settled payloads of a database to the store at `url`, and sweeps there.

    `fault` is the reason why the last attempt failed; None = it succeeded. Each replica has a mover, and
    skips what another one has moved.
    """

    def __init__(self, database: Database, url: str, metrics: Metrics) -> None:
        self._database = database
        self._url = url
        self._metrics = metrics
        self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
        self.fault: str | None = None

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """Try the store; if this database owns it, move what is settled, and delete what no payload has."""
        if not self._try():
            return
        try:
            move_settled(self._database, self._url, is_stopping)
            if not is_stopping() and time.monotonic() >= self._next_sweep:
                # Set before the sweep: after a failure it is tried again in an hour, not at once.
                self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
                sweep(self._database, self._url)
        except NotOwner as error:
            self._note(str(error), answers=True, owned=False)

    def _try(self) -> bool:
        try:
            require(self._database, self._url)
            ownership(self._database, self._url).confirm()
        except Unavailable as error:
            if self.fault != _AWAY:
                log.warning("payload-store-away", reason=str(error))
            self._note(_AWAY, answers=False, owned=True)
        except NotOwner as error:
            self._note(str(error), answers=True, owned=False)
        else:
            self._note(None, answers=True, owned=True)
        return self.fault is None

    def _note(self, fault: str | None, *, answers: bool, owned: bool) -> None:
        before, self.fault = self.fault, fault
        self._metrics.payload_store_up.set(answers)
        self._metrics.payload_store_owned.set(owned)
        if fault == before:
            return
        if not owned:
            log.error("payload-store-disputed", detail=fault)
        elif before == _AWAY:
            log.info("payload-store-back")
        elif before is not None:
            log.info("payload-store-owned")
