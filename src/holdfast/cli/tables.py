"""Shared parts of commands that show and change objects: tables, details, search by prefix, and the admin client.

Every such command takes a STORE, or ``--admin URL`` instead, and queries both in the same way; ``--json`` prints the
answer.
"""

from __future__ import annotations

import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from holdfast.cli.program import CLIENT_TLS, remembered_options
from holdfast.client.terminal_text import shown
from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import is_url

if TYPE_CHECKING:
    from holdfast.client.admin import Access
    from holdfast.client.admin_client import AdminClient

DEFAULT_ADMIN = "http://127.0.0.1:8081"
"""Default address of a broker's admin listener."""
ADMIN_VARIABLE = "HOLDFAST_ADMIN"
"""The environment variable for --admin."""

_ACCESS = {
    "token_file": ("--token-file", "FILE", "Token of the admin listener.  [env: HOLDFAST_ADMIN_TOKEN]"),
    **CLIENT_TLS,
    "proxy": ("--proxy", "URL", "HTTP proxy to the admin listener."),
}
"""Connection options of an admin listener: argument of ``Access.of_files`` -> option, value, help."""


def admin_option(command: Any) -> Any:
    """Add ``--admin`` and the connection options of the listener, which :func:`admin_client` reads from the context."""
    text = f"Use the running server's admin listener instead of a store. Without STORE and --admin: {DEFAULT_ADMIN}."
    option = click.option("--admin", metavar="URL", envvar=ADMIN_VARIABLE, show_envvar=True, help=text)
    return option(access_options(command))


def access_options(command: Any) -> Any:
    """Add what a client of an admin listener proves and trusts; :func:`access` makes an Access of it."""
    return remembered_options(command, _ACCESS, __name__)


def access() -> Access:
    """Return the values of the options of :func:`access_options` for the running command.

    Raises:
        ConfigurationError: a file is not valid.
    """
    from holdfast.client.admin import Access

    return Access.of_files(**click.get_current_context().meta.get(__name__, {}))


def json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output.")(command)


def admin_and_rest(arguments: Sequence[str | None], admin: str | None) -> tuple[AdminClient, list[str | None]]:
    """Return the client that the arguments mean, and the arguments without STORE.

    ``--admin`` stands for STORE. An argument that is a STORE wins over the environment's listener; any other single
    argument names a thing of the server. With neither, the client asks the default admin listener of a broker.

    Args:
        arguments: STORE, and what follows it; None for one that is not given.
        admin: The listener of ``--admin`` or of the environment.

    Returns:
        The client, and one argument fewer.

    Raises:
        click.UsageError: Both are given.
    """
    if _is_told(admin):
        if arguments[-1] is not None:
            raise click.UsageError("Give either STORE or --admin.")
        return admin_client(admin), list(arguments[:-1])
    first = arguments[0]
    if first is None:
        return admin_client(admin), list(arguments[1:])
    if len(arguments) > 1 and arguments[-1] is None and not _may_be_store(first):
        _remember_no_store(first)
        return admin_client(admin), list(arguments[:-1])
    return admin_client(store=first), list(arguments[1:])


def admin_and_names(
    arguments: Sequence[str], admin: str | None, is_name: Callable[[str], bool]
) -> tuple[AdminClient, list[str]]:
    """Return the client that the arguments mean, and the names after STORE; otherwise as :func:`admin_and_rest`.

    Args:
        arguments: All arguments.
        admin: The listener of ``--admin`` or of the environment.
        is_name: Whether a text can be a name. The first argument is a STORE if it cannot be a name, or if such a store
            exists.
    """
    names = list(arguments)
    if _is_told(admin):
        return admin_client(admin), names
    if not names or (is_name(names[0]) and not _may_be_store(names[0])):
        if names:
            _remember_no_store(names[0])
        return admin_client(admin), names
    return admin_client(store=names[0]), names[1:]


def admin_client(admin: str | None = None, store: str | None = None) -> AdminClient:
    """Return the client of an admin listener, or of a store; the running command closes it at its end.

    Args:
        admin: The listener's URL; None: the default of a broker on this machine.
        store: The location of a store, which replaces the listener; None for none.

    Raises:
        click.UsageError: ``admin`` is no URL.
        ConfigurationError: A file of the connection options is not what it should be.
    """
    from holdfast.client.admin_client import AdminClient, HTTPTransport

    context = click.get_current_context()

    def words(remedy: str) -> str:
        from holdfast.client.command_options import in_words_of

        return in_words_of(context.command, remedy)

    def words_without_answer(remedy: str) -> str:
        return words(remedy + _no_store(context))

    if store is not None:
        for name, value in context.meta.get(__name__, {}).items():
            if value is not None:
                raise click.UsageError(f"{_ACCESS[name][0]} has no effect with a STORE: omit it, or use --admin.")
        from holdfast.client.stopped_store import StoreTransport

        client = AdminClient(StoreTransport(_location(store)), words)
    else:
        url = admin or DEFAULT_ADMIN
        if not is_url(url):
            raise click.UsageError(f"--admin {url!r} is not a URL such as http://127.0.0.1:8081.")
        client = AdminClient(HTTPTransport(url, access(), words_without_answer), words)
    context.call_on_close(client.close)
    return client


