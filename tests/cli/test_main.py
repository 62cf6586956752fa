"""What holds for every command: help that teaches, the nearest right name, exit codes, a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli import main as program
from holdfast.cli.main import COMMANDS, cli
from holdfast.exceptions import HoldfastError

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
    assert f"no command '{wrong}'; the nearest is '{right}'" in result.err


def test_a_command_that_resembles_nothing_is_answered_with_all_of_them(run: Any) -> None:
    result = run("xyzzy")
    assert result.code == 2
    assert "there are serve, receive, send" in result.err


def test_an_option_that_is_misspelt_is_wrong_usage(run: Any) -> None:
    result = run("send", "--too", "x")
    assert result.code == 2
    assert "--to" in result.err


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


def test_output_that_nobody_reads_any_more_is_no_error(start: Any) -> None:
    process = start("--help").process
    assert process.stdout is not None
    process.stdout.close()
    process.wait(60)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
