"""The allow-list: an address is what the HTTP client makes of it and a server may, not how it is written."""

from __future__ import annotations

import asyncio
import ipaddress
import posixpath
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.endpoint.destination.allow_list import AllowList, one_form
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.client import HTTPClient
from holdfast.http.server.server import Exchange, HTTPServer

ALLOWED = AllowList(
    [
        "http://partner.example/rm/",
        "https://other.example:8443",
        "HTTPS://Bücher.example:443/A%2dB",
        "http://127.0.0.1:8080/in",
        "http://[2001:DB8:0::1]/",
    ]
)


@pytest.mark.parametrize(
    "address",
    [
        "http://partner.example/rm",
        "HTTP://PARTNER.example./rm/",
        "http://partner.example:80/rm/x",
        "http://partner.example:9999/%72m/my%20service?a=/../b#c",
        "https://other.example:8443/any/thing",
        "https://xn--bcher-kva.example/A-B/c",
        "https://bücher.example:443/A%2DB",
        "http://2130706433:8080/in",
        "http://0x7f.1:8080/in",
        "http://0177.0.0.1:8080/in",
        "http://[::ffff:127.0.0.1]:8080/in",
        "http://[::FFFF:7f00:1]:8080/in",
        "http://１２７.0.0.1:8080/in",
        "http://[2001:db8::0:1]:7/x",
    ],
)
def test_the_same_place_is_allowed_however_it_is_written(address: str) -> None:
    assert ALLOWED.allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://partner.example/rm/%2e%2e/admin",
        "http://partner.example/rm/%2E./admin",
        "http://partner.example/rm/%252e%252e/admin",
        "http://partner.example/rm/..;a=b/admin",
        "http://partner.example/rm/..%2fadmin",
        "http://partner.example/rm/%5c..%5cadmin",
        "http://partner.example/rm\\..\\admin",
        "http://partner.example/rm/%c0%ae%c0%ae/admin",
        "http://partner.example/rm/x%00",
        "http://partner.example/rm/\t../admin",
        "http://partner.example/rm%2fx/../..",
        "http://partner.example/rmx",
        "http://partner.example/RM",
        "http://partner.example/",
        "http://partner.example\\@evil.example/rm",
        "http://partner.example:80@evil.example/rm",
        "http://user@partner.example/rm",
        "http://partner.example.evil.example/rm",
        "http://partner%2eexample/rm",
        "http:partner.example/rm",
        "//partner.example/rm",
        "https://partner.example/rm",
        "ftp://partner.example/rm",
        "https://other.example/",
        "http://other.example:8443/",
        "http://2130706434:8080/in",
        "http://127.0.0.1/in",
        "http://127.0.0.1:80a/in",
        "http://[::1]:8080/in",
        "http://[2001:db8::2]/",
        "",
        "urn:partner",
    ],
)
def test_what_leads_elsewhere_or_may_be_read_in_two_ways_is_not(address: str) -> None:
    assert not ALLOWED.allows(address)


@pytest.mark.parametrize(
    "entry",
    ["partner.example", "http://", "ftp://a/", "http://a/x?y", "http://a/#f", "http://u@a/", "http://a/../b",
     "http://a:99999/", "http://a b/", b"http://a/", "http://a/%2e%2e"],
)  # fmt: skip
def test_an_entry_that_could_never_match_is_refused_when_it_is_given(entry: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        AllowList([entry])  # type: ignore[list-item]
    assert refused.value.remedy


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{:d}", "{:#x}", "0{:o}"]))
def test_an_ipv4_address_has_one_form(number: int, form: str) -> None:
    assert one_form(form.format(number)) == str(ipaddress.IPv4Address(number))


PIECES = st.sampled_from(
    ["/", "//", "rm", "r%6d", "RM", "..", ".", "%2e", "%2E%2e", "%252e", "%2f", "%5c", "\\", ";", "x", "%", "%zz", "?",
     "#", "@", "ä", "%c3%a4", "%c0%ae", " ", "%20", "\t", ":"]
)  # fmt: skip
HOSTS = st.sampled_from(
    ["127.0.0.1", "127.0.0.1", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "127.0.0.2",
     "017700000001", "localhost", "１２７.0.0.1", "127.0.0.1%2f", "a@127.0.0.1", "127.0.0.1\\@127.0.0.2", "[::1]"]
)  # fmt: skip


PATHS = st.tuples(st.sampled_from([["/rm/"], ["/r%6d"], ["/rm"], ["/"], []]), st.lists(PIECES, max_size=5)).map(
    lambda parts: [*parts[0], *parts[1]]
)


def normal(target: str) -> str:
    """A path as the most forgiving server reads it: decoded until nothing changes, then the dots resolved."""
    path = target.partition("?")[0]
    for _ in range(10):
        path = unquote(path)
    parts = [part.partition(";")[0] for part in path.replace("\\", "/").split("/")]
    return posixpath.normpath("/".join(parts))


def test_the_client_connects_to_allowed_ports_and_stays_below_the_path() -> None:
    seen: dict[int, list[str]] = {}

    def handler(exchange: Exchange) -> None:
        seen[int(exchange.request.headers[b"host"].rpartition(b":")[2])].append(exchange.request.target)
        exchange.respond(200)

    with asyncio.Runner() as runner:
        allowed, other, client = HTTPServer(), HTTPServer(), HTTPClient()
        for server in (allowed, other):
            runner.run(server.start(handler, "127.0.0.1", 0))
            seen[server.port] = []
        entries = AllowList([f"http://127.0.0.1:{allowed.port}/rm"])
        let_through = 0

        @settings(max_examples=examples(1000))
        @example("127.0.0.1", "ours", ["/", "rm"])
        @example("2130706433", "ours", ["/", "r%6d", "/", "x"])
        @given(HOSTS, st.sampled_from(["ours", "ours", "ours", "theirs", "", "0"]), PATHS)
        def check(host: str, port: str, pieces: list[str]) -> None:
            nonlocal let_through
            number = {"ours": f":{allowed.port}", "theirs": f":{other.port}", "": "", "0": ":0"}[port]
            address = f"http://{host}{number}{''.join(pieces)}"
            if not entries.allows(address):
                return
            let_through += 1
            for targets in seen.values():
                targets.clear()
            runner.run(client.fetch("POST", address, b"<a/>", {}))
            assert not seen[other.port]
            (target,) = seen[allowed.port]
            assert f"{normal(target)}/".startswith("/rm/"), (address, target)

        check()
        assert let_through >= 20
        runner.run(client.close())
        for server in (allowed, other):
            runner.run(server.close())