def _is_configuration(text: str) -> bool:
    return text.endswith(".toml") and Path(text).is_file()


def _location(store: str) -> str:
    """Return the location of a STORE, which may be given as the configuration file of its broker.

    Raises:
        ConfigurationError: The file is not valid.
    """
    if not _is_configuration(store):
        return store
    from holdfast.broker.config_file import read_store_location

    return read_store_location(store)


def _is_told(admin: str | None) -> bool:
    """Whether ``--admin`` was written on the command line, and does not come from the environment."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("admin") if context is not None else ParameterSource.COMMANDLINE
    return admin is not None and source is not ParameterSource.ENVIRONMENT


def _remember_no_store(text: str) -> None:
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[_NO_STORE] = text


def _no_store(context: click.Context | None) -> str:
    """Return a sentence about an argument that may be meant as a STORE; "" without one."""
    name = context.meta.get(_NO_STORE) if context is not None else None
    return f" If {name!r} is a STORE: no directory of that name holds a store." if name else ""


_NO_STORE = "holdfast.no-store"
"""In a command's context: an argument read as a name because no such store exists."""


def _may_be_store(text: str) -> bool:
    """Whether an argument is a place where a store may be, rather than the name of a queue, a Sequence or a letter.

    A name may also be that of a directory, so one that is not written as a path counts only if it holds a store.
    """
    from holdfast.store import is_remote
    from holdfast.store.directory import holds_store

    is_path = text.startswith(("/", "./", "../")) or text.endswith("/")
    return is_remote(text) or is_path or _is_configuration(text) or holds_store(Path(text))


def find_by_beginning(shown: list[dict[str, Any]], name: str, beginning: str, what: str, place: str) -> dict[str, Any]:
    """Return the object with a field ``name`` that starts with ``beginning``; ``urn:uuid:`` may be omitted.

    Args:
        shown: The objects.
        name: The field.
        beginning: The beginning of its value.
        what: Their kind, in the singular: "Sequence".
        place: Where they were searched.

    Raises:
        ConfigurationError: None matches, or several do.
    """
    wanted = beginning.removeprefix("urn:uuid:")
    exact = [one for one in shown if one[name] == beginning]
    found = exact or [one for one in shown if str(one[name] or "").removeprefix("urn:uuid:").startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{len(found)} {what}s begin with {beginning}", remedy="Give more characters of it.")
    hint = _no_store(click.get_current_context(silent=True))
    raise ConfigurationError(
        f"the {what} {beginning} does not exist in {place}", remedy=f"List them with holdfast {what.lower()}s.{hint}"
    )


def age_text(seconds: float | None) -> str:
    """Return a duration in words; "" for None."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size_text(message: Mapping[str, Any]) -> str:
    """Return the bytes of a message that the admin interface lists: its body and its attachments."""
    return f"{message['bytes'] + sum(one['bytes'] for one in message.get('attachments', ())):,}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under their columns' names; those named in ``right`` are set to the right.

    No word is broken: an Identifier can be copied and found. Where the terminal is too narrow for that, its lines are
    longer than it is wide. Nothing in a cell, which a peer may have made up, steers the terminal.
    """
    cells = [[shown(cell) for cell in row] for row in (columns, *rows)]
    _print(cells, [name in right for name in columns], has_header=True)


def print_one(one: dict[str, Any]) -> None:
    """Print one thing whole, a line for each of its fields; words are not broken either."""
    rows = []
    for name, value in one.items():
        several = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for nth, part in enumerate(several):
            text = age_text(part) if name == "age" else _in_words(part)
            rows.append([name.replace("_", " ") if nth == 0 else "", shown(text)])
    _print(rows, [False, False], has_header=False)


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    return "" if value is None else str(value)


GAP = 2
"""Blanks between two columns."""


def column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column that breaks no word and, if possible, fits the lines into ``width``."""
    from rich.cells import cell_len

    columns = list(zip(*rows, strict=True))
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    whole = [max(cell_len(cell) for cell in column) for column in columns]

    def capped(cap: int) -> list[int]:
        return [max(low, min(high, cap)) for low, high in zip(least, whole, strict=True)]

    room = width - GAP * (len(columns) - 1)
    caps = range(1, max(whole) + 1)
    return capped(bisect_right(caps, room, key=lambda cap: sum(capped(cap))))


def _print(rows: Sequence[Sequence[str]], right: Sequence[bool], *, has_header: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    screen = shutil.get_terminal_size()
    widths = column_widths(rows, screen.columns if is_terminal else sys.maxsize)
    width = max(screen.columns, sum(widths) + GAP * (len(widths) - 1))
    console = Console(width=width, height=screen.lines, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, show_header=has_header, padding=(0, GAP, 0, 0))
    for name, is_right, wide in zip(rows[0], right, widths, strict=True):
        table.add_column(name if has_header else "", justify="right" if is_right else "left", width=wide)
    for row in rows[1:] if has_header else rows:
        table.add_row(*row)
    if is_terminal:
        console.print(table)
        return
    with console.capture() as capture:  # whole lines for grep, without blanks at their ends
        console.print(table)
    for line in Text(capture.get()).plain.splitlines():
        click.echo(line.rstrip())
