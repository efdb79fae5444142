"""Clients of different ranks, over HTTP: accepted updates, and served weights of each client's rank."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.strategies.capabilities import Source
from coordinator.strategies.opening import make
from schemas.maths.factors import Factors
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.operator import Operator
from tests.scene.ranks import RANKS_PLAN, SHAPES, layout_of_rank, running_ranks
from tests.scene.rounds import join, put, update_body, wait_for, weights
from tests.scene.tensors import random_tensors

Tensors = dict[str, NDArray[np.float32]]


def joined_weights(silo: Silo, number: int, rank: int) -> Tensors:
    join(silo, number)
    return weights(silo, number, layout_of_rank(rank))


def rank_column(shown: str) -> list[str]:
    lines = shown.splitlines()
    (end,) = [line.index(" rank ") + 5 for line in lines if line.split()[:2] == ["client", "state"]]
    return sorted(line[:end].split()[-1] for line in lines if line.split()[:1] in (["c0"], ["c1"], ["c2"]))


def expected(sent: list[Tensors], rank: int) -> Tensors:
    strategy = make("het_lora", {})
    assert strategy.traits.combines
    tensors: Tensors = {}
    for module in {name[:-2] for name in sent[0]}:
        factors = [Factors(adapter[f"{module}.A"], adapter[f"{module}.B"]) for adapter in sent]
        combined = strategy.combine([Source(adapter, 1 / len(sent)) for adapter in factors]).of_rank(rank)
        tensors |= {f"{module}.A": combined.A, f"{module}.B": combined.B}
    return tensors


def test_clients_are_served_weights_of_their_own_rank(coordinator: Served) -> None:
    federation_id, silos = running_ranks(coordinator, ["tiny-s-aaaaaaaaaaaa"] * 2 + ["tiny-l-bbbbbbbbbbbb"])
    ranks = [2, 3, 2]
    sent = [random_tensors(layout_of_rank(rank), i) for i, rank in enumerate(ranks)]
    for silo, tensors in zip(silos, sent, strict=True):
        assert set(joined_weights(silo, 1, 4)) == set(layout_of_rank(4))  # nobody's rank is known yet
        answer = put(silo, 1, update_body(silo, 1, join(silo, 1), tensors))
        assert answer.status_code == 201, answer.text
    published = wait_for(coordinator, federation_id, 1, "published")
    assert rank_column(Operator(coordinator)("round", "show", federation_id, "1")) == ["2", "2", "3"]
    assert {client["name"]: client["rank"] for client in published["clients"]} == {"c0": 2, "c1": 3, "c2": 2}
    for place, (silo, rank) in enumerate(zip(silos, ranks, strict=True)):
        combined = expected(sent[:2] if place < 2 else sent[2:], rank)
        for name, values in joined_weights(silo, 2, rank).items():
            np.testing.assert_allclose(values, combined[name], rtol=1e-5, atol=1e-6)
    newcomer = coordinator.enrol(
        federation_id, "new", base_model="tiny-s-aaaaaaaaaaaa", layers=2, shapes=SHAPES
    )
    for name, values in joined_weights(newcomer, 2, 4).items():
        np.testing.assert_allclose(values, expected(sent[:2], 4)[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 5])
def test_a_rank_outside_the_plan_s_is_refused(coordinator: Served, rank: int) -> None:
    _, (silo,) = running_ranks(coordinator, ["tiny-s-aaaaaaaaaaaa"])
    answer = put(silo, 1, update_body(silo, 1, join(silo, 1), random_tensors(layout_of_rank(rank), 0)))
    assert (answer.status_code, slug(answer)) == (422, "tensor-schema")


def test_an_update_of_two_ranks_is_refused(coordinator: Served) -> None:
    _, (silo,) = running_ranks(coordinator, ["tiny-s-aaaaaaaaaaaa"])
    mixed = {
        n: (
            random_tensors(layout_of_rank(2), 0)
            if n.startswith("l0")
            else random_tensors(layout_of_rank(3), 0)
        )[n]
        for n in layout_of_rank(2)
    }
    answer = put(silo, 1, update_body(silo, 1, join(silo, 1), mixed))
    assert (answer.status_code, slug(answer)) == (422, "tensor-schema")
    assert (
        put(silo, 1, update_body(silo, 1, join(silo, 1), random_tensors(layout_of_rank(4), 0))).status_code
        == 201
    )


def test_rslora_is_refused_where_ranks_differ(coordinator: Served) -> None:
    plan = RANKS_PLAN | {"name": "x", "adapter": {"kind": "lora", "rank": 4, "rslora": True}}
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert (refused.status_code, refused.json()["field"]) == (422, "adapter.rslora")
    assert "differ in rank" in refused.json()["detail"]


def test_a_minimum_rank_above_the_maximum_is_refused(coordinator: Served) -> None:
    plan = RANKS_PLAN | {"name": "x", "strategy": {"name": "het_lora", "options": {"r_min": 5}}}
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert (refused.status_code, refused.json()["field"]) == (422, "adapter.rank")
