"""Functions of experts: how alike two are, what two become in one, and the function of a newborn. Pure.

The factors A (r, d_in) and B (d_out, r) of a LoRA are not unique: M B and inv(M) A are the same function. So
all of this works on the products B A, through r x r matrices and thin QR, never on the factors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import factor_of, lora_modules, module_of
from schemas.maths.factors import Factors, recompressed, side_by_side

Values = NDArray[np.float32]
State = Mapping[str, Values]
"""An expert's tensors by name within its adapter: `A` and `B` of a (layer, role), `P` and `Q` of a block."""


def cosine(first: State, second: State) -> float:
    """Return the cosine of two experts as functions, in [-1, 1]; 0 if one of them is zero.

    For LoRA it is sum <B_a A_a, B_b A_b> / norms over all modules, with the Frobenius product as
    tr(A_a A_b^T B_b^T B_a). `P` and `Q` act linearly in frames that all experts have in common, so that their
    plain cosine is added.
    """
    scale = sqrt(_inner(first, first) * _inner(second, second))
    # Rounding may leave the quotient slightly outside of [-1, 1].
    return min(1.0, max(-1.0, _inner(first, second) / scale)) if scale > 0 else 0.0


def merged(first: State, second: State, weights: tuple[float, float], start: State) -> dict[str, Values]:
    """Return the expert whose function is nearest to the weighted mean of two, at their rank.

    `weights` are their shares of the prior, which follow the sums of responsibilities. The products of LoRA
    are stacked and truncated (Eckart and Young 1936). `start` has the first `A` of each module, with which
    ranks begin that the function does not need.

    Raises:
        ValueError: the weights are not positive together.
    """
    total = weights[0] + weights[1]
    if min(weights) < 0 or total <= 0:
        raise ValueError("weights are not negative, and not all zero")
    shares = weights[0] / total, weights[1] / total
    values = {
        name: np.asarray(shares[0] * first[name] + shares[1] * second[name], np.float32)
        for name in _linear(first)
    }
    for module in lora_modules(first):
        # Averaging A and B would not average B A.
        stacked = side_by_side(
            [_scaled(_factors(first, module), shares[0]), _scaled(_factors(second, module), shares[1])]
        )
        values |= _tensors(module, _at_rank(stacked, start[f"{module}.A"]))
    return values


def newborn(shared: State, change: State, start: State) -> dict[str, Values]:
    """Return the expert that adds to the shared one what its rejecters would change it by.

    Its function is the rank-r truncation of (B + dB)(A + dA) - B A. The shared expert stays beside it with
    weight 1: a copy of the shared expert would count it twice. For `P` and `Q` it is the change itself.

    Args:
        shared: the shared expert that the rejecters began with.
        change: the mean of what they learnt of it.
        start: the first `A` of each module of the newborn, as in `merged`.
    """
    values = {name: np.asarray(change[name], np.float32) for name in _linear(shared)}
    for module in lora_modules(shared):
        before, moved = _factors(shared, module), _factors(change, module)
        # dB (A + dA) + B dA: the same difference, and exactly zero where nothing changed.
        stacked = side_by_side([Factors(before.A + moved.A, moved.B), Factors(moved.A, before.B)])
        values |= _tensors(module, _at_rank(stacked, start[f"{module}.A"]))
    return values


def _inner(first: State, second: State) -> float:
    """Return the inner product of two experts as functions, computed in float64."""
    total = sum(float(np.sum(_wide(first[name]) * _wide(second[name]))) for name in _linear(first))
    for module in lora_modules(first):
        gram_a = _wide(first[f"{module}.A"]) @ _wide(second[f"{module}.A"]).T  # (r, r)
        gram_b = _wide(first[f"{module}.B"]).T @ _wide(second[f"{module}.B"])  # (r, r)
        total += float(np.sum(gram_a * gram_b))
    return total


def _at_rank(factors: Factors, start: Values) -> Factors:
    """Return factors truncated to the rank of `start`, (r, d_in); its rows fill ranks that are not needed."""
    cut = recompressed(factors, len(start))
    # Ranks that the function does not need get the first A and B = 0: with A = 0 they could not learn.
    missing = len(start) - cut.rank
    b = np.pad(cut.B, ((0, 0), (0, missing)))
    return Factors(np.concatenate([cut.A, start[cut.rank :]]), b)


def _factors(state: State, module: str) -> Factors:
    return Factors(state[f"{module}.A"], state[f"{module}.B"])


def _tensors(module: str, factors: Factors) -> dict[str, Values]:
    return {f"{module}.A": factors.A, f"{module}.B": factors.B}


def _scaled(factors: Factors, scale: float) -> Factors:
    return Factors(factors.A, np.asarray(scale * factors.B, np.float32))


def _linear(state: State) -> Iterator[str]:
    """Yield the names of tensors in which an expert is linear: `P` and `Q`."""
    modules = set(lora_modules(state))
    return (name for name in state if module_of(name) not in modules or factor_of(name) not in ("A", "B"))


def _wide(values: Values) -> NDArray[np.float64]:
    return values.astype(np.float64)
