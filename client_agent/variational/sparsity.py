"""Decide which values of an update travel: more of the ranks that matter, never more than is allowed. Pure.

Row j of A and column j of B are one unit, of rank 1, and share one density (ca_pfl.md, "Build this").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import StrategyOptionsInvalid
from schemas.maths.adapter import Layout, prior_name, size
from schemas.messages.importance import ImportancePlan
from schemas.messages.recipes import Recipe
from schemas.wire.coding import bound
from schemas.wire.sparse import Mask, kept_count

Floats = NDArray[np.float64]
_HALVINGS = 60


def density_at(plan: ImportancePlan, round_number: int) -> float:
    """rho_t = rho_T + (1 - rho_T) max(0, 1 - t/T_warm), t = 0 in the first round."""
    if not plan.warm_rounds:
        return plan.density
    return plan.density + (1 - plan.density) * max(0.0, 1 - (round_number - 1) / plan.warm_rounds)


def affordable(layout: Layout, recipe: Recipe, wanted: float, max_bytes: int | None) -> float:
    """Give the largest density, up to `wanted` and the recipe's, whose values and places fit `max_bytes`.

    Raises:
        StrategyOptionsInvalid: not even the priors fit, which are always sent whole.
    """
    most = min(wanted, recipe.density)
    if max_bytes is not None and _bytes(layout, recipe, most) > max_bytes:
        low, high = 0.0, most
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if _bytes(layout, recipe, middle) <= max_bytes else (low, middle)
        most = low
    if most <= 0 or _allowed(layout, most) < 0:
        raise StrategyOptionsInvalid(
            "strategy.options: max_bytes or density leaves no room for the priors of all modules, which have "
            f"{_priors(layout)} values; raise it"
        )
    return most


def unit_densities(
    importance: Floats, lengths: NDArray[np.int64], count: int, *, span: float, cut: float
) -> Floats:
    """rho_lj = base + span minmax(s_lj), in [0, 1], with the base at which `count` values are sent: (M, r).

    `lengths` (M,) is how many values each unit of a module has. A unit with s_lj < cut gets 0. Where all are
    equally important all get the same.
    """
    low, high = float(importance.min()), float(importance.max())
    u = (importance - low) / (high - low) if high > low else np.zeros_like(importance)
    weight = np.where(importance >= cut, lengths[:, None], 0).astype(np.float64)

    def at(base: float) -> Floats:
        return np.where(weight > 0, np.clip(base + span * u, 0, 1), 0.0)

    below, above = -span, 1.0  # nothing is sent, and everything
    if float((weight * at(above)).sum()) <= count:
        return at(above)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if float((weight * at(middle)).sum()) <= count:
            below = middle
        else:
            above = middle
    return at(below)


def marked(
    wanted: Mapping[str, NDArray[np.float32]],
    modules: Sequence[str],
    importance: Floats,
    recipe: Recipe,
    plan: ImportancePlan,
    round_number: int,
) -> dict[str, Mask]:
    """Mark what travels of an update: priors whole, of each unit its largest values, as its density says.

    Row l of `importance` (M, r) belongs to `modules[l]`.

    Raises:
        StrategyOptionsInvalid: as `affordable` says.
    """
    layout = {name: values.shape for name, values in wanted.items()}
    density = affordable(layout, recipe, density_at(plan, round_number), plan.max_bytes)
    lengths = np.array([layout[f"{module}.A"][1] + layout[f"{module}.B"][0] for module in modules])
    units = unit_densities(
        importance, lengths, _allowed(layout, density), span=plan.span, cut=plan.cut
    )  # (M, r)
    marks: dict[str, Mask] = {}
    for module, rho in zip(modules, units, strict=True):
        marks[f"{module}.A"] = _largest_of_rows(wanted[f"{module}.A"], rho)
        marks[f"{module}.B"] = _largest_of_rows(wanted[f"{module}.B"].T, rho).T
        marks[prior_name(module)] = np.ones(layout[prior_name(module)], bool)
    return marks


def _largest_of_rows(values: NDArray[np.float32], densities: Floats) -> Mask:
    """Mark of each row (r, n) its floor(rho n) largest in absolute value; of equal ones the first."""
    counts = np.floor(densities * values.shape[1]).astype(np.int64)
    order = np.argsort(-np.abs(values), axis=1, kind="stable")
    mask = np.zeros(values.shape, bool)
    np.put_along_axis(mask, order, np.arange(values.shape[1])[None, :] < counts[:, None], axis=1)
    return mask


def _bytes(layout: Layout, recipe: Recipe, density: float) -> int:
    """Say what an update of a density has at most; one of density 1 still says where its values are."""
    return bound(layout, recipe.model_copy(update={"density": min(density, np.nextafter(1.0, 0.0))}))


def _allowed(layout: Layout, density: float) -> int:
    """Say how many values of A and B a density lets travel, beside the priors."""
    return sum(kept_count(prod(shape), density) for shape in layout.values()) - _priors(layout)


def _priors(layout: Layout) -> int:
    return size({name: shape for name, shape in layout.items() if name.endswith(".prior")})
