"""Compute a round's base delta of each group, module by module, and the part that each client is served.

A client with an update in the round is served the new delta; an absent one the sum of all deltas so far. A
group with too few voices gets no delta, and its clients are served their own update to continue from. Memory
is bounded by one module of every source and a batch of results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar

import numpy as np
from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session, aliased

from coordinator.aggregation.output_writer import BATCH_BYTES
from coordinator.aggregation.part import (
    ClosedRound,
    EstablishedClient,
    OldTensors,
    Part,
    SettledWeights,
    StagedWeights,
    StoredState,
)
from coordinator.aggregation.state_reader import StoredFactors, places, read_factors
from coordinator.db.engine import Database
from coordinator.db.tables.federations import FoldRow, RoundRow
from coordinator.http.downloads import StoredBody
from coordinator.rounds import base_weights
from coordinator.storage import payloads
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Module, Strategy, Weights, modules_of
from coordinator.strategies.capabilities import BaseDelta
from coordinator.weights.base_delta import (
    BaseModelGroup,
    group_of,
    group_weights,
    increment_head,
    whole_head,
)
from schemas.maths.adapter import Layout, Shape
from schemas.maths.factors import Factors, recompressed, side_by_side
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_from_hash


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A client whose base model changes. `compared` is its layout at the plan's rank.

    `fold_from` is the round of the weights that it trained from, if its update is in this round; None = it is
    absent. Only a member that `is_served` gets weights. A member that `keeps_own` shares nothing this round.
    """

    client: str
    base_model: str
    layout: Layout
    compared: Layout
    manifest: WeightsManifest
    fold_from: int | None
    is_served: bool
    keeps_own: bool


@dataclass(frozen=True, slots=True)
class GroupDelta:
    """The staged sum of all base deltas of a group up to a round, with A and B to continue from."""

    group: BaseModelGroup
    layout: Layout
    staged: StagedPayload


@dataclass(slots=True)
class _GrowingWeights:
    """Staged weights whose layout is complete after the last module, and the part that is not written yet."""

    staged: StagedPayload
    layout: Layout = field(default_factory=dict)
    buffered: list[bytes] = field(default_factory=list)

    def append(self, module: Module, served: Factors | None, residual: Factors) -> None:
        """Add a module: A, B, RA, RB in the order of a layout, without factors of rank 0."""
        for prefix, factors in (("", served), ("R", residual)):
            if factors is not None and factors.rank:
                for name, values in ((f"{prefix}A", factors.A), (f"{prefix}B", factors.B)):
                    self.layout[f"{module}.{name}"] = values.shape
                    self.buffered.append(np.ascontiguousarray(values, "<f4").tobytes())


class BaseDeltas(Part):
    """The base deltas of a round, and the weights that clients are served with them."""

    stores_newcomer_weights: ClassVar[bool] = True

    def __init__(self) -> None:
        self._deltas: list[GroupDelta] = []

    def combine(
        self, closed: ClosedRound, clients: Sequence[EstablishedClient], settled: SettledWeights
    ) -> dict[str, StagedWeights]:
        """Stage the base delta of each group, and return the weights of all clients."""
        members, earlier = _members(closed, clients, settled.alone)
        groups: dict[BaseModelGroup, list[GroupMember]] = {}
        for member in members:
            groups.setdefault(group_of(member.base_model, member.compared), []).append(member)
        states = {client.facts.client: client.state for client in clients}
        work = _Work(
            closed.staging, closed.opened.strategy, settled.weights, StoredFactors(closed.database, states)
        )
        bodies = dict[str, StagedWeights]()
        for group, group_members in sorted(groups.items()):
            written, total = work.group_bodies(group_members, earlier.get(group))
            bodies |= written
            self._deltas.append(GroupDelta(group, total.layout, total.staged))
        return bodies

    def store(self, session: Session, row: RoundRow, adopted: Mapping[int, int]) -> None:
        for delta in self._deltas:
            session.add(
                FoldRow(
                    federation_id=row.federation_id,
                    round_number=row.number,
                    base_model=delta.group.base_model,
                    form=delta.group.form,
                    layout=[[name, list(shape)] for name, shape in delta.layout.items()],
                    payload_id=adopted[delta.staged.payload_id],
                )
            )

    @staticmethod
    def newcomer_weights(
        database: Database, base_model: str, layout: Layout, manifest: WeightsManifest, until: int
    ) -> StoredBody | None:
        """Return the weights of a newcomer's group after round `until`; None = it has none yet."""
        with database.read() as session:
            state = _latest(session, manifest.federation, until).get(group_of(base_model, layout))
        if state is None:
            return None
        return group_weights(database, state.payload_id, state.layout, manifest)

    @staticmethod
    def old_tensors(federation_id: str, oldest_kept: int) -> Sequence[OldTensors]:
        """Return superseded base deltas: the last one of each group stays."""
        newer = aliased(FoldRow)
        superseded = exists().where(
            newer.federation_id == FoldRow.federation_id,
            newer.base_model == FoldRow.base_model,
            newer.form == FoldRow.form,
            newer.round_number > FoldRow.round_number,
        )
        old = select(FoldRow).where(
            FoldRow.federation_id == federation_id,
            FoldRow.round_number < oldest_kept,
            FoldRow.payload_id.is_not(None),
            superseded,
        )
        return (OldTensors(old),)


