"""``holdfast sequences``: the Sequences of a store, also while a server has it open, or of a running server."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.shelf import Shelf, Things, opened_to_look
from holdfast.cli.tables import admin_option, age_text, ask_for_all, json_option


@click.command()
@click.argument("store", required=False)
@click.argument("identifier", required=False)
@admin_option
@json_option
def sequences(store: str | None, identifier: str | None, admin: str | None, as_json: bool) -> None:
    """List the Sequences of STORE, or show one whole. A store that a server has open is only looked at.

    \b
    holdfast sequences inbox
    holdfast sequences --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json

    `messages` are those received (a destination's) or acknowledged (a source's); `waiting` those held until lower
    numbers are there (a destination's) or not acknowledged yet (a source's). An IDENTIFIER may be cut short.
    """
    SEQUENCES.show(store, identifier, admin, as_json=as_json)


def _ask(admin: str) -> Things:
    return ask_for_all(admin, "sequences", "sequences")


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
)
