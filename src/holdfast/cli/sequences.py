"""``holdfast sequences``: the Sequences of a store, also while a server has it open, or of a running server."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from holdfast.cli.tables import (
    admin_option,
    age_text,
    ask_admin,
    find_by_beginning,
    json_option,
    listed,
    place_and_rest,
    print_one,
    print_table,
)

COLUMNS = ("identifier", "role", "state", "messages", "ranges", "gaps", "waiting", "age")


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
    location, identifier = place_and_rest((store, identifier), admin)
    if location is None:
        assert admin is not None
        shown, place = listed(ask_admin(admin, "sequences"), "sequences", admin), admin
    else:
        shown, place = _look(location), location
    if identifier is not None:
        one = find_by_beginning(shown, "identifier", identifier, "Sequence", place)
        click.echo(json.dumps(one, indent=2)) if as_json else print_one(one)
    elif as_json:
        click.echo(json.dumps({"sequences": shown}, indent=2))
    elif shown:
        print_table(COLUMNS, [_row(one) for one in shown], right=("messages", "waiting", "age"))
    else:
        click.echo(f"There are no Sequences in {place}.")


def _look(location: str) -> list[dict[str, Any]]:
    from holdfast.endpoint.inspection import describe_snapshot
    from holdfast.store.rocksdb import RocksDBStore

    store = RocksDBStore(location, read_only=True)
    try:
        return describe_snapshot(store.load(), time.time())
    finally:
        store.close()


def _row(one: dict[str, Any]) -> list[str]:
    return [
        one["identifier"] or f"(none yet: {one['key']!r})",
        one["role"],
        one["state"] + (f", {one['suspended']}" if one.get("suspended") else ""),
        f"{one['count']:,}",
        one["ranges"],
        one["gaps"],
        f"{one['waiting']:,}",
        age_text(one.get("age")),
    ]
