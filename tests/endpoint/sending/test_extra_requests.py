"""Requests that a processor sends before or after the protocol's: who waits for them, and what their answers change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from waiting import until

import holdfast
from holdfast import Destination, MessageContext, MessageFlowError, ProcessingError, Processor, Source
from holdfast.core.messages import TerminateSequence
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending import accounts
from holdfast.endpoint.serve import Listeners, Service
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer

RM11 = holdfast.Versions("1.1", "2005/08", "1.2")
SOON = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.2))
ASK, RETURN = "urn:ticket:ask", "urn:ticket:return"
TICKET = "{urn:t}Ticket"


class Tickets(Processor):
    """At a source: puts a ticket into each message, and asks for one first. At the end it returns the ticket."""

    def __init__(self) -> None:
        self.ticket = ""
        self.asked = 0
        self.returned: list[str] = []

    def outbound(self, context: MessageContext) -> None:
        if context.envelope.action in (ASK, RETURN):
            assert context.notes["why"], "its notes"
            return
        if not self.ticket:
            self.asked += 1
            block = b"<t:Name xmlns:t='urn:t'>alice</t:Name>"
            context.request_first("<t:ask xmlns:t='urn:t'/>", action=ASK, headers=block, notes={"why": "ask"})
            return
        context.add_header(f"<t:Ticket xmlns:t='urn:t'>{self.ticket}</t:Ticket>", must_understand=True)
        if isinstance(context.envelope.control, TerminateSequence):
            context.request_afterwards("<t:back xmlns:t='urn:t'/>", action=RETURN, notes={"why": "return"})

    def inbound(self, context: MessageContext) -> None:
        why = context.notes.get("why")
        if why == "ask" and context.envelope.fault is None:
            self.ticket = context.envelope.body.decode().partition(">")[2].partition("<")[0]
        elif why == "return":
            self.returned.append(context.envelope.action)


class Gate(Processor):
    """At a destination: gives tickets, and takes nothing without one."""

    understands = (TICKET,)

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        """What the next requests for a ticket get: a body, or an error to raise. Then: a ticket."""
        self.names: list[str] = []

    def inbound(self, context: MessageContext) -> None:
        action = context.envelope.action
        if action == ASK:
            name = context.header("{urn:t}Name")
            self.names.append(name.text or "" if name is not None else "")
            answer = self.answers.pop(0) if self.answers else "<t:ticket xmlns:t='urn:t'>7</t:ticket>"
            if isinstance(answer, Exception):
                raise answer
            context.answer(answer, action="urn:ticket:given" if answer else "")
        elif action == RETURN:
            context.answer("<t:ok xmlns:t='urn:t'/>", action="urn:ticket:taken")
        elif context.header(TICKET) is None:
            raise ProcessingError("no ticket")
        else:
            context.remove_header(TICKET)


class Shop:
    """A destination behind a gate."""

    def __init__(self, store: Path, *answers: Any) -> None:
        self.got: list[int] = []
        self.gate = Gate(list(answers))
        self.app = Destination(store, processors=[self.gate])
        self.app.on()(lambda message: self.got.append(int(message.body[0].text or "")))
        self.service = Service(self.app, Listeners(port=0))

    async def __aenter__(self) -> Shop:
        await self.service.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.service.close(0.0)


def body(number: int) -> str:
    return f"<m><n>{number}</n></m>"


async def test_messages_wait_for_one_request_and_are_then_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "FIRST_ALONE", 0.0)  # all Sequences begin together
    tickets = Tickets()
    async with Shop(tmp_path / "in") as shop:
        async with Source(shop.service.url, ":memory:", processors=[tickets], versions=RM11, policy=SOON) as source:
            # Together, so that the ticket cannot be there before the second one is sent.
            send = source.send
            await asyncio.gather(*(send(body(n), action="urn:tell", sequence_key=str(n)) for n in range(8)))
            await source.flush(60)
            assert tickets.asked > 1
            assert shop.gate.names == ["alice"]
            await shop.app.handled()
            assert sorted(shop.got) == list(range(8))


async def test_a_request_that_follows_is_answered_before_the_end_is_known(tmp_path: Path) -> None:
    tickets = Tickets()
    async with Shop(tmp_path / "in") as shop:
        async with Source(shop.service.url, ":memory:", processors=[tickets], versions=RM11, policy=SOON) as source:
            await source.send(body(1), action="urn:tell")
            await source.end(timeout=60)
            assert tickets.returned == ["urn:ticket:taken"]


async def test_a_delivered_request_is_not_repeated_while_the_request_after_it_waits(tmp_path: Path) -> None:
    """It would leave after the ticket is returned, and ask for another one."""
    tickets = Tickets()
    async with Shop(tmp_path / "in") as shop:
        held: list[Exchange] = []

        def handle(exchange: Exchange) -> None:
            if b"urn:ticket:return" in exchange.request.body:
                held.append(exchange)
            else:
                shop.app.handle(exchange)

        server = HTTPServer()
        await server.start(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.port}/"
        async with Source(url, ":memory:", processors=[tickets], versions=RM11, policy=SOON) as source:
            await source.send(body(1), action="urn:tell")
            await source.flush(60)
            ending = asyncio.ensure_future(source.end(timeout=60))
            await until(lambda: held)
            tickets.ticket = ""
            sender = source._running._sender
            before = sender.transmissions
            await until(lambda: sender.transmissions > before + 1)  # it is due again
            assert len(shop.gate.names) == 1
            shop.app.handle(held[0])
            await ending
        await server.close()
    assert len(shop.gate.names) == 1 and tickets.returned == ["urn:ticket:taken"]


async def test_a_fault_of_the_request_is_the_answer_to_the_message(tmp_path: Path) -> None:
    refusal = ProcessingError("no tickets for you", code="{urn:t}SoldOut", sender=True)
    async with Shop(tmp_path / "in", *[refusal] * 9) as shop:
        async with Source(shop.service.url, ":memory:", processors=[Tickets()], versions=RM11, policy=SOON) as source:
            sent = await source.send(body(1), action="urn:tell")
            with pytest.raises(holdfast.PeerFault, match="no tickets for you"):
                await sent.acknowledged(timeout=60)
    assert shop.got == []


@pytest.mark.parametrize(
    "answers",
    [[MessageFlowError("closed for lunch")] * 2, [""] * 2, ["<t:ticket xmlns:t='urn:t'></t:ticket>"] * 2],
    ids=["503", "202", "useless"],
)
async def test_without_an_answer_of_use_the_message_leaves_later(tmp_path: Path, answers: list[Any]) -> None:
    async with Shop(tmp_path / "in", *answers) as shop:
        async with Source(shop.service.url, ":memory:", processors=[Tickets()], versions=RM11, policy=SOON) as source:
            sent = await source.send(body(1), action="urn:tell")
            await sent.acknowledged(timeout=60)
            await until(lambda: shop.got == [1])
    assert len(shop.gate.names) == 3


@pytest.mark.parametrize("page", [b"", b"<html>no</html>"])
@pytest.mark.parametrize(("status", "remedy"), [(401, "--header"), (404, "If the URL is wrong")])
async def test_a_web_server_that_answers_the_request_stops_the_outbox(status: int, remedy: str, page: bytes) -> None:
    server = HTTPServer()
    await server.start(lambda exchange: exchange.respond(status, page, b"text/html"), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/"
    async with Source(url, ":memory:", processors=[Tickets()], versions=RM11, policy=SOON) as source:
        sent = await source.send(body(1), action="urn:tell")
        with pytest.raises(holdfast.PeerFault, match=f"answered with HTTP {status} and no SOAP message") as caught:
            await sent.acknowledged(timeout=60)
    assert remedy in caught.value.remedy
    await server.close()


async def test_a_destination_that_is_away_costs_nothing_but_time(tmp_path: Path) -> None:
    async with Shop(tmp_path / "in") as shop:
        url = shop.service.url
        await shop.service.close(0.0)
        async with Source(url, ":memory:", processors=[Tickets()], versions=RM11, policy=SOON) as source:
            sent = await source.send(body(1), action="urn:tell")
            await until(lambda: source.progress.problem != "")
            again = Shop(tmp_path / "in")
            again.service = Service(again.app, Listeners(port=urlsplit(url).port or 0))
            async with again:
                await sent.acknowledged(timeout=60)
                await until(lambda: again.got == [1])
                await source.close()  # before its destination, for whose answer it would wait


class Wrong(Processor):
    """Asks where nothing can be asked."""

    def inbound(self, context: MessageContext) -> None:
        with pytest.raises(ConfigurationError, match="only before or after a request"):
            context.request_first("<t/>", action=ASK)
        context.notes["tried"] = True


async def test_only_a_request_of_this_endpoint_can_have_another_one_before_it(tmp_path: Path) -> None:
    wrong = Wrong()
    app = Destination(tmp_path / "in", processors=[wrong])
    got: list[int] = []
    app.on()(lambda message: got.append(1))
    service = Service(app, Listeners(port=0))
    await service.start()
    async with Source(service.url, ":memory:", policy=SOON) as source:
        await (await source.send(body(1), action="urn:tell")).acknowledged(timeout=60)
    await app.handled()
    await service.close(0.0)
    assert got == [1]
