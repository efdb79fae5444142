"""Keep a round's update within the byte budget of its plan: check before training, select values after it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from client_agent.errors import AgentError
from client_agent.rounds.opened_round import OpenedBrief, OpenedRound
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.wire.budget import Marks, fit_budget, shortfall
from schemas.wire.header import write_header
from schemas.wire.quantise import Floats
from schemas.wire.sparse import kept_count, largest

_FRAME_BYTES = 4096
"""More than manifest, streams' entries in the header and the frame of zstd ever have."""


class BudgetTooSmall(AgentError):
    """The plan's byte budget is smaller than any update of this silo's adapter."""


def has_budget(opened: OpenedBrief) -> bool:
    return opened.brief.wire.max_bytes is not None or any(part.bounds_bytes for part in opened.parts)


def require_affordable(opened: OpenedBrief, layout: Layout) -> None:
    """Check that updates of a layout can fit the plan's budget.

    Raises:
        BudgetTooSmall: none can, or none has room for A and B; the message names a plan that fits.
    """
    wire = opened.brief.wire
    # Before training: an update that cannot be sent would waste the whole round.
    shortfalls = (part.shortfall(layout, wire.recipe) for part in opened.parts)
    refusal = shortfall(layout, wire.recipe, wire.max_bytes) or next(filter(None, shortfalls), None)
    if refusal is not None:
        raise BudgetTooSmall(f"{refusal}. Nothing was trained; ask the operator for another plan")


def require_allowed_size(work: OpenedRound, layout: Callable[[], Layout]) -> None:
    """Check that updates of a layout keep the silo's `policy.max_update_bytes`.

    Raises:
        PolicyRefused: an update may be larger.
    """
    policy, opened = work.session.policy, work.opened
    if policy.max_update_bytes is None:
        return
    limit, updates = opened.brief.wire.max_bytes, layout()
    extra_bytes = _bytes_beside(work, updates) if work.sum_plan is None else 0
    policy.require_update(updates, opened.recipe, limit, work.sum_plan, extra_bytes=extra_bytes)


def _bytes_beside(work: OpenedRound, layout: Layout) -> int:
    """Return an upper bound of the bytes of an update that are not values of the adapter."""
    # The header of a dense update names every tensor; a coded update has a few streams only.
    tensors = {name: ("F32", shape) for name, shape in layout.items()} if work.opened.recipe.is_dense else {}
    sketch = 4 * work.brief.signature.dim
    parts = sum(part.bytes_beside(work) for part in work.opened.parts)
    return _FRAME_BYTES + len(write_header(tensors, {})) + sketch + parts


def marked(opened: OpenedBrief, private: State, delta: dict[str, Floats]) -> Marks | None:
    """Select the values of an update that are sent, by a part or by size; None = all, or the recipe's.

    The density is lowered to fit the budget.
    """
    recipe, budget = opened.recipe, opened.brief.wire.max_bytes
    if recipe.density == 1:
        return None
    for part in opened.parts:
        if (chosen := part.marks(opened.brief.round, private, delta)) is not None:
            marks_at, density = chosen
            return fit_budget(marks_at, min(density, recipe.density), delta, recipe, budget)
    if budget is None:
        return None
    return fit_budget(lambda density: _largest(delta, density), recipe.density, delta, recipe, budget)


def _largest(delta: dict[str, Floats], density: float) -> Marks:
    return {
        name: largest(abs(values).reshape(-1), kept_count(prod(values.shape), density)).reshape(values.shape)
        for name, values in delta.items()
    }
