"""Errors name commands, not routes of the admin listener, in every text of the package."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import click
import pytest
from texts import texts
from unstarted import unstarted

from holdfast.cli.main import COMMANDS, cli
from holdfast.endpoint.admin.application import Admin

PARTS = sorted({route.path.partition("/")[0] for route in Admin(unstarted()).routes.table})
ROUTE = re.compile(
    rf"\b(?:GET|HEAD|POST|PUT|PATCH|DELETE) (?:/\S|\w+s\b)|(?:^|\s)/(?:{'|'.join(map(re.escape, PARTS))})\b"
)
DESCRIPTION = "The listener describes its API at /openapi.json."
"""For whoever wrote a request by hand; it names no route to use instead of a command."""
COMMAND = re.compile(r"\bholdfast ([a-z][a-z-]+)(?: ([a-z][a-z-]*))?((?: --[a-z][a-z-]*)*)")
NO_COMMANDS = ("endpoint/envelopes/tracing.py", "store/sql/dialects.py")  # names of spans, and of tables


@cache
def all_texts() -> list[tuple[str, str]]:
    return [(place, said) for place, said in texts() if not place.startswith(NO_COMMANDS)]


def flags_of(name: str, verb: str | None) -> set[str]:
    """Flags of what a text names; the word behind a command may be a verb of the sentence."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    verbs = command.commands if isinstance(command, click.Group) else {}
    meant = [verbs[verb]] if verb in verbs else [command, *verbs.values()]
    return {flag for one in meant for parameter in one.params for flag in parameter.opts}


@pytest.mark.parametrize(
    "said", ["GET /outbox lists those that do.", "PUT makes one.", "Ask for /dead-letters/5.", "POST /queues/a/purge"]
)
def test_routes_are_found(said: str) -> None:
    assert ROUTE.search(said)


def test_no_text_names_a_route_where_a_command_does_the_same() -> None:
    assert len(all_texts()) > 1000
    wrong = {
        place: said
        for place, said in all_texts()
        if ROUTE.search(said.replace(DESCRIPTION, "").replace("POST / HTTP", ""))
    }
    assert not wrong


def test_every_command_and_flag_that_a_text_names_is_there() -> None:
    named = [(place, found) for place, said in all_texts() for found in COMMAND.finditer(said)]
    assert len(named) > 50
    for place, found in named:
        name, verb, flags = found.groups()
        assert name in COMMANDS, f"{place}: {found[0]}"
        assert set(flags.split()) <= flags_of(name, verb), f"{place}: {found[0]}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["forwarders", "show", "nobody"], "no forwarder nobody\n  List the forwarders with holdfast forwarders."),
        (
            ["cursors", "delete", "inbox", "nobody", "--yes"],
            "the cursor 'nobody' does not exist\n  List",
        ),
        (["cursors", "nobody"], "\n  List"),
        (["sinks", "show", "nobody"], "the sink 'nobody' does not exist\n  List the sinks with holdfast sinks."),
        (["outbox", "show", "5"], "\n  List the waiting messages with holdfast outbox."),
        (
            ["dead-letters", "show", "5"],
            "the dead letter 5 does not exist\n  List the dead letters with holdfast dead-letters.",
        ),
        (["queues", "purge", "nobody", "--yes"], "the queue 'nobody' does not exist\n  The queues are inbox."),
        (["sequences", "close", "nobody", "--yes"], "\n  List"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_is_refused_names_the_server_and_another_command(
    run: Any, served: Any, arguments: list[str], told: str
) -> None:
    admin = served.admin
    result = run(*arguments, "--admin", admin)
    assert (result.code, result.out) == (1, "")
    assert told in result.err
    assert f"{admin}/" not in result.err
