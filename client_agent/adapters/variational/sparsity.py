"""Select the values of an update that are sent at a given density: more of the ranks that matter. Pure.

Row j of A and column j of B are one unit, of rank 1, and share one density (docs/decisions/0024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, is_prior, size
from schemas.strategies.ca_pfl import CaPflOptions
from schemas.wire.budget import Marks, min_count
from schemas.wire.sparse import Mask, kept_count

Floats = NDArray[np.float64]
_HALVINGS = 60


def density_at(plan: CaPflOptions, round_number: int) -> float:
    """Compute rho_t = rho_T + (1 - rho_T) max(0, 1 - t/T_warm), t = 0 in the first round."""
    if not plan.warm_rounds:
        return plan.density
    return plan.density + (1 - plan.density) * max(0.0, 1 - (round_number - 1) / plan.warm_rounds)


def least_density(layout: Layout) -> float:
    """Return the density below which no value of A and B is sent, since the priors alone exceed it."""
    fewest = sum(min_count(name, prod(shape)) for name, shape in layout.items())
    return fewest / size(layout)


def unit_densities(importance: Floats, lengths: NDArray[np.int64], count: int, *, span: float) -> Floats:
    """Compute rho_lj = base + span minmax(s_lj) in [0, 1] (M, r) such that `count` values are sent.

    `lengths` (M,) is the number of values per unit of a module. If all units are equally important, all have
    the same density.
    """
    low, high = float(importance.min()), float(importance.max())
    u = (importance - low) / (high - low) if high > low else np.zeros_like(importance)

    def at(base: float) -> Floats:
        return np.clip(base + span * u, 0, 1)

    def values(densities: Floats) -> float:
        return float((lengths[:, None] * densities).sum())

    # The count grows with the base: bisection finds the one that fits.
    below, above = -span, 1.0  # density 0 everywhere, density 1 everywhere
    if values(at(above)) <= count:
        return at(above)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if values(at(middle)) <= count:
            below = middle
        else:
            above = middle
    return at(below)


def unit_marks(
    update: Mapping[str, NDArray[np.float32]],
    modules: Sequence[str],
    importance: Floats,
    *,
    span: float,
) -> Callable[[float], Marks]:
    """Return a function from density to masks: priors whole, and the largest values of each unit.

    Row l of `importance` (M, r) belongs to `modules[l]`.
    """
    layout = {name: values.shape for name, values in update.items()}
    lengths = np.array([layout[f"{module}.A"][1] + layout[f"{module}.B"][0] for module in modules])
    orders = {module: [_order(update[f"{module}.A"]), _order(update[f"{module}.B"].T)] for module in modules}
    prior_masks = {name: np.ones(shape, bool) for name, shape in layout.items() if is_prior(name)}

    def at(density: float) -> Marks:
        count = max(0, _allowed(layout, density))
        units = unit_densities(importance, lengths, count, span=span)  # (M, r)
        marks: Marks = {}
        for module, rho in zip(modules, units, strict=True):
            a, b = (_top_of_rows(order, rho) for order in orders[module])
            marks |= {f"{module}.A": a, f"{module}.B": b.T}
        return marks | prior_masks

    return at


def _order(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Sort the indices of each row (r, n) by descending absolute value, ties by index."""
    # Stable, so that equal values are chosen alike on every machine.
    return np.argsort(-np.abs(values), axis=1, kind="stable")


def _top_of_rows(order: NDArray[np.int64], densities: Floats) -> Mask:
    """Mask the first floor(rho n) indices of each row (r, n) of `order`."""
    length = order.shape[1]
    counts = np.floor(densities * length).astype(np.int64)
    mask = np.zeros(order.shape, bool)
    np.put_along_axis(mask, order, np.arange(length)[None, :] < counts[:, None], axis=1)
    return mask


def _allowed(layout: Layout, density: float) -> int:
    """Count the values of A and B that a density allows, priors excluded."""
    return sum(
        kept_count(prod(shape), density) - (prod(shape) if is_prior(name) else 0)
        for name, shape in layout.items()
    )
