"""Change a bank of experts by a round's sum: new values of experts, births, pruned and merged ones.

Nothing here can read an update; what is decided follows from counts and sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import exists, select
from sqlalchemy.orm import Session, aliased

from coordinator.aggregation.joint_model import JointModel, places_of
from coordinator.aggregation.part import ClosedRound, OldTensors, Part
from coordinator.db.engine import Database
from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.db.tables.federations import RoundRow
from coordinator.experts import announcements, products, store
from coordinator.experts.bank import Outcome, RoundCounts, RoundSums
from coordinator.experts.bodies import expert_head
from coordinator.experts.current_bank import CurrentBank, current_bank, index_of
from coordinator.experts.equivalence import Cost, Pair, costs_of
from coordinator.experts.float16 import EXPERT_DTYPE, rounded_to_half
from coordinator.experts.registry import after_round, round_counts
from coordinator.experts.store import Revision
from coordinator.observability.fault_points import may_crash
from coordinator.secure_sum.counts import outcome_of
from coordinator.storage.payloads import StagedPayload
from coordinator.strategies.bank_rules import LEAST_WEIGHT
from coordinator.totals import Floats, GroupCounts, JointValues, SegmentChange, Total
from schemas.maths.adapter import Layout, factor_of, is_of_one_base_model, module_of
from schemas.maths.bank import (
    SHARED,
    bank_layout,
    expert_layout,
    expert_of,
    first_a_of,
    group_of,
    number_of_differences,
)
from schemas.messages.updates import BankIndex
from schemas.secure_sum.encoding import largest_encoded
from schemas.secure_sum.segments import DIFFERENCES, NEW, RESPONSIBILITY, WEIGHT, is_of_expert
from schemas.wire.digests import digest_from_hash

# Values of an expert that one transaction writes: 8 MiB in float16.
_PIECE_VALUES = 2**22

State = dict[str, NDArray[np.float32]]


class BankOfExperts(Part):
    """The bank beside a joint model: a sum changes it too, and manifests of new weights have its index."""

    # Of one round, assigned by its hooks in the order below.
    _current: CurrentBank
    _counts: RoundCounts
    _model: BankModel
    _change: BankChange
    _experts: list[StagedExpert]

    def joint_layout(self, closed: ClosedRound, session: Session, layout: Layout) -> Layout:
        """Read the bank that the members of a round began with, and their counts.

        Raises:
            LookupError: the members were not counted, or retention has deleted counts or values.
        """
        claim = closed.claim
        current = current_bank(session, claim.federation_id, closed.opened)
        counts = outcome_of(session, claim.round_id)
        if current is None or counts is None:
            raise LookupError("the members of the experts were not counted")
        self._current, self._counts = current, round_counts(GroupCounts(counts.members, counts.groups))
        return bank_layout(layout, current.experts)

    def joint_model(self, closed: ClosedRound, model: JointValues, layout: Layout) -> JointValues:
        """Return the shared expert, which is the joint model, with all active specialists."""
        seed = closed.opened.plan.training.seed
        self._model = BankModel(closed.database, model, layout, self._current, seed)
        return self._model

    def revise(
        self, closed: ClosedRound, total: Total, revised: Mapping[str, SegmentChange], layout: Layout
    ) -> BankIndex:
        """Change the bank by a sum, and stage the values of its changed experts."""
        number = closed.claim.number
        summed = closed.opened.plan.privacy.secure_sum
        if summed is None:
            raise LookupError("the plan has no privacy.secure_sum")
        self._change = change_bank(
            self._current, self._counts, self._model, total, revised, number, summed.bits
        )
        self._experts = stage_experts(closed, layout, self._change)
        return next_index(self._current, self._change, number, self._experts)

    def store(self, session: Session, row: RoundRow, adopted: Mapping[int, int]) -> None:
        """Store the bank after a round, and announce what changed."""
        federation_id, number, outcome = row.federation_id, row.number, self._change.outcome
        store.store_round(session, federation_id, number, self._change.sums, outcome)
        for expert in self._experts:
            payload_id = adopted[expert.staged.payload_id]
            store.add_revision(session, federation_id, expert.revision(number, payload_id))
        announcements.announce(session, federation_id, row, outcome.events)

    @staticmethod
    def old_tensors(federation_id: str, oldest_kept: int) -> Sequence[OldTensors]:
        """Return superseded revisions that no remaining round begins with."""
        # The newest revision before the oldest kept round stays, since that round begins with it.
        newer = aliased(ExpertRevisionRow)
        superseded = exists().where(
            newer.federation_id == ExpertRevisionRow.federation_id,
            newer.expert == ExpertRevisionRow.expert,
            newer.round_number > ExpertRevisionRow.round_number,
            newer.round_number < oldest_kept,
        )
        old = select(ExpertRevisionRow).where(
            ExpertRevisionRow.federation_id == federation_id,
            ExpertRevisionRow.payload_id.is_not(None),
            superseded,
        )
        return (OldTensors(old),)


class BankModel:
    """The shared expert and all active specialists that clients began with (`totals.JointValues`)."""

    def __init__(
        self, database: Database, shared: JointValues, layout: Layout, bank: CurrentBank, seed: int
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._models: dict[int, JointValues] = {SHARED: shared}
        for expert in bank.experts:
            revision = bank.revisions.get(expert)
            payload_id = revision.payload_id if revision is not None else None
            own_layout = expert_layout(layout, expert)
            self._models[expert] = JointModel(database, own_layout, payload_id, seed, EXPERT_DTYPE)

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(segment for model in self._models.values() for segment in model.segments)

    def read(self, segment: str, begin: int, count: int) -> Floats:
        """Return `count` values of a segment from `begin` on, (count,); see `JointModel.read`."""
        return self._models[_expert_of(segment)].read(segment, begin, count)

    def state(self, expert: int, revised: Mapping[str, SegmentChange]) -> State:
        """Return an expert's tensors by plain names, with the segments that a round revised."""
        layout = self._layout if expert == SHARED else expert_layout(self._layout, expert)
        tensors: State = {}
        for plain, place in zip(self._layout, places_of(layout), strict=True):
            change = revised.get(place.segment)
            read = change.values if change is not None else partial(self.read, place.segment)
            values = read(place.begin, place.count)
            tensors[plain] = np.asarray(values, np.float32).reshape(self._layout[plain])
        return tensors

    def start(self, expert: int) -> State:
        """Return the first `A` of an expert in each (layer, role), drawn from the plan's seed."""
        return {
            tensor: first_a_of(expert, tensor, shape, self._seed)
            for tensor, shape in self._layout.items()
            if is_of_one_base_model(module_of(tensor)) and factor_of(tensor) == "A"
        }


