"""Shared parts of commands that change a running server: arguments, the admin client, and confirmation.

They use its admin listener (``--admin``), accept the prefix of a name if it is unique, and delete nothing without a
confirmation or ``--yes``.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli.tables import ADMIN_VARIABLE, DEFAULT_ADMIN, access_options, admin_client, json_option
from holdfast.client.option_types import Count, with_options
from holdfast.client.terminal_text import few
from holdfast.exceptions import ConfigurationError, counted
from holdfast.settings import MOST_SECONDS, seconds_of

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

OFFSET = Count(0)
"""An offset, or the number of a partition or a dead letter, as far as the admin interface accepts it."""


class Noun(click.Group):
    """The commands for one kind of things: ``show`` is meant where none is named, so that ``holdfast queues inbox`` and
    ``holdfast queues show inbox`` are the same.
    """

    default = "show"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default in where no command is named."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class ListedNoun(Noun):
    """The same for things of which ``show`` shows one: ``list`` is meant where none is named."""

    default = "list"


def steer_options(command: Any) -> Any:
    """Add ``--json``, ``--admin`` and the connection options of the listener; the command gets its client as
    ``admin``."""

    @wraps(command)
    def asking(*args: Any, admin: str, **options: Any) -> Any:
        return command(*args, admin=admin_client(admin), **options)

    option = click.option(
        "--admin",
        metavar="URL",
        default=DEFAULT_ADMIN,
        envvar=ADMIN_VARIABLE,
        show_default=True,
        show_envvar=True,
        help="URL of the running server's admin listener.",
    )
    return option(access_options(json_option(asking)))


def yes_option(command: Any) -> Any:
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def reason_option(command: Any) -> Any:
    return click.option("--reason", default="", metavar="TEXT", help="The reason, for other operators.")(command)


def confirm(what: str, yes: bool) -> None:
    """Ask for confirmation before an irreversible change.

    Raises:
        click.Abort: The answer is no.
        ConfigurationError: There is no terminal to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{what} Nothing has changed yet.", remedy="To confirm, add --yes.")
    click.confirm(f"{what} Do it?", abort=True, err=True)


def quoted(name: str) -> str:
    """Encode a name as one part of a path."""
    return quote(name, safe="")


def tell(answer: dict[str, Any], text: str, as_json: bool) -> None:
    """Print the result: the answer as JSON, or a sentence."""
    click.echo(json.dumps(answer, indent=2) if as_json else text)


# --- where a cursor is to go ------------------------------------------------------------------------------------------


def place_options(command: Any) -> Any:
    """Add ``--partition``, and the options that :func:`place` takes, which give the command ``where``."""

    @wraps(command)
    def placed(
        *args: Any,
        partition: int | None,
        to: str | None,
        offset: int | None,
        moment: str | None,
        ago: str | None,
        **options: Any,
    ) -> Any:
        return command(*args, where={"partition": partition} | place(to, offset, moment, ago), **options)

    return with_options(
        click.option("--to", type=click.Choice(["earliest", "latest"]), help="To the oldest record or to the end."),
        click.option("--offset", type=OFFSET, help="To this offset of one partition."),
        click.option(
            "--time",
            "moment",
            metavar="TIME",
            help="To the first record received at or after this time: 2026-01-31T08:00 (UTC).",
        ),
        click.option(
            "--ago", metavar="DURATION", help="To the first record received within this time: 90s, 15m, 2h, 3d."
        ),
        click.option("--partition", type=OFFSET, help="Only this partition.  [default: all]"),
    )(placed)


def place(to: str | None, offset: int | None, moment: str | None, ago: str | None) -> dict[str, Any]:
    """Return the new position of a cursor, in the form of the admin interface.

    Raises:
        click.UsageError: no position or several are given, or one is unreadable.
    """
    given = [one for one in (to, offset, moment, ago) if one is not None]
    if len(given) != 1:
        raise click.UsageError("Give the position with one of --to, --offset, --time and --ago.")
    if to is not None or offset is not None:
        return {"to": to, "offset": offset}
    return {"time": _moment(moment) if moment is not None else time.time() - duration(ago or "")}


def _moment(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--time {text!r} is not a time such as 2026-01-31T08:00.") from error
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def duration(text: str) -> float:
    """Seconds, from words such as ``15m``.

    Raises:
        click.UsageError: for any others.
    """
    seconds = seconds_of(text)
    if seconds is None or seconds > MOST_SECONDS:
        raise click.UsageError(f"{text!r} is not a duration such as 90s, 15m, 2h or 3d.")
    return seconds


def move(
    admin: AdminClient, path: str, name: str, where: dict[str, Any], verb: str, *, yes: bool, as_json: bool
) -> None:
    """Move a cursor or a forwarder. Without ``yes``, first show how many messages it would skip or repeat, and ask."""
    if not yes:
        planned = planned_text(admin.steer(f"{path}/reset", **where, dry_run=True), verb)
        confirm(f"{name} would {planned}.", yes)
    answer = admin.steer(f"{path}/reset", **where)
    tell(answer, f"{name} {moved_text(answer)}.", as_json)


def planned_text(planned: dict[str, Any], verb: str) -> str:
    """Return what a move would do to the messages between the old and the new position, in words.

    Args:
        planned: The answer to a dry run.
        verb: How messages are repeated: "send".
    """
    moves = [(planned["before"][number], offset) for number, offset in planned["offsets"].items()]
    skipped = sum(max(0, after - before) for before, after in moves)
    repeated = sum(max(0, before - after) for before, after in moves)
    parts = [f"skip {counted(skipped, 'message')}"] if skipped else []
    parts += [f"{verb} {counted(repeated, 'message')} again"] if repeated else []
    return " and ".join(parts) or "move past no message"


def moved_text(answer: dict[str, Any]) -> str:
    """Return the new position of a cursor in the partitions in which it has moved."""
    moved = {number: at for number, at in answer["offsets"].items() if at != answer["before"][number]}
    stays = "does not move: the queue has no message between the old and the new position"
    return f"is now at {places_text(moved)}" if moved else stays


def places_text(offsets: dict[str, int]) -> str:
    """Return a cursor's position in words, by partition; in short if it is the same in several."""
    if len(offsets) > 1 and len(set(offsets.values())) == 1:
        return f"{next(iter(offsets.values())):,} of each of {len(offsets)} partitions"
    ordered = sorted(offsets.items(), key=lambda one: int(one[0]))
    return few(f"{offset:,} of partition {partition}" for partition, offset in ordered) or "nowhere"
