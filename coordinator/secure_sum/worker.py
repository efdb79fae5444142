"""Open the sums that are due, one after the other, in a thread of the workers."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from coordinator.db.engine import Database
from coordinator.errors import StrategyUnavailable, Unavailable
from coordinator.observability.logs import logger, scope
from coordinator.rounds.store import LostRace
from coordinator.secure_sum import opening
from coordinator.secure_sum.leases import SumClaim, claim_due, lease_of
from coordinator.storage.server_key import ServerKey
from schemas.secure_sum.errors import SharesInconsistent, SumOutOfRange

log = logger(__name__)


class SumWorker:
    """Opens sums; `check` raises `stopped` when the service stops, so that another worker continues."""

    def __init__(
        self,
        database: Database,
        key: ServerKey,
        *,
        lease_seconds: float,
        block_bytes: int,
        check: Callable[[], None],
        stopped: type[Exception],
    ) -> None:
        self._database = database
        self._key = key
        self._lease_seconds = lease_seconds
        self._block_bytes = block_bytes
        self._check = check
        self._stopped = stopped

    def open_next(self) -> bool:
        """Open one sum; return whether one was due, and there may be another."""
        claim = claim_due(self._database, self._lease_seconds)
        if claim is None:
            return False
        with scope(federation=claim.federation_id, round=claim.round_number):
            try:
                self._open(claim)
            except LostRace:
                log.info("sum-overtaken")
            except StrategyUnavailable as unavailable:  # another session needs it: claimed again later
                log.warning("sum-delayed", reason=str(unavailable))
        return True

    def _open(self, claim: SumClaim) -> None:
        lease = lease_of(self._database, claim, self._lease_seconds)

        def between() -> None:
            self._check()
            lease.extend()

        began = time.monotonic()
        try:
            members = opening.open_sum(
                self._database, claim, self._key, block_bytes=self._block_bytes, between=between
            )
        # Another replica continues at once, and not when the lease runs out.
        except self._stopped:
            lease.release()
        except (LostRace, StrategyUnavailable):
            raise
        except (OperationalError, InterfaceError, PoolExhausted, Unavailable):
            log.exception("sum-interrupted")  # the session is claimed again after the lease expires
        # It is not known who spoilt the sum, so that another session would end in the same way.
        except SumOutOfRange:
            opening.abandon(self._database, claim)
        except SharesInconsistent as error:
            log.warning("sum-not-opened", reason=str(error))
            opening.abort(self._database, claim, opening.SHARES_INCONSISTENT, self._key)
        except Exception:
            log.exception("sum-not-opened")
            opening.abort(self._database, claim, opening.OPENING_FAILED, self._key)
        else:
            seconds = round(time.monotonic() - began, 3)
            log.info("sum-opened", seconds=seconds, members=members)
