"""The Source against real destinations, scripted ones, and its own death.

Covers endpoint/engine/commits.py, endpoint/listeners.py, endpoint/sending/listener.py, endpoint/source/calls.py and
endpoint/source/http_settings.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trustme
from lxml import etree
from waiting import until

from holdfast import (
    ApplicationFault,
    ConfigurationError,
    CreateSequenceRefused,
    DeliveryError,
    Destination,
    DestinationHTTP,
    DestinationPolicy,
    EnvelopeError,
    MessageContext,
    NotAcknowledged,
    PeerFault,
    ProcessingError,
    Processor,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
)
from holdfast.client.stopped_store import StoreTransport
from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope, Fault
from holdfast.core.records import Batch
from holdfast.core.versions import ALL_VERSIONS, RM, TRIED_VERSIONS, Addressing
from holdfast.exceptions import StoreFailed
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.store import MemoryStore
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire import content_type, decode, encode

ACTION = "urn:test:submit"
EVERY_VERSION = pytest.mark.parametrize("versions", ALL_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3))


def shop(store: Any = ":memory:", **options: Any) -> tuple[Destination, list[str]]:
    """Takes submissions, answers questions for prices, and faults where it is asked to."""
    app = Destination(store, **options)
    got: list[str] = []

    @app.on(ACTION)
    async def submit(message: Any) -> None:
        got.append(message.body.text)

    @app.on("urn:test:price")
    def price(message: Any) -> str:
        return f"<price>{message.body.text}</price>"

    @app.on("urn:test:fault")
    async def fault(message: Any) -> NoReturn:
        raise ApplicationFault("out of stock", sender=False, detail=b"<left xmlns='urn:shop'>0</left>")

    return app, got


@asynccontextmanager
async def scripted(handle: Callable[[Exchange, Envelope], None]) -> AsyncIterator[str]:
    """A destination that does exactly what it is told to."""
    server = HTTPServer()
    await server.start(lambda exchange: handle(exchange, decode(exchange.request.body)), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        await server.close()


def refuse(exchange: Exchange, envelope: Envelope, fault: Fault) -> None:
    answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, fault=fault)
    answer.relates_to = envelope.message_id
    exchange.respond(500, encode(answer), content_type(envelope.soap).encode())


# --- sending and asking -----------------------------------------------------------------------------------------------


@EVERY_VERSION
@pytest.mark.parametrize("offer", [True, False])
async def test_messages_arrive_once_in_order_and_requests_get_their_replies(
    serve: Any, versions: Versions, offer: bool
) -> None:
    app, got = shop()
    url = (await serve(app)).url
    async with Source(url, ":memory:", versions=versions, offer=offer) as source:
        sent = await asyncio.gather(*(source.send(f"<n>{i}</n>", action=ACTION) for i in range(40)))
        replies = await asyncio.gather(*(source.request(f"<n>{i}</n>", action="urn:test:price") for i in range(10)))
        await asyncio.gather(*(one.acknowledged(60) for one in sent))
        assert [reply.body.text for reply in replies] == [str(i) for i in range(10)]
        assert source.progress.acknowledged == 50
        assert source.progress.outstanding == 0
        await source.end(timeout=60)
    await until(lambda: len(got) == 40)
    assert got == [str(i) for i in range(40)]
    assert all(one.is_over for one in app.running.engine.protocol.inbound.destinations.values())


async def test_a_body_that_is_no_text_bytes_or_element_is_refused_unstored(serve: Any) -> None:
    app, got = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        element = etree.fromstring("<root><n>é</n>tail</root>")[0]
        for body in ("<n>é</n>", "<n>é</n>".encode(), "<?xml version='1.0'?><n>é</n>", element):
            await (await source.send(body, action=ACTION)).acknowledged(60)
        for wrong in ("no element", "<a/><b/>", b"<a>\xff</a>", "<!DOCTYPE a><a/>"):
            with pytest.raises(EnvelopeError):
                await source.send(wrong, action=ACTION)
        assert source.progress.stored == 4
    await until(lambda: got == ["é"] * 4)


async def test_messages_with_different_keys_go_in_different_sequences(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        for key in ("AA", "UA", "AA"):
            await (await source.send("<n>1</n>", action=ACTION, sequence_key=key)).acknowledged(60)
        assert sorted((one["key"], one["count"]) for one in source.sequences()) == [("AA", 2), ("UA", 1)]
        await source.end("AA", 60)
        await source.send("<n>2</n>", action=ACTION, sequence_key="AA")
        await source.flush(60)
    assert len(app.running.engine.protocol.inbound.destinations) == 3


@EVERY_VERSION
@pytest.mark.parametrize("offer", [True, False])
async def test_a_fault_of_the_service_is_raised_where_the_reply_is_awaited(
    serve: Any, versions: Versions, offer: bool
) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:", versions=versions, offer=offer) as source:
        with pytest.raises(PeerFault, match="out of stock") as caught:
            await source.request("<n>1</n>", action="urn:test:fault", timeout=60)
        assert caught.value.code in ("Receiver", "Server")
        assert b"urn:shop" in caught.value.detail
        assert (await source.request("<n>5</n>", action="urn:test:price", timeout=60)).body.text == "5"


async def test_its_own_http_headers_go_with_every_request() -> None:
    seen: list[bytes | None] = []

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        seen.append(exchange.request.headers.get(b"authorization"))
        refuse(exchange, envelope, Fault("CreateSequenceRefused", "enough", is_rm=True))

    async with scripted(handle) as url:
        async with Source(
            url, ":memory:", http=SourceHTTP(headers={"Authorization": "Bearer t"}), versions=Versions()
        ) as source:
            sent = await source.send("<a/>", action=ACTION)
            with pytest.raises(CreateSequenceRefused):
                await sent.acknowledged(60)
    assert set(seen) == {b"Bearer t"}


async def test_https_works_with_a_trusted_certificate_and_names_an_unknown_one(serve: Any) -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    app, got = shop()
    url = (await serve(app, ssl_context=server_side)).url
    assert url.startswith("https://")
    async with Source(url, ":memory:", http=SourceHTTP(ssl_context=client_side)) as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    async with Source(url, ":memory:") as source:
        sent = await source.send("<n>2</n>", action=ACTION)
        await until(lambda: source.progress.problem)
        with pytest.raises(NotAcknowledged, match="no trusted TLS connection"):
            await sent.acknowledged(0.01)
    assert got == ["1"]


# --- a listener of its own --------------------------------------------------------------------------------------------


@EVERY_VERSION
@pytest.mark.parametrize("offer", [True, False])
async def test_with_a_listener_acknowledgements_and_replies_come_to_it(
    serve: Any, versions: Versions, offer: bool
) -> None:
    app, got = shop(http=DestinationHTTP(allow_addresses=["http://127.0.0.1"]))
    url = (await serve(app)).url
    async with Source(
        url, ":memory:", versions=versions, offer=offer, http=SourceHTTP(listen=("127.0.0.1", 0))
    ) as source:
        sent = [await source.send(f"<n>{i}</n>", action=ACTION) for i in range(20)]
        await asyncio.gather(*(one.acknowledged(60) for one in sent))
        replies = await asyncio.gather(*(source.request(f"<n>{i}</n>", action="urn:test:price") for i in range(5)))
        assert [reply.body.text for reply in replies] == [str(i) for i in range(5)]
        (inbound, *_) = app.running.engine.protocol.inbound.destinations.values()
        assert inbound.acks_to.address.startswith("http://127.0.0.1:")
    await until(lambda: len(got) == 20)
    assert got == [str(i) for i in range(20)]


async def test_a_listener_that_is_not_allowed_is_refused_with_a_remedy(serve: Any) -> None:
    app, _ = shop()
    url = (await serve(app)).url
    async with Source(url, ":memory:", http=SourceHTTP(listen=("127.0.0.1", 0))) as source:
        sent = await source.send("<n>1</n>", action=ACTION)
        with pytest.raises(CreateSequenceRefused, match="not on its allow-list") as caught:
            await sent.acknowledged(60)
    assert "1 unacknowledged message is in memory only" in caught.value.remedy
    assert "then: source.resume()" in caught.value.remedy


# --- finding out the version ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", TRIED_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
async def test_the_version_is_found_out_from_a_peer_that_refuses_every_other(versions: Versions) -> None:
    asked = []

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        if isinstance(envelope.control, CreateSequence):
            asked.append(envelope.versions)
        if envelope.versions == versions:
            app.handle(exchange)
        elif envelope.soap is not versions.soap:
            answer = Envelope(versions.soap, fault=Fault("VersionMismatch", "another SOAP"))
            exchange.respond(500, encode(answer), content_type(versions.soap).encode())
        else:
            reason = f"Only WS-ReliableMessaging {versions.rm.value} messages are processed by this endpoint"
            refuse(exchange, envelope, Fault("CreateSequenceRefused", reason, is_rm=True))

    app, got = shop()
    await app.start()
    async with scripted(handle) as url:
        async with Source(url, ":memory:", policy=QUICK) as source:
            await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
            await (await source.send("<n>2</n>", action=ACTION, sequence_key="other")).acknowledged(60)
    await until(lambda: got == ["1", "2"])
    await app.close()
    assert asked[-1] == versions
    assert Counter(asked)[versions] == 2, "what was learned once serves every sequence"
    assert max(Counter(asked).values()) == 2


@pytest.mark.parametrize(("profile", "rm", "addressing"), [("wcf", "1.0", "2005/08"), ("cxf", "1.0", "2004/08")])
async def test_a_profile_pins_the_versions(serve: Any, profile: str, rm: str, addressing: str) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:", profile=profile) as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    (inbound,) = app.running.engine.protocol.inbound.destinations.values()
    assert (inbound.versions.rm, inbound.versions.addressing) == (RM(rm), Addressing(addressing))


@pytest.mark.parametrize("arguments", [{"profile": "axis"}, {"profile": "wcf", "versions": Versions()}])
def test_a_profile_that_is_none_or_is_contradicted_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match="profile"):
        Source("http://127.0.0.1:9/", ":memory:", **arguments)


# --- stopping and going on --------------------------------------------------------------------------------------------


async def test_a_refused_sequence_stops_the_source_keeps_the_messages_and_resume_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, got = shop()
    await app.start()
    is_refusing = True

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        if is_refusing:
            refuse(exchange, envelope, Fault("CreateSequenceRefused", "closed for lunch", is_rm=True))
        else:
            app.handle(exchange)

    async with scripted(handle) as url:
        async with Source(url, tmp_path / "outbox", versions=Versions(), offer=False) as source:
            sent = [await source.send(f"<n>{i}</n>", action=ACTION) for i in range(3)]
            with pytest.raises(CreateSequenceRefused, match="closed for lunch") as caught:
                await sent[0].acknowledged(60)
            assert "3 unacknowledged messages are safe" in caught.value.remedy
            assert "closed for lunch" in source.progress.problem
            with pytest.raises(CreateSequenceRefused, match="closed for lunch"):
                await source.send("<n>3</n>", action=ACTION)
        caplog.clear()
        async with Source(None, tmp_path / "outbox", versions=Versions(), offer=False) as source:
            assert source.to == url
            (told,) = [one for one in caplog.messages if "sending.stopped" in one]
            assert "closed for lunch" in told, "an operator sees it without sending anything"
            assert "closed for lunch" in source.progress.problem
            with pytest.raises(
                CreateSequenceRefused, match=r"has stopped until you decide: (.|\n)*closed for lunch"
            ) as again:
                await source.send("<n>3</n>", action=ACTION)
            assert again.value.remedy == caught.value.remedy
            is_refusing = False
            source.resume()
            await source.flush(60)
            assert source.progress.acknowledged == 3
            assert not source.progress.problem
    await until(lambda: got == ["0", "1", "2"])
    await app.close()


class Demanding(Processor):
    """Accepts no fault, as a source that demands signatures of its destination accepts no unsigned one."""

    def inbound(self, context: MessageContext) -> None:
        if context.envelope.fault is not None:
            raise ProcessingError("it has no signature.")


async def test_a_source_stops_after_faults_for_create_sequence_that_it_accepts_none_of(tmp_path: Path) -> None:
    app, got = shop()
    await app.start()
    is_refusing, asked = True, set[str | None]()

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        if is_refusing and isinstance(envelope.control, CreateSequence):
            asked.add(envelope.message_id)
            refuse(exchange, envelope, Fault("Sender", "the certificate is not known"))
        else:
            app.handle(exchange)

    # It tries ten times to create each Sequence.
    policy = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.02, floor=0.01, cap=0.02))
    async with scripted(handle) as url:
        async with Source(
            url, tmp_path / "outbox", versions=Versions(), processors=[Demanding()], policy=policy
        ) as source:
            sent = await source.send("<n>0</n>", action=ACTION)
            with pytest.raises(DeliveryError, match="of 10 answers to CreateSequence is accepted") as caught:
                await sent.acknowledged(60)
            assert "it has no signature. It claims to be the fault Sender" in caught.value.message
            assert '"the certificate is not known"' in caught.value.message
            assert "1 unacknowledged message is safe" in caught.value.remedy
            assert source.incidents["sequence.refused"] > 0
            assert len(asked) == 2 * 2, "two Sequences, with an Offer and without one"
            is_refusing = False
            source.resume()
            await source.flush(60)
    await until(lambda: got == ["0"])
    await app.close()


async def test_messages_that_a_forgetful_destination_surely_lacks_go_in_a_new_sequence(serve: Any) -> None:
    app, got = shop()
    (port,) = free_ports(1)
    service = await serve(app, port=port)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        await (await source.send("<n>0</n>", action=ACTION)).acknowledged(60)
        await until(lambda: got == ["0"])
        await service.close()
        sent = await source.send("<n>1</n>", action=ACTION)
        await until(lambda: source.progress.problem != "")  # no connection: it did not leave
        again, got_again = shop()  # its store went with it
        await serve(again, port=port)
        await sent.acknowledged(60)
    await until(lambda: got_again == ["1"])


async def test_with_at_least_once_a_lost_sequence_is_replaced_without_asking(serve: Any) -> None:
    app, got = shop()
    (port,) = free_ports(1)
    service = await serve(app, port=port)
    async with Source(service.url, ":memory:", policy=QUICK, assurance="at-least-once") as source:
        await (await source.send("<n>0</n>", action=ACTION)).acknowledged(60)
        await until(lambda: got == ["0"])
        await service.close()
        again, got_again = shop()
        await serve(again, port=port)
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    await until(lambda: got_again == ["1"])


async def test_without_a_sign_of_life_it_gives_up_when_told_to_and_resume_tries_again(serve: Any) -> None:
    policy = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.1, give_up_after=0.3))
    app, got = shop()
    (port,) = free_ports(1)
    async with Source(f"http://127.0.0.1:{port}/", ":memory:", policy=policy) as source:
        sent = await source.send("<n>0</n>", action=ACTION)
        with pytest.raises(NotAcknowledged, match="did not answer") as caught:
            await sent.acknowledged(60)
        assert "1 unacknowledged message is in memory only" in caught.value.remedy
        service = await serve(app, port=port)
        is_there = False
        while not is_there:  # as often as the machine is too busy to show a sign of life in so short a time
            source.resume()
            with contextlib.suppress(NotAcknowledged):
                await sent.acknowledged(60)
                is_there = True
        await service.close()
        sent = await source.send("<n>1</n>", action=ACTION)
        with pytest.raises(NotAcknowledged, match="did not answer"):
            await sent.acknowledged(60)
    assert got == ["0"]


async def test_waiting_ends_with_what_is_the_matter_when_nobody_is_there() -> None:
    async with Source(f"http://127.0.0.1:{free_ports(1)[0]}/", ":memory:") as source:
        sent = await source.send("<n>0</n>", action=ACTION)
        await until(lambda: source.progress.problem)
        with pytest.raises(NotAcknowledged, match="Connection refused"):
            await sent.acknowledged(0.01)
        with pytest.raises(NotAcknowledged, match="Connection refused"):
            await source.flush(0.01)
        with pytest.raises(NotAcknowledged, match="Connection refused"):
            await source.end(timeout=0.01)
        with pytest.raises(NotAcknowledged, match="no reply"):
            await source.request("<n>0</n>", action=ACTION, timeout=0.01)
        assert source.progress.outstanding == 2


async def test_any_answer_even_an_empty_one_ends_a_failure_of_the_transport() -> None:
    answers: list[int] = []
    problems: list[str] = []

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        if isinstance(envelope.control, CreateSequence):
            answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
            answer.control = CreateSequenceResponse("urn:s")
            exchange.respond(200, encode(answer), content_type(envelope.soap).encode())
        else:
            answers.append(202 if answers else 503)
            exchange.respond(answers[-1])

    async with scripted(handle) as url, Source(url, ":memory:", offer=False, policy=QUICK) as source:
        source.on_progress = lambda progress: problems.append(progress.problem)
        await source.send("<n>1</n>", action=ACTION)
        await until(lambda: any("503" in problem for problem in problems) and problems[-1] == "")
        assert 202 in answers
        await source.close(0.0)


# --- resuming after an end of any kind --------------------------------------------------------------------------------


async def test_what_was_stored_before_is_sent_when_it_is_opened_again(serve: Any, tmp_path: Path) -> None:
    app, got = shop()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with Source(url, tmp_path / "outbox") as source:
        for i in range(5):
            await source.send(f"<n>{i}</n>", action=ACTION)
    await serve(app, port=port)
    async with Source(None, tmp_path / "outbox") as source:
        assert source.progress.outstanding == 5
        await source.flush(60)
    await until(lambda: len(got) == 5)
    assert got == [str(i) for i in range(5)]


async def test_what_waits_is_counted_without_what_was_acknowledged_behind_a_gap(serve: Any, tmp_path: Path) -> None:
    app, got = shop()
    url = (await serve(app)).url
    policy = SourcePolicy(RetransmissionPolicy(initial=0.05, floor=0.02, cap=0.05), window=128, initial_window=128)
    async with LossyProxy(url, Faults(lose_request=0.4), seed=3) as network:
        async with Source(network.url, tmp_path / "outbox", policy=policy) as source:
            await asyncio.gather(*(source.send(f"<n>{i}</n>", action=ACTION) for i in range(300)))
        for wanted in (80, 160, 220):
            async with Source(network.url, tmp_path / "outbox", policy=policy) as source:
                await until(lambda: source.progress.outstanding <= 300 - wanted)  # noqa: B023
        async with Source(network.url, tmp_path / "outbox", policy=policy) as source:
            await source.flush(60)
            assert source.progress.outstanding == 0
            assert source.next_offset() == 300
    await until(lambda: len(got) == 300)


async def test_a_reply_that_nobody_waited_for_is_there_after_a_restart(serve: Any, tmp_path: Path) -> None:
    app, _ = shop()
    url = (await serve(app)).url
    async with Source(url, tmp_path / "outbox") as source:
        with pytest.raises(NotAcknowledged):
            await source.request("<n>8</n>", action="urn:test:price", message_id="urn:mine", timeout=0.0)
        await source.flush(60)
    async with Source(url, tmp_path / "outbox") as source:
        assert (await source.reply("urn:mine", 60)).body.text == "8"


async def test_who_asks_for_a_reply_that_was_taken_is_not_told_that_it_is_still_tried(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        (await source.request("<n>8</n>", action="urn:test:price", message_id="urn:mine", timeout=60)).done()
        with pytest.raises(NotAcknowledged, match="no reply to urn:mine") as caught:
            await source.reply("urn:mine", timeout=0.0)
    assert "its reply was not collected before" in caught.value.remedy


async def test_a_store_serves_one_destination(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/"
    async with Source(url, tmp_path / "outbox") as source:
        await source.send("<n>0</n>", action=ACTION)
    with pytest.raises(ConfigurationError, match=r"holds messages for http://127\.0\.0\.1"):
        await Source("http://other.example/", tmp_path / "outbox").open()
    for empty in (tmp_path / "empty", ":memory:"):
        with pytest.raises(ConfigurationError, match="nothing to resume in"):
            await Source(None, empty).open()
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    ("stored", "given", "same"),
    [
        ("http://host.example", "http://host.example/", True),
        ("http://host.example/", "http://host.example", True),
        ("http://host.example/rm", "HTTP://Host.Example:80/rm", True),
        ("https://host.example/rm?a=1", "https://host.example:443/rm?a=1", True),
        ("http://host.example/rm", "http://host.example/rm/", False),
        ("http://host.example/rm", "http://host.example/RM", False),
        ("http://host.example/rm", "https://host.example/rm", False),
        ("http://host.example/rm", "http://host.example:8080/rm", False),
        ("http://host.example/rm?a=1", "http://host.example/rm", False),
    ],
)
async def test_an_address_in_another_spelling_is_the_one_in_the_store(
    tmp_path: Path, stored: str, given: str, same: bool
) -> None:
    async with Source(stored, tmp_path / "outbox") as source:
        await source.send("<n>0</n>", action=ACTION)
    other = Source(given, tmp_path / "outbox")
    if not same:
        with pytest.raises(ConfigurationError, match="holds messages for"):
            await other.open()
        return
    async with other:
        assert other.to == stored
        await other.send("<n>1</n>", action=ACTION, sequence_key="another")
        assert {outbox.to for outbox in other._running.engine.protocol.outbound.outboxes.values()} == {stored}


@pytest.mark.parametrize("answers", [False, True], ids=["nobody there", "a web server"])
async def test_once_all_messages_to_a_wrong_url_are_discarded_the_store_accepts_another(
    serve: Any, tmp_path: Path, answers: bool
) -> None:
    app, got = shop()
    url = (await serve(app)).url
    server = HTTPServer()
    await server.start(lambda exchange: exchange.respond(404, b"no page"), "127.0.0.1", 0)
    wrong = f"http://127.0.0.1:{server.port if answers else free_ports(1)[0]}/"
    async with Source(wrong, tmp_path / "outbox", versions=Versions()) as source:
        sent = await source.send("<n>1</n>", action=ACTION)
        if answers:
            with pytest.raises(PeerFault, match="HTTP 404"):
                await sent.acknowledged(60)
        else:
            await until(lambda: source.progress.problem)
    with pytest.raises(ConfigurationError, match="1 unacknowledged, which are safe there") as caught:
        await Source(url, tmp_path / "outbox").open()
    assert "holdfast outbox discard" in caught.value.remedy

    def discard() -> int:
        transport = StoreTransport(str(tmp_path / "outbox"))
        try:
            return transport.send("POST", "outbox/0/discard", None)[0]
        finally:
            transport.close()

    assert await asyncio.to_thread(discard) == 200
    async with Source(url, tmp_path / "outbox", versions=Versions()) as source:
        await source.send("<n>2</n>", action=ACTION)
        await source.flush(60)
    await until(lambda: got == ["2"])
    await server.close()


async def test_a_store_in_which_nothing_waits_may_serve_another_destination(serve: Any, tmp_path: Path) -> None:
    for number in range(2):
        app, got = shop()
        url = (await serve(app)).url
        async with Source(url, tmp_path / "outbox") as source:
            await (await source.send(f"<n>{number}</n>", action=ACTION)).acknowledged(60)
        await until(lambda got=got: got)
        assert got == [str(number)]
    async with Source(None, tmp_path / "outbox") as source:
        assert source.to == url


async def test_a_destination_and_a_source_do_not_take_each_others_stores(tmp_path: Path) -> None:
    async with Source(f"http://127.0.0.1:{free_ports(1)[0]}/", tmp_path / "outbox") as source:
        await source.send("<n>0</n>", action=ACTION)
    app = Destination(tmp_path / "inbox")
    await app.start()
    await app.close()
    for _ in range(2):  # and leave them as they are
        with pytest.raises(ConfigurationError, match=r"inbox belongs to a destination: it contains the queue 'inbox'"):
            await Source("http://127.0.0.1:9/", tmp_path / "inbox").open()
        with pytest.raises(ConfigurationError, match="outbox belongs to a source"):
            await Destination(tmp_path / "outbox").start()
    async with Source(None, tmp_path / "outbox") as source:
        assert source.progress.outstanding == 1
    app = Destination(tmp_path / "inbox")
    await app.start()
    await app.close()


async def test_a_listener_that_cannot_be_is_told_and_leaves_the_store_free(tmp_path: Path) -> None:
    server = HTTPServer()
    await server.start(lambda exchange: None, "127.0.0.1", 0)
    taken = ("127.0.0.1", server.port)
    with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{server.port}: Address already in use"):
        await Source("http://127.0.0.1:9/", tmp_path / "outbox", http=SourceHTTP(listen=taken)).open()
    await server.close()
    async with Source("http://127.0.0.1:9/", tmp_path / "outbox", http=SourceHTTP(listen=taken)):
        pass


@pytest.mark.parametrize("url", ["ftp://host/", "host:8080", "http://", "http://host:port/", "http://[::1/"])
def test_a_url_that_is_none_is_refused_before_anything_is_stored_for_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not an http or https URL"):
        Source(url, ":memory:")


@pytest.mark.parametrize("persistent", [True, False])
async def test_who_waits_in_vain_is_told_which_message_and_whether_it_is_safe(tmp_path: Path, persistent: bool) -> None:
    store = tmp_path / "outbox" if persistent else ":memory:"
    url = f"http://127.0.0.1:{free_ports(1)[0]}/"
    async with Source(url, store) as source:
        sent = await source.send("<n>0</n>", action=ACTION, message_id="urn:mine")
        with pytest.raises(NotAcknowledged, match="the message urn:mine for http://127") as caught:
            await sent.acknowledged(timeout=0.0)
    wanted = "the next one continues with it" if persistent else "If the process ends, it is lost"
    assert wanted in caught.value.remedy


async def test_a_reply_that_nobody_asked_for_is_acknowledged_and_not_kept(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:")
    seen: list[str] = []

    @app.on("urn:test:price")
    def price(message: Any) -> str:  # declares a reply, so that a message which says nothing of one gets it
        seen.append(message.body.text)
        return "<price>12</price>"

    url = (await serve(app)).url
    async with Source(url, tmp_path / "outbox", versions=Versions("1.1", "2005/08", "1.2"), offer=True) as source:
        for number in range(3):
            await (await source.send(f"<n>{number}</n>", action="urn:test:price")).acknowledged(60)
        assert (await source.request("<n>3</n>", action="urn:test:price", timeout=60)).body.text == "12"
        assert source.incidents["message.unsolicited_dropped"] == 3
        assert source._running.store.load().bounds.get(("replies", 0), (0, 0))[1] == 1
    assert seen == ["0", "1", "2", "3"]


async def test_a_message_that_is_refused_is_named_by_its_sequence_and_number(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        await (await source.send("<n>0</n>", action=ACTION)).acknowledged(60)
        refused = await source.send("<n>1</n>", action="urn:nobody")
        named = r"answered message 2 of the Sequence urn:uuid:[0-9a-f-]{36} with ActionNotSupported: \"No handler here"
        with pytest.raises(PeerFault, match=named):
            await refused.acknowledged(60)


@pytest.mark.parametrize(("status", "hint"), [(404, "another store"), (401, "Authorization")])
async def test_a_web_server_in_the_destinations_place_is_told_with_what_to_look_at(status: int, hint: str) -> None:
    server = HTTPServer()
    await server.start(lambda exchange: exchange.respond(status, b"<html/>", b"text/html"), "127.0.0.1", 0)
    try:
        async with Source(f"http://127.0.0.1:{server.port}/", ":memory:") as source:
            sent = await source.send("<n>0</n>", action=ACTION)
            with pytest.raises(PeerFault, match=f"answered with HTTP {status} and no SOAP message") as caught:
                await sent.acknowledged(60)
    finally:
        await server.close()
    assert hint in caught.value.remedy
    assert "lost when this process ends" in caught.value.remedy


async def test_a_page_in_place_of_a_grant_is_quoted_while_the_source_asks_again() -> None:
    server = HTTPServer()
    page = b"<!DOCTYPE html><html><body>Back at <b>eight</b></body></html>"
    await server.start(lambda exchange: exchange.respond(200, page, b"text/html"), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/"
    async with Source(url, ":memory:", versions=Versions("1.1"), policy=QUICK) as source:
        await source.send("<n>0</n>", action=ACTION)
        await until(lambda: source.progress.problem)
        assert source.progress.problem == f"{url} answered with HTTP 200 and no SOAP message (Back at eight)"
        await until(lambda: source.incidents["sequence.refused"] > 4)
        assert not source.progress.acknowledged
        await source.close(0.0)
    await server.close()


def _soap_fault(namespace: str, content: str) -> tuple[int, bytes]:
    return 500, f'<s:Envelope xmlns:s="{namespace}"><s:Body><s:Fault>{content}</s:Fault></s:Body></s:Envelope>'.encode()


S11, S12 = "http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"
MAINTENANCE = {
    "a page": (200, b"<!DOCTYPE html><html><body>Back at eight<br></body></html>"),
    "text": (200, b"Back at eight"),
    "half an envelope": (200, f'<s:Envelope xmlns:s="{S12}"><s:Body>'.encode()),
    "a page with 500": (500, b"<html/>"),
    "a page with 520": (520, b"<html/>"),
    "a Receiver fault": _soap_fault(S12, "<s:Code><s:Value>s:Receiver</s:Value></s:Code>"),
    "a Server fault": _soap_fault(S11, "<faultcode>s:Server</faultcode><faultstring>Back at eight</faultstring>"),
    "a kind of Server fault": _soap_fault(S11, "<faultcode>s:Server.Busy</faultcode><faultstring/>"),
    "EndpointUnavailable": _soap_fault(
        S12,
        "<s:Code><s:Value>s:Receiver</s:Value><s:Subcode><s:Value xmlns:a='http://www.w3.org/2005/08/addressing'>"
        "a:EndpointUnavailable</s:Value></s:Subcode></s:Code>",
    ),
    "a fault without a code": _soap_fault(S12, ""),
}


@pytest.mark.parametrize("kind", ["CreateSequence", "message", "the end"])
@pytest.mark.parametrize("name", MAINTENANCE)
async def test_what_was_sent_during_maintenance_leaves_after_it(serve: Any, name: str, kind: str) -> None:
    """The gateway answers in the service's name; nothing needs an operator."""
    app, seen = shop()
    await serve(app)
    left = [3]

    def handle(exchange: Exchange, envelope: Envelope) -> None:
        control = envelope.control
        asked = "CreateSequence" if isinstance(control, CreateSequence) else "message" if control is None else "the end"
        if left[0] and asked == kind:
            left[0] -= 1
            exchange.respond(*MAINTENANCE[name], b"text/html")
        else:
            app.handle(exchange)

    async with (
        scripted(handle) as url,
        Source(url, ":memory:", versions=Versions("1.1"), policy=QUICK) as source,
    ):
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    assert seen == ["1"] and left == [0]


