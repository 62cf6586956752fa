"""Holdfast's source in front of a .NET service: every rule the service holds a client to, in all six combinations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from wcf import wire
from wcf.grids import each_version, every_combination, every_contract
from wcf.scripted_server import ScriptedWCFServer, Session
from wcf.wire import CONTRACT_NS, ECHO, FAIL, NOTHING, NOTIFY, Profile

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig
from holdfast.core.policy import ForwardingPolicy
from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.interop


QUICK = replace(
    holdfast.SourcePolicy(),
    retransmission=holdfast.RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.5),
    poll_interval=0.05,
)
"""Retransmits soon, where losses have to be waited out."""


@contextlib.asynccontextmanager
async def running_source(
    url: str, profile: Profile, contract: str, *, store: str | Path = ":memory:", **options: Any
) -> AsyncIterator[holdfast.Source]:
    """A source pinned to the combination; it offers a sequence to a two-way contract."""
    versions = holdfast.Versions(profile.rm, profile.addressing, profile.soap)
    options.setdefault("policy", QUICK)
    async with holdfast.Source(url, store, versions=versions, offer=contract != "oneway", **options) as source:
        yield source
        await source.close(timeout=240)


def binding(contract: str) -> str:
    return "oneway" if contract == "oneway" else "twoway"


def operation(name: str, text: str) -> str:
    return f'<{name} xmlns="{CONTRACT_NS}"><key>holdfast</key><number>1</number><body>{text}</body></{name}>'


async def notify(source: holdfast.Source, text: str) -> holdfast.Sent:
    return await source.send(operation("notify", text), action=NOTIFY)


async def echo(source: holdfast.Source, text: str) -> str:
    reply = await source.request(operation("echo", text), action=ECHO)
    assert reply.action == f"{ECHO}Response"
    return reply.body.findtext(f"{{{CONTRACT_NS}}}body", "")


async def converse(source: holdfast.Source, contract: str, count: int) -> None:
    """``count`` messages of that kind (mixed: every second is a request), their replies checked."""
    for number in range(1, count + 1):
        if contract == "oneway" or (contract == "mixed" and number % 2):
            await notify(source, str(number))
        else:
            assert await echo(source, str(number)) == str(number)
    await source.flush()


def only_session(server: ScriptedWCFServer) -> Session:
    (session,) = [session for session in server.sessions.values() if session.received]
    return session


def check_ended(server: ScriptedWCFServer, messages: int) -> None:
    """Everything was delivered once and in order, no rule was broken, and the session ended whole."""
    assert server.refusals == []
    assert [message.number for message in server.delivered] == list(range(1, messages + 1))
    session = only_session(server)
    assert session.terminated
    # Also of the reply to LastMessage, by the TerminateSequence itself: until then the real host does not close.
    assert session.acknowledged_replies == set(range(1, session.sent_replies + 1))


# --- whole sessions --------------------------------------------------------------------------------------------------


@every_combination
@every_contract
async def test_a_clean_session_breaks_no_rule(profile: Profile, contract: str) -> None:
    async with ScriptedWCFServer(profile, binding(contract)) as server:
        async with running_source(server.url, profile, contract) as source:
            await converse(source, contract, 6)
        check_ended(server, 6)
    assert server.texts == [str(number) for number in range(1, 7)]


@each_version
@every_contract
@pytest.mark.parametrize("lost", ["drop_requests", "drop_responses"])
async def test_each_kind_of_message_may_be_lost_once(profile: Profile, contract: str, lost: str) -> None:
    kinds = ["CreateSequence", "Notify", "Echo", "LastMessage", "CloseSequence", "TerminateSequence"]
    losses: dict[str, Any] = {lost: kinds}
    async with ScriptedWCFServer(profile, binding(contract), **losses) as server:
        async with running_source(server.url, profile, contract) as source:
            await converse(source, contract, 4)
        check_ended(server, 4)


@pytest.mark.every(5)
@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_random_losses_and_eight_callers_at_once(profile: Profile, contract: str) -> None:
    """The server drops what follows a gap, as its default binding does."""
    async with ScriptedWCFServer(profile, contract, loss_rate=0.08, seed=3) as server:
        async with running_source(server.url, profile, contract) as source:

            async def caller(first: int) -> None:
                for number in range(first, first + 4):
                    if contract == "oneway":
                        await notify(source, str(number))
                    else:
                        assert await echo(source, str(number)) == str(number)

            await asyncio.gather(*(caller(first) for first in range(0, 32, 4)))
            await source.flush()
        check_ended(server, 32)
    assert sorted(server.texts, key=int) == [str(number) for number in range(32)]


@every_combination
async def test_a_burst_through_a_window_survives_a_lost_message_at_an_ordered_server(profile: Profile) -> None:
    async with ScriptedWCFServer(profile, "oneway", drop_requests=["Notify"]) as server:
        async with running_source(server.url, profile, "oneway") as source:
            for number in range(40):
                await notify(source, str(number))
            await source.flush()
        check_ended(server, 40)
    assert server.texts == [str(number) for number in range(40)]


IN_TWENTY = 0.05
"""The share of messages that may be sent twice where they overtake each other."""


@pytest.mark.every(3)
@each_version
@pytest.mark.parametrize(
    ("contract", "pause"), [("oneway", 0.0), ("oneway", 0.004), ("twoway", 0.004), ("oneway", 0.04)]
)
async def test_messages_that_overtake_each_other_are_few_and_wait_for_no_timeout(
    profile: Profile, contract: str, pause: float
) -> None:
    patient = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0))
    async with ScriptedWCFServer(profile, contract, pause=pause) as server:
        async with running_source(server.url, profile, contract, policy=patient) as source:
            for number in range(200):
                await notify(source, str(number))
            await source.flush(timeout=240)  # shorter than one retransmission timeout
            assert source.progress.resent <= IN_TWENTY * 200
        check_ended(server, 200)
    assert server.dropped_after_gap or not pause, "nothing overtook anything"
    assert len(server.dropped_after_gap) <= IN_TWENTY * 200
    assert server.texts == [str(number) for number in range(200)]


@pytest.mark.parametrize("pause", [0.0, 0.004, 0.04])
async def test_requests_that_overtake_each_other_wait_for_no_timeout(pause: float) -> None:
    profile = Profile("1.0", "2005/08", "1.2")
    patient = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0))
    async with ScriptedWCFServer(profile, "twoway", pause=pause) as server:
        async with running_source(server.url, profile, "twoway", policy=patient) as source:

            async def caller(first: int) -> None:
                for number in range(first, first + 25):
                    assert await echo(source, str(number)) == str(number)

            async with asyncio.timeout(240):
                await asyncio.gather(*(caller(first) for first in range(0, 200, 25)))
            assert source.progress.resent <= IN_TWENTY * 200
        check_ended(server, 200)
    assert server.dropped_after_gap or not pause, "nothing overtook anything"


@each_version
async def test_what_a_forwarder_sends_overtakes_itself_as_seldom(profile: Profile, tmp_path: Path) -> None:
    retransmission = holdfast.RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0)
    sending = ForwardingPolicy(sending=holdfast.SourcePolicy(retransmission=retransmission))
    async with ScriptedWCFServer(profile, "oneway", pause=0.004) as server:
        told = {"rm": profile.rm, "addressing": profile.addressing, "soap": profile.soap, "offer": False}
        forwarder = ForwarderConfig("service", "inbox", server.url, policy=sending, **told)
        listen, admin = ListenConfig(port=0), AdminConfig(port=0)
        store = str(tmp_path / "broker")
        config = BrokerConfig(store=store, listen=listen, admin=admin, partitions=1, forwarders=(forwarder,))
        broker = Broker(config)
        await broker.service.start()
        try:
            async with holdfast.Source(broker.service.url, ":memory:") as source:
                for number in range(200):
                    await notify(source, str(number))
                await source.flush()
            await until(lambda: len(server.delivered) == 200)
        finally:
            await broker.service.close(0.5)
    assert 0 < len(server.dropped_after_gap) <= IN_TWENTY * 200
    assert server.texts == [str(number) for number in range(200)]


# --- finding out what the service speaks -----------------------------------------------------------------------------


@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_versions_and_offer_are_found_out(profile: Profile, contract: str) -> None:
    async with ScriptedWCFServer(profile, contract) as server:
        async with holdfast.Source(server.url, ":memory:", policy=QUICK) as source:
            await notify(source, "found")
            await source.flush()
        assert server.texts == ["found"]
        assert only_session(server).terminated


@every_combination
async def test_the_refusal_of_a_service_reaches_the_sender_with_its_reason(profile: Profile) -> None:
    async with (
        ScriptedWCFServer(profile, "twoway") as server,
        running_source(server.url, profile, "oneway") as source,
    ):
        sent = await notify(source, "refused")
        with pytest.raises(holdfast.CreateSequenceRefused, match="must contain an offer for a return sequence"):
            await sent.acknowledged(timeout=240)
    assert server.delivered == []


# --- single rules ----------------------------------------------------------------------------------------------------


@every_combination
async def test_a_reply_that_takes_long_is_waited_for(profile: Profile) -> None:
    async with ScriptedWCFServer(profile, reply_delay=0.4) as server:
        async with running_source(server.url, profile, "twoway") as source:
            assert await echo(source, "slow") == "slow"
            assert await echo(source, "slow too") == "slow too"
        check_ended(server, 2)


@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_a_full_buffer_stops_the_source_until_there_is_room(profile: Profile, contract: str) -> None:
    async with ScriptedWCFServer(profile, contract, buffer=0) as server:
        async with running_source(server.url, profile, contract) as source:
            first = await notify(source, "1")
            await first.acknowledged()
            for number in range(2, 12):
                await notify(source, str(number))
            await until(lambda: sum(exchange.kind == "AckRequested" for exchange in server.transcript) >= 3, None)
            assert server.texts == ["1"]
            server.buffer = 8
            await source.flush()
        check_ended(server, 11)
    assert server.while_full == []


@every_combination
async def test_an_idle_source_keeps_the_session_alive(profile: Profile) -> None:
    policy = replace(QUICK, keep_alive=0.1)
    async with ScriptedWCFServer(profile, inactivity=30.0) as server:
        async with running_source(server.url, profile, "twoway", policy=policy) as source:
            await echo(source, "before")
            await until(lambda: sum(exchange.kind == "AckRequested" for exchange in server.transcript) >= 2, None)
            await echo(source, "after")
        check_ended(server, 2)


@every_combination
async def test_after_the_end_of_a_session_comes_another(profile: Profile) -> None:
    async with ScriptedWCFServer(profile, "oneway") as server:
        async with running_source(server.url, profile, "oneway") as source:
            await notify(source, "1")
            await source.flush()
            await source.end(timeout=240)
            await notify(source, "2")
            await source.flush()
        assert server.texts == ["1", "2"]
        # On a busy machine, a repeated CreateSequence opens one that nobody uses.
        assert [session.terminated for session in server.sessions.values() if session.received] == [True, True]
        assert server.refusals == []


@every_combination
async def test_an_applications_fault_reaches_the_caller_and_the_session_goes_on(profile: Profile) -> None:
    parts = (
        "<s:Fault><faultcode>s:Client</faultcode><faultstring>out of stock</faultstring></s:Fault>"
        if profile.soap == "1.1"
        else "<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code>"
        '<s:Reason><s:Text xml:lang="en">out of stock</s:Text></s:Reason></s:Fault>'
    )

    def fault(kind: str, data: bytes) -> bytes:
        if kind != "Echo" or b"<body>no</body>" not in data:
            return data
        begin, end = data.index(b"<echoResponse"), data.index(b"</s:Body>")
        return data[:begin] + parts.encode() + data[end:]

    async with ScriptedWCFServer(profile, mutate=fault) as server:
        async with running_source(server.url, profile, "twoway") as source:
            with pytest.raises(holdfast.PeerFault, match="out of stock"):
                await echo(source, "no")
            assert await echo(source, "yes") == "yes"
        check_ended(server, 2)


@every_combination
@pytest.mark.parametrize("typed", [True, False], ids=["contract's action", "default action"])
async def test_a_void_operation_and_a_declared_fault_are_replies_and_the_session_goes_on(
    profile: Profile, typed: bool
) -> None:
    async with ScriptedWCFServer(profile, typed=typed) as server:
        async with running_source(server.url, profile, "twoway") as source:
            nothing = await source.request(operation("Nothing", "1"), action=NOTHING)
            assert (nothing.action, nothing.body.tag) == (f"{NOTHING}Response", f"{{{CONTRACT_NS}}}NothingResponse")
            assert len(nothing.body) == 0 and nothing.body.text is None
            with pytest.raises(holdfast.PeerFault, match="no such order") as error:
                await source.request(operation("fail", "2"), action=FAIL)
            assert error.value.code == "OutOfBread" and b"<Reason>out of bread</Reason>" in error.value.detail
            assert await echo(source, "3") == "3"
        check_ended(server, 3)


@every_combination
async def test_a_service_that_resets_connections_of_other_versions_is_found(profile: Profile) -> None:
    async with (
        ScriptedWCFServer(profile, resets=True) as server,
        holdfast.Source(server.url, ":memory:", policy=QUICK) as source,
    ):
        assert await echo(source, "1") == "1"
        await source.end(timeout=240)
    assert server.texts == ["1"]


# --- what the service refuses though its destination has it ----------------------------------------------------------


@every_combination
async def test_a_refused_one_way_message_is_reported_with_code_reason_and_message_id(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedWCFServer(profile, throws=["bad"]) as server,
        running_source(server.url, profile, "twoway") as source,
    ):
        good = await notify(source, "1")
        unknown = await source.send(operation("notify", "2"), action=f"{NOTIFY}2")
        await source.flush()
        assert await echo(source, "3") == "3"
        thrown = await notify(source, "bad")
        await source.flush()
        assert await echo(source, "4") == "4"
        assert good.fault is None and source.progress.declined == 2
        assert isinstance(unknown.fault, holdfast.PeerFault) and unknown.fault.code == "ActionNotSupported"
        assert isinstance(thrown.fault, holdfast.PeerFault) and str(thrown.fault).startswith("boom")
    assert server.texts == ["1", "3", "4"]
    told = [record for record in caplog.records if "message.refused_by_service" in record.message]
    assert [record.levelname for record in told] == ["WARNING", "WARNING"]
    assert "ActionNotSupported" in told[0].message and str(unknown.message_id) in told[0].message
    assert "cannot be processed at the receiver" in told[0].message and str(thrown.message_id) in told[1].message


async def test_a_fault_that_is_repeated_is_told_once() -> None:
    profile = wire.profile_of(holdfast.Versions())
    async with (
        ScriptedWCFServer(profile, drop_responses=["Notify2"]) as server,
        running_source(server.url, profile, "twoway") as source,
    ):
        sent = await source.send(operation("notify", "2"), action=f"{NOTIFY}2")
        await source.flush()
        assert sent.fault is not None and source.progress.declined == 1
        assert source.incidents["message.refused_by_service"] == 1


# --- the service goes away -------------------------------------------------------------------------------------------


@every_combination
async def test_a_service_that_comes_back_with_its_sessions_is_waited_for(profile: Profile) -> None:
    async with contextlib.AsyncExitStack() as stack:
        (port,) = free_ports(1)
        server = ScriptedWCFServer(profile, port=port)
        await server.__aenter__()
        source = await stack.enter_async_context(running_source(server.url, profile, "twoway"))
        assert await echo(source, "1") == "1"
        await server.__aexit__()
        call = asyncio.create_task(echo(source, "2"))
        await until(lambda: source.progress.problem != "", None)
        again = await stack.enter_async_context(ScriptedWCFServer(profile, port=port))
        again.sessions = server.sessions
        assert await call == "2"
        await source.end(timeout=240)
    assert server.texts + again.texts == ["1", "2"]
    assert again.refusals == []


@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_messages_that_a_forgetful_service_surely_lacks_are_sent_again(profile: Profile, contract: str) -> None:
    async with (
        ScriptedWCFServer(profile, contract) as server,
        running_source(server.url, profile, contract) as source,
    ):
        await converse(source, contract, 2)
        server.sessions.clear()
        await converse(source, contract, 2)
    assert server.texts == ["1", "2", "1", "2"]


@every_combination
async def test_messages_that_a_forgetful_service_may_have_are_reported(
    profile: Profile,
) -> None:
    def forget(kind: str, body: bytes) -> bytes:
        if kind == "Notify" and server.texts == ["1"]:
            server.sessions.clear()
        return body

    async with (
        ScriptedWCFServer(profile, "oneway", mutate=forget, drop_responses=["Notify"]) as server,
        running_source(server.url, profile, "oneway") as source,
    ):
        sent = await notify(source, "1")
        with pytest.raises(holdfast.SequenceLost, match="UnknownSequence") as error:
            await sent.acknowledged(timeout=240)
        assert "the numbers 1-1 may have arrived" in error.value.remedy
        assert server.texts == ["1"]
        source.resume()
        await source.flush()
        assert server.texts == ["1", "1"]


@every_combination
async def test_a_message_that_meets_an_inactivity_timeout_is_in_doubt_and_told(profile: Profile) -> None:
    """The connection breaks under the first message: nobody knows whether the service has it."""
    async with (
        ScriptedWCFServer(profile, "twoway") as server,
        running_source(server.url, profile, "mixed") as source,
    ):
        await converse(source, "mixed", 2)
        server.time_out()
        sent = await notify(source, "3")
        with pytest.raises(holdfast.SequenceLost, match="UnknownSequence") as error:
            await sent.acknowledged(timeout=240)
        assert "the numbers 3-3 may have arrived" in error.value.remedy
        source.resume()
        await source.flush()
        assert await echo(source, "4") == "4"
    assert server.texts == ["1", "2", "3", "4"]


@every_combination
async def test_with_at_least_once_a_session_goes_on_behind_an_inactivity_timeout(profile: Profile) -> None:
    policy = replace(QUICK, assurance=holdfast.Assurance.parse("at-least-once in-order"))
    async with (
        ScriptedWCFServer(profile, "twoway") as server,
        running_source(server.url, profile, "mixed", policy=policy) as source,
    ):
        await converse(source, "mixed", 2)
        server.time_out()
        await notify(source, "3")
        assert await echo(source, "4") == "4"
    assert server.texts == ["1", "2", "3", "4"]


@every_combination
@pytest.mark.parametrize("contract", ["twoway", "mixed"])
async def test_after_a_service_forgot_its_sessions_a_two_way_session_goes_on_in_another(
    profile: Profile, contract: str
) -> None:
    policy = replace(QUICK, assurance=holdfast.Assurance.parse("at-least-once in-order"))
    async with (
        ScriptedWCFServer(profile, "twoway") as server,
        running_source(server.url, profile, contract, policy=policy) as source,
    ):
        await converse(source, contract, 2)
        server.sessions.clear()
        await converse(source, contract, 2)
        server.sessions.clear()
        assert await echo(source, "5") == "5"
    assert server.texts == ["1", "2", "1", "2", "5"]


@every_combination
async def test_what_a_closed_source_still_had_is_sent_by_the_next_one(profile: Profile, tmp_path: Path) -> None:
    store = tmp_path / "outbox"
    (port,) = free_ports(1)
    server = ScriptedWCFServer(profile, "oneway", port=port)
    await server.__aenter__()
    async with running_source(server.url, profile, "oneway", store=store) as source:
        await (await notify(source, "1")).acknowledged()
        await server.__aexit__()
        await notify(source, "2")
        await notify(source, "3")
        await source.close(timeout=0)
    async with ScriptedWCFServer(profile, "oneway", port=port) as again:
        again.sessions = server.sessions
        async with running_source(server.url, profile, "oneway", store=store) as source:
            await source.flush()
        assert server.texts + again.texts == ["1", "2", "3"]
        assert again.refusals == []
        assert only_session(again).terminated
