"""``holdfast sequences``: the Sequences of a store, also while a server has it open, or of a running server."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from holdfast.exceptions import ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("identifier", "role", "state", "messages", "ranges", "gaps", "waiting", "age")


@click.command()
@click.argument("store", required=False)
@click.argument("identifier", required=False)
@click.option("--admin", metavar="URL", help="Ask the running server's admin listener instead of a store.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def sequences(store: str | None, identifier: str | None, admin: str | None, as_json: bool) -> None:
    """List the Sequences of STORE, or show one whole. A store that a server has open is only looked at.

    \b
    holdfast sequences inbox
    holdfast sequences --admin http://127.0.0.1:8081 urn:uuid:2f0c... --json

    `messages` are those received (a destination's) or acknowledged (a source's); `waiting` those held until lower
    numbers are there (a destination's) or not acknowledged yet (a source's). An IDENTIFIER may be cut short.
    """
    if admin is not None:
        if identifier is not None:
            raise click.UsageError("--admin needs no STORE.")
        shown, place = _ask(admin), admin
        identifier = store
    elif store is None:
        raise click.UsageError("Name a STORE, or a running server with --admin URL.")
    else:
        shown, place = _look(store), store
    if identifier is not None:
        one = _find(shown, identifier, place)
        click.echo(json.dumps(one, indent=2)) if as_json else _print_one(one)
    elif as_json:
        click.echo(json.dumps({"sequences": shown}, indent=2))
    elif shown:
        _print(_table(shown))
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


def _ask(admin: str) -> list[dict[str, Any]]:
    import http.client
    import urllib.request

    from holdfast.endpoint.http_client import reason_of

    if urlsplit(admin).scheme not in ("http", "https"):
        raise click.UsageError(f"--admin {admin!r} is not a URL such as http://127.0.0.1:8081.")
    url = f"{admin.rstrip('/')}/sequences"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["sequences"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", error)
        raise HoldfastError(
            f"{url} cannot be read: {reason_of(reason) if isinstance(reason, OSError) else reason}",
            remedy="Is that the admin listener of a running server? holdfast serve ... --admin 8081",
        ) from error
    return found


def _find(shown: list[dict[str, Any]], identifier: str, place: str) -> dict[str, Any]:
    exact = [one for one in shown if one["identifier"] == identifier]
    found = exact or [
        one
        for one in shown
        if one["identifier"].removeprefix("urn:uuid:").startswith(identifier.removeprefix("urn:uuid:"))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{len(found)} Sequences begin with {identifier}", remedy="Give more of it.")
    raise ConfigurationError(
        f"there is no Sequence {identifier} in {place}", remedy="Without an identifier they are listed."
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(shown: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("messages", "waiting", "age") else "left", overflow="fold")
    for one in shown:
        table.add_row(
            one["identifier"] or f"(none yet: {one['key']!r})",
            one["role"],
            one["state"] + (f", {one['suspended']}" if one.get("suspended") else ""),
            f"{one['count']:,}",
            one["ranges"],
            one["gaps"],
            f"{one['waiting']:,}",
            _age(one.get("age")),
        )
    return table


def _print_one(one: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in one.items():
        text = _age(value) if name == "age" else "" if value is None else str(value)
        table.add_row(name.replace("_", " "), text)
    _print(table)


def _print(table: Table) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    if not sys.stdout.isatty():
        console.width = 10_000  # whole lines for grep; trailing blanks cut below
        with console.capture() as capture:
            console.print(table)
        for line in Text(capture.get()).plain.splitlines():
            click.echo(line.rstrip())
        return
    console.print(table)
