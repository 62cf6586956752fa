"""Acknowledgements that a destination posts alone, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import until

from holdfast import Destination, DestinationHTTP
from holdfast.core.messages import Envelope
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire import decode


class Listener:
    """An AcksTo address; its first answers are ``statuses``."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = [*statuses]
        self.taken: list[Envelope] = []
        self._http = HTTPServer()

    async def start(self, port: int) -> None:
        await self._http.start(self._take, "127.0.0.1", port)

    def _take(self, exchange: Exchange) -> None:
        if self.statuses:
            exchange.respond(self.statuses.pop(0), b"not now", b"text/plain")
            return
        self.taken.append(decode(exchange.request.body))
        exchange.respond(202)

    async def close(self) -> None:
        await self._http.close()


async def assert_it_comes(listener: Listener, identifier: str) -> None:
    await until(lambda: listener.taken)
    await listener.close()
    (acknowledgement,) = listener.taken[0].acknowledgements
    assert (acknowledgement.identifier, acknowledgement.ranges) == (identifier, ((1, 1),))
    assert listener.statuses == []


@pytest.mark.parametrize("statuses", [(503, 503), (404,)])
async def test_an_acknowledgement_alone_that_its_address_refuses_is_posted_again(
    serve: Any, peer: Any, statuses: tuple[int, ...]
) -> None:
    listener, (port,) = Listener(*statuses), free_ports(1)
    await listener.start(port)
    address = f"http://127.0.0.1:{port}/"
    one = peer((await serve(Destination(":memory:", http=DestinationHTTP(allow_addresses=[address])))).url)
    await one.create(acks_to=address)
    await one.message(1)
    await assert_it_comes(listener, one.identifier)


async def test_an_acknowledgement_alone_that_finds_nobody_is_posted_again(serve: Any, peer: Any) -> None:
    listener, (port,) = Listener(), free_ports(1)
    address = f"http://127.0.0.1:{port}/"
    app = Destination(":memory:", http=DestinationHTTP(allow_addresses=[address]))
    one = peer((await serve(app)).url)
    await one.create(acks_to=address)
    await one.message(1)
    await until(lambda: app.running.engine.protocol.acknowledging._failed)
    await listener.start(port)
    await assert_it_comes(listener, one.identifier)


async def test_an_acknowledgement_alone_that_is_lost_is_posted_again(serve: Any, peer: Any) -> None:
    listener, (port,) = Listener(), free_ports(1)
    await listener.start(port)
    async with LossyProxy(f"http://127.0.0.1:{port}/", Faults(lose_request=1.0)) as proxy:
        one = peer((await serve(Destination(":memory:", http=DestinationHTTP(allow_addresses=[proxy.url])))).url)
        await one.create(acks_to=proxy.url)
        await one.message(1)
        await until(lambda: proxy.counts.lost >= 2)
        proxy.faults = Faults()
        await assert_it_comes(listener, one.identifier)
