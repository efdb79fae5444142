"""The federation plan of each method. Pure: a study in, plans out.

Precedence: the method itself, then the method it is `like`, then the study's plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue, ValidationError

from client_agent.errors import StudyUnusable
from schemas.messages.faults import complaints
from schemas.messages.federations import FederationPlan
from schemas.messages.recommendations import CA_PFL, LORA, LORA_STRATEGIES, SAME_ARCHITECTURE_RANK
from studies.draws import clients_per_round, require_all_drawn
from studies.fair import fair_plan
from studies.study import Study
from studies.study_fields import States, StudyMethod, Table

LOCAL: Final = "local"
LOCAL_LORA: Final = "local_lora"
LOCAL_BOTH: Final = "local_both"
_PATIENCE_SECONDS = 7 * 86400.0
_SET_BY: Final[Mapping[str, str]] = {
    "name": "method and seed determine it; leave it out",
    "rounds.min_clients": "the number of founders, silos without joins_after, determines it; leave it out",
    "training.seed": "the run's seed determines it; set seeds in the study, or --seeds",
    "alignment.pivot": "the study's pivot_model determines it; set pivot_model",
}

_BOTH: Final[Table] = {"adapter": {"same_architecture_rank": SAME_ARCHITECTURE_RANK}}

_SUMMED: Final[Table] = {"privacy": {"secure_sum": {"masking": "none", "minimum": 2}}}
"""Sums in clear: the same inputs and totals as with masks, without the work of masking."""

_LARGEST: Final[Table] = {
    "wire": {
        "recipe": {"reference": "served", "density": 0.27, "values": "int8"},
        "weights_recipe": "int8",
    }
}

_FIXED_BANK: Final[Table] = {"shared": False, "regret_above": 1, "prune_below": 0, "merge_patience": 64}
"""One of k models, k fixed, without a shared expert."""

ON_REQUEST: Final = (
    "fedit",
    "fedit_local",
    "fedmosaic_lora_sketches",
    *LORA_STRATEGIES,
    "topk",
    "ca_pfl",
    "fedavg_summed",
    "fed_vemoe",
    "fed_vemoe_pq",
    "ifca",
)
"""Methods that a study compares only where it, or --methods, names them."""

BUILT_IN: Final[Mapping[str, StudyMethod]] = {
    # P and Q only, in the frames of the federations.
    LOCAL: StudyMethod(alone=True, plan={"strategy": {"name": "fedavg"}}),
    LOCAL_LORA: StudyMethod(alone=True, plan={"strategy": {"name": "fedavg"}, **LORA}),
    # The adapter of a `fedmosaic` client, trained alone.
    LOCAL_BOTH: StudyMethod(alone=True, like=LOCAL, plan=_BOTH),
    "fedavg": StudyMethod(alone=False, plan={"strategy": {"name": "fedavg"}, **_BOTH}),
    "fedmosaic_random_frames": StudyMethod(like="fedmosaic", plan={"alignment": {"frames": "random"}}),
    # A fifth of the bytes.
    "fedmosaic_pq": StudyMethod(like="fedmosaic", plan={"adapter": {"same_architecture_rank": 0}}),
    "fedmosaic": StudyMethod(alone=False, plan={"strategy": {"name": "fedmosaic"}, **_BOTH}),
    # Relevance over an ordinary LoRA, shared between clients of one base model.
    "fedmosaic_lora": StudyMethod(alone=False, plan={"strategy": {"name": "fedmosaic"}, **LORA}),
    # The same, where relevance follows from sketches alone, as published.
    "fedmosaic_lora_sketches": StudyMethod(
        like="fedmosaic_lora", plan={"strategy": {"options": {"evidence": "sketches"}}}
    ),
    # Plain averages of an ordinary LoRA (Zhang et al. 2024), without a client's own steps; and with them.
    "fedit": StudyMethod(alone=False, states="served", plan={"strategy": {"name": "fedavg"}, **LORA}),
    "fedit_local": StudyMethod(like="fedit", states="trained"),
    **{name: StudyMethod(alone=False, plan={"strategy": {"name": name}, **LORA}) for name in LORA_STRATEGIES},
    # The largest values of each update; the remainder is sent in later rounds. As many as `ca_pfl` sends.
    "topk": StudyMethod(alone=False, plan={"strategy": {"name": "fedavg"}, **LORA, **_LARGEST}),
    # The average of an ordinary LoRA, of which the coordinator needs sums only.
    "fedavg_summed": StudyMethod(alone=False, plan={"strategy": {"name": "fedavg"}, **LORA, **_SUMMED}),
    # A shared expert and private choices among specialists; over P and Q; and one of k models, without it.
    "fed_vemoe": StudyMethod(alone=False, plan={"strategy": {"name": "fed_vemoe"}, **LORA, **_SUMMED}),
    "fed_vemoe_pq": StudyMethod(alone=False, plan={"strategy": {"name": "fed_vemoe"}, **_SUMMED}),
    "ifca": StudyMethod(like="fed_vemoe", plan={"strategy": {"options": _FIXED_BANK}}),
    "ca_pfl": StudyMethod(alone=False, plan=CA_PFL),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A method with its `like` chain resolved; `run` is the method whose runs it shares, often itself.

    `set_by_study` is the part of its plan that the study itself sets.
    """

    name: str
    alone: bool
    plan: Table
    states: States = "all"
    run: str = ""
    set_by_study: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The dataclass is frozen; this is the way in `__post_init__`.
        object.__setattr__(self, "run", self.run or self.name)


