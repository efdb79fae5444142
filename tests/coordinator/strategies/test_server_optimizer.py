"""The option `server_optimizer`: its short and long form, its limits, and the plans that refuse it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator.strategies.fedavg import Options
from coordinator.strategies.server_optimizer import Adam, Momentum
from tests.served import Served

LORA = {"kind": "lora", "rank": 2, "roles": ["q"]}
AVERAGING = ["fedavg", "fedprox", "ditto", "ffa_lora", "fedsa_lora"]


def body(name: str, optimizer: Any, **others: Any) -> dict[str, Any]:
    strategy = {"name": name, "options": {"server_optimizer": optimizer}}
    return {"name": "x", "strategy": strategy, "adapter": LORA} | others


def test_a_name_stands_for_the_settings_of_the_paper() -> None:
    assert Options.model_validate({"server_optimizer": "momentum"}).server_optimizer == Momentum()
    adam = Options.model_validate({"server_optimizer": "adam"}).model_dump(mode="json")["server_optimizer"]
    assert adam == {"kind": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    assert Options.model_validate(adam := {"server_optimizer": adam}).model_dump(mode="json") == adam


@pytest.mark.parametrize("none", ["none", None])
def test_no_optimiser_is_left_out_of_the_plan(none: object) -> None:
    options = Options.model_validate({"server_optimizer": none})
    assert options.model_dump(mode="json") == Options().model_dump(mode="json") == {}


@pytest.mark.parametrize(
    "optimizer",
    [
        "sgd",
        {"kind": "adam", "beta": 0.9},
        {"kind": "momentum", "tau": 1.0},
        {"kind": "momentum", "beta": 1.0},
        {"kind": "momentum", "learning_rate": 0},
        {"kind": "adam", "tau": 0},
        {"kind": "adam", "learning_rate": float("inf")},
        {"learning_rate": 1.0},
    ],
)
def test_settings_that_an_optimiser_does_not_have_are_refused(optimizer: object) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate({"server_optimizer": optimizer})


def test_adam_begins_at_tau_and_moves_by_about_its_rate() -> None:
    adam = Adam(learning_rate=0.1, beta1=0.0, beta2=0.0, tau=1e-6)
    assert adam.start().tolist() == [0.0, 1e-12]
    moved, moments = adam.step(np.array([3.0, -0.5, 0.0]), np.tile(adam.start(), (3, 1)))
    np.testing.assert_allclose(moved, [0.1, -0.1, 0.0], rtol=1e-5)
    np.testing.assert_array_equal(moments, [[3.0, 9.0], [-0.5, 0.25], [0.0, 0.0]])


@pytest.mark.parametrize("strategy", AVERAGING)
def test_strategies_with_one_mean_take_it_with_sums_too(coordinator: Served, strategy: str) -> None:
    for others in ({}, {"rounds": {"min_clients": 5}, "privacy": {"secure_sum": {}}}):
        made = coordinator.admin.post("/v1/federations", json=body(strategy, "adam", **others))
        assert made.status_code == 201, made.text
        assert made.json()["plan"]["strategy"]["options"]["server_optimizer"]["kind"] == "adam"


@pytest.mark.parametrize("strategy", ["fedmosaic", "flora", "fedex_lora", "het_lora", "lora_fair", "ca_pfl"])
def test_other_strategies_name_those_that_have_it(coordinator: Served, strategy: str) -> None:
    refused = coordinator.admin.post("/v1/federations", json=body(strategy, "momentum"))
    assert (refused.status_code, refused.json()["field"]) == (422, "strategy.options.server_optimizer")
    assert "ditto, fedavg, fedprox, fedsa_lora, ffa_lora have it" in refused.json()["detail"]


def test_weights_that_clients_keep_for_want_of_voices_are_not_common(coordinator: Served) -> None:
    refused = coordinator.admin.post(
        "/v1/federations", json=body("fedavg", "momentum", privacy={"min_voices": 2})
    )
    assert (refused.status_code, refused.json()["field"]) == (422, "strategy.options.server_optimizer")
    assert "leave min_voices at 1" in refused.json()["detail"]
