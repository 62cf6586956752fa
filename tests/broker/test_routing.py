"""Routes: the first that takes a message has it; a plain model says the same; and nothing is parsed without need.

Covers broker/xpath_program.py and config/patterns.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from examples import examples
from holdfast.broker import routing, xpath_program
from holdfast.broker.config import HeaderConfig, RouteConfig
from holdfast.broker.config_checks import hides
from holdfast.broker.routing import LOOP_STEPS, Router, read_header
from holdfast.config.patterns import matches
from holdfast.core.messages import Envelope, Expects, Fault, Routed
from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.decoder import OFF_LOOP

NAMESPACES = {"o": "urn:o"}
LOOK = 1 << 16


def message(action: str = "", to: str | None = None, body: str = "<a/>", *headers: str) -> Envelope:
    blocks = tuple(header.encode() for header in headers)
    return Envelope(SOAP.V1_2, action=action, to=to, body=body.encode(), headers=blocks)


def router(*routes: RouteConfig, default: str | None = None, most: int = LOOK, **more: Any) -> Router:
    return Router(routes, NAMESPACES, default, most, **more)


def queues(route: Router, envelope: Envelope) -> tuple[str, ...]:
    found = route(envelope)
    assert isinstance(found, Routed), found
    return found.queues


def test_the_first_route_that_takes_a_message_has_it() -> None:
    route = router(
        RouteConfig(("exact",), action=("urn:o/Submit",)),
        RouteConfig(("one", "two"), action=("urn:o/*",), to=("http://a/*", "http://b/")),
        RouteConfig(("middle",), to=("http://*/orders",)),
        default="rest",
    )
    assert queues(route, message("urn:o/Submit", "http://a/")) == ("exact",)
    assert queues(route, message("urn:o/Cancel", "http://a/x")) == ("one", "two")
    assert queues(route, message("urn:o/Cancel", "http://b/")) == ("one", "two")
    assert queues(route, message("urn:o/Cancel", "http://b/x")) == ("rest",)
    assert queues(route, message("", "http://c/orders")) == ("middle",)
    assert queues(route, message("urn:x")) == ("rest",)


def test_what_no_route_takes_is_refused_with_the_reason() -> None:
    fault = router(RouteConfig(("a",), action=("urn:a",)))(message("urn:b" + "b" * 3000, "http://x/"))
    assert isinstance(fault, Fault)
    assert (fault.code, fault.is_addressing) == ("DestinationUnreachable", True)
    assert "'http://x/'" in fault.reason and "'urn:bbb" in fault.reason
    assert len(fault.reason) < 500
    fault = router(RouteConfig(("a",), action=("urn:a",)))(message("urn:b"))
    assert isinstance(fault, Fault) and "no To" in fault.reason


def test_a_header_decides_by_its_name_and_text() -> None:
    route = router(
        RouteConfig(("acme",), header=HeaderConfig("o:Tenant", ("acme", "acme-*"))),
        RouteConfig(("any",), header=HeaderConfig("o:Tenant")),
        RouteConfig(("plain",), header=HeaderConfig("Tenant")),
        default="rest",
    )
    tenant = '<t:Tenant xmlns:t="urn:o" a="1"> {} </t:Tenant>'
    assert queues(route, message("", None, "<a/>", "<x/>", tenant.format("acme"))) == ("acme",)
    assert queues(route, message("", None, "<a/>", tenant.format("acme-<b>7</b>"))) == ("acme",)
    assert queues(route, message("", None, "<a/>", tenant.format("other"))) == ("any",)
    assert queues(route, message("", None, "<a/>", "<Tenant/>")) == ("plain",)
    assert queues(route, message("", None, "<a/>", "<Other>Tenant</Other>")) == ("rest",)


def test_a_body_decides_by_xpath_and_all_of_a_route_must_hold() -> None:
    route = router(
        RouteConfig(("big",), action=("urn:a",), xpath="/o:order[@total > 1000]"),
        RouteConfig(("late",), header=HeaderConfig("o:Late"), xpath="//o:line"),
        RouteConfig(("lines",), xpath="//o:line"),
        default="rest",
    )
    order = '<o:order xmlns:o="urn:o" total="{}">{}</o:order>'
    assert queues(route, message("urn:a", None, order.format(2000, ""))) == ("big",)
    assert queues(route, message("urn:b", None, order.format(2000, ""))) == ("rest",)
    assert queues(route, message("urn:a", None, order.format(10, "<o:line/>"))) == ("lines",)
    late = '<o:Late xmlns:o="urn:o"/>'
    assert queues(route, message("urn:a", None, order.format(10, "<o:line/>"), late)) == ("late",)


def test_nothing_is_parsed_that_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any) -> Any:
        raise AssertionError("parsed")

    monkeypatch.setattr(routing, "ParserCreate", parse)
    monkeypatch.setattr("holdfast.broker.xpath_program.ParserCreate", parse)
    route = router(
        RouteConfig(("a",), action=("urn:a",)),
        RouteConfig(("x",), action=("urn:x",), xpath="//a"),
        RouteConfig(("h",), action=("urn:h",), header=HeaderConfig("o:Tenant")),
        default="rest",
    )
    assert queues(route, message("urn:a", None, "<a>", "<b>")) == ("a",)
    assert queues(route, message("urn:b", None, "<a>", "<b>")) == ("rest",)
    assert queues(route, message("urn:h", None, "<a>", "<b/>")) == ("rest",)  # nothing like that name is in it
    assert route.at_once(message("urn:a", None, "<a/>" * (OFF_LOOP // 4))) == route(message("urn:a"))
    assert route.at_once(message("urn:x", None, "<a/>" * (OFF_LOOP // 4))) is None
    with pytest.raises(AssertionError, match="parsed"):
        route(message("urn:x"))


def test_one_pass_decides_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    real = routing.Program.run
    monkeypatch.setattr(routing.Program, "run", lambda *given: (passes.append(1), real(*given))[1])
    route = router(*(RouteConfig((f"q{n}",), xpath=f"//a[@n = {n}]") for n in range(20)))
    assert queues(route, message("", None, '<a n="17"/>')) == ("q17",)
    assert len(passes) == 1


def test_a_body_that_costs_too_much_is_refused_and_only_where_it_decides() -> None:
    route = router(RouteConfig(("a",), action=("urn:a",)), RouteConfig(("x",), xpath="//*[.//*] or //*[c]"), most=1000)
    for body, why in (
        ("<a>" + "x" * 1000 + "</a>", "1,007 bytes exceed the limit of 1,000"),
        ("<b/>" * 240, "too many elements"),
    ):
        fault = route(message("urn:b", None, body))
        assert isinstance(fault, Fault) and fault.code == "Sender"
        assert why in fault.reason and "limits.max_routed_body" in fault.reason
        assert queues(route, message("urn:a", None, body)) == ("a",)
    fault = route(message("urn:b", None, "<a"))
    assert isinstance(fault, Fault) and "not well-formed" in fault.reason


SLOW = tuple(RouteConfig((f"q{n}",), xpath=f"//*[@* = 'n{n}']") for n in range(40))
"""Routes that cost some 80 steps for each element with an attribute."""


def test_the_loop_spends_a_bounded_number_of_steps_on_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    real = xpath_program._Run
    monkeypatch.setattr(xpath_program, "_Run", lambda *given: (runs.append(real(*given)), runs[-1])[1])
    route = router(*SLOW, default="rest", most=1 << 20)
    body = '<a k="v"/>' * 6_000
    assert len(body) < OFF_LOOP, "its size alone does not send it to the thread"
    assert route.at_once(message("", None, body)) is None
    one_element = 1 + 40 * 2 + 1
    assert runs[-1].steps <= LOOP_STEPS + one_element
    assert queues(route, message("", None, body)) == ("rest",)
    assert runs[-1].steps > 10 * LOOP_STEPS
    small = message("", None, '<a k="n7"/>')
    assert route.at_once(small) == route(small) == Routed(("q7",), replied=False)


def test_what_the_configuration_allows_is_decided_at_once_where_it_is_less() -> None:
    route = router(*SLOW, default="rest", most=1_000)
    for body in ("<a/>" * 300, '<a k="v"/>' * 50, "<a"):
        found = route.at_once(message("", None, body))
        assert isinstance(found, Fault) and found == route(message("", None, body))


def test_each_header_is_parsed_once_however_many_routes_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    real = routing.read_header
    monkeypatch.setattr(routing, "read_header", lambda block: (parsed.append(block), real(block))[1])
    route = router(*(RouteConfig((f"q{n}",), header=HeaderConfig("o:Tenant", (f"t{n}",))) for n in range(40)))
    headers = [f'<t:Tenant xmlns:t="urn:o">t{n}</t:Tenant>' for n in (50, 39)]
    assert queues(route, message("", None, "<a/>", *headers)) == ("q39",)
    assert len(parsed) == 2


def test_a_reply_may_come_if_a_forwarder_reads_one_of_the_queues() -> None:
    for names, expected in ((("read", "sent"), True), (("sent",), True), (("read",), False)):
        found = router(RouteConfig(names), is_sent_on="sent".__eq__)(message())
        assert isinstance(found, Routed) and found.replied is expected


def test_replies_come_at_once_or_never_if_no_forwarder_of_the_queues_has_others() -> None:
    for names, expected in ((("away", "sent"), False), (("sent",), False), (("away",), True), (("read",), False)):
        found = router(RouteConfig(names), is_sent_on="read".__ne__, has_replies="sent".__eq__)(message())
        assert isinstance(found, Routed) and found.replies_at_once is expected


def test_a_route_says_what_its_senders_expect() -> None:
    for expects in (None, *Expects):
        found = router(RouteConfig(("a",), expects=expects))(message())
        assert isinstance(found, Routed) and found.expects is expects


def test_what_it_remembers_has_a_bound() -> None:
    route = router(*(RouteConfig((f"q{n}",), action=(f"*{n}*",), xpath="//a") for n in range(10)), default="rest")
    for number in range(5000):
        assert queues(route, message(f"urn:{number}", None, "<b/>")) == ("rest",)
    assert len(route._known) <= 1024
    assert len(route._programs) <= 256


def test_of_many_routes_those_of_other_actions_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = routing._Route.takes
    monkeypatch.setattr(routing._Route, "takes", lambda *given: (asked.append(1), real(*given))[1])
    route = router(*(RouteConfig((f"q{n}",), action=(f"urn:{n}",)) for n in range(1000)), default="rest")
    assert queues(route, message("urn:700")) == ("q700",)
    assert queues(route, message("urn:none")) == ("rest",)
    assert len(asked) == 1


def test_a_header_is_read_as_far_as_it_is_looked_at() -> None:
    assert read_header(b"<a>" + b"x" * 100_000 + b"</a>")[1] == "x" * 4097
    assert read_header(b"<a") == ("", "")


# --- a plain model ----------------------------------------------------------------------------------------------------

PIECES = st.lists(st.sampled_from(["urn:", "a", "b", "/"]), max_size=4).map("".join)
PATTERNS = st.lists(st.sampled_from(["urn:", "a", "b", "/", "*"]), min_size=1, max_size=4).map("".join)
SEVERAL = st.lists(PATTERNS, max_size=3, unique=True).map(tuple)
HEADERS = st.builds(HeaderConfig, st.sampled_from(["o:h", "h"]), SEVERAL)
XPATHS = st.sampled_from(["", "", "//a", "/o:b[@i = 'a']", "//a/b", "not(//b)", "/c = 'x y'", "/c  =  'x  y'"])
ROUTES = st.lists(
    st.builds(
        RouteConfig,
        st.lists(st.sampled_from("pqr"), min_size=1, unique=True).map(tuple),
        to=SEVERAL,
        action=SEVERAL,
        header=st.none() | HEADERS,
        xpath=XPATHS,
    ),
    max_size=6,
)
BLOCKS = st.lists(st.tuples(st.sampled_from(['<o:h xmlns:o="urn:o">', "<h>"]), PIECES), max_size=2)
BODIES = st.sampled_from(["<a/>", "<a><b/></a>", '<o:b xmlns:o="urn:o" i="a"/>', '<o:b xmlns:o="urn:o"/>', "<c/>"])
BODIES |= st.sampled_from(["<c>x y</c>", "<c>x  y</c>"])


def like(patterns: tuple[str, ...], text: str) -> bool:
    """What a list of patterns says of a text, by regular expressions."""
    return not patterns or any(
        re.fullmatch(".*".join(re.escape(part) for part in one.split("*")), text) is not None for one in patterns
    )


def takes(route: RouteConfig, action: str, to: str | None, blocks: list[tuple[str, str]], body: str) -> bool:
    """Whether a route takes a message, plainly."""
    if not (like(route.action, action) and like(route.to, to or "")):
        return False
    if route.header is not None:
        wanted = route.header
        names = {"<h>": "h", '<o:h xmlns:o="urn:o">': "o:h"}
        if not any(names[start] == wanted.name and like(wanted.value, text) for start, text in blocks):
            return False
    tree = etree.ElementTree(etree.fromstring(body))
    return not route.xpath or bool(tree.xpath(f"boolean({route.xpath})", namespaces=NAMESPACES))


@settings(max_examples=examples(100))
@given(ROUTES, st.lists(st.tuples(PIECES, st.none() | PIECES, BLOCKS, BODIES), min_size=1, max_size=4))
def test_a_router_says_what_going_through_the_routes_says(routes: list[RouteConfig], messages: list[Any]) -> None:
    route = router(*routes, default="rest")
    for action, to, blocks, body in messages:
        texts = [f"{start}{text}</{'o:' if 'o:' in start else ''}h>" for start, text in blocks]
        expected = next((one.queues for one in routes if takes(one, action, to, blocks, body)), ("rest",))
        assert queues(route, message(action, to, body, *texts)) == expected
        by = route.routes_to(to or "")
        assert set(expected) <= route.reachable(action, by) <= route.reachable(None, by)


@given(PATTERNS, PIECES)
def test_a_pattern_matches_what_its_regular_expression_does(pattern: str, text: str) -> None:
    assert matches(pattern, text) == like((pattern,), text)


@pytest.mark.parametrize(
    ("first", "second", "is_hidden"),
    [
        ("/c = 'x y'", "/c  =\n'x y' ", True),
        ("/c = 'x y'", "/c = 'x  y'", False),
        ('/c = "it\'s  x"', '/c = "it\'s x"', False),
        ("//a and //b", "//aand //b", False),
    ],
)
def test_blanks_between_the_parts_of_an_xpath_do_not_count_and_those_in_literals_do(
    first: str, second: str, is_hidden: bool
) -> None:
    assert hides(RouteConfig(("q",), xpath=first), RouteConfig(("q",), xpath=second)) is is_hidden


@settings(max_examples=examples(100))
@given(ROUTES, PIECES, st.none() | PIECES, BLOCKS, BODIES)
def test_a_route_that_is_said_to_be_hidden_takes_nothing(
    routes: list[RouteConfig], action: str, to: str | None, blocks: list[tuple[str, str]], body: str
) -> None:
    for first in routes:
        for second in routes:
            if hides(first, second) and takes(second, action, to, blocks, body):
                assert takes(first, action, to, blocks, body)
