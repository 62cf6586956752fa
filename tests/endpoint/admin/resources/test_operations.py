"""Which messages are requests, and with which action they are answered: as the WSDL says, the session, the handler."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from holdfast import Destination, Message, Source
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, Envelope, IncompleteSequenceBehavior, Offer
from holdfast.core.versions import ALL_VERSIONS, RM, Versions
from holdfast.wire import action_of, decode, encode, http_headers

WSDL = """<wsdl:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap12/" xmlns:wsaw="http://www.w3.org/2006/05/addressing/wsdl">
  <wsdl:portType name="Orders">
    <wsdl:operation name="Price">
      <wsdl:input wsaw:Action="urn:t/Price"/><wsdl:output wsaw:Action="urn:t/Priced"/>
    </wsdl:operation>
    <wsdl:operation name="Note"><wsdl:input wsaw:Action="urn:t/Note"/></wsdl:operation>
  </wsdl:portType>
</wsdl:definitions>"""


def service(handled: list[str], *actions: str, **told: Any) -> Destination:
    """One whose handlers return an element each, and say so."""
    app = Destination(":memory:", **told)
    for action in actions:

        @app.on(action)
        def handle(message: Message) -> str:
            handled.append(message.action)
            return "<r/>"

    return app


async def test_a_reply_has_the_action_that_the_wsdl_names_unless_the_handler_names_one(serve: Any, peer: Any) -> None:
    app = service([], "urn:t/Price", wsdl=WSDL.encode())
    one = peer((await serve(app)).url)
    await one.create(offer="urn:offered")
    assert (await one.request(1, action="urn:t/Price")).envelope.action == "urn:t/Priced"
    told = Destination(":memory:", wsdl=WSDL.encode())
    told.on("urn:t/Price", reply_action="urn:t/Mine")(lambda message: "<r/>")
    two = peer((await serve(told)).url)
    await two.create(offer="urn:offered")
    assert (await two.request(1, action="urn:t/Price")).envelope.action == "urn:t/Mine"


async def test_a_message_that_names_no_reply_to_is_what_the_wsdl_says(serve: Any, peer: Any) -> None:
    handled: list[str] = []
    one = peer((await serve(service(handled, "urn:t/Price", "urn:t/Note", wsdl=WSDL.encode()))).url)
    await one.create(offer="urn:offered")
    note = await one.message(1, action="urn:t/Note")
    price = await one.message(2, action="urn:t/Price")
    assert (note.envelope.body, price.envelope.body) == (b"", b"<r/>")
    assert handled == ["urn:t/Note", "urn:t/Price"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_in_a_session_with_a_reply_to_a_message_without_one_is_one_way(
    serve: Any, peer: Any, tmp_path: Any, restarts: bool
) -> None:
    def app() -> Destination:
        found = Destination(tmp_path / "inbox", partitions=1)

        @found.on("urn:test:price")
        def price(message: Message) -> str:
            return "<r/>"

        return found

    service = await serve(app())
    one = peer(service.url)
    await one.create(offer="urn:offered")
    assert (await one.message(1, action="urn:test:price")).envelope.body == b"<r/>", "gSOAP asks so"
    assert (await one.request(2, action="urn:test:price")).envelope.body == b"<r/>"
    if restarts:
        port = int(service.url.rsplit(":", 1)[1].split("/")[0])
        await service.close(0.5)
        service = await serve(app(), port=port)
    assert (await one.message(3, action="urn:test:price")).envelope.body == b""
    assert (await one.request(4, action="urn:test:price")).envelope.body == b"<r/>"


@pytest.mark.parametrize("rm", [RM.V1_0, RM.V1_1])
async def test_the_first_message_of_a_wcf_session_is_one_way_where_it_names_no_reply_to(
    serve: Any, peer: Any, rm: RM
) -> None:
    app = service([], "urn:test:price")
    one = peer((await serve(app)).url, Versions(rm.value))
    offer = Offer("urn:offered", ANONYMOUS_EPR, None, IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP)
    asked = CreateSequence(ANONYMOUS_EPR, offer=offer if rm is RM.V1_1 else Offer("urn:offered"))
    envelope = Envelope(one.versions.soap, one.versions.addressing, rm, to=one.url, control=asked, message_id="urn:m")
    async with aiohttp.ClientSession(skip_auto_headers=["User-Agent"]) as nameless:  # as WCF's
        headers = http_headers(envelope.soap, action_of(envelope))
        async with nameless.post(one.url, data=encode(envelope), headers=headers) as answer:
            one.identifier = decode(await answer.read()).control.identifier
    assert (await one.message(1, action="urn:test:price")).envelope.body == b""
    assert (await one.request(2, action="urn:test:price")).envelope.body == b"<r/>"
    assert (await one.message(3, action="urn:test:price")).envelope.body == b""


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
async def test_a_source_of_ours_that_offers_a_sequence_is_no_wcf_client(serve: Any, versions: Versions) -> None:
    """A WCF client keeps nothing on disk, so that its Sequence ends when it is silent for half an hour."""
    app = service([], "urn:test:price")
    async with Source((await serve(app)).url, ":memory:", versions=versions, offer=True) as source:
        await (await source.send("<a/>", action="urn:test:price")).acknowledged(60)
        assert [one.is_kept_alive for one in app.running.engine.protocol.inbound.destinations.values()] == [False]
