"""``holdfast queues``: the queues of a store and who reads them, also while it is open, or of a running server."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import click

from holdfast.cli.shelf import Shelf, Things, opened_to_look
from holdfast.cli.tables import admin_option, age_text, ask_admin, json_option, listed


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
    QUEUES.show(store, name, admin, as_json=as_json)


def _ask(admin: str) -> Things:
    found: Things = []
    for name in ask_admin(admin, "queues").get("queues", ()):
        found += listed(ask_admin(admin, f"queues/{quote(name, safe='')}/cursors"), "queues", admin)
    return found


def _look(location: str) -> Things:
    from holdfast.endpoint.inspection import describe_queues

    with opened_to_look(location) as store:
        return describe_queues(store.load(), store.read, time.time())


def _rows(one: dict[str, Any]) -> list[list[str]]:
    queue = [one["name"], f"{one['records']:,}", one["retention"] or ""]
    cursors = [
        [cursor["name"], cursor["kind"], f"{cursor['lag']:,}", age_text(cursor["age"]), age_text(cursor["idle"])]
        for cursor in one["cursors"]
    ]
    return [[*queue, *cursor] for cursor in cursors or [[""] * 5]]


QUEUES = Shelf(
    what="queue",
    key="name",
    name="queues",
    columns=("queue", "records", "keeps", "cursor", "kind", "lag", "age", "idle"),
    right=("records", "lag", "age", "idle"),
    look=_look,
    ask=_ask,
    rows=_rows,
)