@dataclass(frozen=True, slots=True)
class BankChange:
    """A bank after a round.

    Attributes:
        sums: what the round's counts and sum said.
        states: the new values of experts that changed, by plain names of tensors.
        contributors: how many members were counted in the group of each of them.
    """

    sums: RoundSums
    outcome: Outcome
    states: Mapping[int, State]
    contributors: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StagedExpert:
    """Unpublished values of an expert; digest and size are those of the body that clients download."""

    expert: int
    staged: StagedPayload
    digest: str
    bytes: int
    contributors: int

    def revision(self, round_number: int, payload_id: int) -> Revision:
        return Revision(self.expert, round_number, payload_id, self.digest, self.bytes, self.contributors)


def change_bank(
    current: CurrentBank,
    counts: RoundCounts,
    model: BankModel,
    total: Total,
    revised: Mapping[str, SegmentChange],
    number: int,
    bits: int,
) -> BankChange:
    """Apply a round to a bank: values of what was summed, then prior, birth, prune and merge.

    `bits` are those of an encoded value of the sum.

    Raises:
        LookupError: retention has deleted values of the bank.
        ValueError: a new value is not finite.
    """
    groups = {segment.partition(".")[0] for segment in total.segments if "." in segment}
    summed = [expert for group in sorted(groups) if (expert := expert_of(group)) is not None]
    sums = RoundSums(
        counts,
        {expert: total.number(f"{group_of(expert)}.{RESPONSIBILITY}") for expert in summed},
        has_newborn=NEW in groups and total.number(f"{NEW}.{WEIGHT}") >= LEAST_WEIGHT,
        costs=_costs(current, total, summed),
        step=1 / largest_encoded(bits),
    )
    outcome = after_round(current.bank, current.rules, sums, number)
    # The shared expert is stored as the joint model and has no revisions. Values of experts that this round
    # has ended are not stored.
    changed = {_expert_of(segment) for segment in revised} & {expert.expert for expert in outcome.bank.active}
    new = {expert: model.state(expert, revised) for expert in sorted(changed)}
    contributors = {expert: counts.users.get(expert, 0) for expert in new}
    for event in outcome.events:
        if event.change == "born":
            new[event.expert] = _newborn(model, total, event.expert)
            contributors[event.expert] = counts.rejects
    if not all(np.isfinite(values).all() for state in new.values() for values in state.values()):
        raise ValueError("a new value of an expert is not finite")
    return BankChange(sums, outcome, new, contributors)


