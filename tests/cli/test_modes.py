"""No option is ignored in silence: every command uses each of its options on every way through it, or refuses it there.

A way is one choice of the branches of a command's function. An option counts as used on it if the function reads its
argument, or names it in a text, as it does to refuse it. What other functions do with an argument is not followed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli
from holdfast.store import open_store

MEANT = {
    ("forwarders show", "every"): "JSON always has every partition",
}
"""Options that a mode may ignore, and why."""


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        if not isinstance(one, click.Group) or one.invoke_without_command:
            yield before + name, one
        if isinstance(one, click.Group):
            yield from commands(one, f"{before}{name} ")


COMMANDS = dict(commands(cli))


def names_in(node: ast.AST, texts: dict[str, Sequence[str]]) -> set[str]:
    """The variables that are read, and the texts, also those of constants of the module."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            found |= {one.id, *texts.get(one.id, ())}
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.add(one.value)
    return found


def ways(statements: list[ast.stmt], texts: dict[str, Sequence[str]]) -> Iterator[tuple[list[str], set[str]]]:
    """Each way through the statements that ends without an error: its conditions, and the names used on it."""
    if not statements:
        yield [], set()
        return
    one, rest = statements[0], statements[1:]
    if isinstance(one, ast.Raise):
        return
    if isinstance(one, ast.If):
        used = names_in(one.test, texts)
        for body, condition in ((one.body, ""), (one.orelse, "not ")):
            for conditions, names in ways([*body, *rest], texts):
                yield [f"{condition}({ast.unparse(one.test)})", *conditions], used | names
    elif isinstance(one, ast.With | ast.Try):
        within = one.items if isinstance(one, ast.With) else [*one.handlers]
        used = set().union(*(names_in(item, texts) for item in within))
        after = [*one.orelse, *one.finalbody] if isinstance(one, ast.Try) else []
        for conditions, names in ways([*one.body, *after, *rest], texts):
            yield conditions, used | names
    elif isinstance(one, ast.Return) or "sys.exit(" in ast.unparse(one):
        yield [], names_in(one, texts)
    else:
        for conditions, names in ways(rest, texts):
            yield conditions, names_in(one, texts) | names


def ignored(function: Callable[..., Any], options: set[str]) -> dict[str, str]:
    """Option -> the conditions under which a command ignores it."""
    wrappers: set[str] = set()
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        wrappers |= {*inspect.signature(function, follow_wrapped=False).parameters}
        function = inner
    texts = {name: value for name, value in function.__globals__.items() if isinstance(value, tuple)}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    named = {one.arg for one in (*tree.args.args, *tree.args.kwonlyargs)}
    others = tree.args.kwarg.arg if tree.args.kwarg is not None else None
    found: dict[str, str] = {}
    for conditions, used in ways(tree.body[1:], texts):
        if any(f"not {one}" in conditions for one in conditions):  # nothing goes this way
            continue
        for option in options - used - wrappers:
            if option in named or others not in used:
                found.setdefault(option, " and ".join(conditions) or "always")
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_no_way_through_a_command_ignores_an_option(name: str) -> None:
    command = COMMANDS[name]
    assert command.callback is not None
    options = {str(one.name) for one in command.params if one.expose_value}
    found = ignored(command.callback, options)
    assert {option: when for option, when in found.items() if (name, option) not in MEANT} == {}


def test_an_ignored_option_is_found() -> None:
    def command(one: int, two: int, three: bool, **others: Any) -> None:
        """One that ignores much."""
        if three:
            print(two)
            return
        if others["four"]:
            raise ValueError(one)
        print(one)

    assert ignored(command, {"one", "two", "three", "four"}) == {
        "one": "(three)",
        "four": "(three)",
        "two": "not (three) and not (others['four'])",
    }


def test_what_was_meant_is_still_ignored() -> None:
    for name, option in MEANT:
        command = COMMANDS[name]
        assert command.callback is not None
        assert option in ignored(command.callback, {option})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    open_store(tmp_path / "inbox").close()
    return tmp_path / "inbox"


@pytest.mark.parametrize("name", ["sequences list", "outbox list", "dead-letters list"])
@pytest.mark.parametrize("option", ["--ca", "--cert", "--cert-key", "--token-file"])
def test_what_a_listener_wants_has_no_effect_with_a_store(name: str, option: str, store: Path) -> None:
    result = CliRunner().invoke(cli, [*name.split(), str(store), option, __file__])
    assert result.exit_code == 2
    assert f"{option} has no effect with a STORE: omit it, or use --admin." in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["broker", "--workers", "2", "check", __file__], "--workers has no effect before check"),
        (["pipeline", "check", __file__, "--rows", "3"], "--rows has no effect without --dry-run"),
        (["pipeline", "check", __file__, "--master", "x"], "--master has no effect without --dry-run and --with"),
        (["pipeline", "check", __file__, "--with", "a", "--rows", "3"], "--rows has no effect with --with"),
        (["reassemble", "x", "--out", "o", "--interval", "0"], "--interval has no effect without --stream"),
    ],
)
def test_options_of_another_mode_are_wrong_usage(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, told in result.output) == (2, True), result.output
