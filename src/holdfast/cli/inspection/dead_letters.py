"""``holdfast dead-letters``: what no handler could handle, in a store or at a running server."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.operations import OFFSET, ListedNoun, confirm, yes_option
from holdfast.cli.tables import (
    admin_and_names,
    admin_and_rest,
    admin_option,
    age_text,
    json_option,
    print_one,
    print_table,
)
from holdfast.client.option_types import Count
from holdfast.client.terminal_text import LINES, shown
from holdfast.exceptions import HoldfastError, counted

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

COLUMNS = ("letter", "action", "sequence", "number", "attempts", "age", "error")
LONGEST_ERROR = 100
"""Maximum number of characters of an error in the list; ``show`` prints the whole error."""
_PACKAGE = re.compile(r"^(?:\w+\.)+(?=\w+:)")
"""The package of an exception's class, which would leave no room for the reason."""
PAGE = 1000
EVERY = "all"


@click.group(name="dead-letters", cls=ListedNoun)
def dead_letters() -> None:
    """Show the messages that every handler attempt failed on; retry or discard them.

    \b
    holdfast dead-letters list inbox
    holdfast dead-letters show inbox 3
    holdfast dead-letters retry --admin http://127.0.0.1:8081 3
    holdfast dead-letters discard inbox --all

    They are in STORE, the directory of a destination's store that no process has open, or with --admin at a running
    server. `list` and `show` also work on a store that a server has open.
    """


@dead_letters.command(name="list", short_help="List the dead letters, the oldest first.")
@click.argument("store", required=False)
@click.option("--from", "start", type=OFFSET, default=0, show_default=True, help="Start at this dead letter.")
@click.option("--limit", type=Count(), default=PAGE, show_default=True, help="Maximum number of dead letters.")
@admin_option
@json_option
def list_(store: str | None, start: int, limit: int, admin: str | None, as_json: bool) -> None:
    """List the dead letters of STORE, the oldest first.

    \b
    holdfast dead-letters list inbox
    holdfast dead-letters list --admin http://127.0.0.1:8081 --limit 20 --json

    `attempts` is how many times the handler received the message, `age` how long ago the last attempt failed.
    """
    client, _ = admin_and_rest((store,), admin)
    shown: list[dict[str, Any]] = []
    following: int | None = start
    count = 0
    while following is not None and len(shown) < limit:
        answer = client.ask(f"dead-letters?from={following}&limit={min(PAGE, limit - len(shown))}")
        shown += client.listed(answer, "dead_letters")
        following, count = answer.get("next"), int(answer.get("count", 0))
    if as_json:
        click.echo(json.dumps({"dead_letters": shown, "count": count, "next": following}, indent=2))
    elif shown:
        now = time.time()
        print_table(COLUMNS, [_row(one, now) for one in shown], right=("number", "attempts", "age"))
        if following is not None:
            click.echo(f"The total is {count:,}; for the next ones: --from {following}", err=True)
    else:
        click.echo(f"There are no dead letters in {client.place}.")


@dead_letters.command(short_help="Show one dead letter in full.")
@click.argument("store", required=False, metavar="[STORE]")
@click.argument("letter", required=False, metavar="LETTER")
@admin_option
@json_option
def show(store: str | None, letter: str | None, admin: str | None, as_json: bool) -> None:
    """Show one dead letter in full: its error, its header blocks and its body.

    \b
    holdfast dead-letters show inbox 3
    holdfast dead-letters show --admin http://127.0.0.1:8081 3 --json
    """
    client, (number,) = admin_and_rest((store, letter), admin)
    if number is None:
        raise click.UsageError("Give the number of the LETTER; holdfast dead-letters list shows the numbers.")
    one = client.ask(f"dead-letters/{_number(number)}")
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    texts = [(name, one.pop(name, "")) for name in ("reason", "headers", "body")]
    for name in ("received_at", "failed_at"):
        one[name] = datetime.fromtimestamp(one[name], UTC).isoformat(timespec="seconds") if one[name] else None
    print_one(one)
    for name, text in texts:
        click.echo(f"\n{name}:\n{shown(text, keep=LINES)}" if text else f"\n{name}: none")


