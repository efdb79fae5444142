"""Decide what each method's federation plan is. Pure: a study in, plans out.

Later wins: the study's plan, what the method it is like says, what the method itself says. A study's table
for a built-in method changes that method, and with it those that are like it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from client_agent.errors import StudyUnusable
from client_agent.simulation.study import Study, StudyMethod, Table, faults
from schemas.messages.federations import FederationPlan
from schemas.messages.recommended import CA_PFL, LORA, LORA_STRATEGIES, SAME_ARCHITECTURE_RANK

LOCAL: Final = "local"
LOCAL_LORA: Final = "local_lora"
LOCAL_BOTH: Final = "local_both"
_PATIENCE_SECONDS = 7 * 86400.0
_SET_BY: Final[Mapping[str, str]] = {
    "name": "method and seed set it; leave it out",
    "rounds.min_clients": "it is the number of founders, silos without joins_after; leave it out",
    "training.seed": "it is the run's seed; use seeds in the study, or --seeds",
    "alignment.pivot": "it is the study's pivot_model; set that",
}

_BOTH: Final[Table] = {"adapter": {"same_architecture_rank": SAME_ARCHITECTURE_RANK}}

ON_REQUEST: Final = (*LORA_STRATEGIES, "ca_pfl", "ca_pfl_unmodulated")
"""Methods that a study compares only where it, or --methods, names them."""

BUILT_IN: Final[Mapping[str, StudyMethod]] = {
    # P and Q alone, in the frames that the federations use.
    LOCAL: StudyMethod(alone=True, plan={"strategy": {"name": "fedavg"}}),
    LOCAL_LORA: StudyMethod(alone=True, plan={"strategy": {"name": "fedavg"}, **LORA}),
    # What a client of `fedmosaic` trains, by itself.
    LOCAL_BOTH: StudyMethod(alone=True, like=LOCAL, plan=_BOTH),
    "fedavg": StudyMethod(alone=False, plan={"strategy": {"name": "fedavg"}, **_BOTH}),
    "fedmosaic_random_frames": StudyMethod(like="fedmosaic", plan={"alignment": {"frames": "random"}}),
    # A fifth of the bytes.
    "fedmosaic_pq": StudyMethod(like="fedmosaic", plan={"adapter": {"same_architecture_rank": 0}}),
    "fedmosaic": StudyMethod(alone=False, plan={"strategy": {"name": "fedmosaic"}, **_BOTH}),
    **{name: StudyMethod(alone=False, plan={"strategy": {"name": name}, **LORA}) for name in LORA_STRATEGIES},
    "ca_pfl": StudyMethod(alone=False, plan=CA_PFL),
    "ca_pfl_unmodulated": StudyMethod(like="ca_pfl", plan={"strategy": {"options": {"modulator": False}}}),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A method with everything that it is like laid together."""

    name: str
    alone: bool
    plan: Table


def methods_of(study: Study, wanted: list[str] | None = None) -> list[Method]:
    """Give the methods to compare: those `wanted`, else those the study lists, else all but ON_REQUEST.

    Raises:
        StudyUnusable: a method is unknown, or is like itself.
    """
    everything = [name for name in dict.fromkeys([*BUILT_IN, *study.method]) if name not in ON_REQUEST]
    names = next((names for names in (wanted, study.methods) if names is not None), everything)
    return [Method(name, *_laid_together(study, name, ())) for name in dict.fromkeys(names)]


def plan_of(study: Study, method: Method, seed: int, pivot: str | None) -> FederationPlan:
    """Give the plan of one run; `pivot` is the slug of the study's pivot model.

    Raises:
        StudyUnusable: a field of the plan is unknown or wrong.
    """
    plan = laid_over(laid_over({}, study.plan), method.plan)
    for path, setter in _SET_BY.items():
        table, _, field = path.rpartition(".")
        if field in (_table(plan.get(table)) if table else plan):
            raise StudyUnusable(f"the plan of method {method.name} may not say {path}: {setter}")
    plan["name"] = f"{method.name}, seed {seed}"
    everybody: Table = {"min_clients": len(study.founders)}
    plan["rounds"] = {"collect_seconds": _PATIENCE_SECONDS} | _table(plan.get("rounds")) | everybody
    plan["training"] = _table(plan.get("training")) | {"seed": seed}
    if pivot is not None and _table(plan.get("adapter")).get("kind", "pq") == "pq":
        plan["alignment"] = _table(plan.get("alignment")) | {"pivot": pivot}
    else:
        plan.pop("alignment", None)
        if pivot is not None:
            plan["signature"] = laid_over({"model": pivot}, _table(plan.get("signature")))
    try:
        made = FederationPlan.model_validate_json(json.dumps(plan))
    except ValidationError as error:
        raise StudyUnusable(f"the plan of method {method.name} does not work: {faults(error)}") from error
    late = [silo for silo in study.latecomers if silo.joins_after >= made.rounds.total]
    if late:
        raise StudyUnusable(
            f"silo {late[0].name} joins after round {late[0].joins_after} of {made.rounds.total}: "
            "lower joins_after, or raise plan.rounds.total"
        )
    return made


def require_equal_training(plans: Mapping[str, FederationPlan]) -> None:
    """Make sure that every method's clients take as many local steps, on batches of one size.

    Raises:
        StudyUnusable: they do not.
    """
    amounts: dict[tuple[int, int], list[str]] = {}
    for name, plan in plans.items():
        steps, batch = plan.training.steps * plan.rounds.total, plan.training.batch_size
        amounts.setdefault((steps, batch * plan.training.accumulation), []).append(name)
    if len(amounts) > 1:
        told = "; ".join(
            f"{', '.join(names)}: {steps} steps on batches of {batch}"
            for (steps, batch), names in amounts.items()
        )
        raise StudyUnusable(
            f"methods that train unequally cannot be compared ({told}): make rounds.total x training.steps, "
            "and training.batch_size x training.accumulation, the same for all"
        )


def laid_over(below: Mapping[str, JsonValue], above: Mapping[str, JsonValue]) -> Table:
    """Lay one table over another; a key with dots, `training.steps`, reaches into tables."""
    made = dict(below)
    for key, value in above.items():
        first, dot, rest = key.partition(".")
        new: JsonValue = {rest: value} if dot else value
        made[first] = laid_over(_table(made.get(first)), new) if isinstance(new, dict) else new
    return made


def _laid_together(study: Study, name: str, above: tuple[str, ...]) -> tuple[bool, Table]:
    if name in above:
        raise StudyUnusable(f"method {name} is like itself: {' -> '.join((*above, name))}")
    layers = [entry for entry in (BUILT_IN.get(name), study.method.get(name)) if entry is not None]
    if not layers:
        known = ", ".join(dict.fromkeys([*BUILT_IN, *study.method]))
        raise StudyUnusable(f"there is no method {name}, only {known}")
    like = next((entry.like for entry in reversed(layers) if entry.like is not None), None)
    alone, plan = _laid_together(study, like, (*above, name)) if like is not None else (False, {})
    for entry in layers:
        alone = entry.alone if entry.alone is not None else alone
        plan = laid_over(plan, entry.plan)
    return alone, plan


def _table(value: JsonValue | None) -> Table:
    return dict(value) if isinstance(value, dict) else {}
