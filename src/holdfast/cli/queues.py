"""``holdfast queues``: the queues of a store and who reads them, also while it is open, or of a running server."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

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

COLUMNS = ("queue", "records", "keeps", "cursor", "kind", "lag", "age", "idle")


@click.command()
@click.argument("store", required=False)
@click.argument("name", required=False)
@admin_option
@json_option
def queues(store: str | None, name: str | None, admin: str | None, as_json: bool) -> None:
    """List the queues of STORE and their cursors, or show one whole. A store that a server has open is only looked at.

    \b
    holdfast queues inbox
    holdfast queues --admin http://127.0.0.1:8081 --json

    `lag` is the number of records that a cursor has not passed, `age` how long the oldest of them has been there,
    `idle` how long ago the cursor moved. What a queue `keeps` only the server knows.
    """
    location, name = place_and_rest((store, name), admin)
    if location is None:
        assert admin is not None
        shown, place = _ask(admin), admin
    else:
        shown, place = _look(location), location
    if name is not None:
        one = find_by_beginning(shown, "name", name, "queue", place)
        click.echo(json.dumps(one, indent=2)) if as_json else print_one(one)
    elif as_json:
        click.echo(json.dumps({"queues": shown}, indent=2))
    elif shown:
        rows = [row for one in shown for row in _rows(one)]
        print_table(COLUMNS, rows, right=("records", "lag", "age", "idle"))
    else:
        click.echo(f"There are no queues in {place}.")


def _ask(admin: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in ask_admin(admin, "queues").get("queues", ()):
        found += listed(ask_admin(admin, f"queues/{quote(name, safe='')}/cursors"), "queues", admin)
    return found


def _look(location: str) -> list[dict[str, Any]]:
    from holdfast.endpoint.inspection import describe_queues
    from holdfast.store.rocksdb import RocksDBStore

    store = RocksDBStore(location, read_only=True)
    try:
        return describe_queues(store.load(), store.read, time.time())
    finally:
        store.close()


def _rows(one: dict[str, Any]) -> list[list[str]]:
    queue = [one["name"], f"{one['records']:,}", one["retention"] or ""]
    cursors = [
        [cursor["name"], cursor["kind"], f"{cursor['lag']:,}", age_text(cursor["age"]), age_text(cursor["idle"])]
        for cursor in one["cursors"]
    ]
    return [[*queue, *cursor] for cursor in cursors or [[""] * 5]]
