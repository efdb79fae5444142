"""The page of the plan: every field, the recommended plans, the named recipes, the strategies."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.strategies import opening
from coordinator.strategies.base import Strategy
from docs.generate.json_schema import Schema, default_text, type_text
from docs.generate.markdown import block, code, page_of, prose, sentence, table
from schemas.messages.federations import FederationPlan
from schemas.messages.recipes import NAMED, Recipe
from schemas.messages.recommendations import recommended
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import strategy_names, strategy_options

_INTRODUCTION = """\
A plan is the JSON object that describes one federation: its method, its adapter, its rounds, and its
limits. Operators create a federation from it (`tessera federation create --plan plan.json`, or `POST
/v1/federations`). Agents receive the plan, check it, and refuse it if they do not support a part of it. A
plan is data and contains no code.

Only `name` and `strategy.name` are required. Unknown fields are refused, so a misspelt field is an error. A
plan cannot be changed after the federation has been created."""

_EXAMPLE = {
    "name": "clinics",
    "strategy": {"name": "fedmosaic"},
    "rounds": {"total": 20, "min_clients": 4, "quorum": 3},
    "adapter": {"kind": "lora", "rank": 16},
}

_RECOMMENDED = """\
`tessera federation create` and the page fill in the recommended values of a strategy where a plan names none;
over HTTP `POST /v1/federations?recommended=true` does. A plan with `alignment`, `adapter.kind` `pq`,
`same_architecture_rank` or `target_modules` gets the values recommended for several base models. All other
fields have the defaults above."""

_STRATEGIES = """\
`strategy.name` selects the method, `strategy.options` its options. A strategy declares its needs as traits.
[Strategies](../explanation/strategies.md) compares the weights served to a client, and the number of values
sent. Strategies of [installed packages](../how-to/write-a-strategy.md) have their own names."""

_RECIPES = """\
A recipe determines the values of an update that are sent, the reference of the differences, and the number
format. [Wire format](wire-format.md#recipes) has the encoding, and [Bytes on the
wire](../explanation/bytes.md) has the savings."""

_FACTS: Final[Mapping[str, Callable[[Strategy], bool]]] = {
    "needs gradient sketches": lambda strategy: strategy.traits.needs_sketch,
    "the served weights are a frozen branch beside the client's own": lambda strategy: strategy.options.gated,
    "needs `adapter.kind` `lora`": lambda strategy: strategy.options.lora_only,
    "some tensors never leave the client": lambda strategy: _overrides(strategy, "travels"),
    "sends tensors beyond the adapter's": lambda strategy: _overrides(strategy, "beside"),
    "combines A and B module by module": lambda strategy: strategy.traits.combines,
    "scales each client's weight by the size of its update": lambda strategy: strategy.traits.rescales,
    "part of a round joins the base model": lambda strategy: strategy.options.base_delta,
    "clients may differ in rank": lambda strategy: strategy.options.mixed_ranks,
}
"""Sentences about a strategy, and when each of them holds."""


def page() -> str:
    schema = FederationPlan.model_json_schema()
    return page_of(
        "Plan",
        "schemas/messages/federations.py and the strategies' options",
        _INTRODUCTION,
        block("json", json.dumps(_EXAMPLE, indent=2)),
        "## Fields",
        _fields("", FederationPlan, schema, schema["$defs"]),
        *_sections(FederationPlan, schema["$defs"], ""),
        "## Named recipes",
        _RECIPES,
        _recipes(),
        "## Recommended plans",
        _RECOMMENDED,
        *_recommended(),
        "## Strategies",
        _STRATEGIES,
        *(_strategy(name) for name in strategy_names()),
    )


def _sections(model: type[BaseModel], definitions: Schema, path: str) -> Iterator[str]:
    """Yield a section per nested model, in the order of the fields."""
    for name, field in model.model_fields.items():
        nested = _nested(field.annotation)
        if nested is None:
            continue
        place = f"{path}.{name}" if path else name
        yield f"## {place}"
        yield prose(nested.__doc__)
        yield _fields(place, nested, definitions[nested.__name__], definitions)
        yield from _sections(nested, definitions, place)


def _nested(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field, also of an optional one."""
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    models = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models[0] if models else None


def _fields(path: str, model: type[BaseModel], schema: Schema, definitions: Schema) -> str:
    rows = []
    for name, field in model.model_fields.items():
        described = schema["properties"][name]
        nested = _nested(field.annotation)
        place = f"{path}.{name}" if path else name
        target = f"[object](#{place.replace('.', '').lower()})" if nested is not None else None
        kind = target or type_text(described, lambda name: f"[{name}](#{name.lower()})")
        if nested is Recipe:
            kind = f"[name](#named-recipes) or {target}"
        elif target and field.default is None:
            kind = f"{target} or null"
        default = "`{}`" if field.default_factory is dict else _default(field, described)
        rows.append((code(name), kind, default, sentence(field.description or "")))
    return table(("field", "type", "default", "meaning"), rows)


def _default(field: FieldInfo, schema: Schema) -> str:
    if isinstance(field.default, Recipe):
        return code(next(name for name, recipe in NAMED.items() if recipe == field.default))
    if isinstance(field.default, BaseModel):
        return "its defaults"
    return default_text(schema, required=field.is_required())


def _recipes() -> str:
    rows = [
        (code(name), code(recipe.reference), f"{recipe.density:g}", code(recipe.values))
        for name, recipe in NAMED.items()
    ]
    return table(("name", "differences to", "density", "number format"), rows)


def _recommended() -> Iterator[str]:
    """Yield each recommended plan once, with the strategies that have it."""
    for title, aligned in (("One base model", False), ("Several base models", True)):
        yield f"### {title}"
        plans: dict[str, list[str]] = {}
        for name in strategy_names():
            if aligned and recommended(name, aligned=True) == recommended(name, aligned=False):
                continue
            text = json.dumps(recommended(name, aligned=aligned), indent=2)
            plans.setdefault(text, []).append(name)
        for text, names in plans.items():
            yield f"{', '.join(map(code, names))}:"
            yield block("json", text)


def _nested_options(options: type[BaseModel], definitions: Schema) -> Iterator[str]:
    """Yield a section per option that is an object."""
    for name, field in options.model_fields.items():
        nested = _nested(field.annotation)
        if nested is not None:
            yield f"#### {name}"
            yield prose(nested.__doc__)
            yield _fields(name, nested, definitions[nested.__name__], definitions)


def _strategy(name: str) -> str:
    strategy, options = opening.make(name, {}), strategy_options(name)
    module = importlib.import_module(type(strategy).__module__)
    schema = options.model_json_schema()
    described = _fields("", options, schema, schema.get("$defs", {})) or "It has no options."
    parts = (
        f"### {name}",
        prose(module.__doc__),
        f"Traits: {_facts(strategy)}.",
        prose(options.__doc__) if options.model_fields else "",
        described,
        *_nested_options(options, schema.get("$defs", {})),
    )
    return "\n\n".join(part for part in parts if part)


def _facts(strategy: Strategy) -> str:
    listed = [fact for fact, holds in _FACTS.items() if holds(strategy)] or ["plain averaging of everything"]
    sums = ["sums are enough (`privacy.secure_sum`)"] if strategy.traits.sums else []
    return "; ".join([*listed, *sums])


def _overrides(strategy: Strategy, method: str) -> bool:
    return getattr(type(strategy.options), method) is not getattr(StrategyOptions, method)
