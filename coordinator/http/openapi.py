"""Complete the OpenAPI document: problem documents on every route, definitions of bodies as components."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from schemas.problems import MEDIA_TYPE, PREFIX, Problem

_METHODS = ("get", "put", "post", "delete", "patch")
_EXAMPLE = {
    "type": f"{PREFIX}not-found",
    "title": "Not found, or not accessible to you",
    "status": 404,
}


def install(app: FastAPI, root_path: str) -> None:
    """Replace `app.openapi` by a function that returns the completed document, with its root path."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        # Generated once, since routes never change.
        if app.openapi_schema is None:
            servers = {"servers": [{"url": root_path}]} if root_path else {}
            app.openapi_schema = completed(generate()) | servers
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def completed(document: dict[str, Any]) -> dict[str, Any]:
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
        del responses["422"]  # FastAPI's error format, which is never sent
    responses["default"] = {"description": "Refused; see `type` for the reason"}
    for status, response in responses.items():
        if not status.startswith("2"):
            response["content"] = body


def _hoist(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move the definitions inside a body's schema to the components."""
    for container in (operation.get("requestBody", {}), *operation["responses"].values()):
        for content in container.get("content", {}).values():
            schema = content.get("schema", {})
            for part in (schema, *schema.get("oneOf", ())):
                for name, definition in part.pop("$defs", {}).items():
                    schemas.setdefault(name, _with_component_references(definition))
            if schema.get("type") == "object" and "title" in schema:
                schemas.setdefault(schema["title"], _with_component_references(schema))
                content["schema"] = {"$ref": f"#/components/schemas/{schema['title']}"}


def _with_component_references(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref"
            else _with_component_references(value)
            for key, value in schema.items()
        }
    return [_with_component_references(item) for item in schema] if isinstance(schema, list) else schema
