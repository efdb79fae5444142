"""Newborn experts as functions, which do not depend on the choice of factors."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.experts.products import State, newborn
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


def function(state: State) -> np.ndarray:
    return np.concatenate([(state[f"{m}.B"] @ state[f"{m}.A"]).astype(np.float64).ravel() for m in MODULES])


def plus(state: State, change: State) -> dict[str, np.ndarray]:
    return {name: values + change[name] for name, values in state.items()}


def test_a_newborn_over_p_and_q_is_the_change() -> None:
    rng = np.random.default_rng(0)
    shared = {"b0.q.P": rng.normal(size=(3, 3)), "b0.q.Q": rng.normal(size=3)}
    change = {"b0.q.P": rng.normal(size=(3, 3)), "b0.q.Q": rng.normal(size=3)}
    child = newborn(shared, change, {})
    assert child["b0.q.P"] == pytest.approx(change["b0.q.P"])
    assert child["b0.q.Q"] == pytest.approx(change["b0.q.Q"])


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