async def test_a_sequence_that_does_not_end_is_named_with_the_last_fault() -> None:
    def handle(exchange: Exchange, envelope: Envelope) -> None:
        if isinstance(envelope.control, CreateSequence):
            answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
            answer.control = CreateSequenceResponse("urn:s:17")
            exchange.respond(200, encode(answer), content_type(envelope.soap).encode())
        else:
            refuse(exchange, envelope, Fault("Server", "the disk is full", sender=False))

    async with scripted(handle) as url:
        source = Source(url, ":memory:", versions=Versions("1.1"), policy=QUICK)
        await source.open()
        await source.send("<a/>", action=ACTION)
        await until(lambda: "disk" in source.progress.problem)
        with pytest.raises(NotAcknowledged, match=r"Sequence urn:s:17 did not end .* the fault Receiver: the disk is"):
            await source.end(timeout=0.05)
        await source.close(timeout=0.0)


async def test_sending_needs_an_open_source() -> None:
    source = Source("http://127.0.0.1:9/", ":memory:")
    with pytest.raises(ConfigurationError, match="not open"):
        await source.send("<a/>", action=ACTION)


CHILD = """
import asyncio, os, signal, sys
import holdfast

async def main():
    async with holdfast.Source(sys.argv[1], store=sys.argv[2]) as source:
        if sys.argv[3] == "first":
            await source.send("<n>1</n>", action="urn:test:submit", message_id="urn:once")
            os.kill(os.getpid(), signal.SIGKILL)
        await source.flush(60)

asyncio.run(main())
"""


