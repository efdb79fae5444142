"""Open the sum of a session: rebuild the secrets, remove the masks, store the total, delete all messages.

A worker that dies leaves an unreferenced payload and a lease that expires; the next one starts over, from
messages that have not changed. One transaction commits the total, deletes the messages and closes the round,
or opens the sum after counts: before it nothing of the sum is stored that lasts, and after it nothing of its
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time, run
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lifecycle import SUM_OUT_OF_RANGE
from coordinator.rounds.store import LostRace
from coordinator.secure_sum import announcements, sessions, store
from coordinator.secure_sum.leases import SumClaim
from coordinator.secure_sum.session_terms import is_of_earlier_version, terms_of
from coordinator.secure_sum.unmasking import OpenedKeys, opened_keys, unmasked_counts, unmasked_sum
from coordinator.storage import payloads
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.server_key import ServerKey
from coordinator.storage.staging import Staging
from schemas.messages.secure_sum import KeysStep, SharesStep, SumTerms, UnmaskStep
from schemas.secure_sum.count_proofs import are_proved
from schemas.secure_sum.curve import encode_scalar
from schemas.secure_sum.encoding import Modulus

SHARES_INCONSISTENT = "the shares of a member give no secret that it committed to"
OPENING_FAILED = "the coordinator could not open the sum; its log says why"

# Memory per value of a block: a vector, its octets as 16 bits, the sum, a mask, and the decoded sum.
_BYTES_PER_VALUE = 32

_MASKED = select(SumMessageRow.position, SumMessageRow.payload_id).where(
    SumMessageRow.session_id == bindparam("session"), SumMessageRow.step == "masked"
)
_CURRENT = (
    select(SumSessionRow)
    .where(SumSessionRow.id == bindparam("session"))
    .with_for_update()
    .execution_options(populate_existing=True)
)

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _Material:
    """What a session has stored: the payloads of masked vectors by position, and what opens their sum.

    Proved counts have `committed` messages in place of payloads.
    """

    terms: SumTerms
    masked: Mapping[int, int]
    committed: Mapping[int, bytes]
    keys: Mapping[int, KeysStep]
    commitments: Mapping[int, str]
    shares: Mapping[int, UnmaskStep]

    @property
    def counted(self) -> list[str]:
        """The ids of the clients whose vectors are summed."""
        return [self.terms.members[position].client for position in sorted(self.positions)]

    @property
    def positions(self) -> frozenset[int]:
        """The members of U3."""
        return frozenset(self.masked) | frozenset(self.committed)


def open_sum(
    database: Database, claim: SumClaim, key: ServerKey, *, block_bytes: int, between: Callable[[], None]
) -> int:
    """Compute and commit the total of a claimed session; return the number of its members.

    `between` is called between reads and writes; it extends the lease, or raises.

    Raises:
        LostRace: another worker has the session, or it has ended; nothing was committed.
        SharesInconsistent: a secret cannot be rebuilt.
        SumOutOfRange: a member spoilt the sum.
    """
    with Staging(database, between, block_bytes) as staging:
        with database.read() as session:
            material = _read(session, claim)
        # All keys before the first block: a secret that cannot be rebuilt ends the session at once.
        keys = _opened(material)
        staging.between()
        total = staging.stage()
        if are_proved(material.terms):
            counts, openings = unmasked_counts(material.terms, keys, material.committed.values())
            _append(database, total, counts, b"".join(map(encode_scalar, openings)))
        blocks = _blocks(staging, material) if material.masked else iter(())
        for values in unmasked_sum(material.terms, keys, len(material.masked), blocks):
            _append(database, total, values)
            staging.between()
        _commit(staging, claim, total, material, key, _clients(material, keys.blamed))
    return len(material.positions)


def abort(database: Database, claim: SumClaim, reason: str, key: ServerKey) -> None:
    """Abort a session whose sum cannot be opened; another one follows, or the round is abandoned.

    Raises:
        LostRace: another worker has the session, or it has ended.
    """
    with database.write() as session:
        _, row, summed = _locked(session, claim)
        alive = store.answered(session, summed.id, "unmask")
        sessions.abort(session, row, summed, reason, database_time(session), key, alive=alive)
        may_crash("sum-abort-written")
    may_crash("sum-abort-committed")


def abandon(database: Database, claim: SumClaim) -> None:
    """Abandon the round of a session whose total is out of range: a member spoilt it, and is not known.

    Raises:
        LostRace: another worker has the session, or it has ended.
    """
    with database.write() as session:
        federation, row, summed = _locked(session, claim)
        now = database_time(session)
        store.end(session, federation.id, summed, "aborted", now, reason=SUM_OUT_OF_RANGE)
        announcements.aborted(session, federation.id, row, summed)
        transitions.abandon_sum(session, federation, row, SUM_OUT_OF_RANGE)
        may_crash("sum-abort-written")
    may_crash("sum-abort-committed")


def _read(session: Session, claim: SumClaim) -> _Material:
    summed = session.get(SumSessionRow, claim.session_id)
    if summed is None or summed.state != store.OPENING or is_of_earlier_version(terms_of(summed)):
        raise LostRace
    vectors = run(session, _MASKED, {"session": claim.session_id})
    masked = {position: payload_id for position, payload_id in vectors if payload_id is not None}
    keys, shares, unmask = (store.bodies(session, summed.id, step) for step in ("keys", "shares", "unmask"))
    return _Material(
        terms=terms_of(summed),
        masked=masked,
        committed=store.bodies(session, summed.id, "masked"),
        keys={position: KeysStep.model_validate_json(body) for position, body in keys.items()},
        commitments={
            position: SharesStep.model_validate_json(body).commitment for position, body in shares.items()
        },
        shares={position: UnmaskStep.model_validate_json(body) for position, body in unmask.items()},
    )


def _opened(material: _Material) -> OpenedKeys:
    """Rebuild the masks that remain in the sum; vectors that were sent in clear have none."""
    terms = material.terms
    if terms.masking == "none":
        return OpenedKeys((), frozenset())
    opened = opened_keys(terms, material.keys, material.commitments, material.positions, material.shares)
    if opened.blamed:
        log.warning("wrong-shares", session=terms.session, clients=_clients(material, opened.blamed))
    return opened


def _clients(material: _Material, positions: frozenset[int]) -> list[str]:
    return [material.terms.members[position].client for position in sorted(positions)]


def _blocks(staging: Staging, material: _Material) -> Iterator[Iterator[memoryview]]:
    """Yield all vectors block by block, in the octets in which they were sent."""
    values, modulus = material.terms.values, Modulus(material.terms.modulus)
    block_values = max(1, staging.block_bytes // _BYTES_PER_VALUE)
    for begin in range(0, values, block_values):
        end = min(values, begin + block_values)
        yield _vectors(staging, material, modulus.packed_bytes(begin), modulus.packed_bytes(end))


def _vectors(staging: Staging, material: _Material, begin: int, end: int) -> Iterator[memoryview]:
    """Yield the same octets of all vectors, in one buffer; each is read in a transaction of its own."""
    block = memoryview(bytearray(end - begin))
    for _, payload_id in sorted(material.masked.items()):
        with staging.database.driver_connection() as driver:
            payloads.read_into(driver, payload_id, begin, block)
        yield block
        staging.between()


def _append(
    database: Database, staged: StagedPayload, values: NDArray[np.int64], openings: bytes = b""
) -> None:
    octets = (
        memoryview(values.astype("<i4").tobytes() + openings)
        if openings
        else values.astype("<i4").data.cast("B")
    )
    with database.write() as session:
        staged.append(session, octets)
    may_crash("sum-block-staged")


def _commit(
    staging: Staging,
    claim: SumClaim,
    total: StagedPayload,
    material: _Material,
    key: ServerKey,
    blamed: list[str],
) -> None:
    with staging.database.write() as session:
        # The payload before the federation's lock, in the same order as a delivery.
        payload_id = staging.adopt(session)[total.payload_id]
        federation, row, summed = _locked(session, claim)
        now = database_time(session)
        store.end(session, federation.id, summed, "done", now, total_payload_id=payload_id)
        if material.terms.kind == "sum":
            transitions.close_sum(session, row, material.counted)
        announcements.done(session, federation.id, row, summed)
        announcements.blamed(session, federation.id, row, summed, blamed)
        if material.terms.kind == "counts":
            sessions.open_after_counts(session, federation, row, summed, key)
        may_crash("sum-total-written")
    may_crash("sum-total-committed")


def _locked(session: Session, claim: SumClaim) -> tuple[FederationRow, RoundRow, SumSessionRow]:
    """Lock the session of a claim, its round and its federation.

    Raises:
        LostRace: another worker has the session, or it has ended.
    """
    federation = lock_federation(session, claim.federation_id)
    row = rounds.get_round(session, claim.federation_id, claim.round_number, lock=True)
    summed = session.scalar(_CURRENT, {"session": claim.session_id})
    # Fencing: a worker whose lease has run out must not commit over its successor.
    if summed is None or summed.state != store.OPENING or summed.lease_token != claim.token:
        raise LostRace
    return federation, row, summed
