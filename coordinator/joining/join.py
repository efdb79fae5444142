"""Let a client take part in a round, and settle which weights it starts from, once and for all."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from coordinator.aggregation.output_writer import StagedOutput, discard
from coordinator.auth.authentication import Member, still_member
from coordinator.db.engine import Database
from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import RoundRow
from coordinator.errors import PackMissing, RoundClosed
from coordinator.http.downloads import Stored
from coordinator.joining import cold_start
from coordinator.joining.store import JoinContext, standing
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, lifecycle, manifests, participations, transitions
from coordinator.rounds import store as rounds
from coordinator.rounds.base_weights import Zeros
from coordinator.rounds.lifecycle import ACCEPTING
from coordinator.rounds.notifications import Change
from coordinator.storage import payloads
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.base import Signature
from coordinator.weights.store import give
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import Joined, WeightsReference
from schemas.wire.envelope import MEDIA_TYPE


@dataclass(frozen=True, slots=True)
class SentSignature:
    """What a newcomer sent with its join, in a body of so many encoded bytes."""

    signature: Signature
    body_bytes: int


@dataclass(frozen=True, slots=True)
class TakingPart:
    """A client takes part: what it is told, and whether it did not before.

    `change` is what everybody has to be told; None = there is nothing, or it was told.
    """

    joined: Joined
    is_new: bool = False
    change: Change | None = None


def join(
    database: Database, member: Member, round_number: int, signature: SentSignature | None, key: ServerKey
) -> TakingPart:
    """Take part in a round.

    A newcomer's weights are made before the transaction that joins, and settled in it.

    Raises:
        NotFound: there is no such round.
        RoundClosed: it is too late.
        PackMissing: the federation aligns its base models, and this one's pack is not stored.
    """
    with database.read() as session:
        seen = standing(session, member, round_number)
    known = _known(seen)
    if known is not None:
        return TakingPart(known)
    plan = seen.plan
    _check(seen, plan, member)
    last_published = _weighed_as_of(seen)
    made: StagedOutput | Stored | None = None
    zeros: tuple[WeightsReference, Zeros] | None = None
    if last_published is not None or seen.newest is None:
        sent = signature.signature if signature is not None else None
        one = cold_start.newcomer(database, member, round_number, plan, seen.pack, sent)
        made = cold_start.begin(database, one, last_published)
        if made is None:
            zeros = base_weights.zeros(one.layout, one.manifest)
    try:
        with database.write() as session:
            # Payloads before the federation, as whoever delivers takes them; and nobody waits for the bytes.
            stored = _stored(session, made, zeros)
            last_event = hold_federation(session, member.federation_id)
            still_member(session, member)
            row = rounds.get_round(session, member.federation_id, round_number, lock=True)
            seen = standing(session, member, round_number)
            known = _known(seen)
            if known is not None:
                return TakingPart(known)
            _check(seen, plan, member)
            if zeros is not None and seen.newest is not None:
                stored = None  # it was given weights meanwhile
            taking = _join(session, row, member, seen, stored, signature, key, last_event)
            may_crash("join-written")
            made = None
        may_crash("join-committed")
        return taking
    finally:
        if isinstance(
            made, StagedOutput
        ):  # another request of this client was faster, or the round has closed
            discard(database, [made])


def _known(seen: JoinContext) -> Joined | None:
    """Give the answer of an earlier join."""
    if not seen.has_joined or seen.newest is None or seen.manifest is None:
        return None
    return Joined(weights=base_weights.reference(seen.newest), manifest=seen.manifest)


def _check(seen: JoinContext, plan: FederationPlan, member: Member) -> None:
    if seen.state not in ACCEPTING:
        raise RoundClosed(state=seen.state)
    if plan.alignment is not None and seen.pack is None:
        raise PackMissing(base_model=member.base_model)


def _weighed_as_of(seen: JoinContext) -> int | None:
    """Say as of which published round a newcomer's weights have to be made; None = there is nothing to make.

    That is so when it delivered before, when nothing was published yet, or nothing since it joined last.
    """
    last = seen.last_published
    if seen.is_established or last == 0:
        return None
    return last if seen.newest is None or seen.newest.round_number <= last else None


def _stored(
    session: Session, made: StagedOutput | Stored | None, zeros: tuple[WeightsReference, Zeros] | None
) -> Stored | None:
    """Put down what a client is to start from; None = it has weights. Nobody refers to it yet."""
    if isinstance(made, StagedOutput):
        return made.adopted(made.staged.adopt(session))
    if made is not None:
        return made
    if zeros is not None:
        named, body = zeros
        payload_id = payloads.store(session, body.digest, body.size, body.pieces())
        return Stored(payload_id, named.digest, named.bytes, MEDIA_TYPE, head=body.head)
    return None


def _join(
    session: Session,
    row: RoundRow,
    member: Member,
    seen: JoinContext,
    stored: Stored | None,
    signature: SentSignature | None,
    key: ServerKey,
    last_event: int,
) -> TakingPart:
    if stored is not None:
        weights = WeightsReference(digest=stored.digest, bytes=stored.size)
        give(session, row.federation_id, member.client_id, row.number, stored, seen.moment)
    elif seen.newest is not None:
        weights = base_weights.reference(seen.newest)
    else:
        raise LookupError("a client without weights was given none")
    is_waited_for = lifecycle.is_waited_for(participations.earlier_states(session, row, member.client_id))
    participations.join(
        session, row.id, member.client_id, weights.digest, seen.moment, is_waited_for=is_waited_for
    )
    if signature is not None:
        participations.store_sketch(session, row, member.client_id, "join", signature.signature)
        participations.count_bytes(session, row.id, member.client_id, up=signature.body_bytes)
    is_told = transitions.advance(session, row, seen.moment)
    manifest = manifests.issue(
        session,
        seen.stored_plan,
        member,
        row.number,
        weights=weights.digest,
        deadline=row.deadline,
        now=seen.moment,
        key=key,
    )
    change = None if is_told else Change(row.federation_id, row.number, last_event)
    return TakingPart(Joined(weights=weights, manifest=manifest), is_new=True, change=change)
