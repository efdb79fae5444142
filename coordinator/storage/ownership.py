"""Only the database that owns a folder in an object store writes and deletes objects there.

A folder belongs to a signing key, which a restored copy of a database has too. So the owner's token is stored
beside the folder and in the database, and is replaced before objects are written or deleted: from then on the
token of a copy is outdated. A database that finds a foreign token stores a dispute beside the folder, and no
database writes or deletes objects until an operator settles it (`tessera payloads take-over`).
"""

from __future__ import annotations

import math
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import PayloadStoreRow
from coordinator.db.upsert import insert_new
from coordinator.errors import SettingsUnusable, Unavailable
from coordinator.observability.fault_points import may_crash
from coordinator.storage import object_store

RENEWAL = timedelta(minutes=2)
"""Age at which a token is replaced. A replica's request for an older one has ended by then."""

_KEEP_SECONDS = 60.0
_ATTEMPTS = 3
_LOST = (
    "another database with this signing key uses {base}, so nothing is moved there or deleted; stop the other"
    " coordinator or set another TESSERA_PAYLOAD_STORE there, then run `tessera payloads take-over` here"
)


class NotOwner(SettingsUnusable):
    """Another database claims the folder; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """The tokens that may be in the store: the newest, and the one before while it is being replaced."""

    token: str
    previous: str | None


class Ownership:
    """The claim of a database to a folder, `base`, as one process holds it. Replicas share the claim."""

    def __init__(self, database: Database, base: str) -> None:
        self._database = database
        self._base = base
        self._marker, self._dispute = f"{base}.owner", f"{base}.disputed"
        self._kept_at = -math.inf

    def confirm(self) -> None:
        """Claim the folder if no database has, and check that this database owns it.

        Raises:
            NotOwner: another database claims it.
            Unavailable: the store does not answer.
        """
        if object_store.small(self._dispute) is None:
            for _ in range(_ATTEMPTS):  # replicas may replace the token between the two readings
                if self._has_token():
                    return
            self._start_dispute()
        raise NotOwner(_LOST.format(base=self._base))

    def renew(self) -> None:
        """Confirm, and replace the token, unless a replica has since `RENEWAL`.

        Raises:
            NotOwner, Unavailable: see `confirm`.
        """
        self.confirm()
        token = secrets.token_hex(16)
        with self._database.write() as session:
            now = database_time(session)
            row = session.get_one(PayloadStoreRow, self._base, with_for_update=True)
            if now - row.renewed_at < RENEWAL:
                return
            row.token, row.previous, row.renewed_at = token, row.token, now
        may_crash("owner-written")
        # After the commit: a process that dies in between leaves the previous token, which the row still
        # has.
        object_store.put_small(self._marker, token)
        may_crash("owner-put")

    def keep(self) -> None:
        """Renew if this process last did more than a minute ago. Call it before an object is put or deleted.

        Raises:
            NotOwner, Unavailable: see `confirm`.
        """
        if time.monotonic() - self._kept_at >= _KEEP_SECONDS:
            self.renew()
            self._kept_at = time.monotonic()

    def owned_since(self, session: Session) -> datetime:
        """Return the time at which this database claimed the folder, which renewals do not change."""
        return session.get_one(PayloadStoreRow, self._base).owned_since

    def take_over(self) -> None:
        """Make this database the owner, and settle the dispute. Repeat it if it was interrupted.

        Raises:
            Unavailable: the store does not answer.
        """
        token = secrets.token_hex(16)
        with self._database.write() as session:
            if not self._insert(session, token):
                row = session.get_one(PayloadStoreRow, self._base, with_for_update=True)
                row.token, row.previous = token, row.token
                row.renewed_at = row.owned_since = database_time(session)
        may_crash("owner-written")
        object_store.put_small(self._marker, token)
        may_crash("owner-put")
        object_store.delete([self._dispute])

    def _has_token(self) -> bool:
        """Whether the store has this database's token; a missing or preceding token is replaced first."""
        marker = object_store.small(self._marker)  # first: a row that is read later has it, or its successor
        if marker is None:
            object_store.put_small(self._marker, self._claim_anew())
            return True
        claim = self._claim()
        if claim is None or marker not in (claim.token, claim.previous):
            return False
        # A replica stored the new token in the database only: it died, or writes it now.
        if marker != claim.token:
            object_store.put_small(self._marker, claim.token)
        return True

    def _claim(self) -> _Claim | None:
        with self._database.read() as session:
            row = session.get(PayloadStoreRow, self._base)
            return None if row is None else _Claim(row.token, row.previous)

    def _claim_anew(self) -> str:
        """Claim a folder that has no token, and return its new one; `owned_since` counts from now on."""
        with self._database.write() as session:
            if not self._insert(session, secrets.token_hex(16)):
                session.execute(
                    update(PayloadStoreRow)
                    .where(PayloadStoreRow.base == self._base)
                    .values(owned_since=database_time(session))
                )
            return session.get_one(PayloadStoreRow, self._base).token

    def _insert(self, session: Session, token: str) -> bool:
        now = database_time(session)
        values = {"base": self._base, "token": token, "previous": None}
        return insert_new(session, PayloadStoreRow, values | {"renewed_at": now, "owned_since": now})

    def _start_dispute(self) -> None:
        with suppress(Unavailable):  # it may lack the right to write; then it can delete nothing either
            object_store.put_small(self._dispute, "found another database's token\n")
