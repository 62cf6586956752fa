"""``holdfast sinks``: what writers outside put into a server's queues: to see, bind to another query, forget."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.cli.inspection.operations import Noun, confirm, quoted, steer, steer_options, tell, yes_option
from holdfast.cli.tables import ask_admin, ask_for_all, print_one, print_table

COLUMNS = ("sink", "query", "batch", "published", "on their way", "staged", "bytes", "final since", "waits for")
RIGHT = ("batch", "published", "on their way", "staged", "bytes")


@click.group(cls=Noun)
def sinks() -> None:
    """See what writers outside, such as Spark queries, put into queues; bind a sink to another query, or forget it.

    \b
    holdfast sinks --admin http://127.0.0.1:8081
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11

    Without a further word they are shown. A sink remembers which batch of its query was published last, so that none
    is published twice.
    """


@sinks.command(short_help="List sinks, or show one.")
@click.argument("name", required=False)
@steer_options
def show(name: str | None, admin: str, as_json: bool) -> None:
    """List the sinks, or show one.

    \b
    holdfast sinks show --admin http://127.0.0.1:8081
    holdfast sinks show --admin http://127.0.0.1:8081 alerts --json

    Rows `staged` are in no queue: their batch is not published. Rows `on their way` are published, and not all in their
    queues yet; `waits for` says why, if they do not move. A sink with a time in `final since` gets no further batch,
    and is forgotten some time after that.
    """
    if name is not None:
        found = ask_admin(admin, f"sinks/{quoted(name)}")
        click.echo(json.dumps(found, indent=2)) if as_json else print_one(found | {"final_at": _final(found) or None})
        return
    every = ask_for_all(admin, "sinks", "sinks")
    if as_json:
        click.echo(json.dumps({"sinks": every}, indent=2))
    elif every:
        print_table(COLUMNS, [_row(one) for one in every], right=RIGHT)
    else:
        click.echo(f"Nothing writes to {admin}: there are no sinks.")


def _row(one: dict[str, Any]) -> list[str]:
    batch = "none" if one["batch"] is None else f"{one['batch']:,}"
    numbers = [f"{one[field]:,}" for field in ("published", "moving", "staged", "bytes")]
    return [one["name"], one["query"], batch, *numbers, _final(one), one["waits_for"]]


def _final(one: dict[str, Any]) -> str:
    """When its final batch was published; "" if others come."""
    at = one["final_at"]
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%MZ}"


@sinks.command(short_help="Take another query's batches.")
@click.argument("name")
@click.argument("query")
@click.option(
    "--after",
    metavar="BATCH",
    type=click.IntRange(0),
    help="Batches of QUERY up to this one need not come: they are lost, or were sent elsewhere. There need be no sink "
    "of that name then.",
)
@yes_option
@steer_options
def bind(name: str, query: str, after: int | None, yes: bool, admin: str, as_json: bool) -> None:
    """Let a sink take the batches of another QUERY from now on, such as of one with a new checkpoint; or of its own,
    though some before them are missing.

    \b
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11 --yes
    holdfast sinks bind --admin http://127.0.0.1:8081 alerts 7c0a3ad8-5ac8-4b2c-8d2f-0a9d6b3e8f11 --after 57 --yes

    What the new one writes that the old one had written already arrives again: the server cannot tell. What the old one
    staged and did not publish is dropped. Bound back, it goes on where it ended.

    Batches begin at 0. With --after, those up to that one count as done, whatever is known of them here: so a query
    goes on whose sink was forgotten, or whose server has a new store, or one that was put back to an older copy.
    """
    if after is None:
        known = ask_admin(admin, f"sinks/{quoted(name)}")
        would = (
            f"{name} would take no more batches of {known['query']}, and drop {known['staged']:,} rows that are "
            f"staged; what {query} writes counts as new."
        )
    else:
        would = (
            f"{name} would take batches of {query} from {after + 1} on, none before that, and none of another query."
        )
    confirm(would, yes)
    bound = steer(admin, f"sinks/{quoted(name)}/bind", query=query, after=after)
    tell(bound, f"{name} takes the batches of {query}.", as_json)


@sinks.command(short_help="Forget a sink.")
@click.argument("name")
@yes_option
@steer_options
def forget(name: str, yes: bool, admin: str, as_json: bool) -> None:
    """Forget a sink, and what is staged. What it published is in its queues, or still comes there.

    \b
    holdfast sinks forget --admin http://127.0.0.1:8081 alerts
    holdfast sinks forget --admin http://127.0.0.1:8081 alerts --yes

    If its query writes again, nothing is known of what it wrote: batch 0 begins a new sink, and would be published
    again. For a query to go on behind what it wrote, holdfast sinks bind it --after its last batch.
    """
    known = ask_admin(admin, f"sinks/{quoted(name)}")
    confirm(
        f"{name} would be forgotten, with {known['staged']:,} rows that are staged, and that batch {known['batch']} of "
        f"{known['query']} is published.",
        yes,
    )
    ask_admin(admin, f"sinks/{quoted(name)}", "DELETE")
    tell(known, f"{name} is forgotten; {known['moving']:,} rows that it published are on their way.", as_json)