def methods_of(study: Study, requested: list[str] | None = None) -> list[Method]:
    """Return the methods to compare: `requested`, else the study's, else all but ON_REQUEST.

    Raises:
        StudyUnusable: a method is unknown, or its `like` chain is circular.
    """
    default_methods = [name for name in dict.fromkeys([*BUILT_IN, *study.method]) if name not in ON_REQUEST]
    names = next((names for names in (requested, study.methods) if names is not None), default_methods)
    return [_resolve(study, name, ()) for name in dict.fromkeys(names)]


def plan_of(
    study: Study, method: Method, seed: int, pivot: str | None, rate: float | None = None
) -> FederationPlan:
    """Return the plan of one run; `pivot` is the slug of the study's pivot model.

    `rate` is the learning rate of a run of a fair comparison.

    Raises:
        StudyUnusable: a field of the plan is unknown or invalid.
    """
    plan = merge_tables(merge_tables({}, study.plan), method.plan)
    for path, setter in _SET_BY.items():
        table, _, field = path.rpartition(".")
        # Refused and not overwritten: the study would say something that is not done.
        if field in (_table(plan.get(table)) if table else plan):
            raise StudyUnusable(f"the plan of method {method.name} must not set {path}: {setter}")
    plan["name"] = f"{method.run} seed {seed}"
    # Clients of a study take turns, so that the last one may come hours after the first.
    rounds = {"collect_seconds": _PATIENCE_SECONDS} | _table(plan.get("rounds"))
    plan["rounds"] = rounds | {"min_clients": clients_per_round(rounds.get("sample"), len(study.founders))}
    if study.fair is not None:
        plan = fair_plan(study.fair, method.name, plan, method.set_by_study, rate)
    plan["training"] = _table(plan.get("training")) | {"seed": seed}
    if pivot is not None and _table(plan.get("adapter")).get("kind", "pq") == "pq":
        plan["alignment"] = _table(plan.get("alignment")) | {"pivot": pivot}
    else:
        plan.pop("alignment", None)
        if pivot is not None:
            # Without alignment nothing else names the model of sketches.
            plan["signature"] = merge_tables({"model": pivot}, _table(plan.get("signature")))
    _score_by_client(method.name, plan)
    try:
        validated = FederationPlan.model_validate_json(json.dumps(plan))
    except ValidationError as error:
        raise StudyUnusable(
            f"the plan of method {method.name} is invalid: {complaints(error, FederationPlan)}"
        ) from error
    if validated.rounds.sample is not None and not method.alone:
        require_all_drawn(study, method.name, validated)
    late = [silo for silo in study.latecomers if silo.joins_after >= validated.rounds.total]
    if late:
        raise StudyUnusable(
            f"silo {late[0].name} joins after round {late[0].joins_after} of {validated.rounds.total}: "
            "lower joins_after, or raise plan.rounds.total"
        )
    return validated


