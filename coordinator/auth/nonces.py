"""Which signed requests were received: none is taken twice.

What changes something or downloads tensors is in the database, so that it counts once on whichever replica.
What only reads little, like a poll, is remembered by the process that answers it. A nonce is remembered once
its sender is known and may be where it is: what is refused before costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import bindparam, select

from coordinator.auth.http_signatures import check_timely
from coordinator.db.clock import clock
from coordinator.db.engine import Database, now, run
from coordinator.db.tables.identity import UsedNonceRow
from coordinator.db.upsert import forget, insert_new
from coordinator.errors import Replayed, TooManySigned
from schemas.identity.signed_requests import ACCEPTED_SECONDS, SignedRequest

# Longer than any signature is accepted on clocks that differ as much as they may.
_LIFE = timedelta(seconds=ACCEPTED_SECONDS + 30)
MOST_OF_A_KEY = 1500
"""How many requests of one key are in the database within five minutes, five a second; twice as many may be
there before it is tidied."""

MOST_READS_OF_A_KEY = 1000
"""How many reads of one key a process remembers; beyond it forgets this key's oldest."""

# When the oldest came of a key's newest requests, of as many as are taken: others are not tidied yet.
_LAST = (
    select(UsedNonceRow.used_at)
    .where(UsedNonceRow.public_key == bindparam("key"))
    .order_by(UsedNonceRow.used_at.desc())
    .offset(MOST_OF_A_KEY - 1)
    .limit(1)
    .scalar_subquery()
)
_ASKED = select(clock(), _LAST)


def use(database: Database, key: str, signed: SignedRequest) -> None:
    """Remember a signed request for five minutes, in a short write of its own.

    Raises:
        ClockSkew: its time is over by now.
        Replayed: it was received before.
        TooManySigned: as many of this key's are remembered as may be.
    """
    with database.write() as session:
        # Looked at again: who was held up until its nonce is forgotten must not find it gone.
        moment, last = run(session, _ASKED, {"key": key}).one()
        check_timely(signed, moment)
        if last is not None and last > moment - _LIFE:
            raise TooManySigned((last + _LIFE - moment).total_seconds())
        if not insert_new(
            session, UsedNonceRow, {"public_key": key, "nonce": signed.nonce, "used_at": moment}
        ):
            raise Replayed


def forget_old(database: Database) -> int:
    """Forget some requests of more than five minutes ago; return their number, 0 when there are no more."""
    with database.write() as session:
        return forget(session, UsedNonceRow.used_at, now(session) - _LIFE)


class Reads:
    """The nonces of small reads that this process has answered, as long as their signatures may be timely.

    Other replicas do not have them, and a restart forgets them: a read that is repeated there shows its
    caller's own view once more and changes nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: OrderedDict[str, dict[str, float]] = OrderedDict()  # by key: nonces, when they came
        self._lock = threading.Lock()

    def use(self, key: str, nonce: str) -> None:
        """Remember a nonce of a key.

        Raises:
            Replayed: it was here before.
        """
        with self._lock:
            moment = self._clock()
            self._forget(moment)
            nonces = self._keys.setdefault(key, {})
            self._keys.move_to_end(key)
            if nonce in nonces:
                raise Replayed
            nonces[nonce] = moment
            first = next(iter(nonces))
            while len(nonces) > MOST_READS_OF_A_KEY or nonces[first] < moment - _LIFE.total_seconds():
                del nonces[first]
                first = next(iter(nonces))

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def _forget(self, moment: float) -> None:
        """Forget keys that were not used for so long that none of their signatures is timely."""
        while self._keys:
            key, nonces = next(iter(self._keys.items()))
            if next(reversed(nonces.values())) >= moment - _LIFE.total_seconds():
                return
            del self._keys[key]
