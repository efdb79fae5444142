"""The accountant against exact formulas, published figures and another accountant."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from client_agent.privacy import accountant
from client_agent.privacy.accountant import epsilon_of, noise_for
from client_agent.privacy.budget import AccountantsDisagree
from client_agent.privacy.release import Mechanism

DELTA = 1e-5


def mechanism(noise: float, sampled: int = 64, records: int = 64) -> Mechanism:
    return Mechanism(sampled, records, noise, clip=1.0, dim=64)


def exact(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism of sensitivity mu sigma (Balle, Wang 2018, theorem 8), by bisection."""
    cdf = NormalDist().cdf
    low, high = 0.0, 100.0
    for _ in range(100):
        mid = (low + high) / 2
        epsilon = cdf(mu / 2 - mid / mu) - math.exp(mid) * cdf(-mu / 2 - mid / mu)
        low, high = (mid, high) if epsilon > delta else (low, mid)
    return high


@pytest.mark.parametrize(("noise", "times"), [(2.0, 1), (4.0, 20), (16.0, 20)])
def test_epsilon_without_sampling_equals_the_exact_formula(noise: float, times: int) -> None:
    epsilon = epsilon_of([mechanism(noise)] * times, DELTA)
    assert epsilon == pytest.approx(exact(math.sqrt(times) / noise, DELTA), rel=0.01)


@pytest.mark.parametrize(("noise", "published"), [(2.0, 0.53), (4.0, 0.22)])
def test_epsilon_with_sampling_equals_published_values(noise: float, published: float) -> None:
    epsilon = epsilon_of([mechanism(noise, 256, 10_000)] * 100, DELTA)
    assert epsilon == pytest.approx(published, abs=0.005)


@pytest.mark.slow
def test_epsilon_agrees_with_dp_accounting_library() -> None:
    releases = [mechanism(3.0, 64, 200)] * 5 + [mechanism(2.5, 64, 220)] * 3
    library = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    renyi = RdpAccountant(range(2, 64), NeighboringRelation.ADD_OR_REMOVE_ONE)
    for drawn in releases:
        event = PoissonSampledDpEvent(drawn.sampled / drawn.records, GaussianDpEvent(drawn.noise_multiplier))
        library.compose(event)
        renyi.compose(event)
    epsilon = epsilon_of(releases, DELTA)
    assert epsilon == pytest.approx(library.get_epsilon(DELTA), rel=0.01)
    assert 0.5 * renyi.get_epsilon(DELTA) < epsilon <= renyi.get_epsilon(DELTA)
    assert epsilon_of([], DELTA) == 0.0


@pytest.mark.slow
def test_noise_for_a_budget_is_sufficient_and_tight() -> None:
    noise = noise_for(64, 64, 4, 1.0, DELTA)
    assert epsilon_of([mechanism(noise)] * 4, DELTA) <= 1.0
    assert epsilon_of([mechanism(noise - 0.02)] * 4, DELTA) > 1.0
    assert epsilon_of([mechanism(noise)] * 5, DELTA) > 1.0


def test_contradictory_accountants_stop_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RdpAccountant, "get_epsilon", lambda self, delta: 0.1)
    accountant._epsilon.cache_clear()
    with pytest.raises(AccountantsDisagree, match="is impossible"):
        epsilon_of([mechanism(2.0)], DELTA)
