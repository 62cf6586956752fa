"""The scripted .NET peers: that they say what the real ones were recorded to say, and are as intolerant."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import until
from wcf import wire
from wcf.grids import RM10, RM11, each_version, every_combination, every_contract
from wcf.scripted_client import ApplicationFault, ScriptedWCFClient, SessionFaulted
from wcf.scripted_server import ScriptedWCFServer
from wcf.transport import Exchange, post
from wcf.vectors import SERVER, Normaliser, Recorded, cases, load, profile_of
from wcf.wire import COMBINATIONS, Profile

from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.interop

FAST = 0.02
"""Time scale of the tests that only want to see the end."""

IMPATIENT: dict[str, Any] = {"time_scale": 0.002, "longest_round_trip": 0.002, "inactivity": 1e6}
"""For a client that is to give up."""


async def converse(client: ScriptedWCFClient, contract: str, count: int = 3) -> list[str]:
    """The recorded conversations: ``count`` messages of that kind (mixed: every second is a request)."""
    replies = []
    for number in range(1, count + 1):
        if contract == "oneway" or (contract == "mixed" and number % 2):
            await client.notify("wcf", number)
        else:
            replies.append(await client.echo("wcf", number))
    return replies


def binding(contract: str) -> str:
    return "oneway" if contract == "oneway" else "twoway"


# --- against the recordings ------------------------------------------------------------------------------------------


def without_needless_repeats(transcript: list[Exchange]) -> list[Exchange]:
    """Without what a busy machine made it send again though the answer was on its way."""
    answered: set[tuple[str, str]] = set()
    kept = []
    for exchange in transcript:
        key = exchange.kind, exchange.message_number
        if key not in answered:
            kept.append(exchange)
        if exchange.outcome == "answered":
            answered.add(key)
    return kept


async def rerun(case: str) -> tuple[ScriptedWCFClient, list[Exchange]]:
    """The recorded conversation once more, with the scripted peers and the same losses."""
    contract = next(word for word in ("mixed", "twoway", "oneway") if f"-{word}" in case)
    second = "Notify 2" if contract == "oneway" else "Echo 2"
    drops = {
        "drop_requests": [second] if "lost-request" in case else [],
        "drop_responses": ["CreateSequence"] if "lost-create" in case else [second] if "lost-response" in case else [],
    }
    server_contract = "twoway" if "refused" in case else binding(contract)
    async with ScriptedWCFServer(
        profile_of(case), server_contract, ordered="oneway-lost-request" not in case
    ) as server:
        client = ScriptedWCFClient(server.url, profile_of(case), binding(contract), time_scale=FAST, **drops)
        try:
            await client.open()
            await converse(client, contract)
            await client.close()
        except SessionFaulted:
            assert "refused" in case
        finally:
            await client.abort()
    return client, without_needless_repeats(client.transcript)


@pytest.mark.parametrize("case", cases())
async def test_the_scripted_client_sends_what_the_real_one_was_recorded_to_send(case: str) -> None:
    recorded = load(case)
    for _ in range(3):
        _, transcript = await rerun(case)
        if len(transcript) == len(recorded):
            break  # else the machine was so busy that the client asked once more
    real, scripted = Normaliser(), Normaliser()
    assert len(transcript) == len(recorded)
    for theirs, ours in zip(recorded, transcript, strict=True):
        assert scripted(ours.request) == real(theirs.request)
        assert scripted(ours.request_head.removesuffix(b"\r\n\r\n")) == real(theirs.request_head)
        assert f"Content-Length: {len(ours.request)}\r\n".encode() in ours.request_head


@pytest.mark.parametrize("case", [case for case in cases() if case.startswith("pair-")])
async def test_the_scripted_server_answers_what_the_real_one_was_recorded_to_answer(case: str) -> None:
    recorded = load(case)
    _, transcript = await rerun(case)
    real, scripted = Normaliser(), Normaliser()
    compared = 0
    for theirs, ours in zip(recorded, transcript, strict=True):
        real(theirs.request)
        scripted(ours.request)
        if ours.outcome == "answered":
            assert scripted(ours.response) == real(theirs.response)
            assert theirs.response_head.startswith(f"HTTP/1.1 {ours.status} ".encode())
            assert ours.response_headers is not None
            content_type = f"\r\nContent-Type: {ours.response_headers['content-type']}\r\n"
            assert content_type.encode() in theirs.response_head
            compared += 1
    assert compared >= len(recorded) - 1 > -1


# CreateSequence, a typed fault, an exception, calls, an operation that returns nothing, unknown actions, one-way
# messages. Not 8 to 10: an operation that cannot read its request.
REPLAYED = [*range(1, 8), *range(11, 21)]


@pytest.mark.parametrize(("case", "profile"), [("faults-rm10", RM10), ("faults-rm11", RM11)])
async def test_the_scripted_server_answers_our_source_as_the_real_one_did(case: str, profile: Profile) -> None:
    real, scripted = Normaliser(), Normaliser()
    granted: dict[bytes, bytes] = {}
    async with ScriptedWCFServer(profile, throws=["crash"]) as server:
        for recorded in load(case, SERVER):
            if recorded.number not in REPLAYED:
                continue
            request = recorded.request
            for theirs, ours in granted.items():
                request = request.replace(theirs, ours)
            answer = await post(server.url, request, recorded.request_head)
            if b"CreateSequenceResponse" in answer.body:
                granted |= dict(zip(identifiers(recorded.response), identifiers(answer.body), strict=True))
            real(recorded.request)
            scripted(request)
            # Why an exception was thrown, and where, is not scripted.
            response = re.sub(rb"<s:Detail><ExceptionDetail .*</s:Detail>", b"", recorded.response, flags=re.DOTALL)
            assert scripted(answer.body) == real(response)
            assert recorded.response_head.startswith(f"HTTP/1.1 {answer.status} ".encode())


def identifiers(data: bytes) -> list[bytes]:
    """The Identifiers in an envelope."""
    return re.findall(rb"Identifier>([^<]+)<", data)


def every_recorded_answer() -> list[tuple[str, Recorded]]:
    return [(case, exchange) for case in cases() for exchange in load(case) if exchange.response]


def test_the_strict_reader_takes_every_recorded_message() -> None:
    for case, exchange in every_recorded_answer():
        profile = profile_of(case)
        for data in (exchange.request, exchange.response):
            read = wire.read(profile, profile.content_type, data)
            assert read.action
            assert read.fault is None or (read.fault.recognised and "refused" in case)


# --- with each other -------------------------------------------------------------------------------------------------


@every_combination
@every_contract
async def test_a_clean_session_delivers_everything_once_and_in_order(profile: Profile, contract: str) -> None:
    async with (
        ScriptedWCFServer(profile, binding(contract)) as server,
        ScriptedWCFClient(server.url, profile, binding(contract)) as client,
    ):
        replies = await converse(client, contract, 5)
    assert [message.number for message in server.delivered] == [1, 2, 3, 4, 5]
    assert replies == ["hello"] * {"oneway": 0, "twoway": 5, "mixed": 2}[contract]
    assert client.slow_close == []
    assert server.refusals == []


@each_version
@every_contract
@pytest.mark.parametrize("lost", ["drop_requests", "drop_responses"])
@pytest.mark.parametrize("where", ["client", "server"])
async def test_each_kind_of_message_may_be_lost_once(profile: Profile, contract: str, lost: str, where: str) -> None:
    kinds = ["CreateSequence", "Notify", "Echo", "LastMessage", "CloseSequence"]
    # The one-way client of RM 1.0 sends its TerminateSequence once and waits for nothing.
    kinds += ["TerminateSequence"] if profile.rm == "1.1" or contract != "oneway" else []
    losses: dict[str, Any] = {lost: kinds}
    async with ScriptedWCFServer(profile, binding(contract), **losses if where == "server" else {}) as server:
        options = losses if where == "client" else {}
        async with ScriptedWCFClient(server.url, profile, binding(contract), time_scale=FAST, **options) as client:
            await converse(client, contract, 4)
    assert [message.number for message in server.delivered] == [1, 2, 3, 4]
    assert client.slow_close == []
    assert all(session.terminated for session in server.sessions.values() if session.received)
    assert any(exchange.outcome != "answered" for exchange in client.transcript)


@pytest.mark.every(5)
@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
@pytest.mark.parametrize("ordered", [True, False])
async def test_random_losses_and_eight_callers_at_once(profile: Profile, contract: str, ordered: bool) -> None:
    async with (
        ScriptedWCFServer(profile, contract, ordered=ordered) as server,
        ScriptedWCFClient(server.url, profile, contract, time_scale=FAST, loss_rate=0.08, seed=11) as client,
    ):

        async def caller(first: int) -> None:
            for number in range(first, first + 4):
                if contract == "oneway":
                    await client.notify("wcf", number, str(number))
                else:
                    assert await client.echo("wcf", number, str(number)) == str(number)

        await asyncio.gather(*(caller(first) for first in range(0, 32, 4)))
    assert sorted(server.texts, key=int) == [str(number) for number in range(32)]
    numbers = [message.number for message in server.delivered]
    assert sorted(numbers) == list(range(1, 33))
    assert numbers == sorted(numbers) or not ordered
    if contract == "twoway":
        last_message = profile.rm == "1.0"
        assert sorted(client.replies) == list(range(1, 33 + last_message))


async def test_the_window_opens_from_one_to_eight() -> None:
    async with (
        ScriptedWCFServer(RM11, "twoway", ordered=False) as server,
        ScriptedWCFClient(server.url, RM11, "twoway") as client,
    ):
        assert client.window_size == 1
        for number in range(1, 9):
            await client.echo("wcf", number)
        assert client.window_size == 8


async def test_a_repeated_create_sequence_keeps_its_ids_and_gets_the_same_sequence() -> None:
    async with (
        ScriptedWCFServer(RM10) as server,
        ScriptedWCFClient(server.url, RM10, time_scale=FAST, drop_responses=["CreateSequence"]) as client,
    ):
        await client.echo("wcf", 1)
    first, second = client.sent("CreateSequence")
    assert first.request == second.request
    assert first.response == second.response
    assert len(server.sessions) == 1


async def test_a_client_gives_up_after_eight_retries() -> None:
    lost = range(2, 100)
    async with ScriptedWCFServer(RM11) as server:
        client = ScriptedWCFClient(server.url, RM11, **IMPATIENT, drop_requests=lost)
        await client.open()
        with pytest.raises(SessionFaulted, match="maximum retry count exceeded"):
            await client.echo("wcf", 1)
        await client.abort()
    assert len(client.sent("Echo")) == 1 + 8


async def test_a_client_stops_at_a_full_buffer_asks_and_goes_on() -> None:
    async with (
        ScriptedWCFServer(RM11, "oneway") as server,
        ScriptedWCFClient(server.url, RM11, "oneway", time_scale=FAST, inactivity=600.0) as client,
    ):
        await client.notify("wcf", 1)
        server.buffer = 0
        await client.notify("wcf", 2)
        waiting = asyncio.create_task(client.notify("wcf", 3))
        await until(lambda: len(client.sent("AckRequested")) >= 3, None)
        assert not waiting.done()
        server.buffer = 8
        await waiting
    assert server.while_full == []
    assert [message.number for message in server.delivered] == [1, 2, 3]


async def test_an_idle_client_keeps_its_session_alive_with_ack_requested() -> None:
    async with (
        ScriptedWCFServer(RM10) as server,
        ScriptedWCFClient(server.url, RM10) as client,
    ):
        await client.echo("wcf", 1)
        client.idle(300)
        await until(lambda: any(exchange.outcome == "answered" for exchange in client.sent("AckRequested")), None)
        request = client.sent("AckRequested")[0].request
        assert b"SequenceAcknowledgement>" in request  # of the reply, which nothing else has acknowledged yet
        assert b"MessageID" not in request
        assert b"ReplyTo" not in request
        await client.echo("wcf", 2)


async def test_a_silent_session_is_gone_after_the_inactivity_timeout() -> None:
    async with ScriptedWCFServer(RM10) as server:
        client = ScriptedWCFClient(server.url, RM10, time_scale=FAST)
        await client.open()
        server.time_out()
        with pytest.raises(SessionFaulted, match="UnknownSequence") as error:
            await client.echo("wcf", 1)
        assert error.value.recognised
        await client.abort()


@every_combination
async def test_a_client_rides_out_a_server_that_comes_back_with_its_sessions(profile: Profile) -> None:
    (port,) = free_ports(1)
    server = ScriptedWCFServer(profile, port=port)
    await server.__aenter__()
    client = ScriptedWCFClient(server.url, profile, time_scale=0.1)
    await client.open()
    await client.echo("wcf", 1)
    await server.__aexit__()
    call = asyncio.create_task(client.echo("wcf", 2))
    # A call that ends before that has failed, and says why below.
    await until(lambda: call.done() or [one.outcome for one in client.transcript].count("no connection") >= 2, None)
    async with ScriptedWCFServer(profile, port=port) as again:
        again.sessions = server.sessions
        assert await call == "hello"
        await client.close()
    assert [message.number for message in server.delivered + again.delivered] == [1, 2]


@every_combination
async def test_a_server_that_forgot_its_sessions_kills_the_clients_session(profile: Profile) -> None:
    async with ScriptedWCFServer(profile) as server:
        client = ScriptedWCFClient(server.url, profile)
        await client.open()
        await client.echo("wcf", 1)
        server.sessions.clear()
        with pytest.raises(SessionFaulted, match="not a known Sequence") as error:
            await client.echo("wcf", 2)
        assert (error.value.code, error.value.recognised) == ("UnknownSequence", True)
        with pytest.raises(SessionFaulted, match="not a known Sequence"):
            await client.notify("wcf", 3)
        await client.abort()


# --- what the client does not take -----------------------------------------------------------------------------------


class Mutation:
    """Replaces a pattern in the answers to one kind of message; remembers whether it ever applied."""

    def __init__(self, kind: str, pattern: bytes, replacement: bytes) -> None:
        self.kind = kind
        self.pattern = re.compile(pattern, re.DOTALL)
        self.replacement = replacement
        self.applied = 0

    def __call__(self, kind: str, data: bytes) -> bytes:
        if kind != self.kind:
            return data
        changed, count = self.pattern.subn(self.replacement, data, count=1)
        self.applied += count
        return changed


ACK = rb"<r:SequenceAcknowledgement>.*?</r:SequenceAcknowledgement>"
SEQUENCE = rb"<r:Sequence .*?</r:Sequence>"
TWICE = rb"\g<0>\g<0>"
NOTHING = rb""
LATE_MU = rb'<x:Late xmlns:x="urn:x" s:mustUnderstand="1"/></s:Header>'

# name, the profile, what is answered, pattern, replacement, what the client says
WRONG_SERVERS: list[tuple[str, Profile, str, bytes, bytes, str]] = [
    ("accept address", RM10, "CreateSequence", rb"<a:Address>http", rb"<a:Address>HTTP", "Accept/AcksTo is 'HTTP"),
    (
        "accept slash",
        RM11,
        "CreateSequence",
        rb"</a:Address></AcksTo></Acc",
        rb"/\g<0>",
        "which is not the request's To",
    ),
    ("accept missing", RM10, "CreateSequence", rb"<Accept>.*</Accept>", NOTHING, "Accept is missing"),
    ("accept missing 1.1", RM11, "CreateSequence", rb"<Accept>.*</Accept>", NOTHING, "Accept is missing"),
    ("create order", RM11, "CreateSequence", rb"(<Identifier>.*</Identifier>)(<Incomp.*Behavior>)", rb"\2\1", "order"),
    ("behavior in 1.0", RM10, "CreateSequence", rb"<Accept>", rb"<IncompleteSequenceBehavior/>\g<0>", "unexpected Inc"),
    ("create relates", RM10, "CreateSequence", rb"<a:RelatesTo>.*</a:RelatesTo>", NOTHING, "relates to None"),
    ("create relates 1.1", RM11, "CreateSequence", rb"(<a:RelatesTo>).*?<", rb"\1urn:other<", "relates to urn:other"),
    ("no action", RM11, "CreateSequence", rb"<a:Action.*</a:Action>", NOTHING, "no Action"),
    ("two acks", RM10, "Notify", ACK, TWICE, "more than one SequenceAcknowledgement"),
    ("two sequences", RM10, "Echo", SEQUENCE, TWICE, "more than one Sequence"),
    ("two actions", RM11, "Echo", rb"<a:Action.*</a:Action>", TWICE, "more than one Action"),
    ("sequence order", RM11, "Echo", rb"(<r:Id\S+er>)(<r:Mess\S+er>)(</r:Seq)", rb"\2\1\3", "schema order"),
    ("final first", RM11, "CloseSequence", rb"(<r:Ack[^>]*/>)(<r:Final/>)", rb"\2\1", "not in schema order"),
    ("buffer first", RM10, "Notify", rb"(<r:Ack[^>]*/>)(<net.*ing>)", rb"\2\1", "not in schema order"),
    ("buffer negative", RM10, "Notify", rb">8<", rb">-1<", "BufferRemaining is '-1'"),
    ("buffer absurd", RM11, "Notify", rb">8<", rb">2147483648<", "BufferRemaining is '2147483648'"),
    ("mustUnderstand", RM10, "Notify", rb"</s:Header>", LATE_MU, "marked mustUnderstand and is not known"),
    ("mustUnderstand create", RM11, "CreateSequence", rb"</s:Header>", LATE_MU, "marked mustUnderstand"),
    ("no reply", RM10, "Echo", SEQUENCE, NOTHING, "without its reply: no meaningful reply"),
    ("no reply 1.1", RM11, "Echo", SEQUENCE, NOTHING, "without its reply: no meaningful reply"),
    ("not this one", RM11, "Echo", rb'Upper="2"', rb'Upper="1"', "not this message"),
    ("never sent", RM10, "Notify", rb'Upper="1"', rb'Upper="9"', "covers numbers never sent"),
    ("never sent 1.1", RM11, "Echo", rb'Upper="2"', rb'Upper="3"', "covers numbers never sent"),
    ("no ack", RM10, "Echo", ACK, NOTHING, "without an acknowledgement"),
    ("zero", RM11, "Notify", rb'Lower="1"', rb'Lower="0"', "not a number from 1"),
    ("zero to one", RM10, "Notify", rb'Lower="1"', rb'Lower="0"', "range from 0 to 1"),
    ("upside down", RM10, "Echo", rb'Lower="1"', rb'Lower="3"', "range from 3 to 2"),
    ("overlapping", RM11, "Notify", rb"<r:AcknowledgementRange[^>]*>", TWICE, "overlap"),
    ("range and None", RM11, "Notify", rb"<r:Ack[^>]*/>", rb"\g<0><r:None/>", "not in schema order"),
    ("closed by itself", RM11, "Notify", rb"(<r:Ack[^>]*/>)", rb"\1<r:Final/>", "closed the sequence by itself"),
    ("ended by itself", RM10, "Echo", rb"</r:MessageNumber>", rb"\g<0><r:LastMessage/>", "ended the offered"),
    ("ack of another", RM11, "Notify", rb"(Ack\w+><r:Identifier>)[^<]*", rb"\1urn:x", "unknown sequence urn:x"),
    ("reply of another", RM11, "Echo", rb"(<r:Sequence [^>]*><r:Id\w+>)[^<]*", rb"\1urn:x", "unknown sequence urn:x"),
    ("reply relates", RM10, "Echo", rb"(<a:RelatesTo>)[^<]*", rb"\1urn:x", "the reply relates to urn:x"),
    ("reply too high", RM11, "Echo", rb"(MessageNumber>)\d+", rb"\g<1>7", "reply number 7 though fewer"),
    ("reply repeated", RM11, "Echo", rb"(MessageNumber>)2", rb"\g<1>1", "used for two requests"),
    ("reply gap", RM11, "Echo", rb"(MessageNumber>)2", rb"\g<1>3", r"gaps: \[2\] never came"),
    ("other SOAP", RM11, "Echo", b"2003/05/soap-envelope", b"2003/05/soap-envelop", "not an Envelope of SOAP 1.2"),
    ("other addressing", RM10, "Echo", b"www.w3.org/2005/08/", b"schemas.xmlsoap.org/ws/2004/08/", "another WS-Addr"),
    ("other RM", RM10, "Notify", RM10.rm_ns.encode(), RM11.rm_ns.encode(), "another version than"),
    ("HTML", RM11, "Notify", rb"^.*$", b"<html><body>Welcome</body></html>", "not an Envelope"),
    ("truncated", RM11, "Notify", rb"</s:Envelope>$", NOTHING, "malformed XML"),
    ("close without final", RM11, "CloseSequence", rb"<r:Final/>", NOTHING, "no acknowledgement with Final"),
    ("close without ack", RM11, "CloseSequence", ACK, NOTHING, "no acknowledgement with Final"),
    ("close too little", RM11, "CloseSequence", rb'Upper="3"', rb'Upper="2"', r"is \[\(1, 2\)\], not \[\(1, 3\)\]"),
    ("close none", RM11, "CloseSequence", rb"<r:Ack[^>]*/>", rb"<r:None/>", r"is \[\], not"),
    ("close relates", RM11, "CloseSequence", rb"<a:RelatesTo>.*</a:RelatesTo>", NOTHING, "relates to None"),
    ("close another", RM11, "CloseSequence", rb"(Response><r:Id\w+>)[^<]*", rb"\1urn:x", "names another sequence"),
    ("end without final", RM11, "TerminateSequence", rb"<r:Final/>", NOTHING, "no acknowledgement with Final"),
    ("end relates", RM11, "TerminateSequence", rb"(<a:RelatesTo>)[^<]*", rb"\1urn:x", "relates to urn:x"),
    (
        "end of the wrong",
        RM10,
        "TerminateSequence",
        rb"(Sequence><r:Id\w+>)[^<]*",
        rb"\1urn:x",
        "of the offered sequence",
    ),
]


async def against_wrong(server: ScriptedWCFServer, profile: Profile) -> SessionFaulted:
    client = ScriptedWCFClient(server.url, profile, time_scale=FAST)
    try:
        await client.open()
        await client.notify("wcf", 1)
        await client.echo("wcf", 2)
        await client.echo("wcf", 3)
        await client.close()
    except SessionFaulted as error:
        return error
    finally:
        await client.abort()
    pytest.fail("the client took it")


@pytest.mark.parametrize(
    ("profile", "kind", "pattern", "replacement", "said"),
    [case[1:] for case in WRONG_SERVERS],
    ids=[case[0] for case in WRONG_SERVERS],
)
async def test_the_client_refuses_a_wrong_answer_and_says_why(
    profile: Profile, kind: str, pattern: bytes, replacement: bytes, said: str
) -> None:
    mutation = Mutation(kind, pattern, replacement)
    async with ScriptedWCFServer(profile, mutate=mutation) as server:
        error = await against_wrong(server, profile)
    assert mutation.applied
    assert re.search(said, error.reason), error.reason


async def test_an_accept_nobody_asked_for_is_refused() -> None:
    unasked = rb"<Accept><AcksTo><a:Address>http://x/</a:Address></AcksTo></Accept></CreateSequenceResponse>"
    mutation = Mutation("CreateSequence", rb"</CreateSequenceResponse>", unasked)
    async with ScriptedWCFServer(RM11, "oneway", mutate=mutation) as server:
        with pytest.raises(SessionFaulted, match="though none was offered"):
            await ScriptedWCFClient(server.url, RM11, "oneway").open()


@every_combination
async def test_another_content_type_is_refused(profile: Profile) -> None:
    async with ScriptedWCFServer(profile) as server:
        server.content_type = "application/xml; charset=utf-8"
        with pytest.raises(SessionFaulted, match="Content-Type is 'application/xml"):
            await ScriptedWCFClient(server.url, profile).open()


async def test_an_ack_that_forgets_is_refused() -> None:
    mutation = Mutation("Notify", rb'Lower="1" Upper="3"', rb'Lower="3" Upper="3"')
    async with ScriptedWCFServer(RM10, "oneway", mutate=mutation) as server:
        client = ScriptedWCFClient(server.url, RM10, "oneway")
        await client.open()
        await client.notify("wcf", 1)
        await client.notify("wcf", 2)
        with pytest.raises(SessionFaulted, match="forgets numbers"):
            await client.notify("wcf", 3)
        await client.abort()


async def test_a_repeated_reply_with_another_body_is_refused() -> None:
    copies = iter(range(1, 1000))

    def another_body(kind: str, data: bytes) -> bytes:
        return data.replace(b"hello", b"copy %d" % next(copies)) if kind == "Echo" else data

    async with ScriptedWCFServer(RM11, reply_delay=0.3, mutate=another_body) as server:
        client = ScriptedWCFClient(server.url, RM11, time_scale=FAST, longest_round_trip=0.02)
        await client.open()
        await client.echo("wcf", 1)
        assert len(client.sent("Echo")) > 1
        await until(lambda: all(exchange.outcome for exchange in client.sent("Echo")), None)
        with pytest.raises(SessionFaulted, match="came again with another body"):
            await client.notify("wcf", 2)
        await client.abort()


async def test_headers_that_need_not_be_understood_and_extensions_are_skipped() -> None:
    extra = rb'<x:New xmlns:x="urn:x"/></s:Header>'
    mutation = Mutation("Notify", rb"</s:Header>", extra)
    async with ScriptedWCFServer(RM11, mutate=mutation) as server, ScriptedWCFClient(server.url, RM11) as client:
        await client.notify("wcf", 1)
    assert mutation.applied


async def test_an_applications_fault_is_a_reply_and_the_session_lives_on() -> None:
    fault = rb"<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code><s:Reason><s:Text>no</s:Text></s:Reason></s:Fault>"
    mutation = Mutation("Echo", rb"<echoResponse.*</echoResponse>", fault)
    async with ScriptedWCFServer(RM11, mutate=mutation) as server, ScriptedWCFClient(server.url, RM11) as client:
        with pytest.raises(ApplicationFault, match="no"):
            await client.echo("wcf", 1)
        await client.notify("wcf", 2)


@pytest.mark.parametrize("profile", [profile for profile in COMBINATIONS if profile.rm == "1.0"], ids=str)
async def test_an_end_that_is_only_accepted_makes_the_close_slow(profile: Profile) -> None:
    async with ScriptedWCFServer(profile, silent=["TerminateSequence"]) as server:
        async with ScriptedWCFClient(server.url, profile, time_scale=0.005) as client:
            await client.echo("wcf", 1)
    assert len(client.sent("TerminateSequence")) == 6
    assert client.slow_close == ["TerminateSequence was not answered by a TerminateSequence of the offered sequence"]


@pytest.mark.parametrize("profile", [profile for profile in COMBINATIONS if profile.rm == "1.0"], ids=str)
async def test_a_last_message_that_is_only_acknowledged_makes_the_close_slow(profile: Profile) -> None:
    mutation = Mutation("LastMessage", SEQUENCE + b"(.*?)/LastMessage<", rb"\1/SequenceAcknowledgement<")
    async with ScriptedWCFServer(profile, mutate=mutation) as server, ScriptedWCFClient(server.url, profile) as client:
        await client.echo("wcf", 1)
    assert client.slow_close == ["LastMessage was not answered by a LastMessage of the offered sequence"]


# --- what the server does not take -----------------------------------------------------------------------------------

ANON = rb"http://www.w3.org/2005/08/addressing/anonymous"
OLD = Profile("1.0", "2004/08", "1.2")

# name, the profile, what is sent, pattern, replacement, what the server writes down, what reaches the client
WRONG_CLIENTS: list[tuple[str, Profile, str, bytes, bytes, str, str]] = [
    ("no id", RM10, "CreateSequence", rb"<a:MessageID>.*</a:MessageID>", NOTHING, "reset: Create.* without", "6 times"),
    ("acks to", RM10, "CreateSequence", rb"(AcksTo><a:Address>)[^<]*", rb"\1urn:x", "AcksTo urn:x is not", "Refused"),
    (
        "endpoint",
        RM11,
        "CreateSequence",
        rb"(Endpoint><a:Address>)[^<]*",
        rb"\1urn:x",
        "Endpoint urn:x is not",
        "Refused",
    ),
    ("no endpoint", RM11, "CreateSequence", rb"<Endpoint>.*</Endpoint>", NOTHING, "Offer has no Endpoint", "Refused"),
    ("no offer", RM11, "CreateSequence", rb"<Offer>.*</Offer>", NOTHING, "must contain an offer", "Refused"),
    ("no reply to", OLD, "CreateSequence", rb"<a:ReplyTo>.*</a:ReplyTo>", NOTHING, "no ReplyTo", "Refused"),
    (
        "order",
        RM10,
        "CreateSequence",
        rb"(<AcksTo>.*</AcksTo>)(<Offer>.*</Offer>)",
        rb"\2\1",
        "schema order",
        "Refused",
    ),
    ("mandatory", RM10, "Notify", rb"</s:Header>", LATE_MU, "MustUnderstand: header", "MustUnderstand"),
    ("no number", RM10, "Notify", rb"Number>1<", rb"Number>one<", "reset: MessageNumber is 'one'", "retry count"),
    ("zero", RM11, "Notify", rb"Number>1<", rb"Number>0<", "reset: MessageNumber is '0'", "retry count"),
    ("too high", RM11, "Notify", rb"Number>1<", rb"Number>9223372036854775808<", "reset: Mess", "retry count"),
    ("no identifier", RM10, "Notify", rb"<r:Identifier>.*?</r:Identifier>", NOTHING, "reset: Sequence has no", "retry"),
    ("malformed", RM11, "Notify", rb"</s:Envelope>", NOTHING, "reset: malformed XML", "retry count"),
    ("UTF-16", RM11, "Notify", rb"^", b"\xff\xfe", "reset: the message is not UTF-8", "retry count"),
    ("two sequences", RM10, "Notify", SEQUENCE, TWICE, "MustUnderstand: more than one Seq", "MustUnderstand"),
    ("no RM 1.1", RM11, "Notify", SEQUENCE, NOTHING, "WsrmRequired", "WsrmRequired"),
    ("no RM 1.0", RM10, "Notify", SEQUENCE, NOTHING, "ActionNotSupported", "ActionNotSupported"),
    ("unknown", RM11, "Notify", rb"(<r:Identifier>)[^<]*", rb"\1urn:x", "UnknownSequence", "not a known Sequence"),
    ("ack never sent", RM10, "LastMessage", rb'Upper="1"', rb'Upper="5"', "InvalidAcknowledgement", "cumulative"),
    ("ack of another", RM11, "CloseSequence", rb"(<r:Identifier>)[^<]*", rb"\1urn:x", "UnknownSequence", "UnknownSeq"),
    ("no final", RM11, "CloseSequence", ACK, NOTHING, "no final acknowledgement", "SequenceTerminated"),
    ("last too low", RM11, "CloseSequence", rb"Number>2<", rb"Number>1<", "below a number that was", "Terminated"),
    ("no last", RM11, "CloseSequence", rb"<r:LastMsgNumber>2</r:LastMsgNumber>", NOTHING, "0 in Close.* below", "Term"),
    ("another last", RM11, "TerminateSequence", rb"Number>2<", rb"Number>3<", "was 2 in an earlier", "Terminated"),
    ("early end", RM10, "LastMessage", rb"<r:LastMessage/>", NOTHING, "came before every message", "Terminated"),
]


@pytest.mark.parametrize(
    ("profile", "kind", "pattern", "replacement", "noted", "reached"),
    [case[1:] for case in WRONG_CLIENTS],
    ids=[case[0] for case in WRONG_CLIENTS],
)
async def test_the_server_refuses_a_wrong_request_and_notes_why(
    profile: Profile, kind: str, pattern: bytes, replacement: bytes, noted: str, reached: str
) -> None:
    mutation = Mutation(kind, pattern, replacement)
    async with ScriptedWCFServer(profile) as server:
        client = ScriptedWCFClient(server.url, profile, **IMPATIENT, mutate=mutation)
        with pytest.raises(SessionFaulted, match=reached):
            await whole_session(client)
        await client.abort()
    assert mutation.applied
    assert any(re.search(noted, line, re.DOTALL) for line in server.refusals), server.refusals


async def whole_session(client: ScriptedWCFClient) -> None:
    await client.open()
    await client.notify("wcf", 1)
    await client.echo("wcf", 2)
    await client.close()


async def test_a_one_way_endpoint_of_rm_10_refuses_an_offer() -> None:
    async with ScriptedWCFServer(RM10, "oneway") as server:
        with pytest.raises(SessionFaulted, match="must not contain an offer") as error:
            await ScriptedWCFClient(server.url, RM10, "twoway").open()
    assert (error.value.code, error.value.recognised) == ("CreateSequenceRefused", True)


async def test_a_one_way_endpoint_of_rm_11_ignores_an_offer() -> None:
    async with ScriptedWCFServer(RM11, "oneway") as server:
        with pytest.raises(SessionFaulted, match="Accept is missing though a sequence was offered"):
            await ScriptedWCFClient(server.url, RM11, "twoway").open()
    assert server.refusals == []


@pytest.mark.parametrize(
    ("spoken", "bound", "said"),
    [(RM11, RM10, "Only WS-ReliableMessaging February 2005 messages"), (RM10, RM11, "Only WS-ReliableMessaging 1.1 m")],
)
async def test_another_rm_version_is_refused_by_name(spoken: Profile, bound: Profile, said: str) -> None:
    async with ScriptedWCFServer(bound) as server:
        with pytest.raises(SessionFaulted, match=said) as error:
            await ScriptedWCFClient(server.url, spoken).open()
    assert error.value.code == "CreateSequenceRefused"


async def test_another_soap_version_gets_unsupported_media_type() -> None:
    async with ScriptedWCFServer(Profile("1.0", "2005/08", "1.1")) as server:
        with pytest.raises(SessionFaulted, match="HTTP 415"):
            await ScriptedWCFClient(server.url, RM10).open()


@pytest.mark.parametrize(("ordered", "expected"), [(True, [1, 2]), (False, [1, 3, 5, 4, 2])])
async def test_an_ordered_server_drops_what_follows_a_gap(ordered: bool, expected: list[int]) -> None:
    async with ScriptedWCFServer(RM10, "oneway", ordered=ordered) as server:
        client = ScriptedWCFClient(server.url, RM10, "oneway")
        await client.open()
        statuses = [await send_raw(client, server, number) for number in (1, 3, 5, 4, 2)]
        await client.abort()
    assert [message.number for message in server.delivered] == expected
    assert statuses == ([200, 202, 202, 202, 200] if ordered else [200] * 5)


async def send_raw(client: ScriptedWCFClient, server: ScriptedWCFServer, number: int) -> int:
    """One message with that number, past the client's own bookkeeping; the HTTP status it gets."""
    headers = [wire.sequence(client.identifier, number), wire.action(wire.NOTIFY), wire.to(server.url)]
    body = '<notify xmlns="urn:holdfast:interop"/>'
    data = wire.envelope(client.profile, headers, body, application=True)
    head = f"POST / HTTP/1.1\r\nContent-Type: {client.profile.content_type}".encode()
    return (await post(server.url, data, head)).status


@pytest.mark.parametrize(("profile", "code"), [(RM10, "LastMessageNumberExceeded"), (RM11, "SequenceClosed")])
async def test_a_message_after_the_end_is_refused(profile: Profile, code: str) -> None:
    async with ScriptedWCFServer(profile, "oneway") as server:
        client = ScriptedWCFClient(server.url, profile, "oneway")
        await client.open()
        await client.notify("wcf", 1)
        await client.close()
        assert await send_raw(client, server, 9) == 500
    assert server.refusals[0].startswith(code)
    assert len(server.delivered) == 1


def a_session(profile: Profile) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        async with ScriptedWCFServer(profile) as server, ScriptedWCFClient(server.url, profile) as client:
            await client.echo("wcf", 1)

    return run


@every_combination
async def test_a_peer_leaves_no_task_behind(profile: Profile) -> None:
    before = asyncio.all_tasks()
    await a_session(profile)()
    await until(lambda: asyncio.all_tasks() <= before, None)
