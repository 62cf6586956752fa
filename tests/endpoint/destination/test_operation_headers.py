"""Header blocks of operations as values, over real sockets: of requests, replies and faults, in every version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from header_service import SESSION, USAGE, header_wsdl

import holdfast
from holdfast import (
    ApplicationFault,
    ConfigurationError,
    Destination,
    EnvelopeError,
    Message,
    PeerFault,
    SoapHeaders,
    Source,
    WithAttachments,
    WithHeaders,
)
from holdfast.core.versions import TRIED_VERSIONS, Versions
from holdfast.testing import lossy, pair
from holdfast.wire import parse_element

ABSENT = {"Trace": None, "{urn:h}Tenant": None, "{urn:other}Tenant": None}
UNKNOWN = b'<h:Unknown xmlns:h="urn:h">sesame</h:Unknown>'
INCLUDE = b'<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@b"/>'


def service(seen: list[Any], soap: str = "1.1", reply: Callable[[int], Any] | None = None) -> Destination:
    """Return a destination that notes the headers of each message, and replies with the headers of the WSDL."""
    app = Destination(":memory:", wsdl=header_wsdl(soap))

    @app.operation("Do")
    async def do(number: int, headers: SoapHeaders) -> Any:
        seen.append(headers)
        return WithHeaders(number, {"Usage": USAGE}) if reply is None else reply(number)

    @app.operation("Note")
    def note(number: int, blocks: SoapHeaders, message: Message) -> None:
        seen.append((blocks, [one.tag for one in message.headers]))

    return app


@pytest.mark.parametrize("versions", TRIED_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
async def test_headers_are_values_of_request_and_reply(serve: Any, versions: Versions) -> None:
    seen: list[Any] = []
    app = service(seen, versions.soap.value)
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", versions=versions) as source:
        told: dict[str, Any] = {"mine": 1}
        assert await source.call("Do", 3, _headers={"Session": SESSION}, _reply_headers=told) == 3
        assert told == {"mine": 1, "Usage": USAGE}
        sent = await source.call("Note", number=4, _headers={"Tenant": "acme"})
        await sent.acknowledged(60)
        await app.running.dispatcher.done()  # type: ignore[union-attr]
    assert seen == [{"Session": SESSION, **ABSENT}, ({"Tenant": "acme"}, ["{urn:h}Tenant"])]


async def test_every_retransmission_carries_the_headers(tmp_path: Path) -> None:
    seen: list[Any] = []
    async with pair(service(seen), network=lossy(0.4, seed=3), store=tmp_path) as source:
        for number in range(10):
            await source.call("Note", number=number, _headers={"Tenant": f"t{number}"})
    assert [blocks["Tenant"] for blocks, _ in seen] == [f"t{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("headers", "named"),
    [({}, "requires the header Session"), ({"Session": {"key": None}}, "key"), ({"Sesion": {}}, "no header 'Sesion'")],
)
async def test_a_request_with_wrong_headers_is_not_stored(serve: Any, headers: Any, named: str) -> None:
    url = (await serve(service([]))).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(EnvelopeError, match=named):
            await source.call("Do", number=1, _headers=headers)
        assert source.progress.stored == 0


@pytest.mark.parametrize("block", ["", '<h:Session xmlns:h="urn:h"><h:no/></h:Session>'])
async def test_a_request_with_invalid_headers_gets_a_fault_that_names_them(serve: Any, block: str) -> None:
    seen: list[Any] = []
    url = (await serve(service(seen))).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        body = '<Ask xmlns="urn:h"><number>1</number></Ask>'
        with pytest.raises(PeerFault, match="Session") as caught:
            await source.request(body, action="urn:h/Do", headers=block.encode())
    assert (caught.value.code, seen) == ("Client", [])


TENANT = '<h:Tenant xmlns:h="urn:h">a</h:Tenant>'
KEYLESS = '<h:Session xmlns:h="urn:h"/>'


@pytest.mark.parametrize("headers", [KEYLESS, KEYLESS * 2, KEYLESS + TENANT * 2, TENANT], ids=range(4))
async def test_a_handler_without_headers_demands_only_the_required_ones(serve: Any, headers: str) -> None:
    """Invalid headers that the handler does not read are no reason to lose the message."""
    app = Destination(":memory:", wsdl=header_wsdl())
    app.operation("Do")(lambda number: WithHeaders(number + 1, {"Usage": USAGE}))
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        body = '<Ask xmlns="urn:h"><number>1</number></Ask>'
        asked = source.request(body, action="urn:h/Do", headers=headers.encode())
        if "Session" in headers:
            assert (await asked).body[0].text == "2"
        else:
            with pytest.raises(PeerFault, match="requires the header Session"):
                await asked


@pytest.mark.parametrize("headers", [{"Usage": {"left": "much"}}, {"Usag": USAGE}, b"text", b"<Usage/>"])
async def test_a_reply_with_wrong_headers_is_a_dead_letter(serve: Any, headers: Any) -> None:
    app = service([], reply=lambda number: WithHeaders(number, headers))
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(PeerFault, match="failed to handle"):
            await source.call("Do", number=1, _headers={"Session": SESSION})
    assert app.running.dispatcher.handling.dead == 1  # type: ignore[union-attr]


async def test_a_reply_may_have_headers_as_xml_and_attachments(serve: Any) -> None:
    one = holdfast.Attachment(b"abc")
    app = service([], reply=lambda number: WithHeaders(number, UNKNOWN, [one]))
    assert WithHeaders(1, UNKNOWN, [one]) != WithHeaders(1, b"", [one]) != WithAttachments(1, [one])

    @app.on("urn:plain", reply_action="urn:plain/reply")
    def plain(message: Message) -> WithHeaders:
        return WithHeaders("<a/>", UNKNOWN)

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        told: dict[str, Any] = {}
        assert await source.call("Do", number=1, _headers={"Session": SESSION}, _reply_headers=told) == 1
        assert told == {"Usage": None}
        reply = await source.request("<a/>", action="urn:plain")
        assert [one.text for one in reply.headers] == ["sesame"]


async def test_a_binary_header_may_be_an_attachment(serve: Any) -> None:
    """.NET sends large binary values as attachments in MTOM, wherever in the envelope they are."""
    seen: list[Any] = []
    url = (await serve(service(seen))).url
    headers = f'<Session xmlns="urn:h"><key/></Session><Trace xmlns="urn:h">{INCLUDE.decode()}</Trace>'
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        files = [holdfast.Attachment(b"abc" * 999, content_id="a@b")]
        body = '<Ask xmlns="urn:h"><number>1</number></Ask>'
        await source.request(body, action="urn:h/Do", headers=headers.encode(), attachments=files)
    assert seen[0]["Trace"] == b"abc" * 999


@pytest.mark.parametrize("is_attachment", [False, True])
async def test_the_header_of_a_fault_is_read(serve: Any, is_attachment: bool) -> None:
    """A service tells what is wrong with a header in a header of its fault (WSDL 1.1, 3.7)."""
    files = [holdfast.Attachment(b"abc", content_id="a@b")] * is_attachment
    written, text = (UNKNOWN.replace(b"sesame", INCLUDE), "YWJj") if is_attachment else (UNKNOWN, "sesame")
    fault = '<s:Fault xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><faultcode>s:Client</faultcode>'
    app = Destination(":memory:", wsdl=header_wsdl())
    app.on("urn:h/Do")(lambda message: WithHeaders(f"{fault}<faultstring>no</faultstring></s:Fault>", written, files))
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        told: dict[str, Any] = {}
        with pytest.raises(PeerFault, match="no") as caught:
            await source.call("Do", number=1, _headers={"Session": SESSION}, _reply_headers=told)
        assert parse_element(caught.value.header_bytes).text == text
        assert told == {"Unknown": text}


_KINDS = [("plain", True), ("awaitable", False)]
_GIVEN = [{"Unknown": "sesame"}, UNKNOWN]


@pytest.mark.parametrize(
    ("versions", "given", "kind", "is_required"),
    [(one, given, "async", False) for one in TRIED_VERSIONS for given in _GIVEN]
    + [(TRIED_VERSIONS[0], given, *kind) for kind in _KINDS for given in _GIVEN],
)
async def test_a_handler_answers_with_the_header_of_a_fault(
    serve: Any, versions: Versions, given: Any, kind: str, is_required: bool
) -> None:
    """WSDL 1.1, 3.7. The caller receives the values, and nothing of a fault without the header."""
    wsdl = header_wsdl(versions.soap.value)
    if is_required:
        wsdl = wsdl.replace(b"<soap:headerfault", b'<soap:headerfault wsdl:required="true"')
    app = Destination(":memory:", wsdl=wsdl)

    def fail(number: int) -> Any:
        raise ApplicationFault("no", headers=given if number == 1 else b"")

    async def fail_later(number: int) -> Any:
        return fail(number)

    app.operation("Do")({"async": fail_later, "plain": fail, "awaitable": lambda number: fail_later(number)}[kind])
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", versions=versions) as source:
        for number, expected in ((1, "sesame"), (2, None)):
            told: dict[str, Any] = {}
            with pytest.raises(PeerFault, match="no"):
                await source.call("Do", number=number, _headers={"Session": SESSION}, _reply_headers=told)
            assert told == {"Unknown": expected}
    assert app.running.dispatcher.handling.dead == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("headers", [{"Unknown": {"left": "much"}}, {"Unknwn": "x"}, {"Usage": USAGE}])
async def test_a_fault_with_wrong_headers_is_a_dead_letter_at_once(serve: Any, headers: Any) -> None:
    app = service([], reply=lambda _: raise_fault(ApplicationFault("no", headers=headers)))

    @app.on("urn:plain", reply_action="urn:plain/reply")
    def plain(message: Message) -> str:
        raise ApplicationFault("no", headers=headers)

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(PeerFault, match="failed to handle"):
            await source.call("Do", number=1, _headers={"Session": SESSION})
        with pytest.raises(PeerFault, match="failed to handle"):
            await source.request("<a/>", action="urn:plain")
    dispatcher: Any = app.running.dispatcher
    assert (dispatcher.handling.dead, dispatcher.handling.failed) == (2, 2)


def raise_fault(fault: ApplicationFault) -> Any:
    raise fault


@pytest.mark.parametrize("headers", [None, "text", 5, b"text", b"<Usage/>", b"<open>"])
def test_headers_of_a_fault_are_checked_when_it_is_made(headers: Any) -> None:
    with pytest.raises(ConfigurationError if not isinstance(headers, bytes) else EnvelopeError, match="header"):
        ApplicationFault("no", headers=headers)
