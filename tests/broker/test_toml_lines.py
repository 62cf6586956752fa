"""The lines of a TOML file's keys: whatever tomllib takes, each of its keys is found on the line it is written on.

Covers config/lines.py.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.lines import KeyLines, KeyPath


def paths_of(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    """Every table, key and element of what tomllib made of a file."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ({path} if path else set()).union(*(paths_of(one, (*path, name)) for name, one in inner))


TEXT = '''\
# a comment = 1
title = "one [two] # three"
a.b . "c d".'e.f' = 1   # dotted
long = """
[not.a.table]
key = "no" \\"""
""\"""
raw = \'\'\'
[[nor]]
that\'\'\'\'
list = [ 1, # [
  { x = 1, y.z = [ "a", "]" ] },

  "last",
]
when = 1979-05-27 07:32:00
[plain]
one = 1
[deep.er]
[[deep.er.many]]
name = "first"
[deep.er.many.inner]
two = 2
[[deep.er.many]]
[[deep.er.many.most]]
three = 3
["quo\\u0074ed".'k y']
four = {}
'''


def test_every_key_of_a_file_with_all_that_toml_has_is_on_its_line() -> None:
    lines = KeyLines(TEXT)
    assert set(lines) == paths_of(tomllib.loads(TEXT))
    told = TEXT.splitlines()
    for path, begins in {
        ("title",): "title",
        ("a", "b", "c d", "e.f"): "a.b",
        ("raw",): "raw",
        ("list", 1, "y", "z", 1): "  { x",
        ("list", 2): '  "last"',
        ("when",): "when",
        ("plain", "one"): "one",
        ("deep", "er", "many", 0, "name"): "name",
        ("deep", "er", "many", 0, "inner", "two"): "two",
        ("deep", "er", "many", 1, "most", 0, "three"): "three",
        ("quoted", "k y", "four"): "four",
    }.items():
        assert told[lines[path] - 1].startswith(begins), path
    assert [lines["deep", "er", "many", index] for index in (0, 1)] == [
        number for number, line in enumerate(told, 1) if line == "[[deep.er.many]]"
    ]


def test_what_is_not_there_is_said_to_be_where_its_table_is() -> None:
    lines = KeyLines("\n[a]\nb = 1\n")
    assert lines["a", "nothing", "at", "all"] == 2
    assert lines["nothing",] == 1
    assert ("a", "nothing") not in lines


def test_a_table_is_where_it_is_opened_even_if_one_below_it_came_before() -> None:
    lines = KeyLines("[a.b]\n\n[a]\nc = 1\n")
    assert (lines["a",], lines["a", "b"], lines["a", "c"]) == (3, 1, 4)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing", "a = 1\r\nb = 2\r\n", "a=1\r\n\r\n[b]"])
def test_lines_count_alike_however_they_end(text: str) -> None:
    lines = KeyLines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    for path in lines:
        assert str(path[-1]) in text.split("\n")[lines[path] - 1]


# --- any file --------------------------------------------------------------------------------------------------------

BLANKS = st.text(" \t", max_size=2)
BREAKS = st.lists(st.sampled_from(["\n", " \n", '# [x] = """ \'\n', "\t# }\n"]), max_size=2).map("".join)
WORDS = st.text("ab\"'\\#=[]{}.,\u00e9 ", max_size=6)


def basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@st.composite
def keys(draw: st.DrawFn, name: str) -> str:
    """A name as a key: bare or quoted."""
    return draw(st.sampled_from([name, basic(name), f"'{name}'", f'"\\u{ord(name[0]):04x}{name[1:]}"']))


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    """A value, as TOML writes it."""
    kind = draw(st.integers(0, 8 if depth else 6))
    text = draw(WORDS)
    if kind == 0:
        return draw(st.sampled_from(["1", "-0.5", "true", "inf", "0x1F", "1979-05-27", "1979-05-27 07:32:00Z", "1e3"]))
    if kind == 1:
        return basic(text)
    if kind == 2:
        return "'" + text.replace("'", "") + "'"
    if kind in (3, 4):
        lines = draw(BREAKS).replace('"', "")
        return '"""' + lines + text.replace("\\", "\\\\").replace('"', '\\"') + '\\"""""'
    if kind in (5, 6):
        return "'''" + draw(BREAKS).replace("'", "") + text.replace("'", "") + "''" + "'''"
    if kind == 7:
        items = draw(st.lists(values(depth - 1), max_size=3))
        parts = [f"{draw(BREAKS)}{draw(BLANKS)}{item}{draw(BREAKS)}" for item in items]
        return "[" + ",".join(parts) + ("," + draw(BREAKS) if parts and draw(st.booleans()) else "") + "]"
    names = draw(st.lists(st.sampled_from(["i", "jj", "k-k"]), unique=True, max_size=3))
    pairs = [f"{draw(BLANKS)}{draw(keys(name))} = {draw(values(depth - 1))}{draw(BLANKS)}" for name in names]
    return "{" + ",".join(pairs) + "}"


@st.composite
def files(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    """A file, and the lines of some of its keys."""
    text, known = "", {}
    sizes: dict[str, int] = {}
    for number in range(draw(st.integers(0, 4))):
        table: KeyPath = ()
        text += draw(BREAKS)
        if number:
            name = draw(st.sampled_from(["list", "more"]))
            is_array = name not in sizes or draw(st.booleans())
            line = text.count("\n") + 1
            if is_array:
                sizes[name] = sizes.get(name, 0) + 1
                table = (name, sizes[name] - 1)
                text += f"[[{draw(BLANKS)}{draw(keys(name))}{draw(BLANKS)}]]\n"
            else:
                table = (name, sizes[name] - 1, f"t{number}")
                text += f"[{draw(keys(name))} . {draw(keys(f't{number}'))}] # [z]\n"
            known[table] = line
        for key in draw(st.lists(st.sampled_from(["x", "y_1", "z"]), unique=True, max_size=3)):
            text += draw(BREAKS)
            below = draw(st.sampled_from(["", "p", "q"]))
            known[(*table, key, below) if below else (*table, key)] = text.count("\n") + 1
            dotted = f"{draw(BLANKS)}.{draw(BLANKS)}{draw(keys(below))}" if below else ""
            text += f"{draw(BLANKS)}{draw(keys(key))}{dotted}{draw(BLANKS)}={draw(BLANKS)}{draw(values())} # = [\n"
    return text, known


@given(files())
def test_any_file_that_tomllib_takes_has_all_its_keys_where_they_were_written(
    file: tuple[str, dict[KeyPath, int]],
) -> None:
    text, known = file
    lines = KeyLines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    assert {path: lines[path] for path in known} == known