async def run_child(*arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *arguments, env=child_environment())
    return await process.wait()


def child_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}


@pytest.mark.crash
async def test_killed_between_send_and_acknowledgement_the_message_arrives_once(serve: Any, tmp_path: Path) -> None:
    app, got = shop(tmp_path / "inbox")
    url = (await serve(app)).url
    outbox = str(tmp_path / "outbox")
    assert await run_child(url, outbox, "first") == -signal.SIGKILL
    assert await run_child(url, outbox, "again") == 0
    await until(lambda: got)
    assert await run_child(url, outbox, "again") == 0
    assert got == ["1"]
    assert app.running.accepted == 1


BUSY_CHILD = """
import asyncio, sys
import holdfast

async def main():
    async with holdfast.Source(sys.argv[1], store=sys.argv[2]) as source:
        for i in range(source.next_offset(), int(sys.argv[3])):
            await source.send(f"<n>{i}</n>", action="urn:test:submit")
            print(i, flush=True)

asyncio.run(main())
"""


@pytest.mark.crash
async def test_killed_while_it_sends_every_stored_message_arrives_once_in_order(serve: Any, tmp_path: Path) -> None:
    app, got = shop(tmp_path / "inbox")
    url = (await serve(app)).url
    told = set[int]()
    for count in (1, 7, 30, 80):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BUSY_CHILD, url, str(tmp_path / "outbox"), "100000",
            stdout=asyncio.subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(count)]
        process.kill()
        lines += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        told |= {int(line) for line in lines if line.endswith(b"\n")}
    async with Source(None, tmp_path / "outbox") as source:
        await source.flush(60)
    await until(
        lambda: app.running.dispatcher is not None and app.running.dispatcher.handling.succeeded == app.running.accepted
    )
    numbers = [int(text) for text in got]
    assert numbers == list(range(len(numbers))), "each once, in order, none left out by the life that came next"
    assert told <= set(numbers), "each that was said to be stored"


