"""Attachments through a broker: byte for byte, in other versions, to several readers, with their replies."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import attachments_child
import pytest
from attachments_child import body as claim
from attachments_child import contents
from processes import broker, kept, service
from waiting import until

import holdfast
from holdfast import Attachment, Destination, SourcePolicy, WithAttachments
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import CircuitPolicy, ForwardingPolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.http.exchange import Exchange
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire.attachments.package import decode_package, receive_package
from holdfast.wire.limits import DEFAULT

ACTION = "urn:test:claim"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2))
INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo@test"/>'
CLAIM = f"<claim><photo>{INCLUDE}</photo></claim>"
DATA = bytes(range(256)) * 40


class Recording(Destination):
    """A service that notes every request with attachments, as it came."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.posted: list[tuple[str, bytes]] = []
        self.got: list[list[bytes]] = []
        self.on(ACTION)(self._claim)

    def handle(self, exchange: Exchange, is_elsewhere: object = None) -> None:
        media = exchange.request.headers.get(b"content-type", b"").decode()
        if media.startswith("multipart/"):
            self.posted.append((media, exchange.request.body))
        super().handle(exchange)

    def _claim(self, message: holdfast.Message) -> WithAttachments:
        self.got.append([one.read() for one in message.attachments])
        return WithAttachments("<thanks/>", message.attachments)


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
async def test_a_broker_forwards_attachments_byte_for_byte_and_the_same_again(run_broker, run_service, soap):
    app = Recording()
    service = await run_service(app)
    async with LossyProxy(service.url, Faults()) as proxy:
        policy = ForwardingPolicy(sending=QUICK, circuit=CircuitPolicy(silence=600.0))  # it goes on without answers
        forwarder = ForwarderConfig("next", "inbox", proxy.url, soap=soap, policy=policy)
        broker = await run_broker(forwarders=(forwarder,))

        def is_done() -> bool:
            every = broker.destination.running.engine.protocol.outbound.outboxes.values()
            return all(one.records.is_empty for one in every if one.forwarding is not None)

        async with holdfast.Source(broker.service.url, ":memory:", policy=QUICK) as source:
            for number in range(3):
                proxy.faults = Faults(lose_response=1.0) if app.got else Faults()
                given = [Attachment(b"%d" % number + DATA, "image/png", "photo@test")]
                await source.send(CLAIM, action=ACTION, attachments=given)
                # Each message has an outage of its own: without acknowledgements, the window shrinks to one message.
                await until(lambda wanted=1 + 3 * number: len(app.posted) >= wanted)
                proxy.faults = Faults()
                await until(lambda wanted=number + 1: len(app.got) == wanted and is_done())
            await until(lambda: len(app.got) == 3 and len(app.posted) > 5)
    assert app.got == [[b"%d" % number + DATA] for number in range(3)]
    bodies: dict[int, set[tuple[str, bytes]]] = {}
    for media, body in app.posted:
        envelope, _ = receive_package(media, body, DEFAULT)
        assert envelope.sequence is not None and envelope.soap.value == soap
        (part,) = decode_package(envelope.attachments).parts
        assert part.headers.startswith(b"Content-Type: image/png\r\nContent-Transfer-Encoding: binary")
        after_root = body[body.index(b"Envelope>\r\n--") :]
        bodies.setdefault(envelope.sequence.message_number, set()).add((media, after_root))
    assert all(len(one) == 1 for one in bodies.values())


async def test_the_attachments_of_a_reply_come_back_through_a_broker(run_broker, run_service):
    service = await run_service(Recording())
    forwarder = ForwarderConfig("next", "inbox", service.url, policy=ForwardingPolicy(sending=QUICK))
    broker = await run_broker(forwarders=(forwarder,))
    async with holdfast.Source(broker.service.url, ":memory:", policy=QUICK) as source:
        given = [Attachment(DATA, content_id="photo@test")]
        reply = await source.request(CLAIM, action=ACTION, attachments=given, timeout=240)
        assert [one.read() for one in reply.attachments] == [DATA]
        reply.done()


COUNT = 60
KILLS = 8


class Sender:
    """The source, in a process that is killed."""

    def __init__(self, directory: Path, url: str) -> None:
        program = str(Path(attachments_child.__file__))
        paths = [str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._arguments = [program, str(directory / "outbox"), url, str(COUNT)]
        self._process: asyncio.subprocess.Process | None = None
        self.is_done = False

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._arguments, stdout=asyncio.subprocess.PIPE, env=self._environment
        )
        self.is_done = False
        await self.line()

    async def line(self) -> None:
        """Wait for the next message that is stored, or until all are acknowledged."""
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(120):
            word = (await self._process.stdout.readline()).decode().strip()
        assert word, "it ended"
        self.is_done = word == "done"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def done(self) -> None:
        while not self.is_done:
            await self.line()


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_after_kills_in_flight_every_byte_of_the_attachments_arrives_once(tmp_path):
    draw = random.Random(3)
    behind = service(tmp_path)
    middle = broker(tmp_path, behind.url)
    sender = Sender(tmp_path, middle.url)
    try:
        for one in (behind, middle, sender):
            await one.start()
        for _ in range(KILLS):
            for _ in range(draw.randint(1, 6)):
                if not sender.is_done:
                    await sender.line()
            victim = draw.choice((behind, middle, sender))
            await victim.kill()
            await victim.start()
        await sender.done()
        await until(lambda: sum(map(len, kept(tmp_path / "service"))) >= COUNT, 120)
    finally:
        for one in (sender, middle, behind):
            await one.kill()
    (found,) = [records for records in kept(tmp_path / "service") if records]
    assert [record.body.decode() for record in found] == [claim(number) for number in range(COUNT)]
    for number, record in enumerate(found):
        (part,) = decode_package(record.attachments).parts
        assert part.content == contents(number)
