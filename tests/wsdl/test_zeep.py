"""A real zeep client with Holdfast's transports, against a real destination, over real sockets.

Covers zeep.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zeep
import zeep.exceptions
from header_service import SESSION, USAGE, header_wsdl, in_attachments
from lxml import etree
from order_service import Orders, in_one_document
from zeep.wsse.username import UsernameToken

import holdfast
from holdfast import (
    ConfigurationError,
    DeliveryError,
    Destination,
    Message,
    NotAcknowledged,
    PeerFault,
    SoapHeaders,
    SourceHTTP,
    WithHeaders,
)
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.zeep import AsyncTransport, Transport

T = TypeVar("T")

LINES = [{"item": "nail", "quantity": 3}]


async def in_thread(program: Callable[[], T]) -> T:
    return await asyncio.to_thread(program)


async def test_a_zeep_client_is_reliable_with_one_argument_more(serve: Any, tmp_path: Path) -> None:
    orders = Orders()
    url = await serve(orders.app)

    def program() -> None:
        with Transport(store=tmp_path / "outbox") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            receipt = client.service.SubmitOrder(customer="a", lines=LINES)
            assert (receipt.number, receipt.total) == (1, Decimal("12.50"))
            assert client.service.Price(item="nail") == Decimal("1.25")
            (shown,) = [one for one in transport.source.sequences() if one["role"] == "source"]
            assert shown["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.1"
            assert transport.source.progress.acknowledged == 2

    await in_thread(program)
    assert orders.submitted[0]["customer"] == "a"


def test_the_transports_are_reached_from_the_package() -> None:
    assert holdfast.zeep.Transport is Transport


async def test_a_one_way_operation_returns_none_and_its_acknowledgement_can_be_awaited(serve: Any) -> None:
    orders = Orders()
    url = await serve(orders.app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            with transport.call(message_id="urn:cancel:7", sequence_key="a") as call:
                assert client.service.CancelOrder(number=7) is None
            assert isinstance(call.sent, holdfast.sync.Sent)
            call.sent.acknowledged(60)
            assert (call.sent.message_id, call.sent.sequence_key) == ("urn:cancel:7", "a")

    await in_thread(program)
    await orders.app.running.dispatcher.done()  # type: ignore[union-attr]
    assert orders.cancelled == [7]


@pytest.mark.parametrize(("soap", "code"), [("1.1", "Client"), ("1.2", "Sender")])
async def test_a_declared_fault_is_zeeps_fault_with_its_values(serve: Any, soap: str, code: str) -> None:
    url = await serve(Orders(wsdl=in_one_document(soap)).app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            with pytest.raises(zeep.exceptions.Fault) as caught:
                client.service.SubmitOrder(customer="a", lines=[{"item": "nail", "quantity": 101}])
        fault: Any = caught.value
        assert (fault.name, fault.value) == ("OrderRefused", {"item": "nail", "limit": 100})
        assert fault.message == "Too many of nail."
        assert fault.code.endswith(f":{code}")
        assert fault.detail[0].tag == "{urn:orders}OrderRefused"

    await in_thread(program)


async def test_an_undeclared_fault_is_zeeps_fault_without_values(serve: Any) -> None:
    app = Destination(":memory:", wsdl=Orders().wsdl)

    @app.on()
    def refuse(message: Message) -> str:
        raise holdfast.ApplicationFault("Closed on Sundays.", detail="<why/>")

    url = await serve(app)

    def program() -> None:
        with Transport(":memory:") as transport:
            with pytest.raises(zeep.exceptions.Fault, match="Closed on Sundays") as caught:
                zeep.Client(f"{url}?wsdl", transport=transport).service.Price(item="nail")
        fault: Any = caught.value
        assert (fault.name, fault.value, fault.detail[0].tag) == ("", None, "why")

    await in_thread(program)


@pytest.mark.parametrize(("chosen", "left"), [(None, 0), ("urn:m:1", 1)])
async def test_a_fault_is_confirmed_like_a_reply(serve: Any, chosen: str | None, left: int) -> None:
    url = await serve(Orders().app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            much = {"customer": "a", "lines": [{"item": "nail", "quantity": 101}]}
            with pytest.raises(zeep.exceptions.Fault), transport.call(message_id=chosen) as call:
                client.service.SubmitOrder(**much)
            assert len(transport.source.unconfirmed()) == left
            call.done()
            with pytest.raises(zeep.exceptions.Fault):
                client.service.SubmitOrder(**much)
            assert transport.source.unconfirmed() == []

    await in_thread(program)


@pytest.mark.parametrize("operation", ["Price", "CancelOrder"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_call_after_a_refused_message_is_no_fault_of_the_service(
    serve: Any, tmp_path: Path, operation: str, is_async: bool
) -> None:
    """The destination refuses the first message: later ones are neither stored nor answered."""
    app = Destination(":memory:", wsdl=Orders().wsdl)

    @app.on("urn:other")
    def other(message: Message) -> None: ...

    url = await serve(app)
    values = {"item": "nail"} if operation == "Price" else {"number": 2}
    store = tmp_path / "outbox"

    async def calls() -> None:
        transport = AsyncTransport(store)
        client = await in_thread(lambda: zeep.AsyncClient(f"{url}?wsdl", transport=transport))
        async with transport:
            await client.service.CancelOrder(number=1)
            with pytest.raises(PeerFault):
                await transport.source.flush(60)
            with pytest.raises(DeliveryError, match="not stored, because sending has stopped") as caught:
                await client.service[operation](**values)
            assert "discard" in caught.value.remedy
            assert transport.source.progress.stored == 1

    def program() -> None:
        with Transport(store) as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            client.service.CancelOrder(number=1)
            with pytest.raises(PeerFault):
                transport.source.flush(60)
            with pytest.raises(DeliveryError, match="not stored, because sending has stopped") as caught:
                client.service[operation](**values)
            assert "discard" in caught.value.remedy
            assert transport.source.progress.stored == 1

    await (calls() if is_async else in_thread(program))


async def test_an_async_client_calls_at_the_same_time(serve: Any, tmp_path: Path) -> None:
    orders = Orders()
    url = await serve(orders.app)
    async with AsyncTransport(tmp_path / "outbox") as transport:
        client = await in_thread(lambda: zeep.AsyncClient(f"{url}?wsdl", transport=transport))
        prices = await asyncio.gather(*(client.service.Price(item=f"{n}") for n in range(5)))
        assert prices == [Decimal("1.25")] * 5
        with transport.call(sequence_key="b") as call:
            assert await client.service.CancelOrder(number=1) is None
        assert isinstance(call.sent, holdfast.Sent)
        await call.sent.acknowledged(60)
        with pytest.raises(zeep.exceptions.Fault, match="Too many"):
            await client.service.SubmitOrder(customer="a", lines=[{"item": "nail", "quantity": 101}])
        assert transport.source.progress.acknowledged == 7


async def test_every_call_arrives_once_despite_loss(serve: Any, tmp_path: Path) -> None:
    orders = Orders(store=tmp_path / "inbox")
    url = await serve(orders.app)
    async with LossyProxy(url, faults=Faults(lose_request=0.2, lose_response=0.2), seed=7) as proxy:

        def program() -> list[int]:
            with Transport(tmp_path / "outbox", to=proxy.url, http=SourceHTTP(timeout=5.0)) as transport:
                client = zeep.Client(f"{url}?wsdl", transport=transport)
                return [client.service.SubmitOrder(customer=f"{n}", lines=LINES).number for n in range(8)]

        assert await in_thread(program) == [*range(1, 9)]
        assert proxy.counts.lost > 0
    assert [one["customer"] for one in orders.submitted] == [f"{n}" for n in range(8)]


async def test_a_new_client_resumes_what_an_earlier_one_stored(serve: Any, tmp_path: Path) -> None:
    orders = Orders(store=tmp_path / "inbox")
    url = await serve(orders.app)
    async with LossyProxy(url, faults=Faults(lose_request=1.0), seed=7) as proxy:

        def while_the_service_is_away() -> None:
            transport = Transport(tmp_path / "outbox", to=proxy.url)
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            client.service.CancelOrder(number=5)
            with pytest.raises(NotAcknowledged), transport.call(message_id="urn:price:1", timeout=0.1):
                client.service.Price(item="nail")
            transport.close(0.0)

        await in_thread(while_the_service_is_away)
        assert orders.cancelled == []

        def afterwards() -> Decimal:
            with Transport(tmp_path / "outbox", to=proxy.url) as transport:
                client = zeep.Client(f"{url}?wsdl", transport=transport)
                assert transport.source.progress.outstanding == 2, "resumed when the client is created"
                proxy.faults = Faults()
                transport.source.flush(60)
                with transport.call(message_id="urn:price:1"):
                    price: Decimal = client.service.Price(item="nail")
                return price

        assert await in_thread(afterwards) == Decimal("1.25")
    await orders.app.running.dispatcher.done()  # type: ignore[union-attr]
    assert orders.cancelled == [5]


async def test_zeep_itself_refuses_values_of_a_wrong_shape_and_nothing_is_stored(serve: Any) -> None:
    url = await serve(Orders().app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            with pytest.raises(zeep.exceptions.ValidationError, match="quantity"):
                client.service.SubmitOrder(customer="a", lines=[{"item": "nail"}])
            assert transport.source.progress.stored == 0

    await in_thread(program)


async def test_a_client_of_another_port_is_told_which_setting_to_change(serve: Any) -> None:
    url = await serve(Orders().app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            other = client.create_service("{urn:orders}OrdersSoap", "http://127.0.0.1:9/")
            with pytest.raises(ConfigurationError, match="port_name") as caught:
                other.Price(item="nail")
            assert "to='http://127.0.0.1:9/'" in caught.value.remedy

    await in_thread(program)


async def test_the_headers_of_a_call_and_of_its_reply_are_carried(serve: Any) -> None:
    app = Destination(":memory:", wsdl=Orders().wsdl)
    seen: list[str] = []

    @app.on()
    def price(message: Message) -> str:
        seen.extend(header.tag for header in message.headers)
        return '<PriceResponse xmlns="urn:orders"><price>1</price></PriceResponse>'

    url = await serve(app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            header = etree.Element("{urn:h}Tenant")
            assert client.service.Price(item="nail", _soapheaders=[header]) == 1

    await in_thread(program)
    assert seen == ["{urn:h}Tenant"]


async def test_declared_headers_are_values_of_a_client_and_of_its_replies(serve: Any) -> None:
    app = Destination(":memory:", wsdl=header_wsdl())
    seen: list[Any] = []

    @app.operation("Do")
    def do(number: int, headers: SoapHeaders) -> Any:
        seen.append(headers)
        return WithHeaders(number, {"Usage": USAGE})

    url = await serve(app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            reply = client.service.Do(number=3, _soapheaders={"session": SESSION, "own": "acme"})
            assert (reply.body.number, reply.header.usage.left) == (3, USAGE["left"])
            with pytest.raises(holdfast.zeep.Fault, match="requires the header Session"):
                client.service.Do(number=3, _soapheaders={"own": "acme"})

    await in_thread(program)
    assert seen == [{"Session": SESSION, "Trace": None, "{urn:h}Tenant": "acme", "{urn:other}Tenant": None}]


async def test_binary_values_of_a_reply_reach_the_client_though_they_are_attachments(serve: Any) -> None:
    app = Destination(":memory:", wsdl=header_wsdl())
    app.on("urn:h/Do")(lambda message: in_attachments(1234, 5678))
    url = await serve(app)

    def program() -> None:
        with Transport(":memory:") as transport:
            reply = zeep.Client(f"{url}?wsdl", transport=transport).service.Do(3, _soapheaders={"session": SESSION})
            assert (reply.body.number, reply.header.usage.left) == (1234, 5678)

    await in_thread(program)


async def test_a_client_of_a_loaded_document_needs_the_wsdl_in_the_transport(serve: Any) -> None:
    url = await serve(Orders().app)

    def program() -> None:
        document = zeep.Client(f"{url}?wsdl").wsdl
        with Transport(":memory:") as transport:
            with pytest.raises(ConfigurationError, match="wsdl="):
                zeep.Client(document, transport=transport).service.Price(item="nail")
        with Transport(":memory:", wsdl=f"{url}?wsdl") as transport:
            assert zeep.Client(document, transport=transport).service.Price(item="nail") == Decimal("1.25")

    await in_thread(program)


async def test_many_threads_share_one_client(serve: Any) -> None:
    orders = Orders()
    url = await serve(orders.app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            with ThreadPoolExecutor(8) as threads:
                receipts = threads.map(lambda n: client.service.SubmitOrder(customer=f"{n}", lines=LINES), range(24))
                assert sorted(one.number for one in receipts) == [*range(1, 25)]

    await in_thread(program)
    assert sorted(one["customer"] for one in orders.submitted) == sorted(f"{n}" for n in range(24))


async def test_a_security_header_of_the_client_is_refused_and_nothing_is_stored(serve: Any) -> None:
    """The messages of the protocol would not have it."""
    url = await serve(Orders().app)

    def program() -> None:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport, wsse=UsernameToken("alice", "secret"))
            with pytest.raises(ConfigurationError, match="processors=") as caught:
                client.service.Price(item="nail")
            assert "secret" not in str(caught.value)
            assert transport.source.progress.stored == 0

    await in_thread(program)


@pytest.mark.parametrize("how", ["settings", "plugin"])
async def test_http_headers_of_the_client_are_refused_and_nothing_is_stored(serve: Any, how: str) -> None:
    class Plugin(zeep.Plugin):  # type: ignore[misc]
        def egress(self, envelope: Any, http_headers: dict[str, str], *_: Any) -> Any:
            return envelope, http_headers | {"X-Tenant": "7"}

    url = await serve(Orders().app)

    def program() -> None:
        with Transport(":memory:") as transport:
            plugins = [Plugin()] if how == "plugin" else []
            extra = {"X-Tenant": "7"} if how == "settings" else None
            client = zeep.Client(f"{url}?wsdl", transport=transport, plugins=plugins)
            with (
                client.settings(extra_http_headers=extra),
                pytest.raises(ConfigurationError, match="HTTP headers X-Tenant") as caught,
            ):
                client.service.Price(item="nail")
            assert "SourceHTTP(headers=" in caught.value.remedy
            assert transport.source.progress.stored == 0

    await in_thread(program)


async def test_a_closed_transport_refuses_everything(serve: Any, tmp_path: Path) -> None:
    url = await serve(Orders().app)

    def program() -> None:
        with Transport(tmp_path / "outbox") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
        with pytest.raises(ConfigurationError, match="transport is closed"):
            client.service.Price(item="nail")
        for use in (transport.open, transport.__enter__, lambda: zeep.Client(f"{url}?wsdl", transport=transport)):
            with pytest.raises(ConfigurationError, match="transport is closed"):
                use()
        transport.close()

    await in_thread(program)
    async with AsyncTransport(tmp_path / "other") as transport:
        client = await in_thread(lambda: zeep.AsyncClient(f"{url}?wsdl", transport=transport))
        await client.service.Price(item="nail")
    for use in (lambda: client.service.Price(item="nail"), transport.open, transport.__aenter__):
        with pytest.raises(ConfigurationError, match="transport is closed"):
            await use()


async def test_a_transport_for_the_other_kind_of_client_is_refused_at_once(serve: Any) -> None:
    orders = Orders()
    url = await serve(orders.app)

    def program() -> None:
        client = zeep.Client(f"{url}?wsdl", transport=AsyncTransport(":memory:"))
        with pytest.raises(ConfigurationError, match=r"zeep\.AsyncClient"):
            client.service.CancelOrder(number=1)

    await in_thread(program)
    transport = Transport(":memory:")
    client = await in_thread(lambda: zeep.AsyncClient(f"{url}?wsdl", transport=transport))
    with pytest.raises(ConfigurationError, match="AsyncTransport"):
        await client.service.CancelOrder(number=1)
    assert transport.source.progress.stored == 0
    await in_thread(transport.close)
    assert orders.cancelled == []


@pytest.mark.parametrize("make", [Transport, AsyncTransport])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"foo": 1}, "has no argument 'foo'"),
        ({"prozessors": []}, "Did you mean 'processors'"),
        ({"reply_timeout": -1}, "reply_timeout cannot be -1"),
        ({"reply_timeout": "1"}, "reply_timeout cannot be '1'"),
    ],
)
def test_arguments_that_a_transport_does_not_have_are_named(make: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(":memory:", **given)
    assert says in str(caught.value)
