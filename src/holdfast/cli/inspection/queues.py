"""``holdfast queues``: the queues of a store and their readers, also while it is open; or of a running server, which
can show, export and purge their records."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.idle_partitions import all_option, fold_cursors
from holdfast.cli.inspection.listing import Shelf, Things
from holdfast.cli.inspection.operations import OFFSET, Noun, confirm, quoted, steer_options, tell, yes_option
from holdfast.cli.tables import access, admin_option, age_text, json_option, print_table, size_text
from holdfast.client.command_options import away_option, no_effect, own_words
from holdfast.client.option_types import Count
from holdfast.client.terminal_text import shown
from holdfast.exceptions import ConfigurationError, counted

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

TELL_EVERY = 5.0
"""Seconds between two lines of progress."""


@click.group(cls=Noun)
def queues() -> None:
    """Show queues and their readers; show, export or delete records.

    \b
    holdfast queues inbox
    holdfast queues --admin http://127.0.0.1:8081 --json
    holdfast queues peek --admin http://127.0.0.1:8081 orders --limit 3
    holdfast queues export --admin http://127.0.0.1:8081 orders --jsonl orders.jsonl

    Without a sub-command, `show` runs. It reads STORE (a directory, the URL of a database or topic, or the
    configuration file of a broker), or with --admin the admin listener of a running server. The other commands need a
    running server.
    """


@queues.command(short_help="List queues, or show one in full.")
@click.argument("store", required=False)
@click.argument("name", required=False)
@all_option
@admin_option
@json_option
def show(store: str | None, name: str | None, every: bool, admin: str | None, as_json: bool) -> None:
    """List the queues of STORE with their cursors, or show one in full. A store that a server has open is only read.

    \b
    holdfast queues show inbox
    holdfast queues show --admin http://127.0.0.1:8081 orders --json

    `lag` is the number of records from the cursor to the newest one, `age` how long the oldest of them has waited, and
    `idle` how long ago the cursor moved. The cursor of a forwarder stays at its first unacknowledged message, so `lag`
    may be larger than `waiting` in `holdfast forwarders`. Only a running server knows what a queue `keeps`, how many
    records arrive per second (`in/s`), and its `limit` (`max_messages`); `full` means that it refuses messages. With
    workers, the limit is the sum of theirs, and a queue is full if it is full in one of them.

    The idle partitions of a forwarder, in which nothing waits, are combined in one row with their number, as in
    `holdfast forwarders`. The details of one queue list the partitions with records, and count the empty ones, also
    those for sessions. --all shows every cursor and partition.
    """
    QUEUES.show(store, name, admin, as_json=as_json, every=every)


@queues.command(short_help="Show records.")
@click.argument("name")
@click.option("--partition", type=OFFSET, help="Only this partition.  [default: all]")
@click.option("--from", "start", type=OFFSET, help="Start at this offset of the partition.  [default: the oldest]")
@click.option("--limit", type=Count(1, 1000), default=10, show_default=True, help="Maximum number of records.")
@steer_options
def peek(name: str, partition: int | None, start: int | None, limit: int, admin: AdminClient, as_json: bool) -> None:
    """Show some records of a queue, the oldest of each partition. No cursor moves.

    \b
    holdfast queues peek --admin http://127.0.0.1:8081 orders --limit 3
    holdfast queues peek --admin http://127.0.0.1:8081 orders --partition 2 --from 1200 --json
    """
    if partition is None:
        if start is not None:
            raise click.UsageError("--from is an offset of one partition: name the partition with --partition")
        answer, where = _peek_all(admin, name, limit), ""
    else:
        answer, where = _peek(admin, name, partition, limit, start), f"Partition {partition} of "
    messages = answer["messages"]
    if as_json or not messages:
        tell(answer, f"{where}{name} has no records{' there' if start is not None else ''}.", as_json)
        return
    now = time.time()
    rows = [
        [
            str(one["partition"]),
            f"{one['offset']:,}",
            one["action"],
            one["sequence"],
            f"{one['message_number']:,}",
            age_text(max(0.0, now - one["received_at"])),
            size_text(one),
            shown(one["body"][:60]) + ("…" if one["bytes"] > 60 else ""),
        ]
        for one in messages
    ]
    columns = ("partition", "offset", "action", "sequence", "number", "age", "bytes", "body")
    print_table(columns, rows, right=("partition", "offset", "number", "age", "bytes"))
    if answer["next"] is not None:
        last = messages[-1]["partition"]
        click.echo(f"More records follow: --partition {last} --from {answer['next']}", err=True)


def _peek(admin: AdminClient, name: str, partition: int, limit: int, start: int | None = None) -> dict[str, Any]:
    """Return the records of one partition, each with its partition, and the next offset or None."""
    begin = f"&from={start}" if start is not None else ""
    answer = admin.ask(f"queues/{quoted(name)}/{partition}/messages?limit={limit}{begin}")
    messages = [{"partition": partition, **one} for one in answer.get("messages", [])]
    return {**answer, "messages": messages, "next": answer.get("next")}


def _peek_all(admin: AdminClient, name: str, limit: int) -> dict[str, Any]:
    """Return records of the partitions that have any, and the offset after the last one if its partition has more."""
    partitions = admin.ask(f"queues/{quoted(name)}").get("partitions", {})
    held = [int(number) for number, bounds in partitions.items() if bounds["end"] > bounds["first"]]
    messages: list[dict[str, Any]] = []
    following = None
    for number in held:
        if len(messages) == limit:
            break
        answer = _peek(admin, name, number, limit - len(messages))
        messages += answer["messages"]
        following = answer["next"]
    return {"queue": name, "messages": messages, "next": following}


class _Progress:
    """Tells how far an export is: on a terminal in one line, else in a line every few seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, count: int, total: int) -> None:
        on_terminal = sys.stderr.isatty()
        if time.monotonic() - self._told >= (0.2 if on_terminal else TELL_EVERY):
            self._told = time.monotonic()
            click.echo(
                f"\r{count:,}/{total:,} exported" if on_terminal else f"{count:,}/{total:,} exported",
                err=True,
                nl=not on_terminal,
            )