async def test_a_sequence_that_stops_does_not_disturb_who_waits_for_a_reply_in_another(serve: Any) -> None:
    app = Destination(":memory:", policy=DestinationPolicy(max_sequences=1))
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.on(ACTION)
    async def slow(message: Any) -> str:
        begun.set()
        await gate.wait()
        return "<done/>"

    async with Source((await serve(app)).url, ":memory:") as source:
        asked = asyncio.ensure_future(source.request("<a/>", action=ACTION, sequence_key="one", timeout=60))
        await begun.wait()
        with pytest.raises(CreateSequenceRefused):
            await source.request("<a/>", action=ACTION, sequence_key="two", timeout=60)
        assert not asked.done()
        gate.set()
        assert (await asked).body.tag == "done"


async def test_a_stopped_key_fails_no_send_to_another_and_flush_waits_for_these(serve: Any) -> None:
    app, got = shop()
    async with Source((await serve(app)).url, ":memory:", policy=QUICK) as source:
        stuck = await source.send("<n>0</n>", action="urn:nobody", sequence_key="stuck")
        with pytest.raises(PeerFault, match="No handler here takes the action"):
            await stuck.acknowledged(60)
        for number in range(3):
            await source.send(f"<n>{number}</n>", action=ACTION, sequence_key="other")
        with pytest.raises(DeliveryError, match=r"not stored, because sending has stopped.*No handler here"):
            await source.send("<n>9</n>", action=ACTION, sequence_key="stuck")
        with pytest.raises(PeerFault):
            await source.flush(60)
        assert source.progress.acknowledged == 3
    await until(lambda: len(got) == 3)


class FullDisk(MemoryStore):
    """Takes no batch once it is full."""

    is_full = False

    def commit(self, batch: Batch) -> None:
        if self.is_full:
            raise StoreFailed("no space left on device", remedy="Free some.")
        super().commit(batch)


async def test_a_source_whose_store_failed_says_which_messages_are_safe() -> None:
    store = FullDisk()
    source = Source("http://127.0.0.1:9/", store)
    await source.open()
    sent = [await source.send(f"<n>{number}</n>", action=ACTION) for number in range(2)]
    waiting = asyncio.ensure_future(sent[0].acknowledged(60))
    await asyncio.sleep(0)
    store.is_full = True
    with pytest.raises(StoreFailed, match="no space left on device") as caught:
        await source.send("<n>2</n>", action=ACTION)
    assert "This message may or may not be stored" in caught.value.message
    assert "holdfast outbox list" in caught.value.remedy
    for stored in (waiting, sent[1].acknowledged(60)):
        with pytest.raises(StoreFailed, match="no space left on device") as caught:
            await stored
        assert (
            "2 unacknowledged messages that were stored before are safe there: do not send stored messages again"
        ) in (caught.value.message)
    with contextlib.suppress(StoreFailed):
        await source.close(0.0)