def _members(
    closed: ClosedRound, clients: Sequence[EstablishedClient], alone: Collection[str]
) -> tuple[list[GroupMember], dict[BaseModelGroup, StoredState]]:
    with closed.database.read() as session:
        trained_from = {
            client.facts.client: base_weights.newest(session, client.facts.client, closed.claim.number)
            for client in clients
            if client.facts.age == 0
        }
        earlier = _latest(session, closed.claim.federation_id, closed.claim.number)
    # Clients that began with zeros have no round that their delta is relative to.
    rounds = {client: served.round_number for client, served in trained_from.items() if served is not None}
    members = [
        GroupMember(
            client.facts.client,
            client.facts.base_model,
            client.state.layout,
            client.compared,
            client.manifest,
            rounds.get(client.facts.client),
            client.is_enrolled,
            client.facts.client in alone,
        )
        for client in clients
    ]
    return members, earlier


@dataclass(frozen=True, slots=True)
class _Work:
    """The inputs that all groups of a round share."""

    staging: Staging
    strategy: Strategy
    weights: Weights
    stored: StoredFactors

    def group_bodies(
        self, members: Sequence[GroupMember], earlier: StoredState | None
    ) -> tuple[dict[str, StagedWeights], _GrowingWeights]:
        new, total = self._stage(2)
        # All members of a group are served the same delta, so that any of them stands for the group.
        self._write_delta(members[0], earlier, new, total)
        served = [member for member in members if member.is_served]
        present, absent, bodies = dict[str, bytes](), dict[str, bytes](), dict[str, StagedWeights]()
        for member in served:
            if member.fold_from is None:
                # It missed this round, and perhaps others: the sum of all deltas needs no earlier one.
                absent[member.client] = whole_head(total.layout, member.manifest)
            elif member.keeps_own:
                (repeated,) = self._stage(1)
                self._write_own(member, repeated)
                head = increment_head(repeated.layout, member.manifest, fold_from=member.fold_from)
                bodies |= _bodies(self.staging.database, repeated.staged, {member.client: head})
            else:
                present[member.client] = increment_head(
                    new.layout, member.manifest, fold_from=member.fold_from
                )
        bodies |= _bodies(self.staging.database, new.staged, present)
        bodies |= _bodies(self.staging.database, total.staged, absent)
        # Nobody is served the delta of this round alone.
        if not present:
            self.staging.discard([new.staged])
        return bodies, total

    def _stage(self, count: int) -> list[_GrowingWeights]:
        return [_GrowingWeights(staged) for staged in self.staging.stage_all([b""] * count)]

    def _write_delta(
        self, member: GroupMember, earlier: StoredState | None, new: _GrowingWeights, total: _GrowingWeights
    ) -> None:
        """Write the delta of this round and its sum with all earlier ones, for the group of `member`."""
        cohort = self.weights.cohort.clients
        row_index = [facts.client for facts in cohort].index(member.client)
        earlier_places = places(earlier.layout) if earlier is not None else {}
        for module, form in sorted(modules_of(member.layout).items()):
            row = self.weights.of_module(module)[row_index]
            served, so_far = None, _no_rank(dict(form), module)
            if earlier is not None:
                places_by_factor = earlier_places.get(module, {})
                with self.staging.database.driver_connection() as driver:
                    stored = [
                        read_factors(
                            driver,
                            earlier.payload_id,
                            earlier.begin,
                            places_by_factor[a],
                            places_by_factor[b],
                        )
                        if a in places_by_factor
                        else None
                        for a, b in (("A", "B"), ("RA", "RB"))
                    ]
                served, so_far = stored[0], stored[1] or so_far
            sources = (facts for facts, weight in zip(cohort, row, strict=True) if weight > 0)
            all_absent = earlier is not None and all(facts.age != 0 for facts in sources)
            # Without an update in this round there is no delta: the last A and B are served again.
            if member.keeps_own or all_absent:
                delta, summed = BaseDelta(served, _no_rank(dict(form), module)), so_far
            else:
                delta = self.strategy.base_delta(self.stored.sources(self.weights, module, row))
                # Recompressed in every round: otherwise the rank of the sum would grow with the rounds.
                summed = recompressed(side_by_side([so_far, delta.residual]))
            new.append(module, delta.served, delta.residual)
            total.append(module, delta.served, summed)
            self._flush([new, total])
            self.staging.between()
        self._flush([new, total], at_least=0)

    def _write_own(self, member: GroupMember, growing: _GrowingWeights) -> None:
        for module, form in sorted(modules_of(member.layout).items()):
            factors = self.stored.client_factors(member.client, module)
            growing.append(module, factors, _no_rank(dict(form), module))
            self._flush([growing])
            self.staging.between()
        self._flush([growing], at_least=0)

    def _flush(self, growing: Sequence[_GrowingWeights], *, at_least: int = BATCH_BYTES) -> None:
        """Write what is buffered in one transaction, unless it is less than `at_least` bytes."""
        # A deep model has thousands of modules: a transaction for each would cost more than its bytes.
        if sum(len(piece) for weights in growing for piece in weights.buffered) < at_least:
            return
        with self.staging.database.write() as session:
            for weights in growing:
                for piece in weights.buffered:
                    weights.staged.append(session, piece)
                weights.buffered.clear()


