"""What a person reads of an answer that is not SOAP: the text of a page, on one line, short and without secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.outcome import NEEDS_HTTPS, Response, words_of

PARTS = [b"<html>", b"<!DOCTYPE html>", b"<script>", b"</script>", b"<style", b"<!--", b"-->", b"<p>", b">", b"&lt;"]


def said(body: bytes, media: str = "text/html", status: int = 200) -> str:
    return words_of(Response(status, {"content-type": media}, body))


@pytest.mark.parametrize(
    ("body", "media", "words"),
    [
        (b"<!DOCTYPE html><html><body>Wartung bis <b>8 Uhr</b></body></html>", "text/html", "Wartung bis 8 Uhr"),
        (b"<html>WAF: request blocked.<br/>Support ID 123</html>", "text/html", "WAF: request blocked. Support ID 123"),
        (
            b"<html><head><title>Busy</title><style>p {x: y}</style></head><p>Later",
            "application/xhtml+xml",
            "Busy Later",
        ),
        (b"\n<HTML>no <!-- <b>secret</b> --> type<SCRIPT>if (a<b) x()</SCRIPT>\r\n!", "", "no type !"),
        ("<html>Gr\u00fc\u00dfe".encode(), "text/html", "Gr\u00fc\u00dfe"),
        ("<html>Gr\u00fc\u00dfe".encode("latin-1"), "text/html", "Gr\u00fc\u00dfe"),
        (b"<html>Gr&uuml;&szlig;e &amp;&#x1b;[31m!", "text/html", "Gr\u00fc\u00dfe &[31m!"),
        (b"<html>Debug: &lt;wsse:Password&gt;secret", "text/html", "Debug:"),
        (b"<html>Debug: <p>now <wsse:Password>secret</wsse:Password>", "text/html", "Debug: now"),
        (b"<html>" + b"a" * 500, "text/html", "a" * 200),
        (b"slow down\r\nplease", "text/plain; charset=utf-8", "slow down"),
        (b"<error>no</error>", "application/xml", ""),
        (b"", "text/html", ""),
    ],
)
def test_a_page_is_quoted_by_its_text(body: bytes, media: str, words: str) -> None:
    assert said(body, media) == words


@given(st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=20), st.text(max_size=20).map(str.encode))))
def test_whatever_comes_is_one_short_line_without_markup(parts: list[bytes]) -> None:
    for media in ("text/html", "text/plain", "application/soap+xml"):
        words = said(b"".join(parts), media)
        assert len(words) <= 200 and words == words.strip() and all(map(str.isprintable, words))
        assert "<" not in words or media == "text/plain"


def test_http_at_a_port_for_https_is_named_whatever_the_page_says() -> None:
    assert said(b"<html>The plain HTTP request was sent to HTTPS port</html>", status=400) == NEEDS_HTTPS
