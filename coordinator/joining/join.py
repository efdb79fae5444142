"""Enter a client into a round, and fix the weights that it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from coordinator.aggregation.part import StagedWeights
from coordinator.auth.authentication import Member, still_member
from coordinator.db.engine import Database
from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import RoundRow
from coordinator.errors import NotDrawn, PackMissing, RoundClosed
from coordinator.http.downloads import StoredBody
from coordinator.joining import cold_start
from coordinator.joining.store import JoinContext, join_context
from coordinator.joining.summed_layout import require_summable
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, lifecycle, manifests, participations, transitions
from coordinator.rounds import store as rounds
from coordinator.rounds.base_weights import Zeros
from coordinator.rounds.lifecycle import ACCEPTING
from coordinator.rounds.notifications import Change
from coordinator.rounds.sampling import is_drawn
from coordinator.storage import payloads
from coordinator.storage.server_key import ServerKey
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Sketch
from coordinator.strategies.opening import OpenedPlan, open_plan
from coordinator.weights.store import assign
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import Joined, WeightsReference
from schemas.wire.envelope import MEDIA_TYPE


@dataclass(frozen=True, slots=True)
class SentSketch:
    """The sketch that a newcomer sent with its join, in a body of `body_bytes` encoded bytes."""

    sketch: Sketch
    body_bytes: int


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """The answer to a join, and whether the client is new in the round.

    `change` is the event to publish; None = there is none, or it is published already.
    """

    joined: Joined
    is_new: bool = False
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class _PreparedJoin:
    """A client that is to join: the plan as it was read, and its weights, which are staged in `staging`.

    `zeros` are the weights of a client that has none, unless a concurrent request assigns some. A client
    without `weights` and `zeros` has weights already.
    """

    member: Member
    round_number: int
    sketch_body: SentSketch | None
    opened: OpenedPlan
    staging: Staging
    weights: StagedWeights | StoredBody | None
    zeros: tuple[WeightsReference, Zeros] | None

    @property
    def payload_digest(self) -> str:
        if isinstance(self.weights, StagedWeights):
            return self.weights.staged.digest
        return self.zeros[1].digest if self.zeros is not None else ""


def join(
    database: Database, member: Member, round_number: int, sketch_body: SentSketch | None, key: ServerKey
) -> JoinOutcome:
    """Enter a client into a round; a repeated join returns the first answer.

    A newcomer's weights are computed before the transaction that joins, and fixed in it. Clients of one
    federation that join at the same time share this transaction.

    Raises:
        NotFound: there is no such round.
        RoundClosed: the round accepts no clients any more.
        NotDrawn: the plan samples clients, and others were drawn.
        PackMissing: the federation aligns its base models, and this one's pack is not stored.
        CapabilityMissing: updates are summed, and the client's agent cannot take part.
        LayoutMismatch: updates are summed, and the client's cannot be added to those of others.
    """
    # Read without a lock first: a repeated join ends here, and weights are computed outside of
    # transactions.
    with database.read() as session:
        context = join_context(session, member, round_number)
    earlier = _earlier_answer(context)
    if earlier is not None:
        return JoinOutcome(earlier)
    opened = open_plan(context.plan)
    _check(context, opened.plan, member)
    if opened.plan.privacy.secure_sum is not None:
        with database.read() as session:
            require_summable(session, opened, member, round_number)
    with Staging(database, lambda: None, cold_start.BLOCK_BYTES) as staging:
        last_published = _weighed_as_of(context)
        weights: StagedWeights | StoredBody | None = None
        zeros: tuple[WeightsReference, Zeros] | None = None
        if last_published is not None or context.newest is None:
            sketch = sketch_body.sketch if sketch_body is not None else None
            newcomer = cold_start.load_newcomer(database, member, round_number, opened, context.pack, sketch)
            weights = cold_start.initial_weights(staging, newcomer, last_published)
            if weights is None:
                zeros = base_weights.zeros(newcomer.layout, newcomer.manifest)
        prepared = _PreparedJoin(member, round_number, sketch_body, opened, staging, weights, zeros)
        queue = "joins", member.federation_id
        outcome = database.small_commits.run(queue, prepared, partial(_join_all, database, key))
        may_crash("join-committed")
        return outcome


def _join_all(database: Database, key: ServerKey, joins: Sequence[_PreparedJoin]) -> list[JoinOutcome]:
    """Join clients of one federation in one transaction, all or none."""
    places = sorted(range(len(joins)), key=lambda place: joins[place].payload_digest)
    with database.write() as session:
        # Payloads before the federation's lock, in the same order as a delivery, and not under the lock.
        stored = {place: _stored(session, joins[place]) for place in places}
        # In the order of clients, as in `mark_arrived`: concurrent commits would deadlock otherwise.
        by_client = sorted(places, key=lambda place: joins[place].member.client_id)
        outcomes = {place: _join(session, joins[place], stored[place], key) for place in by_client}
        may_crash("join-written")
        return [outcomes[place] for place in range(len(joins))]


def _earlier_answer(context: JoinContext) -> Joined | None:
    if not context.has_joined or context.newest is None or context.manifest is None:
        return None
    return Joined(weights=base_weights.reference(context.newest), manifest=context.manifest)


def _check(context: JoinContext, plan: FederationPlan, member: Member) -> None:
    if context.state not in ACCEPTING:
        raise RoundClosed(state=context.state)
    if plan.alignment is not None and context.pack is None:
        raise PackMissing(base_model=member.base_model)


def _require_drawn(
    session: Session, row: RoundRow, context: JoinContext, plan: FederationPlan, member: Member
) -> None:
    if plan.rounds.sample is None:
        return
    round_key = row.federation_id, row.id, row.number
    if not is_drawn(session, *round_key, plan, context.read_at, member.client_id):
        raise NotDrawn(round=row.number)


def _weighed_as_of(context: JoinContext) -> int | None:
    """Return the published round from which a newcomer's weights are computed; None = they are not.

    Nothing is computed for a client with an accepted update, before the first published round, or if no
    round was published since the client joined last.
    """
    last = context.last_published
    if context.is_established or last == 0:
        return None
    return last if context.newest is None or context.newest.round_number <= last else None


def _begins_anew(context: JoinContext) -> bool:
    """Whether a client of a summed federation gets zeros again: the joint model ended with its packs."""
    return context.plan.privacy.secure_sum is not None and _weighed_as_of(context) is not None


def _stored(session: Session, prepared: _PreparedJoin) -> StoredBody | None:
    weights = prepared.weights
    if isinstance(weights, StagedWeights):
        return weights.adopted(prepared.staging.adopt(session)[weights.staged.payload_id])
    if weights is not None:
        return weights
    if prepared.zeros is not None:
        reference, body = prepared.zeros
        payload_id = payloads.store(session, body.digest, body.size, body.pieces())
        return StoredBody(payload_id, reference.digest, reference.bytes, MEDIA_TYPE, head=body.head)
    return None


def _join(
    session: Session, prepared: _PreparedJoin, stored: StoredBody | None, key: ServerKey
) -> JoinOutcome:
    member, opened = prepared.member, prepared.opened
    # Read for each client: the one before may have written an event, which does not contain this one.
    last_event = hold_federation(session, member.federation_id)
    still_member(session, member)
    row = rounds.get_round(session, member.federation_id, prepared.round_number, lock=True)
    # Checked again under the lock: a concurrent request may have joined.
    context = join_context(session, member, prepared.round_number)
    earlier = _earlier_answer(context)
    if earlier is not None:
        return JoinOutcome(earlier)
    _check(context, opened.plan, member)
    _require_drawn(session, row, context, opened.plan, member)
    require_summable(session, opened, member, prepared.round_number)
    if prepared.zeros is not None and context.newest is not None and not _begins_anew(context):
        stored = None  # a concurrent request assigned weights
    if stored is not None:
        weights = WeightsReference(digest=stored.digest, bytes=stored.size)
        assign(session, row.federation_id, member.client_id, row.number, stored, context.read_at)
    elif context.newest is not None:
        weights = base_weights.reference(context.newest)
    else:
        raise LookupError("a client without weights was assigned none")
    # A client that only ever joins would delay each round until its deadline.
    is_waited_for = lifecycle.is_waited_for(participations.earlier_states(session, row, member.client_id))
    participations.join(
        session, row.id, member.client_id, weights.digest, context.read_at, is_waited_for=is_waited_for
    )
    sketch_body = prepared.sketch_body
    if sketch_body is not None:
        participations.store_sketch(session, row, member.client_id, "join", sketch_body.sketch)
        participations.count_upload(session, row.id, member.client_id, sketch_body.body_bytes)
    is_published = transitions.advance(session, row, context.read_at)
    manifest = manifests.issue(
        session,
        context.stored_plan,
        member,
        row.number,
        weights=weights.digest,
        deadline=row.deadline,
        now=context.read_at,
        key=key,
    )
    change = None if is_published else Change(row.federation_id, row.number, last_event)
    return JoinOutcome(Joined(weights=weights, manifest=manifest), is_new=True, change=change)
