"""Banks of experts: names, summed groups, and the weights of a round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.maths import bank
from schemas.maths.start import first_a

COUNTS = st.dictionaries(st.integers(0, 20).map(bank.group_of), st.integers(0, 128), max_size=8)
SHARES = st.floats(0, 50, allow_nan=False)


@given(COUNTS, st.integers(0, 40), st.integers(1, 9))
def test_summed_groups_keep_k_min_after_losses(counts: dict[str, int], lost: int, k_min: int) -> None:
    chosen = bank.manifest(counts, 128, lost, k_min)
    assert all(counts[group] - lost >= k_min for group in chosen)
    assert all(counts[group] - lost < k_min for group in counts.keys() - chosen)


@given(COUNTS, st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_more_losses_only_shrink_a_manifest(counts: dict[str, int], lost: int, more: int, k_min: int) -> None:
    assert bank.manifest(counts, 128, lost + more, k_min) <= bank.manifest(counts, 128, lost, k_min)


@pytest.mark.parametrize(("lost", "k_min"), [(-1, 3), (0, 0)])
def test_a_manifest_with_impossible_numbers_is_refused(lost: int, k_min: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        bank.manifest({"x1": 5}, 5, lost, k_min)


@pytest.mark.parametrize(
    ("rejects", "lost", "is_summed"),
    [
        (12, 0, True),
        (13, 0, False),
        (14, 0, False),
        (15, 0, True),
        (12, 1, False),
        (11, 1, True),
        (15, 1, True),
    ],
)
def test_members_outside_reject_are_none_or_k_min(rejects: int, lost: int, is_summed: bool) -> None:
    """The sum of all without that of the group is theirs: of one member alone it would be its update."""
    chosen = bank.manifest({"x1": 15, bank.REJECT: rejects}, 15, lost, 3)
    assert chosen == {"x1"} | ({bank.REJECT} if is_summed else set())


def test_names_of_bank_tensors_are_parsed() -> None:
    assert bank.bank_tensor(3, "l0.q.A") == "x3.l0.q.A"
    assert bank.split_bank_tensor("x3.l0.q.A") == (3, "l0.q.A")
    assert bank.split_bank_tensor("x0.b1.o.P") == (bank.SHARED, "b1.o.P")
    assert [bank.expert_of(name) for name in ("x12", "x0", "x01", "x", "reject", "x-1")] == [12, 0] + [
        None
    ] * 4
    assert [bank.split_bank_tensor(name) for name in ("l0.q.A", "x3", "x3.", "weight")] == [None] * 4


def test_experts_begin_with_different_draws() -> None:
    shape, seed = (4, 16), 7
    draws = [bank.first_a_of(expert, "l0.q.A", shape, seed) for expert in range(3)]
    assert draws[0].tobytes() == first_a("l0.q.A", shape, seed).tobytes()
    assert all(draw.shape == shape and np.abs(draw).max() <= 0.25 for draw in draws)
    assert not np.allclose(draws[0], draws[1])
    assert not np.allclose(draws[1], draws[2])
    assert draws[1].tobytes() == bank.first_a_of(1, "l0.q.A", shape, seed).tobytes()


@pytest.mark.parametrize(
    ("members", "share", "least"), [(10, 0.1, 3), (15, 0.2, 3), (16, 0.2, 4), (100, 0.1, 10)]
)
def test_a_birth_needs_k_min_and_a_share(members: int, share: float, least: int) -> None:
    assert bank.birth_minimum(members, share, 3) == least


def test_the_change_of_a_sole_trainer_is_undiluted() -> None:
    """Defect 3 of the reference: members that did not train an expert diluted it to 0.2."""
    rng = np.random.default_rng(0)
    theta, change = rng.normal(size=8), rng.normal(size=8)
    trained = [{1: 0.25}, {2: 0.25}, {3: 0.25}, {4: 0.25}, {4: 0.25}]
    weights = [bank.member_weights(1.0, silo) for silo in trained]
    assert bank.member_weights(0.5, {1: 0.25}) == {bank.SHARED: 0.5, 1: 0.125}
    total = sum(member.get(1, 0.0) for member in weights)
    assert bank.m_step(theta, weights[0][1] * change, total, 1.0) == pytest.approx(theta + change)


def test_the_m_step_is_a_weighted_mean() -> None:
    changes, weights = np.array([[1.0, 2.0], [3.0, -2.0]]), np.array([0.25, 0.75])
    moved = bank.m_step(np.zeros(2), weights @ changes, float(weights.sum()), 0.5)
    assert moved == pytest.approx(0.5 * np.average(changes, axis=0, weights=weights))
    with pytest.raises(ValueError, match="spoilt"):
        bank.m_step(np.zeros(2), np.ones(2), 0.0, 1.0)


@pytest.mark.parametrize("responsibilities", [{1: 1.5}, {1: -0.1}, {bank.SHARED: 0.5}])
def test_responsibilities_beyond_a_members_weight_are_refused(responsibilities: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="responsibilities"):
        bank.member_weights(1.0, responsibilities)


@given(
    st.dictionaries(st.integers(1, 9), st.floats(0.001, 1), min_size=1),
    st.dictionaries(st.integers(1, 12), SHARES),
)
def test_the_next_prior_sums_to_1(weights: dict[int, float], sums: dict[int, float]) -> None:
    prior = bank.normalised(weights)
    after = bank.next_prior(prior, sums)
    assert after.keys() == prior.keys()
    assert sum(after.values()) == pytest.approx(1)
    assert min(after.values()) > 0
    for expert in prior.keys() - sums.keys():
        assert after[expert] == pytest.approx(prior[expert])


def test_summed_experts_share_prior_by_responsibility() -> None:
    after = bank.next_prior({1: 0.25, 2: 0.25, 3: 0.5}, {1: 6.0, 2: 2.0})
    assert after == pytest.approx({1: 0.375, 2: 0.125, 3: 0.5}, abs=1e-3)
