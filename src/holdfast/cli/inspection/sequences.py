"""``holdfast sequences``: the Sequences of a store, also while a server has it open, or of a running server, which can
be told to hold one back, let it go on, or end it."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.inspection.listing import Shelf, Things, opened_to_look
from holdfast.cli.inspection.operations import (
    Noun,
    confirm,
    quoted,
    reason_option,
    steer,
    steer_options,
    tell,
    yes_option,
)
from holdfast.cli.tables import admin_option, age_text, ask_admin, ask_for_all, find_by_beginning, json_option


@click.group(cls=Noun)
def sequences() -> None:
    """See Sequences; hold one back, let it go on, end it.

    \b
    holdfast sequences inbox
    holdfast sequences --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json
    holdfast sequences suspend --admin http://127.0.0.1:8081 urn:uuid:2f0c... --reason "disk is full"

    Without a further word they are shown. They are in STORE, or at a running server, whose admin listener is asked with
    --admin; only a running server can be steered. An IDENTIFIER may be cut short.
    """


@sequences.command(short_help="List Sequences, or show one whole.")
@click.argument("store", required=False)
@click.argument("identifier", required=False)
@admin_option
@json_option
def show(store: str | None, identifier: str | None, admin: str | None, as_json: bool) -> None:
    """List the Sequences of STORE, or show one whole. A store that a server has open is only looked at.

    \b
    holdfast sequences show inbox
    holdfast sequences show --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json

    `messages` are those received (a destination's) or acknowledged (a source's); `waiting` those held until lower
    numbers are there (a destination's) or not acknowledged yet (a source's). An IDENTIFIER may be cut short.
    """
    SEQUENCES.show(store, identifier, admin, as_json=as_json)


def _steer(admin: str, identifier: str, how: str, done: str, as_json: bool, reason: str | None = None) -> None:
    one = _find(admin, identifier)
    answer = steer(admin, f"sequences/{quoted(one['identifier'])}/{how}", reason=reason)
    tell(answer, f"{one['identifier']} {done}", as_json)


def _find(admin: str, beginning: str) -> dict[str, Any]:
    wanted = quoted(beginning.removeprefix("urn:uuid:"))
    found = [one for one in ask_for_all(admin, f"sequences?find={wanted}", "sequences") if one["identifier"]]
    return find_by_beginning(found, "identifier", beginning, "Sequence", admin)


@sequences.command(short_help="Hold a Sequence back.")
@click.argument("identifier")
@reason_option
@steer_options
def suspend(identifier: str, reason: str, admin: str, as_json: bool) -> None:
    """Hold a Sequence back, over restarts too, until it is resumed.

    \b
    holdfast sequences suspend --admin http://127.0.0.1:8081 urn:uuid:2f0c... --reason "disk is full"
    holdfast sequences suspend --admin http://127.0.0.1:8081 2f0c --json

    An inbound one accepts no new message and acknowledges none, so that its source keeps them and sends them again; a
    source that gives up after some attempts does so here too. An outbound one sends nothing.
    """
    _steer(admin, identifier, "suspend", "is held back.", as_json, reason)


@sequences.command(short_help="Let a Sequence go on.")
@click.argument("identifier")
@steer_options
def resume(identifier: str, admin: str, as_json: bool) -> None:
    """Let a suspended Sequence go on.

    \b
    holdfast sequences resume --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences resume --admin http://127.0.0.1:8081 2f0c --json
    """
    _steer(admin, identifier, "resume", "goes on.", as_json)


@sequences.command(short_help="Let a Sequence take no new message.")
@click.argument("identifier")
@yes_option
@steer_options
def close(identifier: str, yes: bool, admin: str, as_json: bool) -> None:
    """Close a Sequence: an inbound one takes no new message, an outbound one ends when what left is acknowledged.

    \b
    holdfast sequences close --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences close --admin http://127.0.0.1:8081 2f0c --yes --json

    What an outbound one has not sent goes out in another.
    """
    confirm("A Sequence that is closed is not opened again.", yes)
    _steer(admin, identifier, "close", "is closed.", as_json)


@sequences.command(short_help="End a Sequence at once.")
@click.argument("identifier")
@yes_option
@steer_options
def terminate(identifier: str, yes: bool, admin: str, as_json: bool) -> None:
    """Terminate a Sequence at once.

    \b
    holdfast sequences terminate --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences terminate --admin http://127.0.0.1:8081 2f0c --yes --json

    What an inbound one holds beyond a gap is settled by its IncompleteSequenceBehavior. What an outbound one has sent
    and is not acknowledged may have arrived: with exactly-once nothing more is sent until somebody decides, with
    `holdfast outbox retry`.
    """
    confirm("A Sequence that is terminated is over, with what is missing in it.", yes)
    _steer(admin, identifier, "terminate", "is terminated.", as_json)


def _ask(admin: str) -> Things:
    return ask_for_all(admin, "sequences", "sequences")


def _ask_one(admin: str, one: dict[str, Any]) -> dict[str, Any]:
    """With what only it is told of when it is asked for alone: what is under way."""
    return ask_admin(admin, f"sequences/{quoted(one['identifier'])}") if one["identifier"] else one


def _look(location: str) -> Things:
    from holdfast.endpoint.inspection import describe_snapshot

    with opened_to_look(location) as store:
        return describe_snapshot(store.load(), time.time())


def _rows(one: dict[str, Any]) -> list[list[str]]:
    state = one["state"] + (f", {one['suspended']}" if one.get("suspended") else "")
    name = one["identifier"] or f"(none yet: {one['key']!r})"
    numbers = [f"{one['count']:,}", one["ranges"], one["gaps"], f"{one['waiting']:,}"]
    return [[name, one["role"], state, *numbers, age_text(one.get("age"))]]


SEQUENCES = Shelf(
    what="Sequence",
    key="identifier",
    name="sequences",
    columns=("identifier", "role", "state", "messages", "ranges", "gaps", "waiting", "age"),
    right=("messages", "waiting", "age"),
    look=_look,
    ask=_ask,
    rows=_rows,
    ask_one=_ask_one,
)
