"""What the commands that show and steer things share: tables, one thing whole, finding it by its beginning, and asking
a running server's admin listener instead of a store.

Every such command takes a STORE, or ``--admin URL`` in its place; ``--json`` prints what the admin listener answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from holdfast.exceptions import ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from rich.table import Table

ADMIN_PATIENCE = 30.0
"""Seconds to wait for an admin listener's answer."""


def admin_option(command: Any) -> Any:
    """Add ``--admin``."""
    text = "Ask the running server's admin listener instead of a store."
    return click.option("--admin", metavar="URL", help=text)(command)


def json_option(command: Any) -> Any:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")(command)


def place_and_rest(arguments: Sequence[str | None], admin: str | None) -> list[str | None]:
    """STORE and what follows it, as they were meant: with ``--admin`` there is no STORE, and the first is what follows.

    Returns:
        As many as ``arguments``; the first is the store, None with ``--admin``.

    Raises:
        click.UsageError: neither a STORE nor ``--admin`` is given, or both.
    """
    if admin is not None:
        if arguments[-1] is not None:
            raise click.UsageError("--admin needs no STORE.")
        return [None, *arguments[:-1]]
    if arguments[0] is None:
        raise click.UsageError("Name a STORE, or a running server with --admin URL.")
    return list(arguments)


def ask_admin(admin: str, path: str, method: str = "GET") -> dict[str, Any]:
    """What the admin listener answers to a request, JSON.

    Args:
        admin: Its URL.
        path: Below that, quoted, without a slash before it.
        method: Of HTTP.

    Raises:
        HoldfastError: it cannot be reached, or refuses; says why in its own words.
        click.UsageError: ``admin`` is no URL.
    """
    import http.client
    import urllib.error
    import urllib.request

    from holdfast.endpoint.http_client import reason_of

    if urlsplit(admin).scheme not in ("http", "https"):
        raise click.UsageError(f"--admin {admin!r} is not a URL such as http://127.0.0.1:8081.")
    url = f"{admin.rstrip('/')}/{path}"
    try:
        request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
        with urllib.request.urlopen(request, timeout=ADMIN_PATIENCE) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise _unreadable(url, reason_of(reason) if isinstance(reason, OSError) else str(reason)) from error
    if not isinstance(found, dict):
        raise _unreadable(url, "it answered something else")
    return found


def _refused(url: str, error: Any) -> HoldfastError:
    try:
        said = json.load(error)
        return HoldfastError(f"{url}: {said['error']}", remedy=str(said.get("remedy", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return _unreadable(url, f"it answered HTTP {error.code}")


def _unreadable(url: str, reason: str) -> HoldfastError:
    return HoldfastError(
        f"{url} cannot be read: {reason}",
        remedy="Is that the admin listener of a running server? holdfast serve ... --admin 8081",
    )


def listed(answer: dict[str, Any], name: str, admin: str) -> list[dict[str, Any]]:
    """The list of that name in what an admin listener answered.

    Raises:
        HoldfastError: it answered something else.
    """
    found = answer.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _unreadable(admin, f"it answered no {name}")
    return found


def find_by_beginning(shown: list[dict[str, Any]], name: str, beginning: str, what: str, place: str) -> dict[str, Any]:
    """The one whose field ``name`` is ``beginning``, or begins so; ``urn:uuid:`` may be left out.

    Args:
        shown: What there is.
        name: The field.
        beginning: What was asked for.
        what: What they are called, in the singular: "Sequence".
        place: Where they were looked for.

    Raises:
        ConfigurationError: there is none, or there are several.
    """
    wanted = beginning.removeprefix("urn:uuid:")
    exact = [one for one in shown if one[name] == beginning]
    found = exact or [one for one in shown if str(one[name] or "").removeprefix("urn:uuid:").startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{len(found)} {what}s begin with {beginning}", remedy="Give more of it.")
    raise ConfigurationError(f"there is no {what} {beginning} in {place}", remedy="Without it they are listed.")


def age_text(seconds: float | None) -> str:
    """A duration for people; "" for None."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under their columns' names; those named in ``right`` are set to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print(table)


def print_one(one: dict[str, Any]) -> None:
    """Print one thing whole, a line for each of its fields."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in one.items():
        text = age_text(value) if name == "age" else "" if value is None else str(value)
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
