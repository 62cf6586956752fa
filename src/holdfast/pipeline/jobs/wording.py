"""What a command says instead of the source's and the sink's options, whose names are for who uses Spark.

Errors come from everywhere, from Spark's workers too, as text. So each names an option in one way, the word and then
the name: ``option awaySeconds``, ``options sinkId and batchId``; and where a command shows it, that is put into the
command's own words: the flag that does the same, else ``--option NAME``, else the options of the pipeline's file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cache

import click

from holdfast.exceptions import HoldfastError

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
}
"""Option -> what commands call it; each has one of these, or none."""
_MORE = {"--admin": "--admin URL, or HOLDFAST_ADMIN"}
"""What is said of a flag beside its name."""


AWAY = 60.0
NOBODY = 5.0
"""Seconds for which a command waits for a server that is away, and, at its first request, for an address where nobody
listens: that is a mistyped one, or a server that is only being started, together with this command for instance. A
server that was there once is being restarted or repaired."""

away_option = click.option(
    "--away-seconds",
    type=click.FloatRange(min=0),
    help=f"How long to wait for a server that is away.  [default: {AWAY:g}; {NOBODY:g} where nobody answers at first]",
)


@cache
def named() -> re.Pattern[str]:
    """How errors name options."""
    from holdfast.pipeline.reader.options import ReadOptions  # loads what speaks HTTP, and no error is in a hurry
    from holdfast.pipeline.writer.options import WriteOptions

    fields = [one for kind in (ReadOptions, WriteOptions) for one in kind.__dataclass_fields__.values() if one.metadata]
    names = {one.metadata[key] for one in fields for key in ("name", "alias") if one.metadata[key]}
    name = f"(?:{'|'.join(sorted(names, key=len, reverse=True))})\\b"
    return re.compile(rf"(?<!--)(?<!\.)\boptions? ({name}(?:(?:, | and | or ){name})*)")


def in_words_of(command: click.Command, text: str) -> str:
    """A text as who runs this command has to do with it."""
    known = [word for one in command.params for word in (*one.opts, one.human_readable_name)]

    def word(name: re.Match[str]) -> str:
        flag = flag_of(command, name[0])
        if flag is None and "--option" in known:
            return f"--option {name[0]}"
        return _MORE.get(flag, flag) if flag else f"option {name[0]} in the file"

    return named().sub(lambda found: re.sub(r"\b(?!and\b|or\b)\w+", word, found[1]), text)


def flag_of(command: click.Command, option: str) -> str | None:
    """The flag of a command that is an option of the source, whose case does not count; None: it has none."""
    known = [word for one in command.params for word in (*one.opts, one.human_readable_name)]
    flags = next((flags for name, flags in FLAGS.items() if name.lower() == option.lower()), ())
    return next((flag for flag in flags if flag in known), None)


@contextlib.contextmanager
def own_words() -> Iterator[None]:
    """What goes wrong in the block is told in the words of the command that runs."""
    try:
        yield
    except HoldfastError as error:
        command = click.get_current_context().command
        error.message, error.remedy = in_words_of(command, error.message), in_words_of(command, error.remedy)
        raise
    except click.UsageError as error:
        raise click.UsageError(in_words_of(click.get_current_context().command, error.message)) from error
