"""Products B A of strategies for LoRA, checked with Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coordinator.strategies.base import Strategy
from coordinator.strategies.capabilities import Source, weighted_mean
from coordinator.strategies.opening import make
from schemas.maths.factors import Factors, recompressed, side_by_side

Floats = NDArray[np.float64]


def product(factors: Factors) -> Floats:
    return factors.B.astype(np.float64) @ factors.A.astype(np.float64)


def mean_product(sources: list[Source]) -> Floats:
    return np.asarray(sum(client.weight * product(client.factors) for client in sources))


@st.composite
def sources(draw: st.DrawFn, *, equal_ranks: bool = True, fresh: bool = False) -> list[Source]:
    """Clients of one base model: their factors, unequal weights, ages."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d_out, d_in = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rank, scale = draw(st.integers(1, 4)), draw(st.sampled_from([1e-3, 1.0, 30.0]))
    count = draw(st.integers(1, 6))
    weights = rng.dirichlet(np.full(count, draw(st.sampled_from([0.3, 5.0]))))
    drawn = []
    for weight in weights:
        r = rank if equal_ranks else draw(st.integers(1, 4))
        a, b = (scale * rng.standard_normal(shape) for shape in ((r, d_in), (d_out, r)))
        factors = Factors(a.astype(np.float32), b.astype(np.float32))
        drawn.append(Source(factors, float(weight), 0 if fresh else draw(st.integers(0, 2))))
    return drawn


def combining(name: str, **options: Any) -> Strategy:
    strategy = make(name, options)
    assert strategy.traits.combines
    return strategy


def assert_close(actual: Floats, expected: Floats, sources: list[Source], tolerance: float = 1e-5) -> None:
    largest = max(float(np.linalg.norm(product(client.factors))) for client in sources)
    assert np.linalg.norm(actual - expected) <= tolerance * max(largest, 1e-30)


@given(sources())
def test_averaging_b_under_a_frozen_a_averages_products(clients: list[Source]) -> None:
    a = clients[0].factors.A
    same = [Source(Factors(a, client.factors.B), client.weight) for client in clients]
    assert_close(product(Factors(a, weighted_mean(same).B)), mean_product(same), same)


@given(sources(), st.sampled_from([1e-6, 0.01, 10.0]))
def test_lora_fair_approximates_products_better_than_fedavg(clients: list[Source], ridge: float) -> None:
    expected = mean_product(clients)
    fair = np.linalg.norm(product(combining("lora_fair", ridge=ridge).combine(clients)) - expected)
    plain = np.linalg.norm(product(weighted_mean(clients)) - expected)
    largest = max(float(np.linalg.norm(product(client.factors))) for client in clients)
    assert fair <= plain + 1e-5 * largest


@given(sources(), st.sampled_from([0.01, 1.0]))
@settings(deadline=None)
def test_lora_fair_matches_a_least_squares_solution(clients: list[Source], ridge: float) -> None:
    fair = combining("lora_fair", ridge=ridge).combine(clients)
    middle = weighted_mean(clients)
    np.testing.assert_array_equal(fair.A, middle.A)
    # |dW - B' A|^2 + lambda |B' - B|^2 as one least-squares problem, row by row of B'.
    a, b = middle.A.astype(np.float64), middle.B.astype(np.float64)
    left = np.vstack([a.T, np.sqrt(ridge) * np.eye(len(a))])
    right = np.vstack([mean_product(clients).T, np.sqrt(ridge) * b.T])
    solved = np.linalg.lstsq(left, right, rcond=None)[0].T
    np.testing.assert_allclose(fair.B, solved, rtol=1e-4, atol=1e-4 * float(np.abs(solved).max()))


@pytest.mark.parametrize("name", ["lora_fair", "het_lora"])
@given(clients=sources())
def test_a_single_client_keeps_its_product(name: str, clients: list[Source]) -> None:
    alone = [Source(clients[0].factors, 1.0)]
    assert_close(product(combining(name).combine(alone)), mean_product(alone), alone)


