"""Output of the Spark commands: a sentence for a person, or with ``--json`` a line of JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.client.terminal_text import shown

if TYPE_CHECKING:
    from holdfast.pipeline.landing.tables import LandedBatch

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Decorator: ``--json``, which :func:`tell` obeys."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[__name__] = value

    text = "Print lines of JSON instead of sentences."
    return click.option("--json", is_flag=True, expose_value=False, callback=remember, help=text)(command)


def tell(text: str, **line: Any) -> None:
    """Print what has happened.

    Args:
        text: The sentence. What a peer may have made up in it does not steer the terminal.
        line: The same as fields of a line of JSON, with all details.
    """
    context = click.get_current_context(silent=True)
    is_json = context is not None and context.meta.get(__name__, False)
    click.echo(json.dumps(line) if is_json else shown(text))


def sparse(positions: Any) -> Any:
    """Return positions, or Spark's JSON of them, without the partitions at offset 0: most partitions may be empty."""
    if not isinstance(positions, dict):
        return positions
    is_first = {name: str(name).rpartition("/")[2].isdigit() and at == 0 for name, at in positions.items()}
    return {name: sparse(at) for name, at in positions.items() if not is_first[name]}


def flags_text(landed: LandedBatch) -> str:
    """Return the part of a batch's sentence about its flagged rows, "" without any."""
    if landed.first_flagged is None:
        return ""
    queue, partition, offset, problem = landed.first_flagged
    return f"; {landed.flagged:,} flagged, first offset {offset} of {queue}, partition {partition}: {problem}"


def flags(landed: LandedBatch) -> dict[str, Any]:
    """Return the fields about a batch's flagged rows."""
    if landed.first_flagged is None:
        return {"flagged": landed.flagged}
    names = ("queue", "partition", "offset", "problem")
    return {"flagged": landed.flagged, "first_flagged": dict(zip(names, landed.first_flagged, strict=True))}
