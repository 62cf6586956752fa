"""Operations of a WSDL, called by name and offered by name, over real sockets."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from order_service import WSDL, Orders, in_one_document

import holdfast
from holdfast import ConfigurationError, Destination, EnvelopeError, OperationFault, Source

LINES = [{"item": "nail", "quantity": 3}, {"item": "hook", "quantity": 1}]


async def test_an_operation_takes_and_returns_values(serve: Any, tmp_path: Path) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", tmp_path / "outbox") as source:
        receipt = await source.call("SubmitOrder", customer="Åsa", lines=LINES, wanted=datetime.date(2026, 1, 2))
        assert receipt == {"number": 1, "total": Decimal("12.50")}
        assert await source.call("Price", item="nail") == Decimal("1.25")
        assert await source.call("Price", "nail", currency="USD") == Decimal("1.40")
        assert not source.progress.outstanding
    assert orders.submitted == [{"customer": "Åsa", "lines": LINES, "wanted": datetime.date(2026, 1, 2)}]


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
async def test_a_wsdl_given_as_bytes_is_offered_and_called_in_its_version_of_soap(serve: Any, soap: str) -> None:
    url = (await serve(Orders(wsdl=in_one_document(soap)).app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert await source.call("Price", item="nail") == Decimal("1.25")
        (shown,) = [one for one in source.sequences() if one["state"] == "created"]
        assert shown["versions"].endswith(f"SOAP {soap}")
        with pytest.raises(OperationFault, match="Too many"):
            await source.call("SubmitOrder", customer="a", lines=[{"item": "nail", "quantity": 101}])


async def test_a_one_way_operation_returns_the_stored_message(serve: Any) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        sent = await source.call("CancelOrder", number=7)
        await sent.acknowledged(60)
        assert sent.message_id.startswith("urn:uuid:")
        await orders.app.running.dispatcher.done()  # type: ignore[union-attr]
    assert orders.cancelled == [7]


@pytest.mark.parametrize(
    ("arguments", "values", "named"),
    [(("nail",), {"item": "screw"}, "item"), (("nail", "EUR"), {"currency": "USD"}, "currency")],
)
async def test_a_field_with_two_values_is_refused(
    serve: Any, arguments: tuple[str, ...], values: dict[str, str], named: str
) -> None:
    url = (await serve(Orders().app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(EnvelopeError, match=f"two values for the field '{named}'"):
            await source.call("Price", *arguments, **values)
        assert source.progress.stored == 0


async def test_a_declared_fault_arrives_with_its_values(serve: Any) -> None:
    url = (await serve(Orders().app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(OperationFault, match=r"Too many of nail\.") as caught:
            await source.call("SubmitOrder", customer="a", lines=[{"item": "nail", "quantity": 101}])
    assert (caught.value.name, caught.value.value) == ("OrderRefused", {"item": "nail", "limit": 100})
    assert (caught.value.code, b"Fault" in caught.value.element) == ("Client", True)


@pytest.mark.parametrize(("chosen", "left"), [(None, 0), ("urn:m:1", 1)])
async def test_a_raised_fault_is_confirmed_unless_the_program_can_ask_for_it_again(
    serve: Any, chosen: str | None, left: int
) -> None:
    url = (await serve(Orders().app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(OperationFault) as caught:
            await source.call(
                "SubmitOrder", customer="a", lines=[{"item": "nail", "quantity": 101}], _message_id=chosen
            )
        assert len(source.unconfirmed()) == left
        assert caught.value.message_id == (chosen or caught.value.message_id)
        assert caught.value.message_id
        caught.value.done()
        assert source.unconfirmed() == []


async def test_a_repeated_call_with_the_same_message_id_reaches_the_service_once(serve: Any, tmp_path: Path) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url
    source = await Source.from_wsdl(f"{url}?wsdl", tmp_path / "outbox")
    await source.open()
    first = await source.call("SubmitOrder", customer="a", lines=LINES, _message_id="urn:order:1")
    await source.close()  # the program has not confirmed the reply
    async with await Source.from_wsdl(f"{url}?wsdl", tmp_path / "outbox") as again:
        assert await again.call("SubmitOrder", customer="a", lines=LINES, _message_id="urn:order:1") == first
    assert len(orders.submitted) == 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"customer": "a", "lines": []}, "lines"),
        ({"customer": "a", "lines": [{"item": "x", "quantity": -1}]}, "'quantity': '-1'"),
        ({"customer": "a", "lines": [{"item": "x", "quantity": "many"}]}, "'quantity': 'many'"),
        ({"customer": "a", "lines": [{"item": "x"}]}, "Missing element quantity"),
        ({"customer": "a", "lines": [{"item": "x", "quantiy": 1}]}, "quantiy"),
        ({"custmer": "a", "lines": LINES}, "custmer"),
        ({"customer": "a", "lines": 7}, "lines"),
        ({"customer": "a\0", "lines": LINES}, "SubmitOrder"),
    ],
)
async def test_wrong_values_are_refused_with_the_element_and_nothing_is_stored(
    serve: Any, values: dict[str, Any], named: str
) -> None:
    url = (await serve(Orders().app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(EnvelopeError) as caught:
            await source.call("SubmitOrder", **values)
        assert named in caught.value.message
        assert source.progress.stored == 0


async def test_an_option_without_its_underscore_is_named() -> None:
    async with await Source.from_wsdl(WSDL, ":memory:", to="http://127.0.0.1:9/") as source:
        with pytest.raises(EnvelopeError) as caught:
            await source.call("Price", item="nail", timeout=5, message_id="urn:a")
        assert caught.value.remedy == "Options of call() begin with an underscore: _timeout, _message_id."
        with pytest.raises(EnvelopeError) as caught:
            await source.call("Price", item="nail", colour="red")
        assert caught.value.remedy == ""


async def test_an_unknown_operation_names_the_nearest_one() -> None:
    async with await Source.from_wsdl(WSDL, ":memory:") as source:
        with pytest.raises(ConfigurationError, match="Did you mean 'SubmitOrder'"):
            await source.call("SubmitOrdr")


async def test_a_source_without_a_wsdl_says_how_to_get_one() -> None:
    async with Source("http://localhost:9/", ":memory:") as source:
        with pytest.raises(ConfigurationError, match=r"Source\.from_wsdl"):
            await source.call("SubmitOrder")


async def test_the_blocking_source_calls_operations_too(serve: Any) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url

    def program() -> Any:
        with holdfast.sync.Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
            source.call("CancelOrder", number=3).acknowledged(60)
            return source.call("Price", item="nail")

    assert await asyncio.to_thread(program) == Decimal("1.25")


async def test_a_reply_that_breaks_the_wsdl_is_an_error_that_names_the_element(serve: Any) -> None:
    app = Destination(":memory:", wsdl=WSDL)

    @app.on("urn:orders:Orders:PriceRequest")
    def price(message: holdfast.Message) -> str:
        return '<PriceResponse xmlns="urn:orders"><price>cheap</price></PriceResponse>'

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(EnvelopeError, match="'price': 'cheap'"):
            await source.call("Price", item="nail")