def _no_rank(form: Mapping[str, Shape], module: Module) -> Factors:
    a, b = form[f"{module}.A"], form[f"{module}.B"]
    return Factors(np.zeros((0, a[1]), np.float32), np.zeros((b[0], 0), np.float32))


def _bodies(
    database: Database, staged: StagedPayload, heads: Mapping[str, bytes]
) -> dict[str, StagedWeights]:
    """Return each client's body, its own head and the staged values; these are read once for all digests."""
    hashes = {client: sha256(head) for client, head in heads.items()}
    for piece in payloads.stream(database, staged.payload_id, 0, staged.size if heads else 0):
        for running in hashes.values():
            running.update(piece)
    return {
        client: StagedWeights(
            head,
            staged,
            0,
            digest_from_hash(hashes[client].hexdigest()),
            len(head) + staged.size,
        )
        for client, head in heads.items()
    }


def _latest(session: Session, federation_id: str, until: int) -> dict[BaseModelGroup, StoredState]:
    """Return the last base delta of each group, of round `until` or before.

    Raises:
        LookupError: the payload of one was deleted.
    """
    return {
        BaseModelGroup(row.base_model, row.form): _state(row)
        for row in _latest_rows(session, federation_id, until)
    }


def _latest_rows(session: Session, federation_id: str, until: int) -> list[FoldRow]:
    is_candidate: ColumnElement[bool] = (FoldRow.federation_id == federation_id) & (
        FoldRow.round_number <= until
    )
    last = (
        select(FoldRow.base_model, FoldRow.form, func.max(FoldRow.round_number).label("number"))
        .where(is_candidate)
        .group_by(FoldRow.base_model, FoldRow.form)
        .subquery()
    )
    return list(
        session.scalars(
            select(FoldRow)
            .join(
                last,
                (last.c.base_model == FoldRow.base_model)
                & (last.c.form == FoldRow.form)
                & (last.c.number == FoldRow.round_number),
            )
            .where(is_candidate)
        )
    )


def _state(row: FoldRow) -> StoredState:
    if row.payload_id is None:
        raise LookupError(
            f"the base delta of {row.base_model} up to round {row.round_number} was deleted by retention"
        )
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
    return StoredState(row.payload_id, 0, layout)
