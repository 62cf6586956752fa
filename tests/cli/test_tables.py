"""Tables: words are whole whatever the width, cells steer no terminal, and lines fit where they can.

Covers client/terminal_text.py.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from examples import examples
from holdfast.cli.tables import GAP, column_widths, print_one, print_table
from holdfast.client.terminal_text import shown


@st.composite
def tables(draw: st.DrawFn, alphabet: str = "aé東") -> list[list[str]]:
    columns = draw(st.integers(1, 6))
    cells = st.lists(st.text(alphabet, min_size=1, max_size=50), max_size=6).map(" ".join)
    row = st.lists(cells, min_size=columns, max_size=columns)
    return draw(st.lists(row, min_size=1, max_size=5))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(tables(), st.integers(1, 200))
@example([["urn:uuid:2f0c7a6e-5d3b-4c1a-9e8f-112233445566", "1-3, 5-9, 12-40, 50-60, 70-80"]], 60)
def test_no_word_is_broken_and_only_a_long_word_exceeds_the_terminal(rows: list[list[str]], width: int) -> None:
    widths = column_widths(rows, width)
    longest = [max(cell_len(word) for row in rows for word in row[column].split(" ")) for column in range(len(rows[0]))]
    assert all(wide >= word for wide, word in zip(widths, longest, strict=True))
    total = sum(widths) + GAP * (len(widths) - 1)
    assert total <= width or widths == longest
    whole = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(whole) + GAP * (len(whole) - 1) <= width:
        assert widths == whole


@settings(max_examples=examples(40))
@given(tables("abc-:"), st.integers(20, 120))
def test_every_word_of_a_table_is_found_on_a_line_of_the_terminal(rows: list[list[str]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", Terminal())
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "dumb")
        print_table([f"c{number}" for number in range(len(rows[0]))], rows)
        lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    for row in rows:
        for cell in row:
            for word in cell.split():
                assert any(word in line for line in lines), word


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202eevil", "\\u202eevil"),
        ("Zürich 東京", "Zürich 東京"),
    ],
)
def test_what_a_peer_made_up_steers_no_terminal(text: str, seen: str, capsys: Any) -> None:
    assert shown(text) == seen
    print_table(["identifier"], [[text]])
    print_one({"identifier": text})
    assert capsys.readouterr().out.count(seen) == 2


def test_what_has_fields_itself_is_shown_in_words_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_one(
        {"name": "q", "ends": {"0": {"first": 1, "end": 3}}, "cursors": [{"name": "a", "lag": 2.21}, {"name": "b"}]}
    )
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "q"],
        ["ends", "0", "first", "1,", "end", "3"],
        ["cursors", "name", "a,", "lag", "2.2"],
        ["name", "b"],
    ]