@queues.command(short_help="Export records to files.")
@click.argument("name")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    help="Write each body to a file, PARTITION-OFFSET.xml, and each attachment. With --jsonl: only the attachments.",
)
@click.option("--jsonl", metavar="FILE", help="Write each record as a line of JSON; - for standard output.")
@click.option("--partition", type=OFFSET, help="Only this partition.  [default: all]")
@click.option("--from", "start", type=OFFSET, help="Start at this offset.")
@click.option("--below", type=OFFSET, help="End before this offset.")
@away_option
@steer_options
def export(
    name: str,
    directory: Path | None,
    jsonl: str | None,
    partition: int | None,
    start: int | None,
    below: int | None,
    away_seconds: float | None,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Export the current records of a queue, in order. The records remain in the queue, and no cursor moves.

    \b
    holdfast queues export --admin http://127.0.0.1:8081 orders --to exported
    holdfast queues export --admin http://127.0.0.1:8081 orders --jsonl - | jq .body
    holdfast queues export --admin http://127.0.0.1:8081 films --jsonl films.jsonl --to films

    --jsonl writes attachments in base64. For large ones, add --to: the lines then name the files of the attachments.
    `holdfast send --jsonl` reads both forms.
    """
    from holdfast.cli.inspection.export import Files, JSONLines
    from holdfast.cli.inspection.export import export as take_out

    if directory is None and jsonl is None:
        raise click.UsageError("Give the target: --to DIR or --jsonl FILE.")
    if jsonl == "-":
        no_effect("with --jsonl -", "as_json")
    files = None if directory is None else Files(directory)
    place = JSONLines(jsonl, files) if jsonl is not None else files
    assert place is not None
    parts = None if partition is None else [partition]
    with own_words():
        count = take_out(admin.place, access(), away_seconds, name, parts, (start, below), place, _Progress())
    where = jsonl if jsonl is not None else directory
    if jsonl == "-":
        return
    tell({"exported": count, "to": str(where)}, f"{counted(count, 'record is', 'records are')} in {where}.", as_json)


@queues.command(short_help="Delete records.")
@click.argument("name")
@click.option("--partition", type=OFFSET, help="Only this partition.  [default: all]")
@click.option("--below", type=OFFSET, help="Only records below this offset of one partition.  [default: all]")
@click.option("--force", is_flag=True, help="Also delete records that handlers or forwarders still need.")
@yes_option
@steer_options
def purge(
    name: str, partition: int | None, below: int | None, force: bool, yes: bool, admin: AdminClient, as_json: bool
) -> None:
    """Delete the oldest records of a queue, or all. The command first shows how many, and which cursors have not passed
    them.

    \b
    holdfast queues purge --admin http://127.0.0.1:8081 orders
    holdfast queues purge --admin http://127.0.0.1:8081 orders --partition 0 --below 1200 --yes

    Records that handlers or forwarders still need are deleted only with --force. Their requesters then receive a fault.
    """
    path = f"queues/{quoted(name)}/purge"
    asked: dict[str, Any] = {"partition": partition, "below": below, "force": force}
    planned = admin.steer(path, **asked, dry_run=True)
    if not force and any(one["kind"] != "reader" for one in planned["unread"]):
        raise ConfigurationError(
            f"{_planned(name, planned)} Handlers or forwarders still need some. Nothing has changed yet.",
            remedy="Wait until they are processed. To delete them anyway, add --yes --force.",
        )
    confirm(_planned(name, planned), yes)
    answer = admin.steer(path, **asked)
    left = f"; {answer['left']:,} remain until their handler is done" if answer["left"] else ""
    tell(answer, f"{answer['records']:,} records of {name} are deleted{left}.", as_json)


def _planned(name: str, planned: dict[str, Any]) -> str:
    missed: dict[str, int] = {}
    for one in planned["unread"]:
        missed[one["cursor"]] = missed.get(one["cursor"], 0) + one["records"]
    who = ", ".join(f"{cursor} has not passed {count:,} of them" for cursor, count in sorted(missed.items()))
    return f"{planned['records']:,} records of {name} would be deleted" + (f"; {who}." if who else ".")


def _ask(admin: AdminClient) -> Things:
    names = list(admin.ask("queues").get("queues", ()))
    found = [admin.ask(f"queues/{quoted(name)}") for name in names]
    letters = admin.ask(f"queues/{quoted(names[0])}/cursors")["queues"] if names else []
    return found + [one for one in letters if one["name"] not in names]


def _fold(found: Things) -> Things:
    return [{**one, "cursors": fold_cursors(one["cursors"])} for one in found]


def _shorten(one: dict[str, Any]) -> dict[str, Any]:
    """Return a queue with only the partitions that have records; a queue may have 128."""
    held = {number: bounds for number, bounds in one["partitions"].items() if bounds["end"] > bounds["first"]}
    cursors = [
        cursor | {"offsets": {number: at for number, at in cursor["offsets"].items() if number in held}}
        for cursor in fold_cursors(one["cursors"])
    ]
    partitions = [{"partition": number, **bounds} for number, bounds in held.items()]
    idle = len(one["partitions"]) - len(held)
    return one | {"partitions": [*partitions, *([f"{idle:,} empty"] if idle else [])], "cursors": cursors}


def _rows(one: dict[str, Any]) -> list[list[str]]:
    rate = one.get("rate_in")
    limit = "" if one.get("max_messages") is None else f"{one['max_messages']:,}{' full' if one['full'] else ''}"
    rates = "" if rate is None else f"{rate:,.1f}"
    queue = [one["name"], f"{one['records']:,}", limit, rates, one["retention"] or ""]
    cursors = [
        [cursor["name"], cursor["kind"], f"{cursor['lag']:,}", age_text(cursor["age"]), age_text(cursor["idle"])]
        for cursor in one["cursors"]
    ]
    return [[*queue, *cursor] for cursor in cursors or [[""] * 5]]


QUEUES = Shelf(
    what="queue",
    key="name",
    name="queues",
    columns=("queue", "records", "limit", "in/s", "keeps", "cursor", "kind", "lag", "age", "idle"),
    right=("records", "limit", "in/s", "lag", "age", "idle"),
    ask=_ask,
    rows=_rows,
    fold=_fold,
    shorten=_shorten,
)
