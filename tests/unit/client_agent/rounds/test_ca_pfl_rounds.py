"""CA-PFL over HTTP with real agents and a real coordinator: updates, residuals, priors and kills."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_agent.adapters.variational.adapter import posterior_of
from client_agent.adapters.variational.posterior import START
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import (
    BRIEF,
    MEASURES,
    RECEIPT,
    RESIDUAL,
    SCORES_SENT,
    SKETCH,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
)
from schemas.maths.start import from_start
from tests.scene.agent_pair import CA_PFL, CA_PFL_RECIPE, Pair
from tests.scene.agent_rounds import (
    killed_at_write,
    layout_of,
    stored_tensors,
    trained_tensors,
    update_difference,
)
from tests.scene.coordinator import Served

Arrays = dict[str, NDArray[np.float32]]


def weights(folder: RoundFolder) -> Arrays:
    return stored_tensors(folder, WEIGHTS)


def start_of(folder: RoundFolder) -> Arrays:
    """Return the start of a round: the served weights; in round 1, A of the seed."""
    served = weights(folder)
    return {name: from_start(name, served.__getitem__, 0, layout_of(folder)) for name in served}


def subtract(left: Arrays, right: Arrays) -> Arrays:
    return {name: left[name] - right[name] for name in left}


def total(arrays: list[Arrays]) -> Arrays:
    return {
        name: np.sum([tensors[name].astype(np.float64) for tensors in arrays], axis=0) for name in arrays[0]
    }


def assert_close(left: Arrays, right: Arrays) -> None:
    for name, values in left.items():
        np.testing.assert_allclose(values, right[name], atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_sent_values_and_residual_sum_to_learnt_change(
    pair: Callable[..., Pair],
) -> None:
    two = pair(rounds={"total": 4, "min_clients": 2})
    folders = [two.run_round("aster", "birch") for _ in range(3)]
    for name in two.members:
        changes = [subtract(trained_tensors(folder[name]), start_of(folder[name])) for folder in folders]
        sent = [update_difference(folder[name]) for folder in folders]
        left = stored_tensors(folders[-1][name], RESIDUAL)
        assert any(values.any() for values in left.values())
        assert_close(total([*sent, left]), total(changes))
    for earlier, later in pairwise(folders):
        assert_close(start_of(earlier["aster"]), start_of(earlier["birch"]))  # one theta for all
        mean = {
            tensor: 0.6 * values + 0.4 * update_difference(earlier["birch"])[tensor]
            for tensor, values in update_difference(earlier["aster"]).items()
        }
        assert_close(weights(later["aster"]), total([start_of(earlier["aster"]), mean]))


def test_served_prior_is_moving_average_of_clients_posteriors(
    pair: Callable[..., Pair],
) -> None:
    two = pair(rounds={"total": 2, "min_clients": 2})
    first, after = two.run_round("aster", "birch"), two.run_round("aster", "birch")
    changes = {
        name: posterior_of(TrainingResult.read(folder.path / TRAINED).private).numpy()
        for name, folder in first.items()
    }
    mean = 0.6 * changes["aster"] + 0.4 * changes["birch"]  # (2, M, r)
    for row, module in enumerate(sorted({tensor[:4] for tensor in weights(first["aster"])})):
        served = START + weights(after["aster"])[f"{module}.prior"]
        np.testing.assert_allclose(served, 0.9 * START + 0.1 * mean[:, row], atol=2e-4)  # a step of int8
        assert np.abs(served - START).max() > 5e-4


@pytest.mark.slow
def test_absent_clients_residual_is_dropped(
    pair: Callable[..., Pair],
) -> None:
    two = pair(rounds={"total": 4, "min_clients": 1})
    first = two.run_round("aster", "birch")
    second = two.run_round("aster")["aster"]
    third = two.run_round("aster", "birch")
    sent_total = total([start_of(second), update_difference(second)])
    assert_close(weights(third["birch"]), sent_total)
    assert_close(weights(third["aster"]), sent_total)
    for name, makes_up in (("aster", True), ("birch", False)):
        folder, last = third[name], second if name == "aster" else first[name]
        change, lost = subtract(trained_tensors(folder), start_of(folder)), stored_tensors(last, RESIDUAL)
        assert any(values.any() for values in lost.values())
        expected = total([change, lost]) if makes_up else change
        assert_close(total([update_difference(folder), stored_tensors(folder, RESIDUAL)]), expected)


def test_killed_agent_sends_and_keeps_the_same_bytes(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair(rounds={"total": 3, "min_clients": 1})
    two.run_round("aster")
    brief, participant = two.brief("aster"), two.members["aster"]
    folder = participant.workspace.rounds.open(brief.round)
    bodies_seen: dict[str, set[bytes]] = {RESIDUAL: set(), MEASURES: set(), UPDATE: set()}
    files = (BRIEF, WEIGHTS, TRAINED, SKETCH, RESIDUAL, MEASURES, UPDATE, RECEIPT, SCORES_SENT)
    for name, is_written in product(files, (False, True)):
        with killed_at_write(monkeypatch, name, is_written=is_written):
            take_part(participant, brief)
        for file, contents in bodies_seen.items():
            contents |= {folder.read(file)} if folder.has(file) else set()
    assert [len(contents) for contents in bodies_seen.values()] == [1, 1, 1]


def test_measures_file_lists_density_and_residual_per_round(
    pair: Callable[..., Pair], tmp_path: Path
) -> None:
    two = pair(rounds={"total": 4, "min_clients": 1})
    folders = [two.run_round("aster")["aster"] for _ in range(3)]
    measured_rounds = json.loads(folders[-1].read(MEASURES))["rounds"]
    assert [entry["round"] for entry in measured_rounds] == [1, 2, 3]
    assert measured_rounds[:2] == json.loads(folders[1].read(MEASURES))["rounds"]
    assert [entry["density"] for entry in measured_rounds] == pytest.approx([0.9, 0.3, 0.3], abs=0.02)
    for entry, folder in zip(measured_rounds, folders, strict=True):
        change = subtract(trained_tensors(folder), start_of(folder))
        left = stored_tensors(folder, RESIDUAL)
        norms = [
            np.sqrt(sum(float(np.square(v).sum()) for v in tensors.values())) for tensors in (left, change)
        ]
        assert entry["residual"] == pytest.approx(norms[0] / norms[1], rel=1e-3)
        assert entry["kl"] > 0
        low, middle, high = entry["importance"]
        assert low <= middle <= high
        assert low < high


def test_clients_posteriors_leave_prior_and_rank_modules_differently(
    pair: Callable[..., Pair],
) -> None:
    two = pair(rounds={"total": 2, "min_clients": 2})
    folders = [two.run_round("aster", "birch") for _ in range(2)][-1]
    measures = {name: json.loads(folder.read(MEASURES)) for name, folder in folders.items()}
    assert all(entry["kl"] > 0 for client in measures.values() for entry in client["rounds"])
    for name, folder in folders.items():
        gamma = posterior_of(TrainingResult.read(folder.path / TRAINED).private).numpy()
        mean = (gamma[0] / gamma[1]).mean(1)
        modules = sorted({tensor.rpartition(".")[0] for tensor in layout_of(folder)})
        assert measures[name]["modules"] == pytest.approx(dict(zip(modules, mean, strict=True)), rel=1e-5)
    orders = [sorted(client["modules"], key=client["modules"].__getitem__) for client in measures.values()]
    assert orders[0] != orders[1]


def test_byte_budget_holds_from_first_round(
    pair: Callable[..., Pair],
) -> None:
    two = pair(
        rounds={"total": 2, "min_clients": 1},
        strategy={"name": "ca_pfl", "options": {"warm_rounds": 3}},
        wire={"recipe": CA_PFL_RECIPE, "max_bytes": 900},
    )
    folder = two.run_round("aster")["aster"]
    (entry,) = json.loads(folder.read(MEASURES))["rounds"]
    assert 850 < entry["bytes"] <= 900
    assert len(folder.read(UPDATE)) < 900 + 3000  # manifest and signature
    shown = two.members["aster"].session.api.me().layout
    assert {name: tuple(shape) for name, shape in shown.items()} == layout_of(folder)


@pytest.mark.slow
def test_agent_continues_from_idle_ranks_of_before(pair: Callable[..., Pair]) -> None:
    """A folder of version 0.2.0 under the option `cut`: counts of idle ranks, and moments without them."""
    two = pair(rounds={"total": 3, "min_clients": 1})
    first = two.run_round("aster")["aster"]
    trained = TrainingResult.read(first.path / TRAINED)
    idle = {"ranks.below": np.full(trained.private["posterior.u"].shape[1:], 2, np.float32)}
    moments = {
        name: values[:1] if name.startswith("l0.q.A.exp_avg") else values
        for name, values in trained.optimiser.items()
    }
    stored = replace(
        trained,
        private=trained.private | idle,
        start_private=trained.start_private | idle,
        optimiser=moments,
    )
    first.write(TRAINED, stored.to_bytes())
    second = two.run_round("aster")["aster"]
    assert TrainingResult.read(second.path / TRAINED).private.keys() == {"posterior.u"}
    assert {measured["round"] for measured in json.loads(second.read(MEASURES))["rounds"]} == {1, 2}
    change = update_difference(second)
    assert all(change[name].any() for name in change if name.endswith((".A", ".B")))


def test_personal_model_is_kept_beside_served_one(pair: Callable[..., Pair]) -> None:
    two = pair(rounds={"total": 2, "min_clients": 1})
    folder, participant = two.run_round("aster")["aster"], two.members["aster"]
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "trained") as (
        adapter,
        _,
    ):
        assert_close(adapter.state(), trained_tensors(folder))
        assert_close(adapter.private_state(), TrainingResult.read(folder.path / TRAINED).private)
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "served") as (
        adapter,
        _,
    ):
        assert not adapter.state()["l0.q.B"].any()  # what round 1 served


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"adapter": {"kind": "pq", "rank": 2}}, "adapter.kind"),
        ({"wire": {"recipe": "int4_own_last"}}, "wire.recipe"),
        ({"wire": {"recipe": "int4_served"}}, "wire.recipe"),
        ({"strategy": {"name": "ca_pfl", "options": {"alpha_p": 0}}}, "strategy.options.alpha_p"),
        ({"strategy": {"name": "ca_pfl", "options": {"density": 1.5}}}, "strategy.options.density"),
        ({"strategy": {"name": "ca_pfl", "options": {"base": 0.15}}}, "strategy.options.base"),
        ({"strategy": {"name": "ca_pfl", "options": {"max_bytes": 900}}}, "strategy.options.max_bytes"),
        ({"strategy": {"name": "ca_pfl", "options": {"modulator": True}}}, "strategy.options.modulator"),
        ({"strategy": {"name": "ca_pfl", "options": {"cut": 0.3}}}, "strategy.options.cut"),
    ],
)
def test_incompatible_ca_pfl_plan_is_refused_by_field(
    served: Served, changes: dict[str, Any], field: str
) -> None:
    refused = served.admin.post("/v1/federations", json={"name": "x"} | CA_PFL | changes)
    assert refused.status_code == 422, refused.text
    assert field in refused.text
