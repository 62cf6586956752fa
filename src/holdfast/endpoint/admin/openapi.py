"""The admin listener's own description, in OpenAPI 3.1: drawn from its table of routes, and from nothing else."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from holdfast.endpoint.admin.routes import Route, Routes, Shape, named_parts, plain_path

JSON = "application/json"
VERSION = "1"
"""Version of the routes, their requests and their responses. Additions do not change it."""

EVERY_REQUEST = (400, 401, 403, 500, 503)
"""Error statuses of any request: unreadable, unauthorized, failure of the server, failure of the store."""


class Error(Shape):
    """What went wrong, and what to do. ``why``: in a word, where a program has to know; ``row``, ``column``: of the
    first row of a part that cannot be sent; ``bytes``: of the file; ``file``: what it is called now."""

    error: str
    remedy: str
    why: str | None = None
    row: int | None = None
    column: str | None = None
    bytes: int | None = None
    file: str | None = None


def describe(routes: Routes, *, open_to_all: tuple[str, ...] = (), has_token: bool = True) -> dict[str, Any]:
    """The description of every route.

    Args:
        open_to_all: Paths that need no token.
        has_token: Whether the others do.
    """
    answers = [route.answer for route in routes.table if not isinstance(route.answer, str | None)]
    bodies = [route.body for route in routes.table if not isinstance(route.body, str | None)]
    types: list[Any] = [Error, *answers, *bodies]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = {repr(one): schema for one, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes.table:
        needs_token = has_token and f"/{route.path}" not in open_to_all
        path = paths.setdefault(f"/{plain_path(route.path)}", {})
        path[route.method.lower()] = _operation(route, schema_of, needs_token)
    return {
        "openapi": "3.1.0",
        "info": {"title": "The admin listener of Holdfast", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema_of: dict[str, Any], needs_token: bool) -> dict[str, Any]:
    body = route.body
    statuses = sorted({*EVERY_REQUEST, *route.errors, *((413,) if body is not None else ())})
    error = {JSON: {"schema": schema_of[repr(Error)]}}
    operation: dict[str, Any] = {
        "operationId": _identifier(route),
        "summary": route.summary,
        "parameters": [_in_path(name, words) for name, words in named_parts(route.path)] + _in_query(route.query),
        "responses": _answer(route, schema_of)
        | {str(status): {"description": HTTPStatus(status).phrase, "content": error} for status in statuses},
    }
    if isinstance(body, str):
        operation["requestBody"] = {"content": {body: {}}, "required": True}
    elif body is not None:
        is_needed = any(field.required for field in msgspec.structs.fields(body))
        content = {JSON: {"schema": schema_of[repr(body)]}}
        operation["requestBody"] = {"content": content, "required": is_needed}
    if needs_token:
        operation["security"] = [{"token": []}]
    return operation


def _identifier(route: Route) -> str:
    words = plain_path(route.path).replace("{", "").replace("}", "").replace(".", "_").replace("-", "_")
    return f"{route.method.lower()}_{words.replace('/', '_')}"


def _answer(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    if route.answer is None:
        return {"204": {"description": "Done."}}
    if isinstance(route.answer, str):
        return {"200": {"description": "Done.", "content": {route.answer: {}}}}
    return {"200": {"description": "Done.", "content": {JSON: {"schema": schema_of[repr(route.answer)]}}}}


def _in_path(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if words:
        schema["enum"] = list(words)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(query: type[Shape]) -> list[dict[str, Any]]:
    parameters = []
    (_,), components = msgspec.json.schema_components([query], ref_template="#/{name}")
    described = components[query.__name__]
    for name, schema in described["properties"].items():
        text = schema.pop("description", None)
        one = {"name": name, "in": "query", "required": name in described["required"], "schema": schema}
        parameters.append(one | ({"description": text} if text else {}))
    return parameters
