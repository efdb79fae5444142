"""FedProx in the agent: the pull to the served weights, and its absence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.adapters.proximal import proximal_term, pull_to
from client_agent.rounds.training_result import Arrays
from client_agent.training.silo import Silo
from tests.unit.client_agent.rounds.personal_rounds import assert_equal, distance, rounds


def distance_moved(silo: Silo, pull: float) -> float:
    """Return the distance of a second round's result from the served weights."""
    first, second = rounds(silo, "fedprox", proximal=pull)
    served: Arrays = first.adapter
    return distance(second.adapter, served)


def test_fedprox_without_pull_equals_fedavg(small_silo: Silo) -> None:
    pairs = zip(rounds(small_silo, "fedprox", proximal=0.0), rounds(small_silo, "fedavg"), strict=True)
    for pulled, free in pairs:
        assert_equal(pulled.adapter, free.adapter)


def test_stronger_pull_stays_nearer_to_served_weights(small_silo: Silo) -> None:
    free, pulled, fixed = (distance_moved(small_silo, pull) for pull in (0.0, 1.0, 100.0))
    assert free > pulled > fixed > 0


def test_pull_is_half_the_squared_distance() -> None:
    state = {"l0.q.A": np.zeros((1, 2), np.float32)}
    parameters = {
        "l0.q.A": nn.Parameter(torch.tensor([[1.0, 2.0]])),
        "private.x": nn.Parameter(torch.ones(3)),
    }
    penalty = pull_to(state, 4.0)
    assert penalty is not None
    value = penalty(parameters)
    assert value.item() == pytest.approx(10.0)
    value.backward()
    assert parameters["l0.q.A"].grad is not None
    assert parameters["l0.q.A"].grad.tolist() == [[4.0, 8.0]]
    assert parameters["private.x"].grad is None
    assert pull_to(state, 0.0) is None
    assert proximal_term(parameters, {"l0.q.A": torch.ones(1, 2)}).item() == 0.5
