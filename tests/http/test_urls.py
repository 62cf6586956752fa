"""URLs as they go on the wire, and headers that may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigurationError
from holdfast.http.urls import Origin, check_field, parse_url


@pytest.mark.parametrize(
    ("url", "origin", "target", "authority"),
    [
        ("http://a.example", Origin(False, "a.example", 80), "/", "a.example"),
        ("https://A.Example:443/rm?x=1#part", Origin(True, "a.example", 443), "/rm?x=1", "a.example"),
        ("http://a.example:8080?x", Origin(False, "a.example", 8080), "/?x", "a.example:8080"),
        ("http://[::1]:81/", Origin(False, "::1", 81), "/", "[::1]:81"),
        (
            "https://bücher.example/ä b",
            Origin(True, "xn--bcher-kva.example", 443),
            "/%C3%A4%20b",
            "xn--bcher-kva.example",
        ),
        ("http://me:word@a.example/%2e%2e/x", Origin(False, "a.example", 80), "/%2e%2e/x", "a.example"),
    ],
)
def test_a_url_says_where_to_connect_and_what_to_ask_for(url: str, origin: Origin, target: str, authority: str) -> None:
    assert parse_url(url) == (origin, target)
    assert parse_url(url)[0].authority == authority


@pytest.mark.parametrize("url", ["", "a", "ftp://a/", "http://", "http://a:99999/", "http://a:x/", "http://[::1/"])
def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_url_can_end_the_request_line_early(text: str) -> None:
    try:
        origin, target = parse_url(f"http://{text}")
    except ConfigurationError:
        return
    assert target.startswith("/")
    assert target.isascii() and target.isprintable() and " " not in target
    assert not set("\r\n\0 /") & set(origin.host)


@pytest.mark.parametrize(
    ("name", "value"), [("A b", "x"), ("", "x"), ("A:", "x"), ("A", "x\r\nB: y"), ("A", "\0"), ("A", "€"), ("Ä", "x")]
)
def test_what_is_no_header_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError):
        check_field(name, value)
