"""``holdfast cursors``: the cursors of a store or of a running server, which can move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.idle_partitions import all_option, fold_cursors
from holdfast.cli.inspection.listing import Shelf, Things
from holdfast.cli.inspection.operations import (
    Noun,
    confirm,
    move,
    place_options,
    quoted,
    steer_options,
    tell,
    yes_option,
)
from holdfast.cli.tables import admin_option, age_text, json_option
from holdfast.client.terminal_text import few

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient


@click.group(cls=Noun)
def cursors() -> None:
    """Show cursors; move a cursor, replay messages, or delete a reader's cursor.

    \b
    holdfast cursors inbox
    holdfast cursors --admin http://127.0.0.1:8081 --json
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --to earliest
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --ago 2h

    Without a sub-command, `show` runs. It reads STORE (a directory, the URL of a database or topic, or the
    configuration file of a broker), or with --admin the admin listener of a running server. The other commands need a
    running server.
    """


@cursors.command(short_help="List cursors, or show one in full.")
@click.argument("store", required=False)
@click.argument("cursor", required=False)
@all_option
@admin_option
@json_option
def show(store: str | None, cursor: str | None, every: bool, admin: str | None, as_json: bool) -> None:
    """List the cursors of all queues of STORE, or show one in full.

    \b
    holdfast cursors show inbox
    holdfast cursors show --admin http://127.0.0.1:8081 audit --json

    `lag` is the number of records that the cursor has not passed, `age` how long the oldest of them has waited, `idle`
    how long ago the cursor moved, and `out/s` how many records it passed per second recently. The idle partitions of
    a forwarder, in which nothing waits, are combined in one row with their number, as in `holdfast forwarders`.
    """
    CURSORS.show(store, cursor, admin, as_json=as_json, every=every)


def _path(queue: str, cursor: str) -> str:
    return f"queues/{quoted(queue)}/cursors/{quoted(cursor)}"


@cursors.command(short_help="Move a cursor.")
@click.argument("queue")
@click.argument("cursor")
@place_options
@yes_option
@steer_options
def reset(queue: str, cursor: str, where: dict[str, Any], yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Move a cursor forward or back.

    \b
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --to latest
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --offset 1200 --partition 0 --yes

    A reader's cursor marks the records that it has finished. If you move it back, the queue protects the records after
    it again, if they still exist. The Spark source reads from its checkpoint, regardless of its cursor.
    """
    move(admin, _path(queue, cursor), f"{cursor} of {queue}", where, "read", yes=yes, as_json=as_json)


@cursors.command(short_help="Handle or send messages again.")
@click.argument("queue")
@click.argument("cursor")
@place_options
@yes_option
@steer_options
def replay(queue: str, cursor: str, where: dict[str, Any], yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Handle (`handler`) or send (`outbound/KEY`) the messages from a position again, if they are still stored.

    \b
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --ago 2h
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --to earliest --yes

    A requester that already has its reply gets no second one. A forwarder sends in a new Sequence, so its destination
    cannot recognise a repeated message as a duplicate.
    """
    move(admin, _path(queue, cursor), f"{cursor} of {queue}", where, "process", yes=yes, as_json=as_json)


@cursors.command(short_help="Delete a reader's cursor.")
@click.argument("queue")
@click.argument("cursor")
@yes_option
@steer_options
def delete(queue: str, cursor: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete the cursor of a reader that will not return. It then no longer protects records.

    \b
    holdfast cursors delete --admin http://127.0.0.1:8081 orders audit
    holdfast cursors delete --admin http://127.0.0.1:8081 orders audit --yes
    """
    path = _path(queue, cursor)
    admin.ask(path)
    confirm(f"The queue {queue} would no longer keep the records that {cursor} has not read.", yes)
    tell(admin.ask(path, "DELETE"), f"{cursor} of {queue} is deleted.", as_json)


def _ask(admin: AdminClient) -> Things:
    return admin.all_of("cursors", "cursors")


def _rows(one: dict[str, Any]) -> list[list[str]]:
    rate = one.get("rate")
    return [
        [
            one["queue"],
            one["name"],
            one["kind"],
            f"{one['lag']:,}",
            age_text(one["age"]),
            age_text(one["idle"]),
            "" if rate is None else f"{rate:,.1f}",
            few(f"{partition}:{offset}" for partition, offset in one["offsets"].items() if offset),
        ]
    ]


CURSORS = Shelf(
    what="cursor",
    key="name",
    name="cursors",
    columns=("queue", "cursor", "kind", "lag", "age", "idle", "out/s", "offsets"),
    right=("lag", "age", "idle", "out/s"),
    ask=_ask,
    rows=_rows,
    fold=fold_cursors,
)
