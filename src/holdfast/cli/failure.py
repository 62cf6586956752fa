"""Output of ``--json`` for a failed command, because its readers always expect JSON. Imports only light modules."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import click


@dataclass
class FailureFacts:
    """Facts about a failure to print.

    Args:
        is_wanted: Whether ``--json`` was given.
        logs_json: Whether ``--log-json`` was given, so that standard error has lines of JSON only.
        more: Facts of the command in addition to the error, such as its progress.
    """

    is_wanted: bool = False
    logs_json: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def tell(self, error: BaseException, message: str, remedy: str = "") -> None:
        """Print a line with the error, if requested: its text, its remedy, and its class."""
        if self.is_wanted:
            click.echo(json.dumps(self.more | {"error": message, "remedy": remedy, "kind": type(error).__name__}))


def failure_facts(context: click.Context | None = None) -> FailureFacts:
    """Return the facts of the running command."""
    return (context or click.get_current_context()).ensure_object(FailureFacts)
