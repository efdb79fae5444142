"""A fair comparison of methods: the same adapter for all, and no rate but those that are tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from client_agent.errors import StudyUnusable
from client_agent.training.data import MIN_VALIDATION
from schemas.messages.federations import AdapterPlan, FederationPlan
from studies.study import Study
from studies.study_fields import FairRules, Table

_COMMON = ("roles", "layers")
"""What P and Q have in common with a LoRA; their rank has another meaning."""


def with_fair_rules(study: Study, seeds: Sequence[int]) -> Study:
    """Return a study with complete rules for a comparison on `seeds`; one without rules as it is.

    Raises:
        StudyUnusable: the seed of the search is reported, or validation examples are too few to choose by.
    """
    rules = study.fair
    if rules is None:
        return study
    reported = sorted({*study.seeds, *seeds})
    seed = rules.search_seed
    if seed is None:
        seed = reported[0] - 1 if reported[0] else reported[-1] + 1
    if seed in seeds:
        raise StudyUnusable(
            f"rates are searched with seed {seed}, which is not to be reported; set another "
            "fair.search_seed, or leave it out of the seeds"
        )
    if study.validation < MIN_VALIDATION:
        raise StudyUnusable(
            f"a fair comparison chooses rates and states by validation examples; set validation to "
            f"{MIN_VALIDATION} or more (now {study.validation})"
        )
    return study.model_copy(update={"fair": rules.model_copy(update={"search_seed": seed})})


def fair_plan(rules: FairRules, name: str, plan: Table, set_by_study: Table, rate: float | None) -> Table:
    """Return a method's plan with the common adapter and a rate; `set_by_study` is what the study sets.

    Raises:
        StudyUnusable: the study sets a learning rate.
    """
    training = _table(plan.get("training"))
    if "learning_rate" in training:
        raise StudyUnusable(
            f"the plan of method {name} sets training.learning_rate, which a fair comparison searches; leave "
            "it out, or set fair.rates"
        )
    if rate is not None:
        training["learning_rate"] = rate
    adapter = _table(plan.get("adapter"))
    if adapter.get("kind", "pq") == "lora":
        adapter = {"kind": "lora", **rules.adapter}
    else:
        adapter |= {field: rules.adapter[field] for field in _COMMON if field in rules.adapter}
        if adapter.get("same_architecture_rank") and "rank" in rules.adapter:
            adapter["same_architecture_rank"] = rules.adapter["rank"]
    return plan | {"adapter": adapter | _table(set_by_study.get("adapter")), "training": training}


def adapter_label(adapter: AdapterPlan) -> str:
    """Return a label for the kind of adapter that clients train."""
    if adapter.kind == "lora":
        return "LoRA"
    return "P, Q and LoRA" if adapter.same_architecture_rank else "P, Q"


def require_equal_adapters(plans: Mapping[str, FederationPlan]) -> None:
    """Raise unless all methods with one kind of adapter train the same one.

    Raises:
        StudyUnusable: they differ.
    """
    by_label: dict[str, list[tuple[AdapterPlan, list[str]]]] = {}
    for name, plan in plans.items():
        of_label = by_label.setdefault(adapter_label(plan.adapter), [])
        same = next((names for adapter, names in of_label if adapter == plan.adapter), None)
        if same is None:
            of_label.append((plan.adapter, [name]))
        else:
            same.append(name)
    for label, groups in by_label.items():
        if len(groups) > 1:
            differing = [
                field
                for field in AdapterPlan.model_fields
                if any(getattr(adapter, field) != getattr(groups[0][0], field) for adapter, _ in groups)
            ]
            summary = "; ".join(
                f"{', '.join(names)}: {_values(adapter, differing)}" for adapter, names in groups
            )
            raise StudyUnusable(
                f"methods with {label} differ in their adapter ({summary}); a fair comparison has one: set "
                "fair.adapter, and leave adapter out of these methods"
            )


def require_control(study: Study, plans: Mapping[str, FederationPlan]) -> None:
    """Raise unless the control is one of the methods.

    Raises:
        StudyUnusable: it is not.
    """
    if study.fair is not None and study.fair.control not in plans:
        raise StudyUnusable(
            f"the control of a fair comparison, {study.fair.control}, is not among its methods; add it, or "
            f"set fair.control to one of {', '.join(plans)}"
        )


def _values(adapter: AdapterPlan, fields: Sequence[str]) -> str:
    return ", ".join(f"{field} {_text(getattr(adapter, field))}" for field in fields)


def _text(value: object) -> str:
    """Format a value of an adapter's field; layers are null where all have an adapter."""
    if value is None:
        return "all"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _table(value: JsonValue | None) -> Table:
    return dict(value) if isinstance(value, dict) else {}
