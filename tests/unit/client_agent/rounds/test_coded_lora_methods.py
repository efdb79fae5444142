"""Updates of FedEx-LoRA, FLoRA and HetLoRA as differences in few bits: both sides hold the same state."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from client_agent.adapters.rank_pruning import Pruner
from client_agent.adapters.ranks import rank_of
from client_agent.rounds.steps import take_part
from client_agent.storage.base_delta import BaseDelta
from client_agent.storage.round_folder import FOLD, RECEIPT, SCORES_SENT, SENT, UPDATE, WEIGHTS, RoundFolder
from schemas.maths.adapter import Layout
from schemas.messages.recipes import SentRecipe
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import UpdateManifest
from schemas.wire.digests import digest_of
from tests.scene.agent_pair import Pair
from tests.scene.agent_rounds import (
    Arrays,
    layout_of,
    opened_update,
    stored_receipt,
    stored_tensors,
    trained_tensors,
)
from tests.scene.rounds import tensors_of
from tests.unit.client_agent.rounds.test_byte_budget import octets

pytestmark = pytest.mark.slow

BOTH = ("aster", "birch")
SPARSE = {"reference": "own_last", "density": 0.5, "values": "int8"}
OF_WEIGHTS = {"reference": "served", "density": 0.5, "values": "int8"}
PRUNING = {"r_min": 2, "decay": 0.75, "pruning": 0.0}

Scene = Callable[..., Pair]


@pytest.fixture
def pair(pair: Callable[..., Pair]) -> Scene:
    def start(strategy: str, recipe: Any, options: dict[str, Any] | None = None, rank: int = 2) -> Pair:
        return pair(
            adapter={"kind": "lora", "rank": rank, "scale": 4.0, "roles": ["q", "v"]},
            strategy={"name": strategy, "options": options or {}},
            wire={"recipe": recipe},
            rounds={"total": 9, "min_clients": 2},
            training={"steps": 4, "learning_rate": 0.01, "seed": 5, "max_length": 64},
        )

    return start


def stored(pair: Pair, name: str, layout: Layout) -> Arrays:
    path = f"/v1/federations/{pair.federation_id}/clients/{pair.members[name].session.client_id}/adapter"
    return tensors_of(pair.served.admin.get(path), layout)


def sent_recipe(folder: RoundFolder) -> SentRecipe:
    with opened_update(folder) as envelope:
        return SentRecipe.model_validate(envelope.manifest(UpdateManifest).recipe)


def assert_near(left: Arrays, right: Arrays, share: float) -> None:
    """Check that values differ by a share of the largest at most."""
    most = max(np.abs(values).max() for values in right.values())
    for name, values in left.items():
        assert np.abs(values - right[name]).max() <= share * most, name


@pytest.mark.parametrize("recipe", ["int4_own_last", SPARSE], ids=["int4", "sparse"])
@pytest.mark.parametrize("strategy", ["fedex_lora", "flora", "het_lora"])
def test_coordinator_and_client_hold_the_same_update(pair: Scene, strategy: str, recipe: Any) -> None:
    scene = pair(strategy, recipe)
    last: str | None = None
    for _ in range(2):
        folder = scene.run_round(*BOTH)["aster"]
        layout = layout_of(folder)
        plain = sum(4 * values.size for values in trained_tensors(folder).values())
        assert octets(folder) < plain / 2
        against_weights = strategy == "flora" or last is None
        assert sent_recipe(folder).against == (digest_of(folder.read(WEIGHTS)) if against_weights else last)
        state = stored(scene, "aster", layout)
        for name, values in stored_tensors(folder, SENT).items():
            assert state[name].tobytes() == values.tobytes()
        assert_near(state, trained_tensors(folder), 0.5)
        last = stored_receipt(folder).digest


@pytest.mark.parametrize("strategy", ["fedex_lora", "flora", "het_lora"])
def test_difference_refers_to_weights_beside_base_delta(pair: Scene, strategy: str) -> None:
    scene = pair(strategy, OF_WEIGHTS | {"density": 1.0})
    for _ in range(2):
        folder = scene.run_round(*BOTH)["aster"]
        assert sent_recipe(folder).against == folder.base
        assert_near(stored(scene, "aster", layout_of(folder)), trained_tensors(folder), 0.01)


@pytest.mark.parametrize("strategy", ["fedsa_lora", "ffa_lora"])
def test_difference_of_one_factor_refers_to_served_weights(pair: Scene, strategy: str) -> None:
    scene = pair(strategy, "int4_own_last")
    folder = scene.run_round(*BOTH)["aster"]
    assert sent_recipe(folder).against == digest_of(folder.read(WEIGHTS))
    assert_near(stored(scene, "aster", layout_of(folder)), trained_tensors(folder), 0.5)


def test_difference_after_whole_base_delta_refers_to_base(pair: Scene) -> None:
    scene = pair("fedex_lora", OF_WEIGHTS | {"density": 1.0})
    for _ in range(2):
        scene.run_round(*BOTH)["birch"].forget(FOLD)
    folder = scene.run_round(*BOTH)["birch"]
    assert sent_recipe(folder).against == folder.base != digest_of(folder.read(WEIGHTS))
    assert_near(stored(scene, "birch", layout_of(folder)), trained_tensors(folder), 0.01)


@pytest.mark.parametrize("recipe", [SPARSE, OF_WEIGHTS], ids=["own_last", "served"])
def test_pruning_clients_difference_has_its_fewer_ranks(
    pair: Scene, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count()
    monkeypatch.setattr(Pruner, "_size", lambda self: -next(sizes))  # its last ranks always shrink
    scene = pair("het_lora", recipe, PRUNING, rank=4)
    ranks = []
    for _ in range(2):
        folder = scene.run_round(*BOTH)["aster"]
        ranks.append(rank_of(trained_tensors(folder)))
        assert sent_recipe(folder).rank == ranks[-1]
        assert stored(scene, "aster", layout_of(folder)).keys() == layout_of(folder).keys()
    assert ranks == [3, 2]


def test_lost_update_is_rebuilt_to_the_byte(pair: Scene) -> None:
    scene = pair("flora", OF_WEIGHTS)
    scene.run_round(*BOTH)
    folder = scene.run_round(*BOTH)["aster"]
    body = folder.read(UPDATE)
    folder.forget(UPDATE, RECEIPT, SCORES_SENT)
    brief = RoundBrief.model_validate_json(folder.read("brief.json"))
    assert take_part(scene.members["aster"], brief)
    assert folder.read(UPDATE) == body


def test_flora_stacks_adapters_of_different_ranks(pair: Scene) -> None:
    scene = pair("flora", "int4_own_last")
    scene.members["birch"].trainer.lora_rank = 1
    folders = scene.run_round(*BOTH)
    assert [rank_of(trained_tensors(folders[name])) for name in BOTH] == [2, 1]
    sent = {name: stored(scene, name, layout_of(folders[name])) for name in BOTH}
    again = scene.run_round(*BOTH)
    for name in BOTH:
        added = BaseDelta.from_bytes(again[name].read(FOLD)).added
        for module, factors in added.items():
            expected = sum(
                share * sent[of][f"{module}.B"] @ sent[of][f"{module}.A"]
                for share, of in zip((0.6, 0.4), BOTH, strict=True)  # of 6 and 4 examples
            )
            np.testing.assert_allclose(factors.B @ factors.A, expected, atol=1e-6)
            assert np.abs(expected).max() > 1e-4
