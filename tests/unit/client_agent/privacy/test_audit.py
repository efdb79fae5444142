"""Audit of sketch releases: a canary among the records reveals less than the claimed epsilon.

The attack is that of Jagielski, Ullman, Oprea 2020 ("Auditing differentially private machine learning"): with
and without one record that is as long as the clip, in a direction nobody else has, many times; the share of
right and of wrong guesses bounds epsilon from below, by Clopper and Pearson at 99.9 %. The code is the
agent's own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta

from client_agent.privacy import release as releasing
from client_agent.privacy.accountant import epsilon_of, noise_for
from client_agent.privacy.release import Mechanism, averaged, release, sample_records

DELTA = 1e-5
TRIALS = 1500
MISTAKE = 1e-3


def lower_bound(present: np.ndarray, absent: np.ndarray) -> float:
    """The epsilon that is proved: the threshold is chosen on one half of the trials, judged on the other."""
    half = len(present) // 2

    def proved(threshold: float, ins: np.ndarray, outs: np.ndarray) -> float:
        right, wrong = int((ins > threshold).sum()), int((outs > threshold).sum())
        least = float(beta.ppf(MISTAKE / 2, right, len(ins) - right + 1)) if right else 0.0
        most = float(beta.ppf(1 - MISTAKE / 2, wrong + 1, len(outs) - wrong)) if wrong < len(outs) else 1.0
        return math.log((least - DELTA) / most) if least > DELTA else 0.0

    candidates = np.quantile(np.concatenate([present[:half], absent[:half]]), np.linspace(0.02, 0.98, 49))
    best = max(candidates, key=lambda threshold: proved(threshold, present[:half], absent[:half]))
    return proved(best, present[half:], absent[half:])


def attacked(mechanism: Mechanism, releases: int, below: Callable[[int], int], *, canary: bool) -> float:
    """Return the attacker's statistic: the mean of a silo's releases in the canary's direction."""
    records = [np.zeros(1)] * (mechanism.records - 1) + [np.array([100.0])]
    average = None
    for _ in range(releases):
        sampled = [r for r in sample_records(mechanism, below) if canary or r < mechanism.records - 1]
        fresh = release([records[record] for record in sampled], mechanism, below)
        average = averaged(average, fresh, mechanism, epsilon=0.0)
    assert average is not None
    return float(average.mean[0])


def proved_epsilon(mechanism: Mechanism, releases: int) -> float:
    below = random.Random(11).randrange
    statistics = [
        np.array([attacked(mechanism, releases, below, canary=canary) for _ in range(TRIALS)])
        for canary in (True, False)
    ]
    return lower_bound(*statistics)


@pytest.mark.slow
@pytest.mark.parametrize(("sampled", "releases"), [(8, 1), pytest.param(4, 4, marks=pytest.mark.long)])
def test_canary_is_betrayed_less_than_claimed(sampled: int, releases: int) -> None:
    epsilon = 4.0
    noise = noise_for(sampled, 8, releases, epsilon, DELTA)
    mechanism = Mechanism(sampled, 8, noise, clip=1.0, dim=1)
    claimed = epsilon_of([mechanism] * releases, DELTA)
    assert claimed <= epsilon
    proved = proved_epsilon(mechanism, releases)
    assert proved < claimed
    assert proved > 0.1 * claimed  # the attack is not a blind one


@pytest.mark.slow
def test_build_without_noise_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = Mechanism(8, 8, noise_for(8, 8, 1, 4.0, DELTA), clip=1.0, dim=1)
    monkeypatch.setattr(releasing, "discrete_gaussian", lambda variance, below: 0)
    assert proved_epsilon(mechanism, 1) > 4.0


@pytest.mark.slow
def test_release_without_clipping_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = Mechanism(8, 8, noise_for(8, 8, 1, 4.0, DELTA), clip=1.0, dim=1)
    whole = releasing.on_grid
    monkeypatch.setattr(releasing, "on_grid", lambda vector, clip: whole(vector, 1e6) * 10**6)
    assert proved_epsilon(mechanism, 1) > 4.0
