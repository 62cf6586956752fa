"""What an admin listener says of itself, held against what it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from jsonschema import Draft202012Validator

from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.openapi import describe

_DOCUMENTS: dict[str, dict[str, Any]] = {}


class Described:
    """The description of one admin listener.

    Args:
        admin: It.
    """

    def __init__(self, admin: Admin) -> None:
        # It takes as long as ten tests of a listener. Routes that differ in their functions only have one description.
        table = repr([replace(route, function=repr) for route in admin.routes.table])
        if table not in _DOCUMENTS:
            _DOCUMENTS[table] = describe(admin.routes)
        self.document = _DOCUMENTS[table]

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """What it says of a request; None if it describes no such one."""
        asked = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        for template, methods in self.document["paths"].items():
            operation: dict[str, Any] | None = methods.get(method.lower())
            if operation is not None and self._is_at(template, operation, asked):
                return operation
        return None

    @staticmethod
    def _is_at(template: str, operation: dict[str, Any], asked: list[str]) -> bool:
        parts = template.strip("/").split("/")
        words = {
            f"{{{one['name']}}}": one["schema"].get("enum") for one in operation["parameters"] if one["in"] == "path"
        }
        return len(parts) == len(asked) and all(
            (part in words and (words[part] is None or one in words[part])) or part == one
            for part, one in zip(parts, asked, strict=True)
        )

    def check(self, method: str, path: str, status: int, kind: str, content: Any) -> None:
        """See that an answer is as it says.

        Raises:
            AssertionError: it is another.
        """
        operation = self.operation(method, path)
        if operation is None:
            assert status in (401, 403, 404, 405), (method, path, status)
            schema: dict[str, Any] = {"$ref": "#/components/schemas/Error"}
        else:
            answers = operation["responses"]
            assert str(status) in answers, (method, path, status, sorted(answers))
            kinds = answers[str(status)].get("content", {})
            if not kinds:
                assert content == b""
                return
            assert kind in kinds, (method, path, kind)
            if "schema" not in kinds[kind]:
                return
            schema = kinds[kind]["schema"]
        root = {**schema, "components": self.document["components"]}
        Draft202012Validator(root).validate(content)
