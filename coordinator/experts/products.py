"""The function of a newborn expert. Pure.

The factors A (r, d_in) and B (d_out, r) of a LoRA are not unique: M B and inv(M) A are the same function. So
this works on the products B A, through thin QR, never on the factors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import factor_of, lora_modules, module_of
from schemas.maths.factors import Factors, recompressed, side_by_side

Values = NDArray[np.float32]
State = Mapping[str, Values]
"""An expert's tensors by name within its adapter: `A` and `B` of a (layer, role), `P` and `Q` of a block."""


def newborn(shared: State, change: State, start: State) -> dict[str, Values]:
    """Return the expert that adds to the shared one what its rejecters would change it by.

    Its function is the rank-r truncation of (B + dB)(A + dA) - B A. The shared expert stays beside it with
    weight 1: a copy of the shared expert would count it twice. For `P` and `Q` it is the change itself.

    Args:
        shared: the shared expert that the rejecters began with.
        change: the mean of what they learnt of it.
        start: the first `A` of each module of the newborn, with which ranks begin that its function does not
            need.
    """
    values = {name: np.asarray(change[name], np.float32) for name in _linear(shared)}
    for module in lora_modules(shared):
        before, moved = _factors(shared, module), _factors(change, module)
        # dB (A + dA) + B dA: the same difference, and exactly zero where nothing changed.
        stacked = side_by_side([Factors(before.A + moved.A, moved.B), Factors(moved.A, before.B)])
        values |= _tensors(module, _at_rank(stacked, start[f"{module}.A"]))
    return values


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


def _linear(state: State) -> Iterator[str]:
    """Yield the names of tensors in which an expert is linear: `P` and `Q`."""
    modules = set(lora_modules(state))
    return (name for name in state if module_of(name) not in modules or factor_of(name) not in ("A", "B"))
