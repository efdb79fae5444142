"""The page of the Python API, from signatures and docstrings; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import griffe

from docs.generate.markdown import block, code, page_of, prose, sentence, table
from docs.generate.sources import member


@dataclass(frozen=True, slots=True)
class Part:
    """A group of objects: where users import them, and the module that defines each."""

    title: str
    text: str
    exported_by: str
    names: tuple[tuple[str, str], ...]
    """(module, name), in the order of the page."""


_INTRODUCTION = """\
This page documents the public Python API. All other objects may change between versions. Import names from
the package in the example of each section. They are loaded at their first use, so `import client_agent` does
not import PyTorch.

This program compares training alone with federated averaging, on the model and the data that
[`tessera quickstart`](cli.md#tessera-quickstart) writes into `tessera-quickstart`. It takes about a minute:

```python
from studies import Study, StudySilo, simulate

folder = "tessera-quickstart"
silos = [
    StudySilo(
        name=name,
        model=f"{folder}/model",
        train=f"{folder}/{name}/train.jsonl",
        test=f"{folder}/{name}/test.jsonl",
        examples=8,
    )
    for name in ("north", "harbour")
]
plan = {
    "adapter": {"kind": "lora", "rank": 16},
    "rounds": {"total": 2},
    "training": {"steps": 12, "batch_size": 8, "learning_rate": 0.01, "max_length": 64},
}
study = Study(silo=silos, plan=plan, seeds=[0], tests=32, validation=0).named("first")

report = simulate(study, methods=["local_lora", "fedit"])
print(report)
print(report.losses)
```"""

_AGENT = """\
An agent in your own program. Errors are subclasses of `client_agent.errors.AgentError`
([errors](errors.md#agent))."""
_STUDIES = """\
Comparisons of methods on one machine, as `tessera compare` runs them ([studies](studies.md))."""
_COORDINATOR = """\
The coordinator as an ASGI application, for your own server or test."""
_OPTIONS = """\
The options of a strategy, in `schemas/strategies` or in the module `options` of an installed package
([write a strategy](../how-to/write-a-strategy.md)). Both sides read them, and what follows from them."""
_STRATEGY = """\
The coordinator's side of a strategy, in `coordinator/strategies/<name>.py` or in the module `coordinator`
of the package: `Strategy`, made from the options."""
_AGENT_STRATEGY = """\
The agent's side of the same strategy, in `client_agent/strategies/<name>.py` or in the module `agent` of
the package."""

_ANNOTATED: Final = re.compile(r"^Annotated\[(.+?), Field\(.*?\)\]")
_FACTORY: Final = re.compile(r"default_factory=(.+)\)$")
_DECLARATION: Final = "schemas.strategies.declaration"
_PROPERTY: Final = "(property)"
_WITH_BASES: Final = "studies."
_BASE: Final = "coordinator.strategies.base"
_CAPABILITIES: Final = "coordinator.strategies.capabilities"
_FACTORS: Final = "schemas.maths.factors"
_AGENT_BASE: Final = "client_agent.rounds.strategy"
_AGENT_PART: Final = "client_agent.rounds.part"
_AGENT_SERVED: Final = "client_agent.rounds.served_weights"
PARTS: Final = (
    Part(
        "Agent",
        _AGENT,
        "client_agent",
        (
            ("client_agent.settings", "AgentSettings"),
            ("client_agent.session", "open_participant"),
            ("client_agent.daemon", "run"),
            ("client_agent.rounds.steps", "take_part"),
            ("client_agent.rounds.participant", "Participant"),
            ("client_agent.session", "StopFlag"),
        ),
    ),
    Part(
        "Studies",
        _STUDIES,
        "studies",
        (
            ("studies.study", "Study"),
            ("studies.study_fields", "StudySilo"),
            ("studies.simulation", "simulate"),
            ("studies.report.shown", "Report"),
        ),
    ),
    Part(
        "Coordinator application",
        _COORDINATOR,
        "coordinator",
        (("coordinator.app", "create_app"), ("coordinator.settings", "Settings")),
    ),
    Part(
        "Options of a strategy",
        _OPTIONS,
        _DECLARATION,
        ((_DECLARATION, "StrategyOptions"),),
    ),
    Part(
        "Strategy of the coordinator",
        _STRATEGY,
        _BASE,
        (
            (_BASE, "Strategy"),
            (_BASE, "Cohort"),
            (_BASE, "ClientFacts"),
            (_BASE, "Sketch"),
            (_BASE, "Weighing"),
            (_CAPABILITIES, "Traits"),
            (_CAPABILITIES, "Caps"),
            (_CAPABILITIES, "Unfit"),
            (_CAPABILITIES, "Source"),
            (_CAPABILITIES, "BaseDelta"),
            (_FACTORS, "Factors"),
        ),
    ),
    Part(
        "Strategy of the agent",
        _AGENT_STRATEGY,
        _AGENT_BASE,
        (
            (_AGENT_BASE, "AgentStrategy"),
            (_AGENT_PART, "Part"),
            (_AGENT_PART, "Setting"),
            (_AGENT_PART, "Effect"),
            (_AGENT_SERVED, "ServedForm"),
        ),
    ),
)


def page() -> str:
    sections = [section for part in PARTS for section in _part(part)]
    return page_of("Python API", "signatures and docstrings", _INTRODUCTION, *sections)


def _part(part: Part) -> Iterator[str]:
    yield f"## {part.title}"
    yield part.text
    for module, name in part.names:
        item = member(module, name)
        is_exported = not any(of in module for of in ("strateg", "maths", "rounds.part", "rounds.served"))
        place = part.exported_by if is_exported else module
        yield f"### {name}"
        yield block("python", f"from {place} import {name}")
        yield from _class(item) if isinstance(item, griffe.Class) else _function(item, "")


def _class(item: griffe.Class) -> Iterator[str]:
    yield from _described(item)
    settings = [str(base) for base in item.bases] == ["BaseSettings"]
    if settings:
        yield "Its fields are the [settings](settings.md)."
    else:
        described = [row for owner in (item, *_bases(item)) for row in _rows(owner)]
        yield table(("attribute", "type", "default", "meaning"), described)
    for method in item.functions.values():
        if (
            _is_public(method)
            and method.docstring is not None
            and method.name != "settings_customise_sources"
        ):
            yield from _function(method, f"{item.name}.")


def _rows(item: griffe.Class) -> Iterator[tuple[str, str, str, str]]:
    rows = [_attribute(attribute) for attribute in item.attributes.values() if _is_public(attribute)]
    return _with_descriptions(item, rows)


def _bases(item: griffe.Class) -> Iterator[griffe.Class]:
    """Yield the bases of a class that are studies' own: their fields are the class's too."""
    for base in map(str, item.bases):
        first, _, rest = base.partition(".")
        path = item.module.imports.get(first, f"{item.module.path}.{first}") + (f".{rest}" if rest else "")
        module, _, name = path.rpartition(".")
        if module.startswith(_WITH_BASES):
            base_class = member(module, name)
            assert isinstance(base_class, griffe.Class)
            yield base_class


def _is_public(item: griffe.Object) -> bool:
    ordinary = not item.name.startswith("_") and "field_validator" not in _decorators(item)
    return ordinary and item.name not in ("model_config", "__slots__")


def _decorators(item: griffe.Object) -> str:
    decorators = getattr(item, "decorators", ())
    return " ".join(str(decorator.value) for decorator in decorators)


def _attribute(item: griffe.Attribute) -> tuple[str, str, str, str]:
    meaning = item.docstring.value if item.docstring else ""
    default = _PROPERTY if "property" in item.labels else code(_default(str(item.value or "")))
    return item.name, code(type_of(item.annotation)), default, meaning


def type_of(annotation: object) -> str:
    """Return a type without the limits of `Annotated`, and alternatives with "or": a table has no bars."""
    text = str(annotation or "")
    return _ANNOTATED.sub(r"\1", text).replace(" | ", " or ")


def _default(value: str) -> str:
    """Return a default value as it is written; a factory's as the value that it makes."""
    factory = _FACTORY.search(value)
    if factory is None:
        return "" if value.startswith(("field(", "Field(")) else value
    return {"list": "[]", "dict": "{}"}.get(factory[1], factory[1].removeprefix("lambda: "))


def _with_descriptions(
    item: griffe.Class, rows: list[tuple[str, str, str, str]]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield attributes with their meaning, from the class's docstring where they have none of their own."""
    listed = {
        entry.name: entry.description
        for section in _sections(item)
        if isinstance(section, griffe.DocstringSectionAttributes)
        for entry in section.value
    }
    for name, kind, default, own_meaning in rows:
        meaning = own_meaning or listed.get(name, "")
        if meaning:  # the others are parts that a user need not know
            yield code(name), kind, default, sentence(meaning)


def _function(item: griffe.Function, owner: str) -> Iterator[str]:
    yield f"#### {owner}{item.name}" if owner else ""
    yield block("python", _signature(item))
    yield from _described(item)


def _signature(item: griffe.Function) -> str:
    """Return the signature as it is written, in one line or one parameter per line."""
    parameters, keyword_only = [], False
    for parameter in (listed for listed in item.parameters if listed.name not in ("self", "cls")):
        if parameter.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            parameters.append("*")
            keyword_only = True
        keyword_only = keyword_only or parameter.kind is griffe.ParameterKind.var_positional
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
        kind = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = (
            f" = {parameter.default}"
            if parameter.default is not None and not parameter.kind.value.startswith("variadic")
            else ""
        )
        parameters.append(f"{stars.get(parameter.kind, '')}{parameter.name}{kind}{default}")
    is_property = "property" in _decorators(item)
    returned = f" -> {item.returns}" if item.returns is not None else ""
    if is_property:
        return f"{item.name}{returned.replace(' -> ', ': ')}"
    line = f"{item.name}({', '.join(parameters)}){returned}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{item.name}(", *(f"    {parameter}," for parameter in parameters), f"){returned}"])


def _described(item: griffe.Object) -> Iterator[str]:
    if item.docstring is None:
        return
    yield prose(item.docstring.value)
    for section in _sections(item):
        match section:
            case griffe.DocstringSectionParameters():
                entries = [(code(entry.name), sentence(entry.description)) for entry in section.value]
                yield table(("argument", "meaning"), entries)
            case griffe.DocstringSectionRaises():
                errors = [(code(entry.annotation), sentence(entry.description)) for entry in section.value]
                yield table(("raises", "when"), errors)


def _sections(item: griffe.Object) -> list[griffe.DocstringSection]:
    return item.docstring.parse("google") if item.docstring is not None else []
