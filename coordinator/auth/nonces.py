"""Reject replayed requests by their nonces: of writes and downloads in the database, of small reads in
each process. A nonce is stored after authentication, so a refused request costs no storage.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.auth.http_signatures import check_timely
from coordinator.db.engine import Database, database_time, run
from coordinator.db.tables.identity import UsedNonceRow
from coordinator.db.upsert import delete_before, insert_all_new
from coordinator.errors import Refusal, RequestReplayed, TooManySigned
from schemas.identity.signed_requests import ACCEPTED_SECONDS, SignedRequest

# Longer than any signature is accepted at the largest allowed clock difference.
_LIFE = timedelta(seconds=ACCEPTED_SECONDS + 30)
MAX_REQUESTS_PER_KEY = 1500
"""Requests of one key within five minutes, five a second; the table may hold twice as many for a while."""

MAX_READS_PER_KEY = 1000
"""Reads of one key that a process remembers; beyond that, it drops the key's oldest."""

_OF_KEYS = (
    select(UsedNonceRow.public_key, func.count())
    .where(
        UsedNonceRow.public_key.in_(bindparam("keys", expanding=True)),
        UsedNonceRow.used_at > bindparam("since"),
    )
    .group_by(UsedNonceRow.public_key)
)
# The oldest of a key's newest requests, up to the limit.
_LAST = (
    select(UsedNonceRow.used_at)
    .where(UsedNonceRow.public_key == bindparam("key"))
    .order_by(UsedNonceRow.used_at.desc())
    .offset(MAX_REQUESTS_PER_KEY - 1)
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class _Use:
    key: str
    signed: SignedRequest


def use(database: Database, key: str, signed: SignedRequest) -> None:
    """Store the nonce of a signed request for five minutes.

    Nonces of requests that arrive at the same time share a short transaction.

    Raises:
        ClockSkew: the signature has expired meanwhile.
        RequestReplayed: the nonce is already stored.
        TooManySigned: the key has reached its limit.
        Busy: too many writes wait for the database.
    """
    refusal = database.small_commits.run("nonces", _Use(key, signed), partial(_use_all, database))
    if refusal is not None:
        raise refusal


def _use_all(database: Database, uses: Sequence[_Use]) -> list[Refusal | None]:
    """Store nonces; return a refusal for each that is not stored."""
    with database.write() as session:
        now = database_time(session)
        keys = sorted({use.key for use in uses})
        counts = run(session, _OF_KEYS, {"keys": keys, "since": now - _LIFE})
        stored = Counter({key: count for key, count in counts})
        refusals = [_refusal(session, use, now, stored) for use in uses]
        rows = [
            {"public_key": use.key, "nonce": use.signed.nonce, "used_at": now}
            for use, refusal in zip(uses, refusals, strict=True)
            if refusal is None
        ]
        # In one order: two transactions that store the same nonces would deadlock otherwise.
        rows.sort(key=itemgetter("public_key", "nonce"))
        inserted = insert_all_new(session, UsedNonceRow, rows)
        return [
            refusal or (None if _is_new(use, inserted) else RequestReplayed())
            for use, refusal in zip(uses, refusals, strict=True)
        ]


def _refusal(session: Session, use: _Use, now: datetime, stored: Counter[str]) -> Refusal | None:
    # Checked again: a request delayed until its nonce was deleted must not pass.
    try:
        check_timely(use.signed, now)
    except Refusal as refused:
        return refused
    if stored[use.key] < MAX_REQUESTS_PER_KEY:
        stored[use.key] += 1
        return None
    last = run(session, _LAST, {"key": use.key}).scalar()
    return TooManySigned(((last or now) + _LIFE - now).total_seconds())


def _is_new(use: _Use, inserted: set[tuple[object, ...]]) -> bool:
    """Whether a nonce was inserted; of equal ones in a batch, only the first."""
    row = use.key, use.signed.nonce
    is_new = row in inserted
    inserted.discard(row)
    return is_new


def delete_expired(database: Database) -> int:
    """Delete one batch of expired nonces; return the number of deleted rows."""
    with database.write() as session:
        return delete_before(session, UsedNonceRow.used_at, database_time(session) - _LIFE)


class ReadNonces:
    """The nonces of small reads that this process has answered, while their signatures may be valid.

    Other replicas do not have them, and a restart loses them: a repeated read only returns its caller's own
    view again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: OrderedDict[str, dict[str, float]] = OrderedDict()  # key -> nonce -> arrival time
        self._lock = threading.Lock()

    def use(self, key: str, nonce: str) -> None:
        """Store a nonce of a key.

        Raises:
            RequestReplayed: the nonce is already stored.
        """
        with self._lock:
            now = self._clock()
            self._drop_expired(now)
            nonces = self._keys.setdefault(key, {})
            # Keys are in the order of their newest nonces, so that expired ones are at the front.
            self._keys.move_to_end(key)
            if nonce in nonces:
                raise RequestReplayed
            nonces[nonce] = now
            first = next(iter(nonces))
            # Nonces are in the order of their arrival, so that the oldest is the first.
            while len(nonces) > MAX_READS_PER_KEY or nonces[first] < now - _LIFE.total_seconds():
                del nonces[first]
                first = next(iter(nonces))

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def _drop_expired(self, now: float) -> None:
        """Drop keys whose newest nonce has expired."""
        while self._keys:
            key, nonces = next(iter(self._keys.items()))
            if next(reversed(nonces.values())) >= now - _LIFE.total_seconds():
                return
            del self._keys[key]
