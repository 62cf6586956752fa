"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import click

from generation import DRAWN


def commands() -> str:
    """docs/reference/commands.md."""
    main = importlib.import_module("holdfast.cli.main")
    parts = [
        "# Commands",
        DRAWN,
        "`holdfast COMMAND --help` prints the same text. Exit codes: 0 success; 1 failure, and standard error states\n"
        "the cause and the remedy; 2 wrong usage. Ctrl-C ends a command cleanly, and a second Ctrl-C immediately.\n"
        "`python -m holdfast` is the same program. A command with `--json` also prints JSON on failure: the\n"
        "`error`, its `remedy`, and its `kind`, which is the name of the error's class.",
    ]
    for name, (module, attribute, summary) in main.COMMANDS.items():
        if find_spec(module) is None:
            continue
        command = getattr(importlib.import_module(module), attribute)
        parts += [f"## holdfast {name}", summary, *_command(name, command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    """Yield a command's description and parameters; for a group, those of each command."""
    if not isinstance(command, click.Group):
        yield from (_usage(name, command), _help_text(command.help or ""), _options(command))
        return
    yield _help_text(command.help or "")
    if command.invoke_without_command:
        yield _options(command)
    for part, inner in command.commands.items():
        yield f"### holdfast {name} {part}"
        yield from _command(f"{name} {part}", inner)


def _usage(name: str, command: click.Command) -> str:
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    words = " ".join(_argument(one) for one in arguments)
    return f"```text\nholdfast {name} [OPTIONS]{' ' if words else ''}{words}\n```"


def _argument(argument: click.Argument) -> str:
    metavar = argument.metavar or (argument.name or "").upper()
    return metavar if argument.required or argument.metavar else f"[{metavar}]"


def _help_text(text: str) -> str:
    paragraphs = []
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b"):
            lines = "\n".join(line.rstrip() for line in block.splitlines()[1:])
            paragraphs.append(f"```bash\n{lines}\n```")
        else:
            paragraphs.append(block)
    return "\n\n".join(paragraphs)


def _options(command: click.Command) -> str:
    lines = ["| option | meaning |", "| --- | --- |"]
    for option in command.params:
        if isinstance(option, click.Option):
            names = " or ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            value = _value(option)
            lines.append(f"| {names}{f' `{value}`' if value else ''} | {_meaning(option)} |")
    return "\n".join(lines)


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "{" + ",".join(str(choice) for choice in option.type.choices) + "}"
    kinds = {"integer range": "N", "integer": "N", "float range": "SECONDS", "float": "SECONDS", "path": "PATH"}
    return kinds.get(option.type.name, {"file": "FILE"}.get(option.type.name, "TEXT"))


def _meaning(option: click.Option) -> str:
    told = (option.help or "").replace("|", "\\|")
    if option.required:
        told += " Required."
    default: Any = option.default
    if option.show_default and isinstance(default, str | int | float) and not option.is_flag:
        told += f" Default: `{default}`."
    if option.multiple:
        told += " May be repeated."
    return re.sub(r" {2,}", " ", told).strip()
