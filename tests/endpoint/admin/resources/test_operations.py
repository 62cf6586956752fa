"""Which messages are requests, and with which action they are answered: as the WSDL says, the session, the handler."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Destination, Message

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
async def test_where_the_session_names_a_reply_to_for_its_requests_a_message_without_one_is_one_way(
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