def stage_experts(closed: ClosedRound, layout: Layout, change: BankChange) -> list[StagedExpert]:
    """Stage the values of changed experts."""
    claim, staging, experts = closed.claim, closed.staging, []
    for expert, state in change.states.items():
        staged = staging.stage()
        beginning = expert_head(claim.federation_id, expert, claim.number, layout)
        values = np.concatenate([state[tensor].ravel() for tensor in layout])
        # The seed is that of round and expert: a worker that starts over stages the same bytes.
        values = rounded_to_half(values, np.random.default_rng([claim.number, expert]))
        # The digest is that of the body as clients download it: the head, then the values.
        hasher = sha256(beginning)
        for begin in range(0, len(values), _PIECE_VALUES):
            octets = values[begin : begin + _PIECE_VALUES].data.cast("B")
            hasher.update(octets)
            with closed.database.write() as session:
                staged.append(session, octets)
            # Between two transactions: extending the lease is a transaction too.
            may_crash("block-staged")
            staging.between()
        digest, octets_sent = digest_from_hash(hasher.hexdigest()), len(beginning) + values.nbytes
        experts.append(StagedExpert(expert, staged, digest, octets_sent, change.contributors[expert]))
    return experts


def next_index(
    current: CurrentBank, change: BankChange, number: int, staged: list[StagedExpert]
) -> BankIndex:
    """Return the index of the bank after a round; `staged` are the experts that the round changed."""
    new = {expert.expert: expert.revision(number, 0) for expert in staged}
    return index_of(change.outcome.bank, {**current.revisions, **new}, current.since)


def _costs(current: CurrentBank, total: Total, summed: list[int]) -> dict[Pair, Cost]:
    """Return what other experts cost the members of each summed one."""
    costs: dict[Pair, Cost] = {}
    for expert in summed:
        segment, peers = f"{group_of(expert)}.{DIFFERENCES}", [k for k in current.experts if k != expert]
        if segment in total.segments:  # not in a bank of one, nor in a sum of version 0.2.0
            values = total.values(segment, 0, number_of_differences(len(current.experts)))
            costs |= costs_of(expert, peers, values.tolist(), current.rules.k_min)
    return costs


def _newborn(model: BankModel, total: Total, expert: int) -> State:
    """Return the newborn expert: the mean change of the shared expert by the members who reject all."""
    weight = total.number(f"{NEW}.{WEIGHT}")
    shared = model.state(SHARED, {})
    change: State = {}
    for place in places_of({tensor: values.shape for tensor, values in shared.items()}):
        summed = total.values(f"{NEW}.{place.segment}", place.begin, place.count)
        change[place.tensor] = np.asarray(summed / weight, np.float32).reshape(shared[place.tensor].shape)
    return products.newborn(shared, change, model.start(expert))


def _expert_of(segment: str) -> int:
    group = segment.partition(".")[0]
    expert = expert_of(group) if is_of_expert(segment) else None
    return SHARED if expert is None else expert
