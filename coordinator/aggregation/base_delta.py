"""Compute a round's base delta of each group, module by module, and the part that each client is served.

A client with an update in the round is served the new delta; an absent one the sum of all deltas so far. A
group with too few voices gets no delta, and its clients are served their own update to continue from. Memory
is bounded by one module of every source and a batch of results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from coordinator.aggregation import base_delta_store
from coordinator.aggregation.base_delta_store import GroupDelta
from coordinator.aggregation.difference import StagedDifference
from coordinator.aggregation.factor_reader import StoredFactors, places, read_factors
from coordinator.aggregation.output_writer import BATCH_BYTES, StagedOutput, Written, discard
from coordinator.aggregation.state_reader import StoredState
from coordinator.aggregation.store import Established
from coordinator.db.engine import Database
from coordinator.rounds import base_weights
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from coordinator.strategies.base import Module, Strategy, Weights, modules_of
from coordinator.strategies.capabilities import BaseDelta
from coordinator.weights.base_delta import BaseModelGroup, group_of, increment_head, whole_head
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
class RoundOutput:
    """The staged result of a round: each client's body, and the sum of base deltas of each group.

    `differences` are by client: those by which bodies are reconstructed from earlier weights. `outputs` are
    by client: mixtures of its peers'.
    """

    bodies: dict[str, StagedOutput]
    deltas: Sequence[GroupDelta] = ()
    differences: Mapping[str, StagedDifference] = field(default_factory=dict)
    outputs: Mapping[str, StagedDifference] = field(default_factory=dict)

    @property
    def written(self) -> list[Written]:
        """Return everything staged, in the order of clients."""
        bodies = dict(sorted(self.bodies.items())).values()
        differences = dict(sorted(self.differences.items())).values()
        outputs = dict(sorted(self.outputs.items())).values()
        return [*bodies, *self.deltas, *differences, *outputs]


@dataclass(slots=True)
class _GrowingWeights:
    """Staged weights whose layout is complete after the last module, and the part that is not written yet."""

    staged: Staged
    layout: Layout = field(default_factory=dict)
    buffered: list[bytes] = field(default_factory=list)

    def append(self, module: Module, served: Factors | None, residual: Factors) -> None:
        """Add a module: A, B, RA, RB in the order of a layout, without factors of rank 0."""
        for prefix, factors in (("", served), ("R", residual)):
            if factors is not None and factors.rank:
                for name, values in ((f"{prefix}A", factors.A), (f"{prefix}B", factors.B)):
                    self.layout[f"{module}.{name}"] = values.shape
                    self.buffered.append(np.ascontiguousarray(values, "<f4").tobytes())


def write_base_deltas(
    database: Database,
    strategy: Strategy,
    weights: Weights,
    clients: Sequence[Established],
    alone: Collection[str],
    federation_id: str,
    round_number: int,
    between: Callable[[], None],
) -> RoundOutput:
    """Write the base deltas of a round and all clients' weights as staged payloads.

    `alone` are the clients that keep their own. `between` is called after every module; if it raises, the
    staged payloads are discarded.
    """
    members, earlier = _members(database, clients, alone, federation_id, round_number)
    groups: dict[BaseModelGroup, list[GroupMember]] = {}
    for member in members:
        groups.setdefault(group_of(member.base_model, member.compared), []).append(member)
    states = {client.facts.client: client.state for client in clients}
    work = _Work(database, strategy, weights, StoredFactors(database, states), between)
    bodies, deltas = dict[str, StagedOutput](), list[GroupDelta]()
    try:
        for group, in_group in sorted(groups.items()):
            written, total = work.group_bodies(in_group, earlier.get(group))
            bodies |= written
            deltas.append(GroupDelta(group, total.layout, total.staged))
    except BaseException:
        discard(database, work.growing)
        raise
    return RoundOutput(bodies, deltas)


def _members(
    database: Database,
    clients: Sequence[Established],
    alone: Collection[str],
    federation_id: str,
    round_number: int,
) -> tuple[list[GroupMember], dict[BaseModelGroup, StoredState]]:
    with database.read() as session:
        trained_from = {
            client.facts.client: base_weights.newest(session, client.facts.client, round_number)
            for client in clients
            if client.facts.age == 0
        }
        earlier = base_delta_store.latest(session, federation_id, round_number)
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
    """The inputs that all groups of a round share, and the payloads staged so far."""

    database: Database
    strategy: Strategy
    weights: Weights
    stored: StoredFactors
    between: Callable[[], None]
    growing: list[_GrowingWeights] = field(default_factory=list)

    def group_bodies(
        self, members: Sequence[GroupMember], earlier: StoredState | None
    ) -> tuple[dict[str, StagedOutput], _GrowingWeights]:
        new, total = self._stage(2)
        self._write_delta(members[0], earlier, new, total)
        served = [member for member in members if member.is_served]
        present, absent, bodies = dict[str, bytes](), dict[str, bytes](), dict[str, StagedOutput]()
        for member in served:
            if member.fold_from is None:
                absent[member.client] = whole_head(total.layout, member.manifest)
            elif member.keeps_own:
                (repeated,) = self._stage(1)
                self._write_own(member, repeated)
                head = increment_head(repeated.layout, member.manifest, fold_from=member.fold_from)
                bodies |= _bodies(self.database, repeated.staged, {member.client: head})
            else:
                present[member.client] = increment_head(
                    new.layout, member.manifest, fold_from=member.fold_from
                )
        bodies |= _bodies(self.database, new.staged, present)
        bodies |= _bodies(self.database, total.staged, absent)
        if not present:
            discard(self.database, [new])
        return bodies, total

    def _stage(self, count: int) -> list[_GrowingWeights]:
        with self.database.write() as session:
            staged = [_GrowingWeights(payloads.stage(session)) for _ in range(count)]
        self.growing.extend(staged)
        return staged

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
                by_factor = earlier_places.get(module, {})
                with self.database.driver_connection() as driver:
                    stored = [
                        read_factors(driver, earlier.payload_id, earlier.begin, by_factor[a], by_factor[b])
                        if a in by_factor
                        else None
                        for a, b in (("A", "B"), ("RA", "RB"))
                    ]
                served, so_far = stored[0], stored[1] or so_far
            sources = (facts for facts, weight in zip(cohort, row, strict=True) if weight > 0)
            all_absent = earlier is not None and all(facts.age != 0 for facts in sources)
            if member.keeps_own or all_absent:
                delta, summed = BaseDelta(served, _no_rank(dict(form), module)), so_far
            else:
                delta = self.strategy.base_delta(self.stored.sources(self.weights, module, row))
                summed = recompressed(side_by_side([so_far, delta.residual]))
            new.append(module, delta.served, delta.residual)
            total.append(module, delta.served, summed)
            self._flush([new, total])
            self.between()
        self._flush([new, total], at_least=0)

    def _write_own(self, member: GroupMember, growing: _GrowingWeights) -> None:
        for module, form in sorted(modules_of(member.layout).items()):
            factors = self.stored.of_client(member.client, module)
            growing.append(module, factors, _no_rank(dict(form), module))
            self._flush([growing])
            self.between()
        self._flush([growing], at_least=0)

    def _flush(self, growing: Sequence[_GrowingWeights], *, at_least: int = BATCH_BYTES) -> None:
        """Write what is buffered in one transaction, unless it is less than `at_least` bytes."""
        if sum(len(piece) for weights in growing for piece in weights.buffered) < at_least:
            return
        with self.database.write() as session:
            for weights in growing:
                for piece in weights.buffered:
                    weights.staged.append(session, piece)
                weights.buffered.clear()


def _no_rank(form: Mapping[str, Shape], module: Module) -> Factors:
    a, b = form[f"{module}.A"], form[f"{module}.B"]
    return Factors(np.zeros((0, a[1]), np.float32), np.zeros((b[0], 0), np.float32))


def _bodies(database: Database, staged: Staged, heads: Mapping[str, bytes]) -> dict[str, StagedOutput]:
    """Return each client's body, its own head and the staged values; these are read once for all digests."""
    hashes = {client: sha256(head) for client, head in heads.items()}
    for piece in payloads.stream(database, staged.payload_id, 0, staged.size if heads else 0):
        for running in hashes.values():
            running.update(piece)
    return {
        client: StagedOutput(
            head,
            staged,
            0,
            digest_from_hash(hashes[client].hexdigest()),
            len(head) + staged.size,
        )
        for client, head in heads.items()
    }