def with_base_delta(name: str, **options: Any) -> Strategy:
    strategy = make(name, options)
    assert strategy.options.base_delta
    return strategy


@given(sources())
def test_fedex_lora_folds_the_exact_residual(clients: list[Source]) -> None:
    folded = with_base_delta("fedex_lora").base_delta(clients)
    assert folded.served is not None
    assert_close(product(folded.served) + product(folded.residual), mean_product(clients), clients)
    d_out, d_in = product(folded.served).shape
    rank = clients[0].factors.rank
    assert folded.residual.rank <= min((len(clients) - 1) * rank, d_out, d_in)


@given(sources(), st.integers(1, 3))
def test_a_truncated_residual_is_the_best_approximation(clients: list[Source], most: int) -> None:
    exact = product(with_base_delta("fedex_lora").base_delta(clients).residual)
    truncated = with_base_delta("fedex_lora", truncate_rank=most).base_delta(clients).residual
    assert truncated.rank <= most
    left = np.linalg.svd(exact, compute_uv=False)[most:]
    error = float(np.linalg.norm(product(truncated) - exact))
    largest = max(float(np.linalg.norm(product(client.factors))) for client in clients)
    assert error == pytest.approx(np.sqrt(np.sum(left**2)), abs=1e-5 * largest)


@given(sources(equal_ranks=False))
def test_flora_folds_the_mean_of_present_products(clients: list[Source]) -> None:
    folded = with_base_delta("flora").base_delta(clients)
    assert folded.served is None
    here = [client for client in clients if client.age == 0]
    expected = mean_product(here) if here else 0.0 * product(clients[0].factors)
    assert_close(product(folded.residual), expected, clients)
    d_out, d_in = expected.shape
    assert folded.residual.rank <= min(sum(client.factors.rank for client in here), d_out, d_in)


@given(sources(equal_ranks=False))
def test_recompressing_keeps_the_product_at_minimal_rank(clients: list[Source]) -> None:
    twice = [client.factors for client in clients] * 2
    small = recompressed(side_by_side(twice))
    expected = np.asarray(2 * sum(product(client.factors) for client in clients))
    assert_close(product(small), expected, clients)
    assert small.rank <= min(sum(client.factors.rank for client in clients), *expected.shape)


@given(sources(equal_ranks=False))
def test_het_lora_weighs_by_norms_and_pads_ranks(clients: list[Source]) -> None:
    combined = combining("het_lora").combine(clients)
    rank = max(client.factors.rank for client in clients)
    assert combined.rank == rank
    sizes = np.array([client.weight * np.linalg.norm(product(client.factors)) for client in clients])
    shares = sizes / sizes.sum()
    a = np.zeros((rank, combined.A.shape[1]))
    for client, share in zip(clients, shares, strict=True):
        a[: client.factors.rank] += share * client.factors.A
    np.testing.assert_allclose(combined.A, a, rtol=1e-4, atol=1e-4 * float(np.abs(a).max()))


@given(sources(equal_ranks=False), st.integers(1, 6))
def test_changing_the_rank_truncates_or_pads_with_zeros(clients: list[Source], rank: int) -> None:
    factors = clients[0].factors
    resized = factors.of_rank(rank)
    assert resized.rank == rank
    common_rank = min(rank, factors.rank)
    np.testing.assert_array_equal(resized.A[:common_rank], factors.A[:common_rank])
    np.testing.assert_array_equal(resized.B[:, :common_rank], factors.B[:, :common_rank])
    assert not resized.A[common_rank:].any()
    assert not resized.B[:, common_rank:].any()


def test_zero_products_count_by_their_weight_alone() -> None:
    a = np.eye(2, 3, dtype=np.float32)
    clients = [Source(Factors(k * a, np.zeros((4, 2), np.float32)), 0.5) for k in (1, 3)]
    np.testing.assert_array_equal(combining("het_lora").combine(clients).A, 2 * a)