def _change(client: AdminClient, how: str, names: list[str], every: bool, yes: bool) -> tuple[int, int | None]:
    """Retry or discard dead letters once that is confirmed; return how many, and how many remain, if that is known."""
    if every and names:
        raise click.UsageError("--all means every dead letter: omit the numbers, or omit --all.")
    if not (every or names):
        raise click.UsageError(
            "Give the numbers of the LETTERs, or --all; holdfast dead-letters list shows the numbers."
        )
    letters = [EVERY] if every else [_number(name) for name in names]
    for letter in letters if not every else ():
        client.ask(f"dead-letters/{letter}")  # if one does not exist, nothing changes
    if how == "discard":
        confirm("Discarding deletes the dead letters permanently.", yes)
    done, count = 0, None
    try:
        for letter in letters:
            answer = client.ask(f"dead-letters/{letter}/{how}", "POST")
            done += int(answer["retried" if how == "retry" else "discarded"])
            count = answer["count"]
    except HoldfastError as error:
        if done:
            error.message += f"; done for {done} of {len(letters)} dead letters"
        raise
    return done, count


def _client_and_letters(
    store: str | None, letters: tuple[str, ...], admin: str | None
) -> tuple[AdminClient, list[str]]:
    """Return the client, and the letters. A number is a STORE only if one exists there."""
    arguments = [*([store] if store is not None else []), *letters]
    return admin_and_names(arguments, admin, _is_number)


ALL = click.option("--all", "every", is_flag=True, help="All dead letters.")


@dead_letters.command(short_help="Retry dead letters.")
@click.argument("store", required=False)
@click.argument("letters", nargs=-1, metavar="[LETTER]...")
@ALL
@admin_option
@json_option
def retry(store: str | None, letters: tuple[str, ...], every: bool, admin: str | None, as_json: bool) -> None:
    """Hand dead letters to their handler again: a running server does so at once, a store when it is next served.

    \b
    holdfast dead-letters retry inbox 3 4
    holdfast dead-letters retry --admin http://127.0.0.1:8081 --all

    A message that fails again becomes a dead letter with a new number. A requester received a fault when the message
    became a dead letter, so the reply of a retry is not sent.
    """
    client, names = _client_and_letters(store, letters, admin)
    done, count = _change(client, "retry", names, every, yes=True)
    when = "now" if client.is_running else f"when {client.place} is next served"
    _tell("retried", done, count, f"{_letters(done)} tried again {when}.", as_json)


@dead_letters.command(short_help="Discard dead letters.")
@click.argument("store", required=False)
@click.argument("letters", nargs=-1, metavar="[LETTER]...")
@ALL
@yes_option
@admin_option
@json_option
def discard(
    store: str | None, letters: tuple[str, ...], every: bool, yes: bool, admin: str | None, as_json: bool
) -> None:
    """Delete dead letters. No handler receives them again.

    \b
    holdfast dead-letters discard inbox 3
    holdfast dead-letters discard --admin http://127.0.0.1:8081 --all --yes
    """
    client, names = _client_and_letters(store, letters, admin)
    done, count = _change(client, "discard", names, every, yes)
    left = "" if count is None else f"; {count:,} left"
    _tell("discarded", done, count, f"{_letters(done)} discarded{left}.", as_json)


def _letters(count: int) -> str:
    return counted(count, "dead letter is", "dead letters are")


def _tell(name: str, done: int, count: int | None, text: str, as_json: bool) -> None:
    click.echo(json.dumps({name: done, "count": count}) if as_json else text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _number(text: str) -> str:
    if not _is_number(text):
        raise click.UsageError(
            f"{text!r} is not the number of a dead letter; holdfast dead-letters list shows the numbers."
        )
    return text


def _row(one: dict[str, Any], now: float) -> list[str]:
    error = _PACKAGE.sub("", str(one["error"]))
    return [
        str(one["letter"]) + (" (retry pending)" if one["retry"] else ""),
        str(one["action"]),
        str(one["sequence"]),
        str(one["message_number"]),
        str(one["attempts"] or ""),
        age_text(max(0.0, now - one["failed_at"]) if one["failed_at"] else None),
        error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]}…",
    ]
