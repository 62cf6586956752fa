"""What holds for every command: help that teaches, the nearest right name, exit codes, a quick start.

Covers cli/failure.py and client/option_types.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from hostile_urls import NO_HOSTS, NO_URLS

import holdfast
from holdfast.cli import main as program
from holdfast.cli.inspection.operations import duration
from holdfast.cli.main import COMMANDS, OVERVIEWS, cli
from holdfast.client.option_types import Count, Number, Seconds
from holdfast.exceptions import HoldfastError
from holdfast.testing.ports import free_ports

INSTALLED = cli.list_commands(click.Context(cli))


def test_help_lists_every_command_and_shows_two_examples(run: Any) -> None:
    result = run("--help")
    assert result.code == 0
    assert {"serve", "receive", "send", "sequences"} <= set(INSTALLED)
    for name in INSTALLED:
        assert COMMANDS[name][2] in result.out
    assert result.out.count("  holdfast ") >= 2


@pytest.mark.parametrize("name", INSTALLED)
def test_each_command_teaches_with_two_examples(run: Any, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert result.out.count(f"  holdfast {name} ") + result.out.count(f"| holdfast {name} ") >= 2


@pytest.mark.parametrize(("wrong", "right"), [("sned", "send"), ("recieve", "receive"), ("sequence", "sequences")])
def test_an_unknown_command_is_answered_with_the_nearest_right_one(run: Any, wrong: str, right: str) -> None:
    result = run(wrong)
    assert result.code == 2
    assert f"no command '{wrong}'. Did you mean '{right}'?" in result.err


def test_a_guess_at_an_overview_is_answered_with_the_commands_that_give_one(run: Any) -> None:
    result = run("status")
    assert result.code == 2
    assert "no command 'status'. For an overview, use 'holdfast queues', " in result.err
    for command in re.findall(r"holdfast ([a-z ]+)'", OVERVIEWS):
        assert run(*command.split(), "--help").code == 0


def test_a_command_that_resembles_nothing_is_answered_with_all_of_them(run: Any) -> None:
    result = run("xyzzy")
    assert result.code == 2
    assert "The commands are serve, broker, receive, send" in result.err


def test_an_option_that_is_misspelt_is_wrong_usage(run: Any) -> None:
    result = run("send", "--too", "x")
    assert result.code == 2
    assert "--to" in result.err


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        words = (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, words)
        yield " ".join(words), command


def test_no_two_options_of_a_command_share_a_parameter() -> None:
    """Otherwise one option receives the value of the other: ``send --key`` was read as ``--cert-key``."""
    checked = dict(commands())
    assert {"send", "queues show", "land"} <= set(checked)
    for words, command in checked.items():
        names = [parameter.name for parameter in command.params]
        assert len(names) == len(set(names)), words


def test_without_a_command_the_help_is_shown(run: Any) -> None:
    result = run()
    assert result.code == 2
    assert "Commands:" in result.out + result.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (HoldfastError("it is full", remedy="Make room."), 1, "holdfast: it is full\n  Make room.\n"),
        (KeyboardInterrupt(), 1, "holdfast: interrupted\n"),
        (click.UsageError("not so"), 2, "not so"),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code_without_a_traceback(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(program.cli, "main", fail)
    result = run("send")
    assert result.code == code
    assert text in result.err
    assert "Traceback" not in result.err


def test_help_loads_neither_endpoints_nor_spark() -> None:
    script = (
        "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'httptools', 'lxml', 'rocksdict', 'structlog', 'pyspark', 'rich', 'uvloop', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(program.__file__).parents[2])}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert result.stderr.strip() == "[]"


def test_a_closed_output_pipe_is_not_an_error(start: Any) -> None:
    process = start("--help").process
    assert process.stdout is not None
    process.stdout.close()
    process.wait(60)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_it_runs_as_a_module_and_says_the_version_that_the_package_has() -> None:
    for module in ("holdfast", "holdfast.cli.main"):
        command = [sys.executable, "-m", module, "--version"]
        environment = os.environ | {"PYTHONPATH": str(Path(program.__file__).parents[2])}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (result.returncode, result.stdout) == (0, f"holdfast {holdfast.__version__}\n"), result.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", holdfast.__version__)
    assert "__version__" in holdfast.__all__


def with_json() -> list[tuple[str, ...]]:
    """Every command, and every command of a group, that has ``--json``."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, (*path, name))
        elif any("--json" in one.opts for one in command.params):
            yield path

    return list(walk(cli, ()))


