"""Publish a summed round: the strategy changes the joint model by the sum, and all clients are served it.

Nothing here can read an update: the input is the total of the round's sum, and what all clients began with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.aggregation import joint
from coordinator.aggregation.bank_round import (
    BankChange,
    BankInputs,
    BankModel,
    StagedExpert,
    bank_inputs,
    change_bank,
    next_index,
    stage_experts,
    store_change,
)
from coordinator.aggregation.claim import Claim
from coordinator.aggregation.joint import JointModel, PublishedJoint, TensorPlace, Values, places_of
from coordinator.aggregation.stored_total import StoredTotal
from coordinator.aggregation.summed_weights import NewWeights, Receivers, write, write_as_difference
from coordinator.db.engine import Database, database_time, run
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import ClientRow
from coordinator.http.downloads import Stored
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.rounds import base_weights, transitions
from coordinator.rounds import store as rounds
from coordinator.secure_sum.totals import SummedTotal, summed_total
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from coordinator.strategies.opening import OpenedPlan, require_summed
from coordinator.totals import Joint, Revised
from coordinator.weights.store import SERVED, assign, store_bodies
from schemas.maths.adapter import Layout, is_of_one_base_model, module_of
from schemas.maths.bank import bank_layout
from schemas.messages.enrolment import Profile
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.secure_sum.counts import groups_of
from schemas.secure_sum.segments import segments_of
from schemas.wire.envelope import MEDIA_TYPE

_BYTES_PER_VALUE = 64
"""Memory per value of a block: total and model as stored and as float64, the result, and its octets."""

_ENROLLED = (
    select(ClientRow.id, ClientRow.base_model, ClientRow.profile)
    .where(ClientRow.federation_id == bindparam("federation_id"), ClientRow.state == "enrolled")
    .order_by(ClientRow.id)
)
_CLIENT = select(ClientRow.base_model, ClientRow.profile).where(ClientRow.id == bindparam("client"))

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a summed round is published from.

    Attributes:
        payload_id: that of the model which all began with; None = the start.
        packs: the digest of the alignment pack of each client that is served; None = it has none.
        began: those of them whose last weights are the model which all began with.
    """

    total: SummedTotal
    layout: Layout
    payload_id: int | None
    packs: Mapping[str, str | None]
    began: frozenset[str]
    bank: BankInputs | None


@dataclass(frozen=True, slots=True)
class _NewBank:
    """A changed bank, and the staged values of its changed experts."""

    change: BankChange
    experts: list[StagedExpert]
    index: BankIndex


