"""The page of settings: variables of the coordinator, options of a silo, variables of the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperOption

from client_agent.settings import AgentSettings
from coordinator.settings import EXTERNAL, PREFIX, Settings
from docs.generate.commands import commands
from docs.generate.json_schema import Schema, type_text
from docs.generate.markdown import block, code, page_of, sentence, table

_INTRODUCTION = """\
Environment variables configure the coordinator, and `silo.toml` configures an agent. The settings of one
federation are in its [plan](plan.md), not on this page."""

_COORDINATOR = """\
Set these variables in the environment. A file in the folder `TESSERA_SECRETS_DIR`, with the variable's name
in lower case, such as `tessera_admin_token`, can replace a variable; the environment takes precedence. An
empty variable counts as not set. At startup the coordinator logs unknown variables that begin with
`TESSERA_` (`unknown-variables`) with the nearest known names, because they are most likely misspelt."""

_AGENT = """\
Set these options in `silo.toml`; `tessera agent init` writes a commented file. You can also set every option
in the environment as `TESSERA_AGENT_<OPTION>`, which takes precedence. Paths are relative to `silo.toml`.
Only `url`, `model` and `train` are required."""

_COMMANDS = """\
Options of [commands](cli.md) that can also be set in the environment, and the variables of
[`docker-compose.yml`](../../docker-compose.yml)."""

_EXAMPLE = """\
url = "https://tessera.example.org"
model = "HuggingFaceTB/SmolLM2-135M-Instruct"
train = "data/train.jsonl"
quantization = "nf4"
"""
_SECRET = "secret text"
_AGENT_LOG_LEVEL = "level of the agent's log: debug, info (the default), warning or error"


def page() -> str:
    return page_of(
        "Settings",
        "coordinator/settings.py and client_agent/settings.py",
        _INTRODUCTION,
        "## Coordinator",
        _COORDINATOR,
        table(("variable", "type", "default", "meaning"), _coordinator_rows()),
        "## Agent",
        _AGENT,
        block("toml", _EXAMPLE),
        table(("option", "type", "default", "meaning"), _agent_rows()),
        "## Command line",
        _COMMANDS,
        table(("variable", "meaning"), _command_rows()),
    )


def _coordinator_rows() -> list[tuple[str, ...]]:
    schemas = Settings.model_json_schema()["properties"]
    return [
        (code(f"{PREFIX}{name.upper()}"), *_row(field, schemas[name], environment=True))
        for name, field in Settings.model_fields.items()
    ]


def _agent_rows() -> list[tuple[str, ...]]:
    schemas = AgentSettings.model_json_schema()["properties"]
    return [
        (code(name), *_row(field, schemas[name], environment=False))
        for name, field in AgentSettings.model_fields.items()
    ]


def _row(field: FieldInfo, schema: Schema, *, environment: bool) -> tuple[str, str, str]:
    default = "required" if field.is_required() else _default(field.default, environment=environment)
    return _type(schema), default, sentence(field.description or "")


def _type(schema: Schema) -> str:
    """Return the type of a setting; one that is not set is none of its types."""
    several = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    return " or ".join(_single_type(part) for part in several)


def _single_type(schema: Schema) -> str:
    match schema.get("format"):
        case "path":
            return "path"
        case "password":
            return _SECRET
        case "uri":
            return "URL"
    if "$ref" in schema:
        return "table"
    if schema.get("type") == "array" and "items" in schema:
        items = schema["items"]
        return "table of names" if items.get("type") == "array" else f"list of {type_text(items)}"
    text = type_text(schema)
    return "text" if text == "string" else text


def _default(value: object, *, environment: bool) -> str:
    """Return a default as it would be written; unset options have none."""
    if value in (None, "", ()) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, Path):
        value = str(value)
    written = str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, float) and value.is_integer():
        written = int(value)
    return code(written if environment or isinstance(value, bool) else json.dumps(written))


def _command_rows() -> list[tuple[str, str]]:
    described: dict[str, str] = {f"{PREFIX}{name}": text for name, text in EXTERNAL.items()}
    described["TESSERA_AGENT_LOG_LEVEL"] = _AGENT_LOG_LEVEL
    described |= {name: text for name, text in _option_texts().items() if name not in described}
    read = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields}
    return [(code(name), sentence(text)) for name, text in sorted(described.items()) if name not in read]


def _option_texts() -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for command in commands():
        for option in command.described.params:
            if isinstance(option, TyperOption):
                names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
                for name in names:
                    texts.setdefault(name, f"`{command.name} {option.opts[0]}`: {option.help}")
    return texts
