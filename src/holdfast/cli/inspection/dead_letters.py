"""``holdfast dead-letters``: what no handler could handle, in a store or at a running server."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli.inspection.listing import named, opened_store
from holdfast.cli.inspection.operations import ListedNoun, confirm, yes_option
from holdfast.cli.tables import (
    admin_option,
    age_text,
    ask_admin,
    json_option,
    listed,
    place_and_names,
    place_and_rest,
    print_one,
    print_table,
)
from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from holdfast.core.queues.dead_letters import DeadLetters
    from holdfast.store import Store

COLUMNS = ("letter", "action", "sequence", "number", "attempts", "age", "error")
LONGEST_ERROR = 100
"""Maximum number of characters of an error in the list; ``show`` prints the whole error."""
PAGE = 1000


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
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0, show_default=True, help="Start at this dead letter."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=PAGE, show_default=True, help="Maximum number of dead letters."
)
@admin_option
@json_option
def list_(store: str | None, start: int, limit: int, admin: str | None, as_json: bool) -> None:
    """List the dead letters of STORE, the oldest first.

    \b
    holdfast dead-letters list inbox
    holdfast dead-letters list --admin http://127.0.0.1:8081 --limit 20 --json

    `attempts` is how many times the handler received the message, `age` how long ago the last attempt failed.
    """
    admin, (location,) = place_and_rest((store,), admin)
    shown: list[dict[str, Any]] = []
    following: int | None = start
    count = 0
    while following is not None and len(shown) < limit:
        some, following, count = _page(location, admin, following, min(PAGE, limit - len(shown)))
        shown += some
    if as_json:
        click.echo(json.dumps({"dead_letters": shown, "count": count, "next": following}, indent=2))
    elif shown:
        now = time.time()
        print_table(COLUMNS, [_row(one, now) for one in shown], right=("number", "attempts", "age"))
        if following is not None:
            click.echo(f"The total is {count:,}; for the next ones: --from {following}", err=True)
    else:
        click.echo(f"There are no dead letters in {admin or named(location)}.")


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
    admin, (location, number) = place_and_rest((store, letter), admin)
    if number is None:
        raise click.UsageError("Give the number of the LETTER; holdfast dead-letters list shows the numbers.")
    if location is None:
        assert admin is not None
        one = ask_admin(admin, f"dead-letters/{quote(_number(number), safe='')}")
    else:
        one = _look_at(location, int(_number(number)))
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    texts = [(name, one.pop(name, "")) for name in ("reason", "headers", "body")]
    for name in ("received_at", "failed_at"):
        one[name] = datetime.fromtimestamp(one[name], UTC).isoformat(timespec="seconds") if one[name] else None
    print_one(one)
    for name, text in texts:
        click.echo(f"\n{name}:\n{_visible(text)}" if text else f"\n{name}: none")


def _change(
    how: str,
    location: str | None,
    names: list[str],
    every: bool,
    admin: str | None,
    sure: Callable[[], None] = lambda: None,
) -> tuple[int, int]:
    """Retry or discard dead letters, once ``sure`` returns; return how many, and how many remain."""
    if every == bool(names):
        raise click.UsageError(
            "Give the numbers of the LETTERs, or --all; holdfast dead-letters list shows the numbers."
        )
    numbers: list[int | None] = [None] if every else [int(_number(name)) for name in names]
    if location is not None:
        return _change_stored(how, location, numbers, sure)
    assert admin is not None
    sure()
    done, count = 0, 0
    for number in numbers:
        answer = ask_admin(admin, f"dead-letters/{'all' if number is None else number}/{how}", "POST")
        done += int(answer["retried" if how == "retry" else "discarded"])
        count = int(answer["count"])
    return done, count


def _place_and_letters(
    store: str | None, letters: tuple[str, ...], every: bool, admin: str | None
) -> tuple[str | None, str | None, list[str]]:
    """The admin listener to ask, or the store, and the letters. With ``--all`` an argument can only be a STORE."""
    arguments = [*([store] if store is not None else []), *letters]
    return place_and_names(arguments, admin, lambda text: not every and _is_number(text))


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
    admin, location, names = _place_and_letters(store, letters, every, admin)
    done, count = _change("retry", location, names, every, admin)
    when = "now" if location is None else f"when {named(location)} is next served"
    _tell("retried", done, count, f"{_several(done)} tried again {when}.", as_json)


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
    sure = partial(confirm, "Discarding deletes the dead letters permanently.", yes)
    admin, location, names = _place_and_letters(store, letters, every, admin)
    done, count = _change("discard", location, names, every, admin, sure)
    _tell("discarded", done, count, f"{_several(done)} discarded; {count:,} left.", as_json)


def _several(count: int) -> str:
    return f"{count:,} dead letters are" if count != 1 else "1 dead letter is"


def _tell(name: str, done: int, count: int, text: str, as_json: bool) -> None:
    click.echo(json.dumps({name: done, "count": count}) if as_json else text)


# --- a store that nobody serves, or that is only looked at ------------------------------------------------------------


@contextlib.contextmanager
def _opened(location: str, *, read_only: bool) -> Iterator[tuple[Store, DeadLetters, Any]]:
    """A store, its dead letters, and where its changes are gathered."""
    from holdfast.core.commit import GroupCommit
    from holdfast.core.queues.dead_letters import DeadLetters

    with opened_store(location, read_only=read_only) as store:
        letters, commit = DeadLetters(), GroupCommit()
        letters.join(commit, [], store.read)
        letters.recover(store.load(), time.time())
        yield store, letters, commit


def _page(
    location: str | None, admin: str | None, start: int, limit: int
) -> tuple[list[dict[str, Any]], int | None, int]:
    if admin is not None:
        answer = ask_admin(admin, f"dead-letters?from={start}&limit={limit}")
        return listed(answer, "dead_letters", admin), answer.get("next"), int(answer.get("count", 0))
    from holdfast.endpoint.destination.dead_letters import describe_letters

    assert location is not None
    with _opened(location, read_only=True) as (store, letters, _):
        shown, following = describe_letters(store.read, list(letters.ranges(start)), limit, letters.is_asked)
        return shown, following, letters.count


def _look_at(location: str, number: int) -> dict[str, Any]:
    from holdfast.endpoint.destination.dead_letters import describe_letter

    with _opened(location, read_only=True) as (store, letters, _):
        found = store.read(letters.name, 0, number, number + 1) if letters.is_there(number) else []
        if not found:
            raise _missing(number, location)
        return describe_letter(number, found[0][1], is_asked=letters.is_asked(number), whole=True)


def _change_stored(how: str, location: str, numbers: list[int | None], sure: Callable[[], None]) -> tuple[int, int]:
    with _opened(location, read_only=False) as (store, letters, commit):
        for number in numbers:
            if number is not None and not letters.is_there(number):
                raise _missing(number, location)
        sure()
        done = sum(letters.ask(number) if how == "retry" else letters.discard(number) for number in numbers)
        store.commit(commit.take())
        return done, letters.count


def _missing(number: int, location: str) -> ConfigurationError:
    return ConfigurationError(
        f"the dead letter {number} does not exist in {named(location)}",
        remedy=f"List the dead letters: holdfast dead-letters list {named(location)}",
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _number(text: str) -> str:
    if not _is_number(text):
        raise click.UsageError(
            f"{text!r} is not the number of a dead letter; holdfast dead-letters list shows the numbers."
        )
    return text


def _row(one: dict[str, Any], now: float) -> list[str]:
    error = str(one["error"])
    return [
        str(one["letter"]) + (" (retry pending)" if one["retry"] else ""),
        str(one["action"]),
        str(one["sequence"]),
        str(one["message_number"]),
        str(one["attempts"] or ""),
        age_text(max(0.0, now - one["failed_at"]) if one["failed_at"] else None),
        error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]}…",
    ]


def _visible(text: str) -> str:
    """Text of several lines, with what would steer a terminal escaped."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)