def publish_sum(
    database: Database,
    claim: Claim,
    opened: OpenedPlan,
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> None:
    """Change the joint model by the total of a claimed round, and publish it as the weights of all clients.

    `between` is called after every block; it extends the lease, or raises.

    Raises:
        LostRace: another worker has the round, or it has ended; nothing was published.
        NotSummed: the strategy needs each client's update.
        LookupError: the total or the model was deleted by retention, or the total is of another layout.
    """
    strategy = require_summed(opened)
    with database.read() as session:
        inputs = _read(session, claim, opened)
    seed = opened.plan.training.seed
    shared = JointModel(database, inputs.layout, inputs.payload_id, seed)
    model: JointModel | BankModel = shared
    if inputs.bank is not None:
        model = BankModel(database, shared, inputs.layout, inputs.bank.current, seed)
    total = StoredTotal(database, inputs.total)
    revised = {change.segment: change for change in strategy.step(model, total)}
    begun: list[Staged] = []
    try:
        bank = None
        if inputs.bank is not None and isinstance(model, BankModel):
            current, counts = inputs.bank.current, inputs.bank.counts
            change = change_bank(current, counts, model, total, revised, claim.number)
            experts = stage_experts(database, claim, inputs.layout, change, begun, between)
            bank = _NewBank(change, experts, next_index(current, change, claim.number, experts))
        manifests = _manifests(claim, inputs, bank.index if bank is not None else None)

        def values() -> Iterator[Values]:
            return revised_values(inputs.layout, model, revised, max(1, block_bytes // _BYTES_PER_VALUE))

        receivers = Receivers(inputs.layout, manifests, inputs.began)
        weights = None
        recipe = opened.plan.wire.served_difference
        if recipe is not None:
            new = values()
            weights = write_as_difference(database, recipe, receivers, new, shared.tensor, begun, between)
        if weights is None:
            weights = write(database, receivers, values(), begun, between)
        _publish(database, claim, inputs, weights, bank, total.mean_losses())
    except BaseException:
        _discard(database, begun)
        raise


def revised_values(
    layout: Layout, model: Joint, revised: Mapping[str, Revised], block_values: int
) -> Iterator[Values]:
    """Yield the new joint model in layout order, in blocks of at most `block_values`.

    Segments that the strategy did not revise stay as they are.

    Raises:
        ValueError: a new value is not finite, or the strategy returned another number of values.
    """
    pieces: list[Values] = []
    room = block_values
    for place in places_of(layout):
        begin = 0
        while begin < place.count:
            count = min(room, place.count - begin)
            pieces.append(_values(place, begin, count, model, revised.get(place.segment)))
            begin, room = begin + count, room - count
            if not room:
                yield np.concatenate(pieces)
                pieces, room = [], block_values
    if pieces:
        yield np.concatenate(pieces)


def _values(place: TensorPlace, begin: int, count: int, model: Joint, revised: Revised | None) -> Values:
    at = place.begin + begin
    values = model.read(place.segment, at, count) if revised is None else revised.values(at, count)
    new = np.asarray(values, "<f4")
    if new.shape != (count,) or not np.isfinite(new).all():
        raise ValueError(f"segment {place.segment} needs {count} finite values from {at} on")
    return new


def _read(session: Session, claim: Claim, opened: OpenedPlan) -> _Inputs:
    total = summed_total(session, claim.round_id)
    base_model, profile = run(session, _CLIENT, {"client": total.counted[0]}).one()
    layout = _layout(session, claim, opened, base_model, profile)
    before = joint.latest(session, claim.federation_id, claim.number - 1)
    if before is not None and before.layout != layout:
        raise LookupError("the layout of the members is not that of the joint model")
    bank = bank_inputs(session, claim, opened)
    whole = bank_layout(layout, bank.current.experts) if bank is not None else layout
    if list(segments_of(opened.plan, whole, groups_of(total.terms.segments))) != total.terms.segments:
        raise LookupError("the total is not of the layout of its members")
    same_model = any(is_of_one_base_model(module_of(tensor)) for tensor in layout)
    packs = {}
    for client, client_model, client_profile in run(
        session, _ENROLLED, {"federation_id": claim.federation_id}
    ):
        if same_model and client_model != base_model:
            continue
        if _layout(session, claim, opened, client_model, client_profile) == layout:
            packs[client] = base_weights.pack_digest(session, claim.federation_id, client_model)
    payload_id = before.payload_id if before is not None else None
    began = set()
    for client in packs:
        served = base_weights.newest(session, client, claim.number)
        # Before the first model, all that a client was served are zeros, which stand for the start.
        if served is not None and payload_id in (None, served.payload_id):
            began.add(client)
    return _Inputs(total, layout, payload_id, packs, frozenset(began), bank)


def _layout(
    session: Session, claim: Claim, opened: OpenedPlan, base_model: str, profile: Mapping[str, object]
) -> Layout:
    parsed = Profile.model_validate(profile)
    return base_weights.layout(session, claim.federation_id, opened, base_model, parsed)


def _manifests(claim: Claim, inputs: _Inputs, bank: BankIndex | None) -> dict[str, WeightsManifest]:
    """Return the manifest of each client's weights for the next round."""
    return {
        client: WeightsManifest(
            federation=claim.federation_id,
            recipe={},
            round=claim.number + 1,
            client=client,
            pack=pack,
            bank=bank,
        )
        for client, pack in inputs.packs.items()
    }


def _publish(
    database: Database,
    claim: Claim,
    inputs: _Inputs,
    weights: NewWeights,
    bank: _NewBank | None,
    losses: Mapping[str, float],
) -> None:
    experts = bank.experts if bank is not None else []
    with database.write() as session:
        # The payloads before the federation's lock, in the same order as a delivery.
        digest, size = weights.staged.digest, weights.staged.size
        staged = [*(expert.staged for expert in experts), weights.staged, *weights.differences.values()]
        adopted = payloads.adopt_all(session, staged)
        payload_id = adopted[weights.staged.payload_id]
        locked = lock_federation(session, claim.federation_id)
        row = rounds.get_round(session, claim.federation_id, claim.number, lock=True)
        if row.lease_token != claim.token:
            raise rounds.LostRace
        now = database_time(session)
        for client, beginning in sorted(weights.heads.items()):
            body = len(beginning) + size
            stored = Stored(payload_id, weights.digests[client], body, MEDIA_TYPE, head=beginning)
            assign(session, claim.federation_id, client, claim.number + 1, stored, now)
        differences = {client: adopted[item.payload_id] for client, item in weights.differences.items()}
        store_bodies(session, claim.federation_id, claim.number + 1, SERVED, differences)
        published = PublishedJoint(inputs.layout, payload_id, digest, losses)
        joint.store(session, claim.federation_id, claim.number, published)
        if bank is not None:
            store_change(session, row, bank.change, experts, adopted)
        transitions.publish(session, locked, row)
        may_crash("publication-written")
    may_crash("publication-committed")


def _discard(database: Database, staged: list[Staged]) -> None:
    """Delete unpublished weights; a failing database is only logged, as another error is being raised."""
    try:
        payloads.discard(database, staged)
    except SQLAlchemyError as error:
        log.warning("discarding-failed", bodies=len(staged), error=type(error).__name__)
