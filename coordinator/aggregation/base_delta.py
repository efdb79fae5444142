"""Fold part of a round into each base model, module by module, and say who is served which part of it.

Whoever's update was in the round has everything from before it and gets what is new; anybody else gets all
that was folded so far, recompressed. Where too few would speak in a fold, nothing is folded, and whoever's
update was in the round is served it again, to go on from. Memory is bounded by one module of every source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from coordinator.aggregation.base_delta_store import Fold
from coordinator.aggregation.factor_reader import StoredFactors, places, read_factors
from coordinator.aggregation.mixing import Weights
from coordinator.aggregation.output_writer import StagedOutput, discard
from coordinator.aggregation.state_reader import StoredState
from coordinator.db.engine import Database
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from coordinator.strategies.base import Module, modules_of
from coordinator.strategies.capabilities import BaseDelta, Folding
from coordinator.weights.base_delta import BaseModelGroup, increment, kin_of, whole
from schemas.maths.adapter import Layout, Shape
from schemas.maths.factors import Factors, recompressed, side_by_side
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_from_hash


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A client whose base model is folded into.

    `fold_from` is the round of the weights that it trained from, if its update is in this round; None =
    it was absent. Nothing is made for one that is not `served`. `alone`: it and its kin keep their own.
    """

    client: str
    base_model: str
    layout: Layout
    manifest: WeightsManifest
    fold_from: int | None
    served: bool
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Folds:
    """What came of a round: each client's body, and all that is folded from now on, by kin."""

    made: dict[str, StagedOutput]
    folds: Sequence[Fold] = ()


@dataclass(slots=True)
class _Growing:
    """Weights in the making whose layout is known when they are whole."""

    staged: Staged
    layout: Layout = field(default_factory=dict)

    def append(self, database: Database, module: Module, served: Factors | None, residual: Factors) -> None:
        """Write a module: A, B, RA, RB in the order of a layout; what has no rank is left out."""
        with database.write() as session:
            for prefix, factors in (("", served), ("R", residual)):
                if factors is not None and factors.rank:
                    for name, values in ((f"{prefix}A", factors.A), (f"{prefix}B", factors.B)):
                        self.layout[f"{module}.{name}"] = values.shape
                        self.staged.append(session, np.ascontiguousarray(values, "<f4").tobytes())


def fold(
    database: Database,
    strategy: Folding,
    weights: Weights,
    states: Mapping[str, StoredState],
    members: Sequence[GroupMember],
    earlier: Mapping[BaseModelGroup, StoredState],
    *,
    between: Callable[[], None],
) -> Folds:
    """Write what a strategy folds and serves; `between` is called after every module.

    What it raises ends the work and what was staged is discarded.
    """
    kindred: dict[BaseModelGroup, list[GroupMember]] = {}
    for member in members:
        kindred.setdefault(kin_of(member.base_model, member.layout), []).append(member)
    work = _Work(database, strategy, weights, StoredFactors(database, states), between)
    made, folds, staged = dict[str, StagedOutput](), list[Fold](), list[_Growing]()
    try:
        for kin, some in sorted(kindred.items()):
            with database.write() as session:
                new, everything = (_Growing(payloads.stage(session)) for _ in range(2))
            staged += [new, everything]
            work.fold(some[0], earlier.get(kin), new, everything)
            served = [one for one in some if one.served]
            present = {
                one.client: increment(new.layout, one.manifest, fold_from=one.fold_from)
                for one in served
                if one.fold_from is not None and not one.alone
            }
            for one in served:
                if one.alone and one.fold_from is not None:
                    with database.write() as session:
                        again = _Growing(payloads.stage(session))
                    staged.append(again)
                    work.again(one, again)
                    beginning = increment(again.layout, one.manifest, fold_from=one.fold_from)
                    made |= _bodies(database, again.staged, {one.client: beginning})
            absent = {
                one.client: whole(everything.layout, one.manifest) for one in served if one.fold_from is None
            }
            made |= _bodies(database, new.staged, present)
            made |= _bodies(database, everything.staged, absent)
            folds.append(Fold(kin, everything.layout, everything.staged))
            if not present:
                discard(database, [new])
    except BaseException:
        discard(database, staged)
        raise
    return Folds(made, folds)


@dataclass(frozen=True, slots=True)
class _Work:
    """A round's folding, whichever kin it is for."""

    database: Database
    strategy: Folding
    weights: Weights
    stored: StoredFactors
    between: Callable[[], None]

    def fold(
        self, one: GroupMember, earlier: StoredState | None, new: _Growing, everything: _Growing
    ) -> None:
        """Go through the modules of the kin of which `one` is."""
        everybody = self.weights.cohort.clients
        clients = [facts.client for facts in everybody]
        before = places(earlier.layout) if earlier is not None else {}
        for module, form in sorted(modules_of(one.layout).items()):
            row = self.weights.of_module(module)[clients.index(one.client)]
            served, so_far = None, _nothing(dict(form), module)
            if earlier is not None:
                found = before.get(module, {})
                with self.database.driver_connection() as driver:
                    read = [
                        read_factors(driver, earlier.payload_id, earlier.begin, found[a], found[b])
                        if a in found
                        else None
                        for a, b in (("A", "B"), ("RA", "RB"))
                    ]
                served, so_far = read[0], read[1] or so_far
            heard = (facts for facts, weight in zip(everybody, row, strict=True) if weight > 0)
            absent = earlier is not None and all(facts.age != 0 for facts in heard)  # nobody of them is here
            if one.alone or absent:
                folded, together = BaseDelta(served, _nothing(dict(form), module)), so_far
            else:
                folded = self.strategy.fold(self.stored.sources(self.weights, module, row))
                together = recompressed(side_by_side([so_far, folded.residual]))
            new.append(self.database, module, folded.served, folded.residual)
            everything.append(self.database, module, folded.served, together)
            self.between()

    def again(self, one: GroupMember, growing: _Growing) -> None:
        """Write a client's own A and B for it to go on from; nothing is added to its base model."""
        for module, form in sorted(modules_of(one.layout).items()):
            own = self.stored.own(one.client, module)
            growing.append(self.database, module, own, _nothing(dict(form), module))
            self.between()


def _nothing(form: Mapping[str, Shape], module: Module) -> Factors:
    """Give a module's factors without any rank."""
    a, b = form[f"{module}.A"], form[f"{module}.B"]
    return Factors(np.zeros((0, a[1]), np.float32), np.zeros((b[0], 0), np.float32))


def _bodies(database: Database, staged: Staged, heads: Mapping[str, bytes]) -> dict[str, StagedOutput]:
    """Give each client's body: a head of its own and what is staged, which is read once for all digests."""
    seen = {client: sha256(beginning) for client, beginning in heads.items()}
    for piece in payloads.stream(database, staged.payload_id, 0, staged.size if heads else 0):
        for one in seen.values():
            one.update(piece)
    return {
        client: StagedOutput(
            beginning,
            staged,
            0,
            digest_from_hash(seen[client].hexdigest()),
            len(beginning) + staged.size,
        )
        for client, beginning in heads.items()
    }
