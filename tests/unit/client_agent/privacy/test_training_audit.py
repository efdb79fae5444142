"""Audit of private training: a canary whose gradient exceeds the clip in its own direction.

The attack is the strongest that the guarantee allows (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021, with
access to gradients): the attacker knows all other examples, chooses the canary's gradient, and reads the
gradient of every step. The bound is that of `test_audit`. The code is the agent's own, from the draw of the
examples to the noisy gradient.
"""

from __future__ import annotations

import math
import random
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from client_agent.privacy import release as releasing
from client_agent.privacy.accountant import epsilon_of_counted, noise_for
from client_agent.privacy.release import Mechanism
from client_agent.privacy.step_noise import discrete_gaussians
from client_agent.training import private_steps as stepping
from client_agent.training.private_steps import PrivateSteps
from tests.unit.client_agent.privacy.test_audit import DELTA, lower_bound
from tests.unit.client_agent.privacy.test_step_noise import seeded
from tests.unit.client_agent.training.test_private_steps import Paid

RECORDS = 8
EPSILON = 4.0
TRIALS = 2000
CANARY = TokenizedText((1, 2), (False, True), ())
SECOND_TEXT = TokenizedText((1, 3), (False, True), ())


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw examples and noise from seeds in place of the system's random words."""
    chance = random.Random(11)
    drawn = SimpleNamespace(randbelow=chance.randrange, choice=chance.choice, randbits=chance.getrandbits)
    monkeypatch.setattr(stepping, "secrets", drawn)
    monkeypatch.setattr(stepping, "discrete_gaussians", partial(discrete_gaussians, words=seeded(11)))


def attacked(mechanism: Mechanism, steps: int, *, canary: bool) -> float:
    """Return the attacker's statistic: the logarithm of the likelihood ratio of all steps."""
    parameter = nn.Parameter(torch.zeros(2))
    parameters = {"b": parameter}
    base = cast(BaseModel, SimpleNamespace(device=torch.device("cpu")))

    def gradient(base: BaseModel, text: TokenizedText) -> float:
        parameter.grad = torch.tensor([100.0, 0.0]) if text is CANARY else torch.tensor([0.0, 1.0])
        return 0.0

    private = PrivateSteps([*[(SECOND_TEXT,)] * (RECORDS - 1), (CANARY,)], mechanism, Paid())
    share, total = mechanism.sampled / mechanism.records, 0.0
    for sample in private.samples(steps):
        present = sample if canary else [batch for batch in sample if batch[0] is not CANARY]
        private.noisy_gradient(base, present, parameters, gradient)
        assert parameter.grad is not None
        statistic = float(parameter.grad[0]) * mechanism.sampled / mechanism.clip
        ratio = min((2 * statistic - 1) / (2 * mechanism.noise_multiplier**2), 500.0)
        total += math.log(1 - share + share * math.exp(ratio))
    return total


def proved_epsilon(mechanism: Mechanism, steps: int) -> float:
    present, absent = (
        np.array([attacked(mechanism, steps, canary=canary) for _ in range(TRIALS)])
        for canary in (True, False)
    )
    return lower_bound(present, absent)


def mechanism_of(sampled: int, steps: int) -> Mechanism:
    return Mechanism(sampled, RECORDS, noise_for(sampled, RECORDS, steps, EPSILON, DELTA), clip=1.0, dim=2)


@pytest.mark.slow
@pytest.mark.parametrize(("sampled", "steps"), [(8, 1), pytest.param(4, 4, marks=pytest.mark.long)])
def test_canary_is_betrayed_less_than_claimed(sampled: int, steps: int) -> None:
    mechanism = mechanism_of(sampled, steps)
    claimed = epsilon_of_counted([(mechanism, steps)], DELTA)
    assert claimed <= EPSILON
    proved = proved_epsilon(mechanism, steps)
    assert proved < claimed
    assert proved > 0.1 * claimed  # the attack is not a blind one


@pytest.mark.slow
def test_steps_without_noise_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "discrete_gaussians", lambda count, sigma: np.zeros(count, np.int64))
    assert proved_epsilon(mechanism_of(8, 1), 1) > EPSILON


@pytest.mark.slow
def test_steps_without_clipping_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = releasing.on_grid
    monkeypatch.setattr(stepping, "on_grid", lambda vector, clip: whole(vector, 1e6) * 10**6)
    assert proved_epsilon(mechanism_of(8, 1), 1) > EPSILON


@pytest.mark.slow
def test_steps_with_too_little_noise_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = stepping.sigma_of
    monkeypatch.setattr(stepping, "sigma_of", lambda mechanism: enough(mechanism) // 10)
    assert proved_epsilon(mechanism_of(8, 1), 1) > EPSILON
