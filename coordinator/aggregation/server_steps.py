"""Move the common weights of each group by a step of the plan's optimiser, in place of serving the mean.

A group is the clients of one base model and layout. Its weights before the step are those that most of its
clients were served last, as they reconstructed them. Where no update of this round has weight, nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from sqlalchemy.orm import Session

from coordinator.aggregation.moments import StagedMoments, Stepper
from coordinator.aggregation.output_writer import (
    Receiver,
    StagedBody,
    StagedOutput,
    discard,
    replacing,
)
from coordinator.aggregation.served_differences import commonest, earlier_weights
from coordinator.aggregation.state_reader import Values
from coordinator.aggregation.store import Established
from coordinator.aggregation.tensor_writing import Sink, write_tensors
from coordinator.db.engine import Database
from coordinator.rounds import delta_reference
from coordinator.rounds.delta_reference import Reference
from coordinator.storage import optimizer_moments, payloads
from coordinator.strategies.base import Module, Weights
from coordinator.strategies.opening import OpenedPlan
from coordinator.strategies.server_optimizer import ServerOptimizer
from coordinator.weights.base_delta import BaseModelGroup, group_of
from schemas.maths.adapter import Layout, module_of
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import MANIFEST_KEY
from schemas.wire.header import read_own_head


@dataclass(frozen=True, slots=True)
class Moved:
    """The bodies of all clients after the optimiser's steps, and the moments of the groups that changed."""

    bodies: dict[str, StagedOutput]
    moments: list[StagedMoments] = field(default_factory=list)


def move(
    database: Database,
    opened: OpenedPlan,
    weights: Weights,
    clients: Sequence[Established],
    bodies: dict[str, StagedOutput],
    round_number: int,
    between: Callable[[], None],
) -> Moved:
    """Replace the means of a round by weights that the plan's optimiser has moved; without one, return them.

    Clients that were served nothing in their layout and frames get the mean, and their optimiser begins anew.
    `between` is called after every tensor; if it raises, all staged payloads are discarded.
    """
    optimizer = opened.strategy.optimizer
    result = Moved(dict(bodies))
    if optimizer is None:
        return result
    with replacing(database, bodies, result.bodies, result.moments):
        with database.read() as session:
            groups = _groups(session, clients, bodies, round_number, opened.plan.training.seed)
        for group in groups:
            moving = _moving(weights, group)
            if any(moving.values()):
                _step(database, optimizer, group, moving, result, between)
    return result


@dataclass(slots=True)
class _Group:
    """Clients of one base model and layout, with the mean of one of them; all that moves has one mean.

    `moments` is the payload of the group's moments, None before its first step.
    """

    key: BaseModelGroup
    mean: Reference
    moments: int | None
    receivers: list[Receiver] = field(default_factory=list)
    earlier: list[Reference] = field(default_factory=list)


def _groups(
    session: Session,
    clients: Sequence[Established],
    bodies: Mapping[str, StagedOutput],
    round_number: int,
    seed: int,
) -> list[_Group]:
    groups: dict[BaseModelGroup, _Group] = {}
    for client in clients:
        client_id = client.facts.client
        body = bodies.get(client_id)
        if body is None:  # revoked
            continue
        layout, metadata = read_own_head(body.head)
        key = group_of(client.facts.base_model, layout)
        if key not in groups:
            mean = Reference(body.digest, body.staged.payload_id, body.begin, layout, None)
            stored = optimizer_moments.payload_of(session, client.manifest.federation, *key)
            groups[key] = _Group(key, mean, stored)
        manifest = WeightsManifest.model_validate_json(metadata[MANIFEST_KEY])
        groups[key].receivers.append(Receiver(client_id, layout, body.head))
        earlier = earlier_weights(session, client_id, round_number, layout, manifest, seed)
        if earlier is not None:
            groups[key].earlier.append(earlier)
    return list(groups.values())


def _moving(weights: Weights, group: _Group) -> dict[Module, bool]:
    """Return for each module whether updates of this round have weight in it."""
    clients = weights.cohort.clients
    row = next(place for place, facts in enumerate(clients) if facts.client == group.receivers[0].client)
    of_round = np.array([facts.age == 0 for facts in clients], bool)
    modules = {module_of(tensor) for tensor in group.mean.layout}
    return {module: bool(weights.of_module(module)[row, of_round].any()) for module in modules}


def _step(
    database: Database,
    optimizer: ServerOptimizer,
    group: _Group,
    moving: Mapping[Module, bool],
    result: Moved,
    between: Callable[[], None],
) -> None:
    earlier = commonest(group.earlier)
    with database.write() as session:
        staged = payloads.stage(session)
        staged.append(session, group.receivers[0].head)
        new = StagedMoments(group.key, payloads.stage(session))
    body = StagedBody(staged, group.receivers)
    try:
        write_tensors(database, _moved(database, optimizer, group, moving, earlier, body, new), between)
    except BaseException:
        discard(database, [*body.outputs().values(), new])
        raise
    result.bodies.update(body.outputs())
    result.moments.append(new)


def _moved(
    database: Database,
    optimizer: ServerOptimizer,
    group: _Group,
    moving: Mapping[Module, bool],
    earlier: Reference | None,
    body: StagedBody,
    new: StagedMoments,
) -> Iterator[tuple[Sink, Values]]:
    """Yield the new weights and moments of each tensor with where they are written."""
    layout: Layout = group.mean.layout
    mean = delta_reference.reader(database, group.mean, layout)
    before = delta_reference.reader(database, earlier, layout) if earlier is not None else None
    stepper = Stepper(database, optimizer, layout, group.moments if before is not None else None)
    for name, shape in layout.items():
        values = mean(name).reshape(-1)
        if before is not None and moving[module_of(name)]:
            values, moments = stepper.step(before(name).reshape(-1), values)
        else:
            moments = stepper.stay(prod(shape))
        yield body, values
        yield new.staged, moments
