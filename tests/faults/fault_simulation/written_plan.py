"""The plan of a schedule's federation."""

from __future__ import annotations

from typing import Any

from schemas.messages.recipes import WeightsRecipeName
from tests.faults.fault_simulation.fault_rates import ATTEMPTS, CLIP, Plan, SumDrawn
from tests.faults.fault_simulation.packs import PIVOT
from tests.faults.fault_simulation.private import EXAMPLES, STEPS, private_sketches, private_training


def written_plan(plan: Plan) -> dict[str, Any]:
    """Return a drawn plan as the operator sends it."""
    bank = plan.summed.bank if plan.summed is not None else None
    written: dict[str, Any] = {
        "name": "simulated",
        "strategy": bank.strategy() if bank is not None else {"name": "fedavg"},
        "adapter": {"rank": plan.rank, "blocks": 1, "roles": ["q"]},
        "rounds": {
            "total": plan.rounds,
            "min_clients": plan.min_clients,
            "quorum": plan.quorum,
            "collect_seconds": plan.collect_seconds,
            "max_staleness": 0,
        },
        # A search of the rate needs a model.
        "training": {"learning_rate": 0.01, "steps": STEPS, "batch_size": len(EXAMPLES)},
        "scores": {"examples": 4, "new_tokens": 0},
        "signature": {"dim": 4},
        "alignment": {"pivot": PIVOT, "anchors": 1} if plan.aligned else None,
        "wire": {
            "recipe": plan.recipe,
            "weights_recipe": plan.weights_recipe,
            "compression": plan.compression,
        },
    } | (_sums(plan.summed, plan.weights_recipe) if plan.summed is not None else {})
    if plan.private:
        written["privacy"] = written.get("privacy", {}) | {"training": private_training()}
        if plan.summed is None:  # no sketches are sent beside sums
            written["signature"]["dp"] = private_sketches()
    return written


def _sums(drawn: SumDrawn, weights_recipe: WeightsRecipeName) -> dict[str, Any]:
    summed = {
        "masking": drawn.masking,
        "minimum": drawn.minimum,
        "phase_seconds": drawn.phase_seconds,
        "attempts": ATTEMPTS,
        "clip": CLIP,
        "weigh_up_to": drawn.weigh_up_to,
    }
    return {"privacy": {"secure_sum": summed}, "wire": {"recipe": "dense", "weights_recipe": weights_recipe}}
