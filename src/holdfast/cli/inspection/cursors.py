"""``holdfast cursors``: who reads the queues of a store or a running server, which can be told to move one."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.inspection.idle_partitions import all_option, fold_cursors
from holdfast.cli.inspection.listing import Shelf, Things
from holdfast.cli.inspection.operations import (
    Noun,
    confirm,
    place_options,
    places_text,
    quoted,
    steer,
    steer_options,
    tell,
    yes_option,
)
from holdfast.cli.inspection.queues import QUEUES
from holdfast.cli.tables import admin_option, age_text, ask_admin, ask_for_all, json_option


@click.group(cls=Noun)
def cursors() -> None:
    """See who reads the queues; move a cursor, have messages handled or sent again, delete a cursor.

    \b
    holdfast cursors inbox
    holdfast cursors --admin http://127.0.0.1:8081 --json
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --to earliest
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --ago 2h

    Without a further word they are shown. They are in STORE, or at a running server, whose admin listener is asked with
    --admin; the other commands are for a running server.
    """


@cursors.command(short_help="List cursors, or show one whole.")
@click.argument("store", required=False)
@click.argument("cursor", required=False)
@all_option
@admin_option
@json_option
def show(store: str | None, cursor: str | None, every: bool, admin: str | None, as_json: bool) -> None:
    """List the cursors of all queues of STORE, or show one whole.

    \b
    holdfast cursors show inbox
    holdfast cursors show --admin http://127.0.0.1:8081 audit --json

    `lag` is the number of records that it has not passed, `age` how long the oldest of them has been there, `idle` how
    long ago it moved, `out/s` how many records a second it passed lately. The cursors of a forwarder
    whose lag is 0 are one row.
    """
    CURSORS.show(store, cursor, admin, as_json=as_json, every=every)


def _move(admin: str, queue: str, cursor: str, partition: int | None, where: dict[str, Any], as_json: bool) -> None:
    answer = steer(admin, f"queues/{quoted(queue)}/cursors/{quoted(cursor)}/reset", partition=partition, **where)
    tell(answer, f"{cursor} of {queue} stands at {places_text(answer['offsets'])}.", as_json)


@cursors.command(short_help="Move a cursor.")
@click.argument("queue")
@click.argument("cursor")
@place_options
@yes_option
@steer_options
def reset(
    queue: str,
    cursor: str,
    partition: int | None,
    where: dict[str, Any],
    yes: bool,
    admin: str,
    as_json: bool,
) -> None:
    """Move a cursor, ahead or back.

    \b
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --to latest
    holdfast cursors reset --admin http://127.0.0.1:8081 orders audit --offset 1200 --partition 0 --yes

    A reader's says what it has done with: back, more is kept for it again, of what is still there. The Spark source
    reads from its checkpoint, whatever this says.
    """
    confirm(f"{cursor} of {queue} would stand elsewhere.", yes)
    _move(admin, queue, cursor, partition, where, as_json)


@cursors.command(short_help="Have messages handled or sent once more.")
@click.argument("queue")
@click.argument("cursor")
@place_options
@yes_option
@steer_options
def replay(
    queue: str,
    cursor: str,
    partition: int | None,
    where: dict[str, Any],
    yes: bool,
    admin: str,
    as_json: bool,
) -> None:
    """Have all from some place on handled (`handler`) or sent (`outbound/KEY`) once more, of what is still there.

    \b
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --ago 2h
    holdfast cursors replay --admin http://127.0.0.1:8081 orders handler --to earliest --yes

    Who waited for a reply has it, and gets no second one. A forwarder sends in a new Sequence, so that its destination
    cannot tell a message that comes again from a new one.
    """
    confirm(f"Messages of {queue} that were done with would be given to {cursor} once more.", yes)
    _move(admin, queue, cursor, partition, where, as_json)


@cursors.command(short_help="Forget a reader's cursor.")
@click.argument("queue")
@click.argument("cursor")
@yes_option
@steer_options
def delete(queue: str, cursor: str, yes: bool, admin: str, as_json: bool) -> None:
    """Forget the cursor of a reader that does not come back: it protects nothing any more.

    \b
    holdfast cursors delete --admin http://127.0.0.1:8081 orders audit
    holdfast cursors delete --admin http://127.0.0.1:8081 orders audit --yes
    """
    path = f"queues/{quoted(queue)}/cursors/{quoted(cursor)}"
    ask_admin(admin, path)
    confirm(f"What {cursor} has not read of {queue} would be kept for it no more.", yes)
    tell(ask_admin(admin, path, "DELETE"), f"{cursor} of {queue} is forgotten.", as_json)


def _ask(admin: str) -> Things:
    return ask_for_all(admin, "cursors", "cursors")


def _look(location: str) -> Things:
    return [{**cursor, "queue": queue["name"]} for queue in QUEUES.look(location) for cursor in queue["cursors"]]


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
            ", ".join(f"{partition}:{offset}" for partition, offset in one["offsets"].items()),
        ]
    ]


CURSORS = Shelf(
    what="cursor",
    key="name",
    name="cursors",
    columns=("queue", "cursor", "kind", "lag", "age", "idle", "out/s", "offsets"),
    right=("lag", "age", "idle", "out/s"),
    look=_look,
    ask=_ask,
    rows=_rows,
    fold=fold_cursors,
)
