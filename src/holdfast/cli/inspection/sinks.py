"""``holdfast sinks``: what writers outside put into a server's queues: to see, bind to another query, forget."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.operations import Noun, confirm, quoted, steer_options, tell, yes_option
from holdfast.cli.tables import print_one, print_table
from holdfast.client.option_types import Count

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

COLUMNS = ("sink", "query", "batch", "published", "on their way", "staged", "bytes", "final since", "waits for")
RIGHT = ("batch", "published", "on their way", "staged", "bytes")


@click.group(cls=Noun)
def sinks() -> None:
    """Show sinks, through which external writers such as Spark queries fill queues; bind a sink to another query, or
    forget it.

    \b
    holdfast sinks --admin http://127.0.0.1:8081
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11

    Without a sub-command, `show` runs. A sink remembers the last published batch of its query, so that no batch is
    published twice.
    """


@sinks.command(short_help="List sinks, or show one.")
@click.argument("name", required=False)
@steer_options
def show(name: str | None, admin: AdminClient, as_json: bool) -> None:
    """List the sinks, or show one.

    \b
    holdfast sinks show --admin http://127.0.0.1:8081
    holdfast sinks show --admin http://127.0.0.1:8081 alerts --json

    `staged` rows are in no queue yet: their batch is not published. Rows `on their way` are published, but not all are
    in their queues yet; `waits for` shows the reason if they do not move. A sink with a time in `final since` gets no
    further batch, and is forgotten some time later.
    """
    if name is not None:
        found = admin.ask(f"sinks/{quoted(name)}")
        click.echo(json.dumps(found, indent=2)) if as_json else print_one(found | {"final_at": _final(found) or None})
        return
    every = admin.all_of("sinks", "sinks")
    if as_json:
        click.echo(json.dumps({"sinks": every}, indent=2))
    elif every:
        print_table(COLUMNS, [_row(one) for one in every], right=RIGHT)
    else:
        click.echo(f"{admin.place} has no sinks: no external writer writes to it.")


def _row(one: dict[str, Any]) -> list[str]:
    batch = "none" if one["batch"] is None else f"{one['batch']:,}"
    numbers = [f"{one[field]:,}" for field in ("published", "moving", "staged", "bytes")]
    return [one["name"], one["query"], batch, *numbers, _final(one), one["waits_for"]]


def _final(one: dict[str, Any]) -> str:
    at = one["final_at"]
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%MZ}"


@sinks.command(short_help="Accept the batches of another query.")
@click.argument("name")
@click.argument("query")
@click.option(
    "--after",
    metavar="BATCH",
    type=Count(0),
    help="Do not expect the batches of QUERY up to this one: they are lost, or were sent elsewhere. The sink need "
    "not exist.",
)
@yes_option
@steer_options
def bind(name: str, query: str, after: int | None, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Bind a sink to another QUERY, such as the same query with a new checkpoint, or again to its own although batches
    are missing.

    \b
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11 --yes
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11 --after 57 --yes

    If the new query writes rows that the old one already wrote, they arrive again: the server cannot recognise them.
    Staged rows of the old query are deleted. If you bind the sink back, the old query resumes where it ended.

    Batches start at 0. With --after, the batches up to that number count as published, whatever the server knows. Use
    it for a query with a forgotten sink, or if the server's store is new or an older copy.
    """
    if after is None:
        known = admin.ask(f"sinks/{quoted(name)}")
        would = (
            f"{name} would accept no more batches of {known['query']}, and delete {known['staged']:,} staged rows. "
            f"Everything that {query} writes counts as new."
        )
    else:
        would = f"{name} would accept only batches of {query}, from batch {after + 1}."
    confirm(would, yes)
    bound = admin.steer(f"sinks/{quoted(name)}/bind", query=query, after=after)
    tell(bound, f"{name} accepts the batches of {query}.", as_json)


@sinks.command(short_help="Forget a sink.")
@click.argument("name")
@yes_option
@steer_options
def forget(name: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Forget a sink and delete its staged rows. Its published rows remain in their queues, or still arrive there.

    \b
    holdfast sinks forget --admin http://127.0.0.1:8081 alerts
    holdfast sinks forget --admin http://127.0.0.1:8081 alerts --yes

    If the query writes again, the server does not know its batches: batch 0 begins a new sink and is published again.
    To continue the query after the batches that it wrote, use holdfast sinks bind with --after and the last batch.
    """
    known = admin.ask(f"sinks/{quoted(name)}")
    confirm(
        f"{name} would be forgotten with {known['staged']:,} staged rows, and with the fact that batch "
        f"{known['batch']} of {known['query']} is published.",
        yes,
    )
    admin.ask(f"sinks/{quoted(name)}", "DELETE")
    tell(known, f"{name} is forgotten; {known['moving']:,} published rows are still on their way.", as_json)
