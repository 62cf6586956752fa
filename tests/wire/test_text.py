"""Escaping, numbers and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from holdfast.exceptions import EnvelopeError
from holdfast.wire import text


@given(st.text())
def test_escaped_text_is_read_back_but_for_what_xml_cannot_hold(value: str) -> None:
    element = etree.fromstring(f'<a k="{text.escape_attribute(value)}">{text.escape(value)}</a>'.encode())
    legal = "".join(
        char
        if char in "\t\n\r" or (char >= " " and not "\ud800" <= char <= "\udfff" and char not in "\ufffe\uffff")
        else "\ufffd"
        for char in value
    )
    assert (element.text or "") == legal
    assert element.get("k") == legal


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("PT0S", None),
        ("P0D", None),
        ("PT1H", 3600.0),
        (" PT30M\n", 1800.0),
        ("P1DT1H1M1.5S", 90061.5),
        ("PT00H00M30S", 30.0),
        ("P1Y2M", 365 * 86400.0 + 60 * 86400.0),
    ],
)
def test_a_duration_is_seconds_and_zero_is_never(written: str, seconds: float | None) -> None:
    assert text.duration(written) == seconds


@pytest.mark.parametrize("written", ["P999999999Y", "PT999999999999H999999999999M", "P999999999Y999999999M", "PT1E5S"])
def test_an_absurd_duration_is_the_longest_there_is_and_comes_back(written: str) -> None:
    if "E" in written:
        with pytest.raises(EnvelopeError):
            text.duration(written)
        return
    assert text.duration(written) == text.LONGEST
    assert text.duration(text.write_duration(text.LONGEST)) == text.LONGEST


@pytest.mark.parametrize("written", ["", "P", "PT", "P1DT", "1H", "PT1", "-PT1S", "PT1.S", "P1H", "PT1M1H", "P1W"])
def test_what_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(EnvelopeError):
        text.duration(written)


@given(st.integers(1, 10**12))
def test_a_duration_comes_back_to_the_microsecond(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert text.duration(text.write_duration(seconds)) == pytest.approx(seconds, abs=5e-7)


def test_durations_are_written_plainly() -> None:
    assert [text.write_duration(n) for n in (0, 3600.0, 1.5, 600)] == ["PT0S", "PT3600S", "PT1.5S", "PT600S"]
