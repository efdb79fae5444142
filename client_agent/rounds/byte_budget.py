"""Hold a round's update to the byte budget of its plan: refuse one that cannot fit, mark what travels.

What cannot fit is told from the adapter's layout, before anything is trained. Knows no body.
"""

from __future__ import annotations

from math import ceil, prod

from client_agent.adapters.base import State
from client_agent.adapters.variational.adapter import posterior_of
from client_agent.adapters.variational.posterior import importance
from client_agent.adapters.variational.sparsity import density_at, least_density, unit_marks
from client_agent.errors import AgentError
from client_agent.strategies.base import AgentStrategy, Folding, LearnsImportance, RanksDiffer, load_strategy
from schemas.maths.adapter import Layout, lora_modules
from schemas.messages.recipes import Recipe
from schemas.messages.rounds import RoundBrief
from schemas.wire.budget import Marks, effective_recipe, fit_budget, shortfall
from schemas.wire.quantise import Floats
from schemas.wire.sparse import kept_count, largest


class BudgetTooSmall(AgentError):
    """No update of this silo's adapter can be as small as the plan wants it."""


def has_no_reference(strategy: AgentStrategy, recipe: Recipe) -> bool:
    """Say whether neither weights nor last update are of an update's kind: other ranks, or begun anew."""
    begins_anew = isinstance(strategy, Folding) and recipe.reference != "none"
    return begins_anew or isinstance(strategy, RanksDiffer)


def require_affordable(brief: RoundBrief, layout: Layout) -> None:
    """Check that the updates of a round can fit the plan's budget.

    Raises:
        BudgetTooSmall: none can, or none would bring a value of A and B; the message says what would do.
    """
    strategy = load_strategy(brief.strategy.name, brief.strategy.options)
    recipe, offers = effective_recipe(
        brief.wire.recipe,
        begins_anew=isinstance(strategy, Folding),
        ranks_differ=isinstance(strategy, RanksDiffer),
    )
    refusal = shortfall(layout, recipe, brief.wire.max_bytes, offers)
    if refusal is None and isinstance(strategy, LearnsImportance):
        density, needed = min(strategy.importance.density, recipe.density), least_density(layout)
        if density < needed:
            does = ceil(needed * 1e6) / 1e6
            refusal = f"density {density:g} leaves no room beside this adapter's priors: {does:g} does"
    if refusal is not None:
        raise BudgetTooSmall(f"{refusal}. Nothing was trained; ask the operator for another plan")


def marked(brief: RoundBrief, private: State, wanted: dict[str, Floats]) -> Marks | None:
    """Mark what travels of an update; None where all does, or of each tensor its largest values.

    Where importance was learnt it decides. The density gives way to the budget.
    """
    recipe, budget = brief.wire.recipe, brief.wire.max_bytes
    strategy = load_strategy(brief.strategy.name, brief.strategy.options)
    if recipe.density == 1:
        return None
    if isinstance(strategy, LearnsImportance):
        plan = strategy.importance
        learnt = importance(posterior_of(private)).double().numpy()
        at = unit_marks(wanted, lora_modules(wanted), learnt, span=plan.span, cut=plan.cut)
        density = min(density_at(plan, brief.round), recipe.density)
        return fit_budget(at, density, wanted, recipe, budget)
    if budget is None:
        return None
    return fit_budget(lambda density: _largest(wanted, density), recipe.density, wanted, recipe, budget)


def _largest(wanted: dict[str, Floats], density: float) -> Marks:
    """Mark of each tensor its largest values."""
    return {
        name: largest(abs(values).reshape(-1), kept_count(prod(values.shape), density)).reshape(values.shape)
        for name, values in wanted.items()
    }
