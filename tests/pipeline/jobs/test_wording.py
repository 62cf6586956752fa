"""Errors name options in one way, and a command tells them in its own words: looked at in every error there is.

Covers client/command_options.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StringType, StructField, StructType
from texts import texts

from holdfast.cli.inspection.queues import export
from holdfast.client.command_options import _WORDS, FLAGS, KEYS, NAMED, flag_of, have_answer, in_words_of, own_words
from holdfast.exceptions import HoldfastError
from holdfast.pipeline.bodies.columns import BodyColumns
from holdfast.pipeline.jobs.audit import audit_command
from holdfast.pipeline.jobs.land import land_command
from holdfast.pipeline.jobs.mediation import check, run
from holdfast.pipeline.jobs.reland import reland_command
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.writer.options import WriteOptions

FIELDS = [one for kind in (ReadOptions, WriteOptions) for one in kind.__dataclass_fields__.values() if one.metadata]
OPTIONS = sorted({one.metadata[key] for one in FIELDS for key in ("name", "alias") if one.metadata[key]})
PLAIN = [name for name in OPTIONS if name != name.lower()]
"""Names that are no word of English: where one stands, an option is meant."""
COMMANDS = {"land": land_command, "audit": audit_command, "run": run, "check": check, "export": export}

NAMES_ONE = rf"\b(?:{'|'.join(PLAIN)})\b"


def test_every_option_is_known_by_its_name_and_no_other_word():
    assert all(NAMED.fullmatch(f"option {name}") for name in OPTIONS)
    words = [name for name in OPTIONS if name == name.lower()]
    assert not [word for word in ("option and", "options are", "option in", "option of") if NAMED.match(word)]
    assert sorted(_WORDS.split("|")) == sorted([*words, "prefix"]), "a landing has an option prefix too"


def test_every_text_that_names_an_option_marks_it_for_the_command_to_render():
    naming = [(place, said) for place, said in texts(NAMES_ONE) if re.search(NAMES_ONE, said)]
    assert len(naming) > 15
    unmarked = []
    for place, said in naming:
        is_program = ".option(" in said or place.startswith("pipeline/jobs/command.py") or "help" in place
        if not is_program and re.search(NAMES_ONE, NAMED.sub("", said)):
            unmarked.append(place)
    assert not unmarked, "write 'option NAME'"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_option_is_told_as_what_the_command_has_for_it(command: click.Command):
    flags = [flag for one in command.params for flag in one.opts]
    for name in OPTIONS:
        told = in_words_of(command, f"set option {name}=1")
        match told.removeprefix("set ").removesuffix("=1").split():
            case ["--option", written]:
                assert (written, "--option" in flags, flag_of(command, name)) == (name, True, None)
            case ["option", written, "in", "the", "file"]:
                assert (written, "--option" in flags) == (name, False)
            case [key, "in", "the", "file"]:
                assert (key, "--option" in flags, flag_of(command, name)) == (KEYS[name], False, None)
            case [flag, *_]:
                assert flag in flags or flag == "PLACE"
                assert flag in FLAGS[name]


@pytest.mark.parametrize("command", [land_command, reland_command])
def test_the_remedy_for_a_name_that_is_taken_is_the_prefix_of_the_command(command: click.Command):
    fields = StructType([StructField("batch", StringType())])
    with click.Context(command), pytest.raises(HoldfastError) as caught, own_words():
        BodyColumns(fields)
    assert caught.value.remedy.endswith("with --prefix")


def test_several_options_are_told_one_by_one_and_other_words_stay():
    told = in_words_of(land_command, "options queue and startingOffsets exclude each other, as option awaySeconds='x'")
    assert told == "--queue and --option startingOffsets exclude each other, as --away-seconds='x'"
    same = "option and start again; the options are these; --option failOnDataLoss; a reader, its queue"
    assert in_words_of(land_command, same) == same


@pytest.mark.parametrize("kind", [HoldfastError, click.UsageError])
def test_what_goes_wrong_in_a_command_is_told_in_its_words(kind: type[Exception]):
    with click.Context(land_command), pytest.raises(kind) as caught, own_words():
        raise kind("option awaySeconds is wrong")
    assert "--away-seconds is wrong" in str(getattr(caught.value, "message", ""))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("queue=orders", "queue is --queue here"),
        ("AWAYSECONDS=3", "AWAYSECONDS is --away-seconds here"),
        ("nonsense", "is not NAME=VALUE"),
        ("failOnDataLos=false", "Did you mean 'failOnDataLoss'"),
        ("partitions=0", "--option partitions is for batch reads"),
        ("startingOffsets=soon", "--option startingOffsets='soon' is not a position"),
    ],
)
def test_further_options_that_land_cannot_use_are_wrong_usage(given: str, why: str):
    usual = ["--broker", "http://127.0.0.1:9", "--out", "o", "--checkpoint", "c"]
    result = CliRunner().invoke(land_command, [*usual, "--option", given])
    assert result.exit_code == 2
    assert why in result.output


PIPELINE = """
name = "nobody"
checkpoint = "progress"
[sources.orders]
broker = "http://127.0.0.1:9"
queue = "orders"
[sinks.kept]
table = "kept"
[[routes]]
input = "orders"
to = "kept"
"""


@pytest.mark.parametrize("wait", [[], ["--away-seconds", "0.01"]])
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (land_command, ["--broker", "http://127.0.0.1:9", "--out", "o", "--checkpoint", "c"]),
        (audit_command, ["http://127.0.0.1:9"]),
        (run, ["nobody.toml"]),
        (check, ["nobody.toml", "--dry-run"]),
        (export, ["orders", "--admin", "http://127.0.0.1:9", "--jsonl", "-"]),
    ],
    ids=COMMANDS,
)
def test_where_nobody_ever_answers_a_command_says_what_it_waits_for_and_ends_soon(
    command: click.Command,
    arguments: list[str],
    wait: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Before Spark is started. Waits are made a hundred times shorter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nobody.toml").write_text(PIPELINE)
    monkeypatch.setattr("holdfast.client.command_options.NOBODY", 0.05)
    monkeypatch.setattr("holdfast.client.data_plane.TELL_AFTER", 0.0)
    monkeypatch.setattr("holdfast.pipeline.jobs.command.session", lambda *_, **__: pytest.fail("Spark is not to start"))
    result = CliRunner().invoke(command, [*arguments, *wait])
    told = result.output + str(result.exception)
    assert result.exit_code == 1
    assert f"does not answer: Connection refused (tried for {wait[1] if wait else '0.05'} s)" in told
    assert "--away-seconds sets how long" in told and "awaySeconds" not in told
    assert ("Check that this is the admin listener" in told) == (not wait)
    assert "http://127.0.0.1:9 does not answer: Connection refused; waiting for 0 s more" in caplog.text


def test_a_known_server_that_is_away_is_waited_for_as_long_as_usual(
    monkeypatch: pytest.MonkeyPatch,
):
    from holdfast.client.data_plane import Patience
    from holdfast.client.errors import NobodyThere, ServerAway

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def waited(patience: Patience, *errors: Exception) -> float:
        began, said = now[0], iter(errors)

        def ask() -> None:
            error = next(said, errors[-1])
            if error is not None:
                raise error

        def ask_for_ever() -> None:
            while True:
                patience.call(ask)

        with pytest.raises(ServerAway):
            ask_for_ever()
        return now[0] - began

    def patience() -> Patience:
        return Patience(60, clock=lambda: now[0], sleep=sleep, nobody=5)

    assert waited(patience(), NobodyThere("a")) == pytest.approx(5)
    assert waited(patience(), ServerAway("503")) == pytest.approx(60)
    assert waited(patience(), None, NobodyThere("a")) == pytest.approx(60)


def test_who_is_told_to_end_while_nobody_answers_ends(monkeypatch: pytest.MonkeyPatch):
    import threading

    from holdfast.client.errors import NobodyThere

    stop = threading.Event()

    def ask() -> None:
        stop.set()
        raise NobodyThere("nobody")

    with pytest.raises(KeyboardInterrupt):
        have_answer(ask, None, stop)
