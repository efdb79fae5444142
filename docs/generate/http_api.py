"""The page of the HTTP API, from the OpenAPI document and the routes' permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from coordinator.app import ROUTERS, create_app
from coordinator.auth.permissions import CALLERS
from coordinator.settings import Settings
from docs.generate.json_schema import Schema, default_text, type_text
from docs.generate.markdown import anchor, code, linked, page_of, sentence, table

_INTRODUCTION = """\
Commands, agents and the page use only this API. A running coordinator serves the same document for machines
at `/openapi.json`, and a page for trying it out at `/docs`.

People send `Authorization: Bearer TOKEN`. Clients sign every request ([signed
requests](wire-format.md#signed-requests)). Bodies are JSON, or tensors where a media type is named ([wire
format](wire-format.md)). A refused request receives a [problem document](errors.md); any request may receive
`rate-limited`, `busy` or `unavailable`. Lists are returned in pages: `next` of a page is `after` of the
request for the following page, null at the end."""

_TAGS: Final = {
    "about": "The service",
    "federations": "Federations",
    "enrolment": "Enrolment and tokens",
    "clients": "Clients",
    "rounds": "Rounds",
    "weights": "Weights",
    "updates": "Updates",
    "secure sum": "Secure sum",
    "experts": "Experts",
    "alignment": "Alignment",
}
"""The groups of the page, in its order."""

_ELSEWHERE: Final = {"FederationPlan": "plan.md", "Problem": "errors.md"}
"""Bodies that another page describes, and with them all that only they contain."""
_PLAN_PART = re.compile(r"(Plan|Recipe)$")
_CLIENT_OR_OPERATOR: Final = "a client of the federation, an operator or an admin"
_BY_THEMSELVES: Final = {
    ("/v1/federations/{fid}/rounds/current", "get"): "a client of the federation",
    ("/v1/federations/{fid}/clients/{cid}/adapter", "get"): "the client itself, an operator or an admin",
    ("/v1/federations/{fid}/alignments/{base_model}", "get"): _CLIENT_OR_OPERATOR,
    ("/v1/federations/{fid}/alignments/{base_model}", "put"): _CLIENT_OR_OPERATOR,
    ("/v1/federations/{fid}/alignments/{base_model}/acceptance", "put"): _CLIENT_OR_OPERATOR,
    ("/v1/enrolments", "post"): "anyone with an enrolment token",
    ("/v1/sign-in", "get"): "anyone",
    ("/v1/sign-in", "post"): "anyone with a code of the identity provider",
    ("/v1/sign-in", "delete"): "a person with an ID token of the identity provider",
    ("/metrics", "get"): "any person; anyone with TESSERA_PUBLIC_METRICS=true",
    ("/healthz", "get"): "anyone",
    ("/readyz", "get"): "anyone",
    ("/v1/hello", "get"): "anyone",
}
"""Callers of routes that decide in their body, by path and method."""


def page() -> str:
    document = create_app(Settings(_env_file=None)).openapi()
    groups = _groups(document)
    callers = _callers()
    schemas: dict[str, Schema] = document["components"]["schemas"]
    sections = [
        part
        for tag, title in _TAGS.items()
        for part in (
            f"## {title}",
            *(_operation(path, method, operation, callers) for path, method, operation in groups[tag]),
        )
    ]
    bodies = [
        _body(name, schemas[name]) for name in sorted(schemas) if _is_described_here(name, schemas[name])
    ]
    return page_of(
        "HTTP API",
        "the coordinator's routes",
        _INTRODUCTION,
        *_overview(groups),
        *sections,
        "## Bodies",
        "Members that are not required may be absent.",
        *bodies,
    )


Operation = tuple[str, str, Schema]


def _groups(document: Schema) -> dict[str, list[Operation]]:
    groups: dict[str, list[Operation]] = {tag: [] for tag in _TAGS}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups[operation["tags"][0]].append((path, method, operation))
    return groups


def _overview(groups: dict[str, list[Operation]]) -> Iterator[str]:
    rows = [
        (f"`{method.upper()}`", code(path), f"[{operation['summary']}](#{anchor(operation['summary'])})")
        for operations in groups.values()
        for path, method, operation in operations
    ]
    yield table(("method", "path", ""), rows)


def _callers() -> dict[tuple[str, str], str]:
    """Return who may call each route, by path and method."""
    texts: dict[tuple[str, str], str] = {}
    for route in (route for router in ROUTERS for route in router.routes):
        if isinstance(route, APIRoute):
            caller = _caller_of(route.dependant)
            texts |= {(route.path, method.lower()): caller for method in route.methods or () if caller}
    return texts | _BY_THEMSELVES


def _caller_of(dependant: Dependant) -> str:
    """Return the callers of the outermost permission among the dependencies of a route."""
    level = list(dependant.dependencies)
    while level:
        for inner in level:
            if inner.call is not None and inner.call in CALLERS:
                return CALLERS[inner.call]
        level = [deeper for inner in level for deeper in inner.dependencies]
    return ""


def _operation(path: str, method: str, operation: Schema, callers: dict[tuple[str, str], str]) -> str:
    parts = (
        f"### {operation['summary']}",
        f"`{method.upper()} {path}`",
        linked(operation["description"]),
        f"**Callers:** {sentence(callers[path, method])}",
        table(("parameter", "in", "type", "meaning"), map(_parameter, operation.get("parameters", ()))),
        _request(operation),
        table(("status", "reply"), _replies(operation)),
    )
    return "\n\n".join(part for part in parts if part)


def _parameter(parameter: Schema) -> tuple[str, str, str, str]:
    schema = parameter["schema"]
    default = f" Default: `{schema['default']}`." if schema.get("default") is not None else ""
    meaning = sentence(parameter.get("description", "")) + default
    return code(parameter["name"]), parameter["in"], type_text(schema, _link), meaning


def _request(operation: Schema) -> str:
    body = operation.get("requestBody")
    if body is None:
        return ""
    contents = [_content(kind, content) for kind, content in body["content"].items()]
    return f"**Body:** {' or '.join(contents)}."


def _content(media_type: str, content: Schema) -> str:
    schema = content.get("schema")
    return type_text(schema, _link) if schema and media_type == "application/json" else code(media_type)


def _replies(operation: Schema) -> Iterator[tuple[str, str]]:
    for status, response in sorted(operation["responses"].items()):
        if status == "default":
            continue
        if status.startswith(("2", "3")):
            contents = [_content(kind, content) for kind, content in response.get("content", {}).items()]
            described = response["description"].replace("Successful Response", "")
            yield (
                status,
                ". ".join(part for part in (sentence(described).rstrip("."), " or ".join(contents)) if part),
            )
        else:
            slugs = re.findall(r"`([a-z-]+)`: ", response["description"])
            links = ", ".join(f"[`{slug}`](errors.md#{slug})" for slug in slugs)
            yield status, links or sentence(response["description"])


def _is_described_here(name: str, schema: Schema) -> bool:
    return name not in _ELSEWHERE and not _PLAN_PART.search(name) and "properties" in schema


def _link(name: str) -> str:
    if name in _ELSEWHERE:
        return f"[{name}]({_ELSEWHERE[name]})"
    if _PLAN_PART.search(name):
        return f"[{name}](plan.md)"
    if name == "JsonValue" or " " in name:  # FastAPI names an object without a model after its route
        return "any JSON"
    return f"[{name}](#{anchor(name)})"


def _body(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        (
            code(member),
            type_text(described, _link),
            "required" if member in required else default_text(described, required=False),
            sentence(described.get("description", "")),
        )
        for member, described in schema["properties"].items()
    ]
    parts = (
        f"### {name}",
        linked(schema.get("description", "")),
        table(("member", "type", "default", "meaning"), rows),
    )
    return "\n\n".join(part for part in parts if part)
