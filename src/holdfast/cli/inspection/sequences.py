"""``holdfast sequences``: the Sequences of a store, also while a server has it open; or of a running server, which can
suspend, resume or end them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.listing import Shelf, Things
from holdfast.cli.inspection.operations import (
    Noun,
    confirm,
    quoted,
    reason_option,
    steer_options,
    tell,
    yes_option,
)
from holdfast.cli.tables import admin_option, age_text, find_by_beginning, json_option

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient


@click.group(cls=Noun)
def sequences() -> None:
    """Show Sequences; suspend, resume, close or terminate one.

    \b
    holdfast sequences inbox
    holdfast sequences --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json
    holdfast sequences suspend --admin http://127.0.0.1:8081 urn:uuid:2f0c... --reason "disk is full"

    Without a sub-command, `show` runs. It reads STORE (a directory, the URL of a database or topic, or the
    configuration file of a broker), or with --admin the admin listener of a running server. The other commands need a
    running server. You can shorten an IDENTIFIER.
    """


@sequences.command(short_help="List Sequences, or show one in full.")
@click.argument("store", required=False)
@click.argument("identifier", required=False)
@admin_option
@json_option
def show(store: str | None, identifier: str | None, admin: str | None, as_json: bool) -> None:
    """List the Sequences of STORE, or show one in full. A store that a server has open is only read.

    \b
    holdfast sequences show inbox
    holdfast sequences show --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json

    `messages` is the number of messages received by a destination or acknowledged to a source. `waiting` is the number
    that a destination holds until lower numbers arrive, or that a source has not had acknowledged. You can shorten an
    IDENTIFIER.
    """
    SEQUENCES.show(store, identifier, admin, as_json=as_json)


def _steer(
    admin: AdminClient,
    identifier: str,
    how: str,
    done: str | Callable[[dict[str, Any]], str],
    as_json: bool,
    reason: str | None = None,
) -> None:
    one = _find(admin, identifier)
    answer = admin.steer(f"sequences/{quoted(one['identifier'])}/{how}", reason=reason)
    tell(answer, f"{one['identifier']} {done if isinstance(done, str) else done(answer)}", as_json)


def _closed(answer: dict[str, Any]) -> str:
    """Return what the request to close it has done: an outbound Sequence closes later."""
    if answer["role"] != "source":
        return "is closed."
    ends = "closes once its sent messages are acknowledged."
    return f"{ends} It waits: {answer['suspended']}." if answer["suspended"] else ends


def _find(admin: AdminClient, beginning: str) -> dict[str, Any]:
    wanted = quoted(beginning.removeprefix("urn:uuid:"))
    found = [one for one in admin.all_of(f"sequences?find={wanted}", "sequences") if one["identifier"]]
    return find_by_beginning(found, "identifier", beginning, "Sequence", admin.place)


@sequences.command(short_help="Suspend a Sequence.")
@click.argument("identifier")
@reason_option
@steer_options
def suspend(identifier: str, reason: str, admin: AdminClient, as_json: bool) -> None:
    """Suspend a Sequence until it is resumed, across restarts.

    \b
    holdfast sequences suspend --admin http://127.0.0.1:8081 urn:uuid:2f0c... --reason "disk is full"
    holdfast sequences suspend --admin http://127.0.0.1:8081 2f0c --json

    A suspended inbound Sequence accepts and acknowledges no new messages, so its source keeps them and retransmits; a
    source with limited attempts may fail meanwhile. A suspended outbound Sequence sends nothing.
    """
    _steer(admin, identifier, "suspend", "is suspended.", as_json, reason)


@sequences.command(short_help="Resume a Sequence.")
@click.argument("identifier")
@steer_options
def resume(identifier: str, admin: AdminClient, as_json: bool) -> None:
    """Resume a suspended Sequence.

    \b
    holdfast sequences resume --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences resume --admin http://127.0.0.1:8081 2f0c --json
    """
    _steer(admin, identifier, "resume", "continues.", as_json)


@sequences.command(short_help="Close a Sequence to new messages.")
@click.argument("identifier")
@yes_option
@steer_options
def close(identifier: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Close a Sequence. An inbound one accepts no new messages, an outbound one ends when its sent messages are
    acknowledged.

    \b
    holdfast sequences close --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences close --admin http://127.0.0.1:8081 2f0c --yes --json

    The unsent messages of an outbound Sequence go out in a new one. A suspended outbound Sequence sends nothing, so it
    closes only after you resume it.
    """
    _find(admin, identifier)
    confirm("A closed Sequence cannot be opened again.", yes)
    _steer(admin, identifier, "close", _closed, as_json)


@sequences.command(short_help="Terminate a Sequence at once.")
@click.argument("identifier")
@yes_option
@steer_options
def terminate(identifier: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Terminate a Sequence at once.

    \b
    holdfast sequences terminate --admin http://127.0.0.1:8081 urn:uuid:2f0c...
    holdfast sequences terminate --admin http://127.0.0.1:8081 2f0c --yes --json

    The IncompleteSequenceBehavior decides about the messages that an inbound Sequence holds beyond a gap. The sent but
    unacknowledged messages of an outbound Sequence may have arrived: with exactly-once, nothing more is sent until you
    decide with `holdfast outbox retry`.
    """
    _find(admin, identifier)
    confirm("Terminating a Sequence is final. Missing messages are not delivered.", yes)
    _steer(admin, identifier, "terminate", "is terminated.", as_json)


def _ask(admin: AdminClient) -> Things:
    return admin.all_of("sequences", "sequences")


def _ask_one(admin: AdminClient, one: dict[str, Any]) -> dict[str, Any]:
    """Add the details that the server returns only for a single Sequence: its messages in flight."""
    return admin.ask(f"sequences/{quoted(one['identifier'])}") if one["identifier"] else one


def _rows(one: dict[str, Any]) -> list[list[str]]:
    state = ", ".join(text for text in (one["state"], "ending" * bool(one.get("ending")), one.get("suspended")) if text)
    name = one["identifier"] or f"(none yet: {one['key']!r})"
    numbers = [f"{one['count']:,}", one["ranges"], one["gaps"], f"{one['waiting']:,}"]
    return [[name, one["role"], state, *numbers, age_text(one.get("age"))]]


SEQUENCES = Shelf(
    what="Sequence",
    key="identifier",
    name="sequences",
    columns=("identifier", "role", "state", "messages", "ranges", "gaps", "waiting", "age"),
    right=("messages", "waiting", "age"),
    ask=_ask,
    rows=_rows,
    ask_one=_ask_one,
)
