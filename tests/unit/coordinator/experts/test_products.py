"""Experts as functions: similarity, merging and newborns do not depend on the choice of factors."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.experts.products import State, cosine, merged, newborn
from schemas.maths.start import first_a

MODULES = {"l0.q": (12, 10), "l1.gate": (20, 10)}
RANK = 4


def lora(seed: int, scale: float = 1.0, rank: int = RANK) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    state = {}
    for module, (d_out, d_in) in MODULES.items():
        state[f"{module}.A"] = (scale * rng.normal(size=(rank, d_in))).astype(np.float32)
        state[f"{module}.B"] = (scale * rng.normal(size=(d_out, rank))).astype(np.float32)
    return state


def bank_start(expert: int) -> dict[str, np.ndarray]:
    return {
        f"{module}.A": first_a(f"x{expert}.{module}.A", (RANK, d_in), 0).reshape(RANK, d_in)
        for module, (_, d_in) in MODULES.items()
    }


def respelled(state: State, seed: int) -> dict[str, np.ndarray]:
    """Return other factors of the same functions: M A and B inv(M)."""
    mixing = np.random.default_rng(seed).normal(size=(RANK, RANK)) + 2 * np.eye(RANK)
    changed = {name: mixing @ values for name, values in state.items() if name.endswith(".A")}
    changed |= {name: values @ np.linalg.inv(mixing) for name, values in state.items() if name.endswith(".B")}
    return {name: values.astype(np.float32) for name, values in changed.items()}


def function(state: State) -> np.ndarray:
    return np.concatenate([(state[f"{m}.B"] @ state[f"{m}.A"]).astype(np.float64).ravel() for m in MODULES])


def plus(state: State, change: State) -> dict[str, np.ndarray]:
    return {name: values + change[name] for name, values in state.items()}


def test_likeness_is_the_cosine_of_the_products() -> None:
    """Defect 5: the cosine of raw factors hardly ever showed that two experts do the same."""
    first, second = lora(0), lora(1)
    a, b = function(first), function(second)
    assert cosine(first, second) == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    assert cosine(first, respelled(first, 5)) == pytest.approx(1, abs=1e-5)
    raw = np.concatenate([values.ravel() for values in first.values()])
    spelled = np.concatenate([respelled(first, 5)[name].ravel() for name in first])
    assert raw @ spelled / np.linalg.norm(raw) / np.linalg.norm(spelled) < 0.95


def test_an_untrained_expert_has_a_cosine_of_zero() -> None:
    empty = {name: values * name.endswith(".A") for name, values in lora(0).items()}
    assert cosine(empty, lora(1)) == 0
    assert cosine(empty, empty) == 0


def test_p_and_q_of_experts_are_compared_directly() -> None:
    rng = np.random.default_rng(0)
    first = {"b0.q.P": rng.normal(size=(3, 3)), "b0.q.Q": rng.normal(size=3)}
    second = {"b0.q.P": rng.normal(size=(3, 3)), "b0.q.Q": rng.normal(size=3)}
    a, b = (np.concatenate([state["b0.q.P"].ravel(), state["b0.q.Q"]]) for state in (first, second))
    assert cosine(first, second) == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    mean = merged(first, second, (1.0, 3.0), {})
    assert mean["b0.q.P"] == pytest.approx(0.25 * first["b0.q.P"] + 0.75 * second["b0.q.P"])
    child = newborn(first, second, {})
    assert child["b0.q.Q"] == pytest.approx(second["b0.q.Q"])


def test_merging_averages_functions_not_factors() -> None:
    """Defect 5: the mean of A and of B is not the mean of B A."""
    first = lora(0)
    same = merged(first, respelled(first, 5), (3.0, 1.0), bank_start(1))
    assert function(same) == pytest.approx(function(first), abs=1e-4)
    second = {name: -2 * values if name.endswith(".B") else values for name, values in first.items()}
    mean = merged(first, second, (1.0, 1.0), bank_start(1))
    assert function(mean) == pytest.approx(-0.5 * function(first), abs=1e-4)


def test_merged_experts_are_the_best_low_rank_approximation() -> None:
    first, second = lora(0), lora(1)
    mean = merged(first, second, (2.0, 1.0), bank_start(1))
    for module in MODULES:
        exact = sum(
            share * (state[f"{module}.B"] @ state[f"{module}.A"])
            for share, state in ((2 / 3, first), (1 / 3, second))
        )
        values = np.linalg.svd(exact, compute_uv=False)
        error = np.linalg.norm(mean[f"{module}.B"] @ mean[f"{module}.A"] - exact)
        assert mean[f"{module}.A"].shape[0] == RANK
        assert error == pytest.approx(float(np.sqrt(np.square(values[RANK:]).sum())), rel=1e-3)
    with pytest.raises(ValueError, match="not all zero"):
        merged(first, second, (0.0, 0.0), bank_start(1))


def test_a_newborn_excludes_the_shared_expert() -> None:
    """Row 15: a copy of the shared expert would count it twice, since it stays beside with weight 1."""
    shared, change = lora(0), lora(1, scale=0.1)
    changed = {name: values + change[name] for name, values in shared.items()}
    child = newborn(shared, change, bank_start(7))
    exact = function(changed) - function(shared)
    error = np.linalg.norm(function(child) - exact)
    assert error < 0.35 * np.linalg.norm(exact)  # the change has rank 8, and is truncated to 4
    assert np.linalg.norm(function(child)) < 0.5 * np.linalg.norm(function(shared))
    small = {name: values if name.endswith(".B") else 0 * values for name, values in change.items()}
    child = newborn(shared, small, bank_start(7))  # of rank 4: exact
    exact = function(plus(shared, small)) - function(shared)
    assert function(child) == pytest.approx(exact, abs=1e-5)


def test_unused_ranks_of_a_newborn_are_trainable() -> None:
    """Zeros in both factors would never get a gradient."""
    shared = lora(0)
    change = {name: np.zeros_like(values) for name, values in shared.items()}
    change["l0.q.B"][:, 0] = 1
    start = bank_start(7)
    child = newborn(shared, change, start)
    assert function(child) == pytest.approx(function(plus(shared, change)) - function(shared), abs=1e-5)
    assert np.array_equal(child["l0.q.A"][1:], start["l0.q.A"][1:])
    assert not child["l0.q.B"][:, 1:].any()
    assert np.array_equal(child["l1.gate.A"], start["l1.gate.A"])
    assert not child["l1.gate.B"].any()