def _score_by_client(method: str, plan: Table) -> None:
    """Set that clients send their own scores in a plan that sums updates: a comparison needs them."""
    privacy = _table(plan.get("privacy"))
    if not isinstance(privacy.get("secure_sum"), dict):
        return
    # A comparison pairs clients one by one, which a sum of scores does not allow.
    summed = {"scores": "own"} | _table(privacy["secure_sum"])
    if summed["scores"] != "own":
        raise StudyUnusable(
            f"the plan of method {method} sums the scores of clients, which a comparison needs one by one; "
            "leave privacy.secure_sum.scores out"
        )
    plan["privacy"] = privacy | {"secure_sum": summed}


def control_of(study: Study, method: str, plan: FederationPlan) -> str | None:
    """Return the alone method that a federated one is compared with; None for an alone method.

    The study names it, or it is the built-in one with the method's adapter.

    Raises:
        StudyUnusable: the study names one that is unknown or federated.
    """
    resolved = methods_of(study, [method])[0]
    if resolved.alone:
        return None
    named = _control(study, method)
    if named is not None:
        if not methods_of(study, [named])[0].alone:
            raise StudyUnusable(
                f"the control of method {method}, {named}, is federated; name a method that trains alone"
            )
        return named
    if plan.adapter.kind == "lora":
        return LOCAL_LORA
    return LOCAL_BOTH if plan.adapter.same_architecture_rank else LOCAL


def _control(study: Study, name: str) -> str | None:
    """Return the control that a method or one that it is `like` names."""
    layers = [entry for entry in (study.method.get(name), BUILT_IN.get(name)) if entry is not None]
    for entry in layers:
        if entry.control is not None:
            return entry.control
    like = next((entry.like for entry in layers if entry.like is not None), None)
    return _control(study, like) if like is not None else None


def require_equal_training(plans: Mapping[str, FederationPlan]) -> None:
    """Raise unless all methods have the same number of local steps and the same batch size.

    Raises:
        StudyUnusable: they differ.
    """
    amounts: dict[tuple[int, int], list[str]] = {}
    for name, plan in plans.items():
        # In all rounds: methods may divide the same steps differently.
        steps, batch = plan.training.steps * plan.rounds.total, plan.training.batch_size
        amounts.setdefault((steps, batch * plan.training.accumulation), []).append(name)
    if len(amounts) > 1:
        summary = "; ".join(
            f"{', '.join(names)}: {steps} steps on batches of {batch}"
            for (steps, batch), names in amounts.items()
        )
        raise StudyUnusable(
            f"the methods train unequal amounts ({summary}); set the same rounds.total x training.steps, and "
            "the same training.batch_size x training.accumulation, for all"
        )


def merge_tables(below: Mapping[str, JsonValue], above: Mapping[str, JsonValue]) -> Table:
    """Return `below` updated with `above`, recursively; a key `training.steps` addresses a nested table."""
    merged = dict(below)
    for key, value in above.items():
        head, dot, subkey = key.partition(".")
        new: JsonValue = {subkey: value} if dot else value
        merged[head] = merge_tables(_table(merged.get(head)), new) if isinstance(new, dict) else new
    return merged


def _resolve(study: Study, name: str, above: tuple[str, ...]) -> Method:
    if name in above:
        raise StudyUnusable(
            f"method {name} refers to itself by `like` ({' -> '.join((*above, name))}); change one of them"
        )
    in_study = study.method.get(name)
    layers = [entry for entry in (BUILT_IN.get(name), in_study) if entry is not None]
    if not layers:
        available = ", ".join(dict.fromkeys([*BUILT_IN, *study.method]))
        raise StudyUnusable(f"unknown method {name}; choose from {available}")
    like = next((entry.like for entry in reversed(layers) if entry.like is not None), None)
    parent = _resolve(study, like, (*above, name)) if like is not None else Method(name, False, {})
    alone, plan, states, set_by_study = parent.alone, parent.plan, parent.states, parent.set_by_study
    for entry in layers:
        alone = entry.alone if entry.alone is not None else alone
        if entry.states is not None and (study.fair is None or entry is in_study):
            states = entry.states  # fairly compared, methods count all states but where the study says so
        plan = merge_tables(plan, entry.plan)
        set_by_study = merge_tables(set_by_study, entry.plan) if entry is in_study else set_by_study
    # Methods that differ only in the states that count are one run with two readings.
    shares_runs = any(entry.states is not None for entry in layers) and plan == parent.plan
    return Method(name, alone, plan, states, parent.run if shares_runs else name, set_by_study)


def _table(value: JsonValue | None) -> Table:
    return dict(value) if isinstance(value, dict) else {}
