"""Measures of importance per round: modules of the newest round, in six digits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from client_agent.adapters.variational.measures import Measures, MeasuresFile, posterior_measures, with_round

# Priors less 2, (2, r): with shapes and rates of 2, and of 3 and 5.
SERVED = {
    "l0.q.A": np.zeros((2, 3), np.float32),
    "l0.q.prior": np.zeros((2, 2), np.float32),
    "l10.v.A": np.zeros((2, 3), np.float32),
    "l10.v.prior": np.array([[1, 1], [3, 3]], np.float32),
}


def measured(number: int) -> Measures:
    return Measures(round=number, density=1 / 3, residual=0.5, kl=0.1, importance=(0.5, 1, 2), bytes=900)


def test_module_importance_is_mean_over_its_ranks() -> None:
    shapes, rates = [[1.0, 3.0], [2.0, 3.0]], [[1.0, 1.0], [4.0, 2.0]]
    measures = posterior_measures(torch.tensor([shapes, rates]), SERVED)
    assert measures.modules == {"l0.q": 2.0, "l10.v": 1.0}
    assert measures.importance == (0.5, 1.25, 3.0)


def test_divergence_is_zero_only_at_served_prior() -> None:
    prior = torch.tensor([[[2.0, 2.0], [3.0, 3.0]], [[2.0, 2.0], [5.0, 5.0]]])
    assert posterior_measures(prior, SERVED).kl == pytest.approx(0, abs=1e-6)
    for place in np.ndindex(2, 2, 2):
        moved = prior.clone()
        moved[place] *= 1.5
        assert posterior_measures(moved, SERVED).kl > 0.001


def test_measures_file_keeps_all_rounds_and_newest_modules() -> None:
    first = with_round(None, measured(1), {"l0.q": 1.0, "l0.v": 2.0})
    second = with_round(first, measured(2), {"l0.q": 1.23456789, "l0.v": 0.5})
    read = MeasuresFile.model_validate_json(second)
    assert [measures.round for measures in read.rounds] == [1, 2]
    assert read.modules == {"l0.q": 1.23457, "l0.v": 0.5}
    assert json.loads(second)["rounds"][0] == json.loads(first)["rounds"][0]
    assert json.loads(second)["rounds"][1]["density"] == 0.333333


@pytest.mark.parametrize("damage", [b"{", b'{"rounds": 3}', b""])
def test_unreadable_measures_file_is_replaced(damage: bytes) -> None:
    file = MeasuresFile.model_validate_json(with_round(damage, measured(3), {"l0.q": 1.0}))
    assert [measures.round for measures in file.rounds] == [3]


def test_measures_file_without_modules_is_extended() -> None:
    earlier = json.dumps({"rounds": [measured(1).model_dump()]}).encode()
    file = MeasuresFile.model_validate_json(with_round(earlier, measured(2), {"l0.q": 1.0}))
    assert [measures.round for measures in file.rounds] == [1, 2]


def test_measures_file_with_trained_ranks_is_read() -> None:
    stored = {"rounds": [measured(1).model_dump()], "modules": {"l0.q": 1.0}, "ranks": {"l0.q": 2}}  # 0.2.0
    file = MeasuresFile.model_validate_json(
        with_round(json.dumps(stored).encode(), measured(2), {"l0.q": 0.5})
    )
    assert [measures.round for measures in file.rounds] == [1, 2]
    assert file.modules == {"l0.q": 0.5}