@pytest.mark.parametrize("path", with_json(), ids=" ".join)
def test_where_there_is_json_a_failure_is_json_too(run: Any, path: tuple[str, ...]) -> None:
    """A store that is not there, as every such command may be given; and an option that there is not."""
    for arguments, code in ((["no-such-store", "urn:x"], 1), (["--no-such-option"], 2)):
        result = run(*path, "--json", *arguments)
        if result.code != code:  # it takes no STORE, or not so many arguments
            assert (result.code, code) == (2, 1), result
        told = json.loads(result.out)
        assert set(told) >= {"error", "remedy", "kind"}
        assert told["error"]
        assert result.err.strip(), "people are told as before"
    assert run(*path, *arguments).out == "", "and without --json nothing is on standard output"


def test_the_json_of_a_failure_has_the_remedy_apart_and_what_the_command_knows(
    run: Any, run_out_of_time: Any, tmp_path: Path
) -> None:
    (tmp_path / "order.xml").write_text("<order/>")
    url = f"http://127.0.0.1:{free_ports(1)[0]}/"
    result = run_out_of_time("send", "--to", url, "--json", "order.xml", what="; 1 stored, 0 acknowledged")
    assert result.code == 1
    told = json.loads(result.out)
    assert re.match(r"not done within [0-9.]+ s; 1 stored, 0 acknowledged", told["error"])
    assert told["remedy"].startswith("1 unacknowledged message is safe in outbox")
    assert told["kind"] == "NotAcknowledged"
    assert (told["stored"], told["acknowledged"], told["outstanding"]) == (1, 0, 1)
    assert json.loads(run("sned", "--json").out)["error"].endswith("Did you mean 'send'?")


def numeric_options() -> list[Any]:
    """Every option of every command that is a number."""

    def below(command: click.Command, path: str, context: click.Context) -> Iterator[Any]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, f"{path} {name}", click.Context(found, parent=context))
        for one in command.params:
            if isinstance(one.type, click.types.IntParamType | click.types.FloatParamType):
                yield pytest.param(one, id=f"{path} {one.opts[0]}".strip())

    return list(below(cli, "", click.Context(cli)))


HOSTILE = [
    "nan",
    "inf",
    "-inf",
    "-1",
    "-0.5",
    "-1e300",
    "1e300",
    "1e400",
    "9" * 20,
    "9" * 400,
    "9" * 5000,
    "",
    " ",
    "x",
]


@pytest.mark.parametrize("option", numeric_options())
def test_every_number_of_the_command_line_has_bounds(option: click.Parameter) -> None:
    for value in HOSTILE:
        with pytest.raises(click.BadParameter):
            option.type.convert(value, option, None)


def test_numbers_of_the_command_line_have_one_reader() -> None:
    """A plain ``click.FloatRange`` accepts ``nan`` and ``inf``."""
    kinds = {type(parameter.values[0].type) for parameter in numeric_options()}
    assert kinds == {Number, Seconds, Count}


@pytest.mark.parametrize("value", [*HOSTILE, "nans", "infs", "1e400s", "-1s", "s", "1 s", "9" * 400 + "s"])
def test_a_duration_of_the_command_line_is_one(value: str) -> None:
    with pytest.raises(click.UsageError):
        duration(value)


PLACES_OF_URLS = [
    ("send", "--to", "{}", "a.xml"),
    ("send", "--to", "http://h/", "--proxy", "{}", "a.xml"),
    ("send", "--wsdl", "{}", "a.xml"),
    ("queues", "list", "--admin", "{}"),
    ("sequences", "list", "--admin", "{}"),
    ("cluster", "verify", "--admin", "{}"),
    ("wsdl", "{}"),
    ("audit", "{}"),
    ("land", "--admin", "{}", "--queue", "q", "--table", "t"),
    ("land", "--admin", "http://h/", "--proxy", "{}", "--queue", "q", "--table", "t"),
    ("receive", "--admin", "{}"),
    ("serve", "json:loads", "--allow-address", "{}"),
    ("sequences", "{}"),
]


@pytest.mark.parametrize("url", NO_URLS)
@pytest.mark.parametrize("place", PLACES_OF_URLS, ids=" ".join)
def test_an_address_that_is_none_is_an_error_and_no_traceback(
    run: Any, tmp_path: Path, place: tuple[str, ...], url: str
) -> None:
    (tmp_path / "a.xml").write_text("<a/>")
    result = run(*(one.replace("{}", url) for one in place))
    assert result.code in (1, 2)
    assert "Traceback" not in result.err and "ValueError" not in result.err
    assert result.err.strip()


@pytest.mark.parametrize("url", NO_HOSTS)
def test_a_database_at_a_host_that_is_none_is_an_error_and_no_traceback(run: Any, url: str) -> None:
    result = run("receive", "--store", url.replace("http://", "postgresql://u@") + "/n")
    assert (result.code, "Traceback" in result.err) == (1, False)
    assert "Example: postgresql://" in result.err
