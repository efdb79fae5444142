"""Finish the OpenAPI document: one error form for every route, bodies as components."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from schemas.problems import MEDIA_TYPE, PREFIX, Problem

_METHODS = ("get", "put", "post", "delete", "patch")
_EXAMPLE = {
    "type": f"{PREFIX}not-found",
    "title": "There is no such thing, or it is not yours",
    "status": 404,
}


def install(app: FastAPI) -> None:
    """Make `/openapi.json` and `/docs` tell the whole truth."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = finished(generate())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def finished(document: dict[str, Any]) -> dict[str, Any]:
    """Give every operation its problem answers, and hoist the definitions of bodies into the components."""
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = Problem.model_json_schema()
    for path in document["paths"].values():
        for method in _METHODS:
            if method in path:
                _describe_problems(path[method]["responses"])
                _hoist(path[method], schemas)
    return document


def _describe_problems(responses: dict[str, Any]) -> None:
    body = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": _EXAMPLE}}
    if "content" in responses.get("422", {}) and MEDIA_TYPE not in responses["422"]["content"]:
        del responses["422"]  # the framework's own form, which is never sent
    responses["default"] = {"description": "Refused; `type` says why"}
    for status, response in responses.items():
        if not status.startswith("2"):
            response["content"] = body


def _hoist(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move the definitions inside a body's schema to the components, where references point."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        for content in part.get("content", {}).values():
            schema = content.get("schema", {})
            for name, definition in schema.pop("$defs", {}).items():
                schemas.setdefault(name, _redirected(definition))
            if schema.get("type") == "object" and "title" in schema:
                schemas.setdefault(schema["title"], _redirected(schema))
                content["schema"] = {"$ref": f"#/components/schemas/{schema['title']}"}


def _redirected(schema: Any) -> Any:
    """Point references at the components."""
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _redirected(value)
            for key, value in schema.items()
        }
    return [_redirected(item) for item in schema] if isinstance(schema, list) else schema
