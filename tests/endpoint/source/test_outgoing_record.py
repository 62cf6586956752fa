"""What is taken over can leave, and arrives as it was given; what cannot is refused before anything is stored."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree
from waiting import until

from examples import examples
from holdfast import (
    ApplicationFault,
    ConfigurationError,
    Destination,
    EnvelopeError,
    HandlingPolicy,
    Message,
    PeerFault,
    Source,
    SourceHTTP,
)
from holdfast.core.messages import Envelope, Sequence
from holdfast.core.origin import with_secret
from holdfast.core.versions import ALL_VERSIONS
from holdfast.endpoint.arguments import LONGEST_ADDRESS
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.source.outgoing_record import outgoing_record
from holdfast.store.records import decode_record, encode_record
from holdfast.testing.ports import free_ports
from holdfast.wire import DEFAULT, decode, encode, parse_element

TEXTS = ["", " ", "\x00", "\ud800", "\ufffe", "\x85", "urn:a\n", "\tu", "é", "]]>", "a&b<c>", "'\"", "a" * 5000]
WILD = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(TEXTS)
URIS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12) | WILD
NAMES = st.text("abcé_", min_size=1, max_size=3)
INSIDE = ["&lt;", "&#10;", "&#0;", "&unknown;", "<!-- c -->", "<?pi x?>", "<![CDATA[]] ]]>", "]]>", "text", "\x01", "é"]
ODD = [
    "<p:x/>",
    "<p:x xmlns:p='urn:p' p:y='1'/>",
    "<s:Body xmlns:s='urn:s'/>",
    "<!DOCTYPE a>",
    "\ufeff",
    "\r\n",
    "\ud800",
]
PIECES = st.sampled_from([*INSIDE, *ODD])
WSA = " xmlns='http://www.w3.org/2005/08/addressing'"
NAMESPACES = st.sampled_from(["", " xmlns='urn:n'", WSA, " xmlns='urn:&amp;'", " xmlns='\x02'", " q:a=''"])
BEFORE = st.sampled_from(["", "", " ", "<?xml version='1.0'?>"])


@st.composite
def elements(draw: Any) -> str:
    name = draw(NAMES)
    inner = "".join(draw(st.lists(PIECES, max_size=3)))
    closing = name if draw(st.integers(0, 20)) else "other"
    return f"{draw(BEFORE)}<{name}{draw(NAMESPACES)}>{inner}</{closing}>"


BODIES = elements() | WILD | elements().map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=8)
HEADERS = st.lists(elements().map(lambda text: text.strip().encode("utf-8", "replace")), max_size=2).map(b"".join)


def same(given: bytes, came: bytes) -> bool:
    """Whether two runs of elements say the same; declarations that nothing uses say nothing."""

    def canonical(data: bytes) -> bytes:
        return etree.tostring(parse_element(b"<r>" + data + b"</r>"), method="c14n", exclusive=True)

    return canonical(given) == canonical(came)


@settings(max_examples=examples(300))
@given(URIS, URIS, URIS, BODIES, st.just(b"") | HEADERS)
def test_an_accepted_message_is_stored_written_in_every_version_and_read_back(
    key: str, action: str, message_id: str, body: Any, headers: bytes
) -> None:
    try:
        record = outgoing_record(key, action, body, message_id, headers, 1.0, wants_reply=False)
    except EnvelopeError:
        return
    assert decode_record(encode_record(record)) == record
    for versions in ALL_VERSIONS:
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, action, to="http://d/")
        envelope.message_id, envelope.body = record.message_id, record.body
        envelope.sequence = Sequence("urn:s", 1)
        envelope.headers = (record.headers,) if record.headers else ()
        read = decode(encode(envelope))
        assert (read.action, read.message_id, read.control, read.fault) == (action, message_id, None, None)
        assert same(record.body, read.body)
        assert same(record.headers, b"".join(read.headers))


MESSAGES = st.tuples(URIS, URIS, URIS, BODIES, st.just(b"") | HEADERS)


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(MESSAGES, min_size=5, max_size=25))
def test_what_send_accepts_outlives_a_restart_and_what_it_refuses_leaves_no_trace(
    messages: list[tuple[str, str, str, Any, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(_delivered_after_a_restart(messages, Path(place) / "outbox"))


async def _delivered_after_a_restart(messages: list[tuple[str, str, str, Any, bytes]], store: Path) -> None:
    app = Destination(":memory:")
    got: list[tuple[str, str | None]] = []

    @app.on()
    async def take(message: Any) -> None:
        got.append((message.action, message.message_id))

    (port,) = free_ports(1)
    accepted = []
    source = Source(f"http://127.0.0.1:{port}/", store)
    await source.open()  # nobody is there yet
    for key, action, message_id, body, headers in messages:
        try:
            await source.send(body, action=action, sequence_key=key, message_id=message_id, headers=headers)
        except EnvelopeError:
            continue
        accepted.append((action, message_id))
    assert source.progress.stored == len(accepted)
    await source.close(0.0)
    service = Service(app, Listeners(port=port))
    await service.start()
    try:
        async with Source(f"http://127.0.0.1:{port}/", store) as again:
            assert again.progress.outstanding == len(accepted)
            await again.flush(60)
        await until(lambda: len(got) == len(accepted))
        assert sorted(map(repr, got)) == sorted(map(repr, accepted))
    finally:
        await service.close(0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"action": ""}, "the action is empty"),
        ({"action": None}, "the action must be text, not NoneType"),
        ({"action": ["urn:a"]}, "the action must be text, not list"),
        ({"action": "urn:\x00"}, "a character that is not allowed in a URI"),
        ({"action": "urn:a\n"}, "a character that is not allowed in a URI"),
        ({"action": "\ud800"}, "a character that is not allowed in a URI"),
        ({"action": " urn:a"}, "begins or ends with white space"),
        ({"action": "http://docs.oasis-open.org/ws-rx/wsrm/200702/AckRequested"}, "belongs to WS-ReliableMessaging"),
        ({"message_id": 7}, "the message_id must be text, not int"),
        ({"message_id": ""}, "the message_id is empty"),
        ({"sequence_key": None}, "the sequence_key must be text, not NoneType"),
        ({"sequence_key": "\udcff"}, "is not Unicode text"),
        ({"headers": "<h/>"}, "headers must be bytes of XML, not str"),
        ({"headers": b"<h/>"}, "the header h has no namespace"),
        ({"headers": b"<h xmlns='urn:h'>"}, "not well-formed"),
        ({"headers": b"<h xmlns='urn:h'/>and"}, "text between the header blocks"),
        ({"headers": b"</headers><headers>"}, "not well-formed"),
        ({"headers": b"<To xmlns='http://www.w3.org/2005/08/addressing'/>"}, "which Holdfast writes"),
        ({"body": "<a>\ud800</a>"}, "not Unicode text"),
        ({"body": "<a>\x00</a>"}, "not one well-formed XML element"),
        ({"body": "<a/><b/>"}, "not one well-formed XML element"),
        ({"body": "<p:a/>"}, "unbound prefix"),
        ({"body": "<s:a/>"}, "unbound prefix"),
        ({"body": "<a><?b c?></a>"}, "processing instructions"),
        ({"body": "<!DOCTYPE a><a/>"}, "document type"),
        ({"body": etree.Comment("no element")}, "not one well-formed XML element"),
        ({"body": {"a": 1}}, "a body must be text, bytes or an lxml element, not dict"),
        (
            {"body": "<CloseSequence xmlns='http://docs.oasis-open.org/ws-rx/wsrm/200702'/>"},
            "a message of WS-ReliableMessaging",
        ),
    ],
)
async def test_what_could_never_leave_is_refused_before_it_is_stored(given: dict[str, Any], said: str) -> None:
    source = Source("http://127.0.0.1:9/", ":memory:")
    await source.open()
    try:
        for call in (source.send, source.request):
            with pytest.raises(EnvelopeError, match=said):
                await call(**({"body": "<a/>", "action": "urn:a"} | given))  # type: ignore[operator]
        assert source.progress.stored == 0
        assert source.sequences() == []
        await source.send("<a/>", action="urn:a")  # and it goes on
        assert source.progress.stored == 1
    finally:
        await source.close(0.0)


async def test_two_requests_do_not_wait_for_one_reply() -> None:
    source = Source("http://127.0.0.1:9/", ":memory:")
    await source.open()
    first = asyncio.ensure_future(source.request("<a/>", action="urn:a", message_id="urn:m", timeout=None))
    await until(lambda: source.progress.stored)
    with pytest.raises(EnvelopeError, match="another message with the MessageID urn:m"):
        await source.request("<b/>", action="urn:a", message_id="urn:m")
    await source.close(0.0)
    await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("to", ["http://d /", "http://d/\n", "http://d/\ud800", b"http://d/", "ftp://d/", "http://", 7])
def test_an_address_that_nothing_can_be_sent_to_is_refused_when_it_is_given(to: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not an http or https URL"):
        Source(to, ":memory:")
    with pytest.raises(ConfigurationError, match="address"):
        Source("http://127.0.0.1:9/", ":memory:", http=SourceHTTP(listen=("127.0.0.1", 0), address=to))


@pytest.mark.parametrize("transport", [None, SimpleNamespace(request=print)])
def test_an_address_that_receivers_refuse_for_its_length_is_refused_when_given(transport: Any) -> None:
    longest = "http://d/".ljust(DEFAULT.max_uri, "x")
    Source(longest, ":memory:", http=SourceHTTP(transport=transport))
    with pytest.raises(ConfigurationError, match="to has 2,049 characters, but receivers accept at most 2,048"):
        Source(f"{longest}x", ":memory:", http=SourceHTTP(transport=transport))


async def test_an_address_for_replies_leaves_room_for_what_makes_it_unguessable() -> None:
    own = "http://d/".ljust(LONGEST_ADDRESS, "x")
    with pytest.raises(ConfigurationError, match="address has 1,985 characters, but receivers accept at most 1,984"):
        Source("http://d/", ":memory:", http=SourceHTTP(listen=("127.0.0.1", 0), address=f"{own}x"))
    assert len(with_secret(own, new_identifier().rpartition(":")[2])) <= DEFAULT.max_uri
    Source("http://d/", ":memory:", http=SourceHTTP(listen=("127.0.0.1", 0), address=own))


# --- replies of handlers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned", ["<a>\ud800</a>", "<a><?b c?></a>", "no element", 7, etree.Comment("c"), b"\xff", "<p:a/>"]
)
async def test_a_reply_that_cannot_be_sent_is_a_failure_of_its_handler(serve: Any, returned: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))

    @app.on("urn:bad")
    def bad(message: Any) -> Any:
        return returned

    @app.on("urn:good")
    def good(message: Any) -> str:
        return "<good/>"

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="failed to handle the request"):
            await source.request("<a/>", action="urn:bad", timeout=60)
        assert (await source.request("<a/>", action="urn:good", timeout=60)).body.tag == "good"
    (letter,) = app.running.engine.store.read("dead-letters", 0, 0, 1)
    assert "the handler returned an invalid reply" in letter[1].headers.decode()


@pytest.mark.parametrize("reason", ["no \x00 no", "no \udcff no", "no \ufffe no"])
async def test_a_fault_whose_reason_xml_cannot_hold_is_given_with_what_it_can(serve: Any, reason: str) -> None:
    app = Destination(":memory:")

    @app.on("urn:bad")
    def bad(message: Any) -> str:
        raise ApplicationFault(reason)

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match=r"no .+ no"):
            await source.request("<a/>", action="urn:bad", timeout=60)


async def test_an_error_whose_text_xml_cannot_hold_makes_a_dead_letter_like_any_other(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))

    @app.on("urn:bad")
    def bad(message: Any) -> str:
        raise FileNotFoundError("orders/\udcff\x00.xml")

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="failed to handle the request"):
            await source.request("<a/>", action="urn:bad", timeout=60)
    (letter,) = app.running.engine.store.read("dead-letters", 0, 0, 1)
    assert "FileNotFoundError" in Message.from_record(letter[1]).headers[-1].text


async def test_what_receivers_would_refuse_is_refused_by_send_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    deep = b"<a>" * 63 + b"</a>" * 63
    async with Source("http://127.0.0.1:9/", str(tmp_path / "out")) as source:
        for body, action in ((deep, "urn:a"), (b"<a/>", "urn:" + "a" * 2_045)):
            with pytest.raises(EnvelopeError):
                await source.send(body, action=action)
        assert source.progress.stored == 0
    with pytest.raises(EnvelopeError, match="deeper than 60"):
        ApplicationFault("no", detail=b"<a>" * 61 + b"</a>" * 61)
