"""Shared parts of commands that query a server: how long they wait for it, and their flags for Spark's options.

Errors arrive as text, also from Spark's workers. All of them name an option in one way, the word and then the name:
``option awaySeconds``, ``options sinkId and batchId``. A command that shows such a text replaces the name by the flag
with the same effect, else by ``--option NAME``, else by the option in the pipeline's file.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import click
from click.core import ParameterSource

from holdfast.client.data_plane import Patience
from holdfast.client.option_types import Seconds
from holdfast.exceptions import HoldfastError

T = TypeVar("T")

FLAGS = {
    "broker": ("--broker", "--admin", "PLACE"),
    "queue": ("--queue",),
    "queuePattern": ("--queue-pattern",),
    "reader": ("--reader",),
    "maxRowsPerBatch": ("--max-rows-per-batch",),
    "awaySeconds": ("--away-seconds",),
    "tokenFile": ("--token-file",),
    "caFile": ("--ca",),
    "certificateFile": ("--cert",),
    "keyFile": ("--cert-key",),
    "proxy": ("--proxy",),
    "prefix": ("--prefix",),
}
"""Option -> its name on the command line; the others have no command-line option."""
KEYS = {"tokenFile": "token_file"}
"""Option -> its key in a pipeline's file; the others are in ``options`` there, by their own names."""
_MORE = {"--admin": "--admin URL, or HOLDFAST_ADMIN"}
"""Text that replaces an option in errors, where it is longer than the option."""


AWAY = 60.0
NOBODY = 5.0
"""Seconds that a command waits for a server that does not answer, and for an address that refuses its first request.
Such an address is mistyped, or its server is just starting, perhaps together with this command. A server that once
answered is being restarted or repaired."""

away_option = click.option(
    "--away-seconds",
    type=Seconds(),
    help=f"How long to wait for a server that does not answer.  [default: {AWAY:g}; {NOBODY:g} if the address "
    "refuses the first request]",
)


_WORDS = (
    "action|body|broker|columns|headers|partitions|prefix|proxy|queue|read|reader|rebind|refused|sequence|subscribe|tasks"
    "|to|token"
)
"""Options of the source, the sink and a landing that are English words; all others contain a capital letter."""
_NAME = rf"(?:[a-z]+(?:[A-Z][a-z]*)+|{_WORDS})\b"
NAMED = re.compile(rf"(?<!--)(?<!\.)\boptions? ({_NAME}(?:(?:, | and | or ){_NAME})*)")
"""Option names in error texts."""


def have_answer(ask: Callable[[], T], away: float | None, stop: threading.Event | None = None) -> T:
    """Send a server a first request before Spark starts, which takes a while: check the server and the queue.

    Returns:
        The result of ``ask``.

    Raises:
        HoldfastError: The server or the queue is not available.
        KeyboardInterrupt: The command must end.
    """

    def sleep(seconds: float) -> None:
        if (stop or threading.Event()).wait(seconds):
            raise KeyboardInterrupt

    return Patience(AWAY if away is None else away, sleep=sleep, nobody=NOBODY if away is None else None).call(ask)


def no_effect(when: str, *names: str) -> None:
    """Refuse options of the command line that have no effect in the running command's mode.

    Args:
        when: The mode: "with --grid", "without --stream".
        names: Names of the options' arguments.

    Raises:
        click.UsageError: Any was given. An environment variable is not refused, because it may be set for other
            commands.
    """
    context = click.get_current_context()
    for one in context.command.params:
        if one.name in names and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{one.opts[0]} has no effect {when}: omit it.")


def in_words_of(command: click.Command, text: str) -> str:
    """Return a text with the option names of the running command."""
    known = [word for one in command.params for word in (*one.opts, one.human_readable_name)]

    def word(name: re.Match[str]) -> str:
        flag = flag_of(command, name[0])
        if flag is None and "--option" in known:
            return f"--option {name[0]}"
        if flag is None:
            return f"{KEYS[name[0]]} in the file" if name[0] in KEYS else f"option {name[0]} in the file"
        return _MORE.get(flag, flag)

    return NAMED.sub(lambda found: re.sub(r"\b(?!and\b|or\b)\w+", word, found[1]), text)


def flag_of(command: click.Command, option: str) -> str | None:
    """Return the command's flag for an option of the source, whatever its case; None: it has none."""
    known = [word for one in command.params for word in (*one.opts, one.human_readable_name)]
    flags = next((flags for name, flags in FLAGS.items() if name.lower() == option.lower()), ())
    return next((flag for flag in flags if flag in known), None)


@contextlib.contextmanager
def own_words() -> Iterator[None]:
    """Rewrite errors in the block with the option names of the running command."""
    try:
        yield
    except HoldfastError as error:
        command = click.get_current_context().command
        error.message, error.remedy = in_words_of(command, error.message), in_words_of(command, error.remedy)
        raise
    except click.UsageError as error:
        raise click.UsageError(in_words_of(click.get_current_context().command, error.message)) from error
