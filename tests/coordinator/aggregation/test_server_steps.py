"""Optimisers of the coordinator: the weights they serve round by round, and what of them survives a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.engine import Database
from coordinator.db.tables.weights import OptimizerMomentsRow
from schemas.maths.adapter import in_order
from schemas.messages.federations import FederationPlan
from tests.coordinator.aggregation import summed_round
from tests.coordinator.aggregation.closed_round import (
    Sent,
    begin_with_zeros,
    close_next,
    close_round,
    count,
    plan,
    publish,
    served,
)
from tests.coordinator.aggregation.optimised_rounds import (
    ADAM,
    MOMENTUM,
    PQ,
    begun,
    mean_of,
    planned,
    play,
    reference,
    updates,
)
from tests.coordinator.aggregation.test_summed import MEMBERS, began_with, layout_under, rounding
from tests.served import Served
from tests.taking_part import deliver, running, try_join, values, wait_for, weights
from tests.taking_part import plan as body_of


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_all_clients_are_served_what_the_papers_compute(database: Database, optimizer: Any) -> None:
    closed = begun(database, planned(optimizer))
    publish(database, block_bytes=64)
    means = [mean_of(updates(1)), *(play(database, closed, number) for number in (2, 3, 4))]
    for number, wanted in enumerate(reference(optimizer, means), start=2):
        for client in closed.clients:
            np.testing.assert_allclose(served(database, client, PQ, number), wanted, rtol=2e-6, atol=1e-7)
    assert not np.allclose(wanted, means[-1], atol=0.05)


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_only_updates_of_the_round_count_and_absent_clients_are_served_the_step(
    database: Database, optimizer: Any
) -> None:
    closed = begun(database, planned(optimizer))
    publish(database)
    means = [mean_of(updates(1))]
    means += [play(database, closed, n, clients) for n, clients in ((2, [0]), (3, [1, 2]), (4, [2]))]
    for number, wanted in enumerate(reference(optimizer, means), start=2):
        for client in closed.clients:
            np.testing.assert_allclose(served(database, client, PQ, number), wanted, rtol=2e-6, atol=1e-7)


def test_a_median_is_the_change_too(database: Database) -> None:
    closed = begun(database, planned(MOMENTUM, aggregate="median"))
    publish(database)
    wanted = reference(MOMENTUM, [np.median([sent.values for sent in updates(1)], axis=0)])[0]
    np.testing.assert_allclose(served(database, closed.clients[0], PQ), wanted, rtol=2e-6)


def test_none_serves_the_same_bits_as_a_plan_without_the_option(database: Database) -> None:
    without, none = begun(database, plan(total=9)), begun(database, planned("none"))
    for _ in range(2):
        publish(database)
    for number in (2, 3):
        for closed in (without, none):
            close_next(database, closed, dict(zip(closed.clients, updates(number), strict=True)))
        for _ in range(2):
            publish(database)
        assert all(
            served(database, mine, PQ, number).tobytes() == served(database, theirs, PQ, number).tobytes()
            for mine, theirs in zip(without.clients, none.clients, strict=True)
        )
    assert count(database, OptimizerMomentsRow) == 0


def test_a_rate_of_one_without_momentum_serves_the_mean(database: Database) -> None:
    closed = begun(database, planned({"kind": "momentum", "learning_rate": 1, "beta": 0}))
    publish(database)
    mean = play(database, closed, 2)
    np.testing.assert_allclose(served(database, closed.clients[0], PQ, 3), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("recipe", ["int8", "int4"])
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_steps_begin_with_weights_as_clients_rebuilt_them(
    database: Database, optimizer: dict[str, Any], recipe: str
) -> None:
    closed = begun(database, planned(optimizer, recipe))
    publish(database)
    exact = play(database, closed, 2)
    first = served(database, closed.clients[0], PQ, 2).astype(np.float64)
    second = served(database, closed.clients[2], PQ, 3).astype(np.float64)
    # The moments are those of the exact mean; what is served is a step of the number format away.
    ideal = reference(optimizer, [mean_of(updates(1))])[0]
    levels = {"int8": 127, "int4": 7}[recipe]
    assert 0 < np.abs(first - ideal).max() < 1.01 * np.abs(ideal).max() / levels
    change, share = exact - first, optimizer.get("beta", optimizer.get("beta1"))
    before = mean_of(updates(1))
    if optimizer["kind"] == "momentum":
        step = optimizer["learning_rate"] * (share * before + change)
    else:
        m = share * (1 - share) * before + (1 - share) * change
        v = optimizer["beta2"] * (optimizer["beta2"] * 0.01**2 + (1 - optimizer["beta2"]) * before**2)
        v += (1 - optimizer["beta2"]) * change**2
        step = optimizer["learning_rate"] * m / (np.sqrt(v) + optimizer["tau"])
    assert 0 < np.abs(second - first - step).max() < 1.01 * np.abs(step).max() / levels


def test_clients_of_another_base_model_have_moments_of_their_own(database: Database) -> None:
    lora = in_order({"l0.q.A": (1, 4), "l0.q.B": (4, 1)})
    draw = np.random.default_rng(5)
    sent = [
        Sent(lora, draw.normal(size=8).astype(np.float32), base_model=name) for name in ("s", "s", "m", "m")
    ]
    closed = close_round(database, planned(MOMENTUM), sent)
    begin_with_zeros(database, closed, lora)
    publish(database)
    # The second base model has nobody in round 2: its weights and moments wait.
    close_next(database, closed, dict(zip(closed.clients[:2], sent[:2], strict=True)))
    publish(database)
    np.testing.assert_array_equal(
        served(database, closed.clients[3], lora, 3), served(database, closed.clients[3], lora, 2)
    )
    assert np.any(
        served(database, closed.clients[0], lora, 3) != served(database, closed.clients[0], lora, 2)
    )
    with database.read() as session:
        rows = session.execute(select(OptimizerMomentsRow.base_model, OptimizerMomentsRow.round_number)).all()
    assert sorted(tuple(row) for row in rows) == [("m", 1), ("s", 2)]


@pytest.mark.parametrize("recipe", ["dense", "int8"])
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_a_sum_is_a_change_too(database: Database, optimizer: dict[str, Any], recipe: str) -> None:
    whole = summed_round.plan("fedavg", "lora").model_dump(mode="json")
    strategy = {"name": "fedavg", "options": {"server_optimizer": optimizer}}
    wire = {"recipe": "dense", "weights_recipe": recipe}
    wanted = FederationPlan.model_validate(whole | {"strategy": strategy, "wire": wire})
    layout = layout_under(wanted)
    federation_id = summed_round.federation(database, wanted, MEMBERS)
    start = began_with(wanted, layout, {name: np.zeros(shape, np.float32) for name, shape in layout.items()})
    name, before = "l0.q.B", start
    m, v = np.zeros(layout[name]), np.full(layout[name], optimizer.get("tau", 0.0) ** 2)
    for number in (1, 2, 3):
        members = summed_round.learnt(layout, MEMBERS, seed=number)
        summed_round.sum_round(database, federation_id, wanted, layout, members, number)
        summed_round.publish(database, block_bytes=256)
        change = np.mean([member.change[name] for member in members], axis=0)
        if optimizer["kind"] == "momentum":
            m = optimizer["beta"] * m + change
            step = optimizer["learning_rate"] * m
        else:
            m = optimizer["beta1"] * m + (1 - optimizer["beta1"]) * change
            v = optimizer["beta2"] * v + (1 - optimizer["beta2"]) * change**2
            step = optimizer["learning_rate"] * m / (np.sqrt(v) + optimizer["tau"])
        after = summed_round.served(database, federation_id, 0, layout, number + 1)
        within = 12 * rounding(wanted, layout) + (np.abs(step).max() / 100 if recipe == "int8" else 0)
        assert np.abs(after[name] - before[name] - step).max() < within < 0.2 * np.abs(step).max()
        before = after
    assert count(database, OptimizerMomentsRow) == 1


def test_whoever_is_drawn_begins_with_the_step_a_newcomer_too(coordinator: Served) -> None:
    rounds = {"total": 30, "min_clients": 2, "sample": 3}
    strategy = {"name": "fedavg", "options": {"server_optimizer": MOMENTUM}}
    wanted = body_of(rounds=rounds) | {
        "strategy": strategy,
        "wire": {"recipe": "dense", "weights_recipe": "dense"},
    }
    federation_id, silos = running(coordinator, 3, **wanted)
    common, late_has_joined, number = [np.zeros(1)], 0, 0
    while late_has_joined < 2:
        number += 1
        if number == 2:
            silos.append(coordinator.enrol(federation_id, "late"))
        for silo in silos:
            silo.http.get(f"/v1/federations/{federation_id}/rounds/current")
        drawn = [silo for silo in silos if try_join(silo, number).status_code == 200]
        assert len(drawn) == 3
        for silo in drawn:
            for tensor in weights(silo, number).values():
                np.testing.assert_allclose(tensor, np.full(tensor.shape, common[-1]), rtol=1e-5)
            deliver(silo, number, values(float(number % 3)))
        wait_for(coordinator, federation_id, number, "published")
        means = [np.full(1, float(past % 3)) for past in range(1, number + 1)]
        common = reference(MOMENTUM, means)
        late_has_joined += silos[-1] in drawn and number > 1
