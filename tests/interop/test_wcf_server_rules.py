"""Holdfast's destination in front of .NET clients: every rule they hold a server to, in all six combinations."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from wcf import wire
from wcf.destination import contract_app, running_destination, text_of
from wcf.grids import each_version, every_combination, every_contract
from wcf.scripted_client import ApplicationFault, ScriptedWCFClient, SessionFaulted
from wcf.transport import post
from wcf.vectors import cases, load, profile_of
from wcf.wire import COMBINATIONS, Profile

import holdfast
from holdfast.store import open_store
from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.interop

FAST = 0.05
"""Time scale of the clients' timers where losses have to be waited out."""


class Service:
    """A destination with the contract, in memory, and what its handlers were given."""

    def __init__(self, **options: Any) -> None:
        self.handled: list[tuple[int, str]] = []
        self.may_end: Callable[[str], bool] = lambda _: True
        self.app = contract_app(":memory:", self._handle, **options)

    async def _handle(self, message: holdfast.Message) -> None:
        self.handled.append((message.message_number, text_of(message)))
        await until(lambda: self.may_end(text_of(message)), None)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.handled]


def binding(contract: str) -> str:
    return "oneway" if contract == "oneway" else "twoway"


async def converse(client: ScriptedWCFClient, contract: str, count: int) -> None:
    """``count`` messages of that kind (mixed: every second is a request), their replies checked."""
    for number in range(1, count + 1):
        if contract == "oneway" or (contract == "mixed" and number % 2):
            await client.notify("wcf", number, f"text {number}")
        else:
            assert await client.echo("wcf", number, f"text {number}") == f"text {number}"


# --- whole sessions --------------------------------------------------------------------------------------------------


@every_combination
@every_contract
async def test_a_clean_session_is_served_without_a_repeat(profile: Profile, contract: str) -> None:
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile, binding(contract), time_scale=1000) as client,
    ):
        await converse(client, contract, 6)
    assert service.handled == [(number, f"text {number}") for number in range(1, 7)]
    assert client.slow_close == []
    ends = 2  # LastMessage or CloseSequence, and TerminateSequence
    assert len(client.transcript) == 1 + 6 + ends


@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_a_session_without_a_message_closes(profile: Profile, contract: str) -> None:
    service = Service()
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, contract) as client:
        pass
    assert client.slow_close == []


@each_version
@every_contract
@pytest.mark.every(5)
@pytest.mark.parametrize("lost", ["drop_requests", "drop_responses"])
async def test_each_kind_of_message_may_be_lost_once(profile: Profile, contract: str, lost: str) -> None:
    kinds = ["CreateSequence", "Notify", "Echo", "LastMessage", "CloseSequence"]
    # The one-way client of RM 1.0 sends its TerminateSequence once and waits for nothing.
    kinds += ["TerminateSequence"] if profile.rm == "1.1" or contract != "oneway" else []
    losses: dict[str, Any] = {lost: kinds}
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile, binding(contract), time_scale=FAST, **losses) as client,
    ):
        await converse(client, contract, 4)
    assert service.numbers == [1, 2, 3, 4]
    assert client.slow_close == []


@pytest.mark.every(5)
@every_combination
@pytest.mark.parametrize("contract", ["oneway", "twoway"])
async def test_random_losses_and_eight_callers_at_once(profile: Profile, contract: str) -> None:
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile, contract, time_scale=FAST, loss_rate=0.08, seed=5) as client,
    ):

        async def caller(first: int) -> None:
            for number in range(first, first + 4):
                if contract == "oneway":
                    await client.notify("wcf", number, str(number))
                else:
                    assert await client.echo("wcf", number, str(number)) == str(number)

        await asyncio.gather(*(caller(first) for first in range(0, 32, 4)))
    assert service.numbers == list(range(1, 33))
    assert sorted(int(text) for _, text in service.handled) == list(range(32))


@every_combination
async def test_a_request_that_nobody_replies_to_is_a_fault_and_the_session_goes_on(profile: Profile) -> None:
    app = holdfast.Destination(":memory:")
    async with running_destination(app) as url, ScriptedWCFClient(url, profile, time_scale=1000) as client:
        await client.notify("wcf", 1, "one-way")
        for number in (2, 3):
            with pytest.raises(ApplicationFault, match="No service here replies"):
                await client.echo("wcf", number, "a request")
        await client.notify("wcf", 4, "one-way")
    assert client.slow_close == []


# --- the recorded requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in cases() if "refused" not in case])
async def test_the_recorded_requests_of_the_real_client_get_the_answers_it_needs(case: str) -> None:
    """Byte for byte what .NET sent, but for the Identifier of our sequence; its To names another host and port."""
    profile = profile_of(case)
    service = Service()
    answered: Counter[str] = Counter()
    async with running_destination(service.app) as url:
        theirs, ours = b"", b""
        for exchange in load(case):
            if exchange.number in lost_on_the_way(case):
                continue
            request = exchange.request.replace(theirs, ours) if theirs else exchange.request
            message = await post(url, request, exchange.request_head)
            asked = wire.read(profile, profile.content_type, request)
            if asked.control == "CreateSequence":
                ours = check_created(profile, asked, read_answer(profile, message)).encode()
                theirs = theirs or _sequence_of(profile, exchange.response)
            else:
                check_answer(profile, case, asked, message)
            answered[asked.action.rpartition("/")[2]] += 1
    assert service.numbers == [1, 2, 3]
    last = "CloseSequence" if profile.rm == "1.1" else "LastMessage"
    assert answered["CreateSequence"] >= 1 <= answered["TerminateSequence"] == answered[last]


@pytest.mark.parametrize("case", [case for case in cases() if "refused" not in case])
async def test_without_a_replier_recorded_requests_get_a_fault_and_one_ways_none(case: str) -> None:
    profile = profile_of(case)
    answered: Counter[str] = Counter()
    async with running_destination(holdfast.Destination(":memory:")) as url:
        theirs, ours = b"", b""
        for exchange in load(case):
            if exchange.number in lost_on_the_way(case):
                continue
            request = exchange.request.replace(theirs, ours) if theirs else exchange.request
            message = await post(url, request, exchange.request_head)
            asked = wire.read(profile, profile.content_type, request)
            kind = asked.action.rpartition("/")[2]
            answered[kind] += 1
            if asked.control == "CreateSequence":
                ours = check_created(profile, asked, read_answer(profile, message)).encode()
                theirs = theirs or _sequence_of(profile, exchange.response)
            elif message.body:
                answer = read_answer(profile, message)
                assert (answer.fault is not None) == (kind == "Echo")
                if answer.fault is not None:
                    assert b"NoReply" in message.body and b"No service here replies" in message.body
                    assert answer.relates_to == asked.message_id and answer.sequence is not None
                    assert answer.acknowledgement is not None and asked.sequence is not None
                    assert asked.sequence.number in answer.acknowledgement
    assert answered["Notify"] + answered["Echo"] >= 3
    assert answered["TerminateSequence"] >= 1


def lost_on_the_way(case: str) -> set[int]:
    """The exchanges whose request the recorder swallowed: the server never saw them."""
    return {3} if "lost-request" in case else set()


def _sequence_of(profile: Profile, response: bytes) -> bytes:
    found = re.search(rb"CreateSequenceResponse[^>]*><(?:\w+:)?Identifier>([^<]*)<", response)
    assert found is not None
    return found.group(1)


def read_answer(profile: Profile, message: Any) -> wire.Read:
    assert message.status in (200, 500), message.start
    return wire.read(profile, message.headers["content-type"], message.body)


def check_created(profile: Profile, asked: wire.Read, answer: wire.Read) -> str:
    assert answer.control == "CreateSequenceResponse"
    assert answer.action == profile.action("CreateSequenceResponse")
    assert answer.relates_to == asked.message_id
    allowed = [("Identifier", True), ("Expires", False)]
    allowed += [("IncompleteSequenceBehavior", False)] if profile.rm == "1.1" else []
    found = wire.children_in_order(profile, answer.body, [*allowed, ("Accept", False)])
    offered = asked.body.find(f"{{{profile.rm_ns}}}Offer") is not None
    assert ("Accept" in found) == offered
    if offered:
        acks_to = wire.children_in_order(profile, found["Accept"], [("AcksTo", True)])["AcksTo"]
        assert wire.address_of(profile, acks_to) == asked.to
    return str(found["Identifier"].text)


def check_answer(profile: Profile, case: str, asked: wire.Read, message: Any) -> None:
    """Section by section what the real client needs of an answer."""
    one_way = "oneway" in case
    if asked.control == "TerminateSequence" and profile.rm == "1.0" and one_way:
        assert (message.status, message.body) == (202, b"")
        return
    answer = read_answer(profile, message)
    assert message.status == 200
    assert answer.fault is None
    assert answer.acknowledgement is not None
    if asked.sequence is not None:
        assert asked.sequence.number in answer.acknowledgement
        assert answer.acknowledgement.numbers <= {1, 2, 3, 4}
        assert answer.acknowledgement.buffer is not None
        assert answer.acknowledgement.buffer > 0
    kind = asked.action.rpartition("/")[2]
    if kind == "Echo":
        assert answer.relates_to == asked.message_id
        assert answer.action == f"{wire.ECHO}Response"
        assert answer.sequence is not None
        assert answer.body.findtext(f"{{{wire.CONTRACT_NS}}}body") == "hello"
    elif kind == "LastMessage" and not one_way:
        assert answer.action == profile.action("LastMessage")
        assert answer.sequence is not None
        assert answer.sequence.last
        assert answer.sequence.number == (2 if "mixed" in case else 4)
    elif kind == "TerminateSequence" and profile.rm == "1.0":
        assert answer.control == "TerminateSequence"
    elif kind in ("CloseSequence", "TerminateSequence"):
        assert answer.control == f"{kind}Response"
        assert answer.relates_to == asked.message_id
        assert answer.acknowledgement.final
        assert answer.acknowledgement.ranges == [(1, 3)]
    else:
        assert answer.action == profile.action("SequenceAcknowledgement")
        assert answer.sequence is None


# --- single rules ----------------------------------------------------------------------------------------------------


@every_combination
@pytest.mark.parametrize("to", ["http://orders.example/Service.svc", "http://LOCALHOST:1/a%2Fb/?q=1&r=2", "urn:orders"])
async def test_accept_acks_to_is_the_to_of_the_request_whatever_host_it_names(profile: Profile, to: str) -> None:
    service = Service()
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, to=to) as client:
        assert await client.echo("wcf", 1, "through a proxy") == "through a proxy"


@every_combination
async def test_a_repeated_create_sequence_brings_the_same_sequence(profile: Profile) -> None:
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile, time_scale=FAST, drop_responses=["CreateSequence"]) as client,
    ):
        await client.echo("wcf", 1)
    identifiers = {_sequence_of(profile, exchange.response) for exchange in client.sent("CreateSequence")}
    assert len(client.sent("CreateSequence")) == 2
    assert len(identifiers) == 1


@every_combination
async def test_a_request_waits_for_its_reply_on_the_open_response(profile: Profile) -> None:
    service = Service()
    gate = asyncio.Event()
    service.may_end = lambda _: gate.is_set()
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, time_scale=1000) as client:
        slow = asyncio.create_task(client.echo("wcf", 1, "slow"))
        done, _ = await asyncio.wait([slow], timeout=0.3)
        assert not done
        gate.set()
        assert await slow == "slow"
    assert len(client.sent("Echo")) == 1


@every_combination
@pytest.mark.parametrize("patience", [30.0, 0.02])
async def test_a_slow_reply_is_asked_for_again_and_made_once(profile: Profile, patience: float) -> None:
    service = Service(policy=holdfast.DestinationPolicy(reply_patience=patience))

    def is_asked_for_again(text: str) -> bool:
        sent = [exchange for exchange in client.sent("Echo") if f">{text}<".encode() in exchange.request]
        return len(sent) > 1 and (patience > 1 or any(exchange.status == 202 for exchange in sent))

    service.may_end = is_asked_for_again
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, time_scale=0.1) as client:
        assert await client.echo("wcf", 1, "slow") == "slow"
        assert await client.echo("wcf", 2, "slow too") == "slow too"
    assert service.handled == [(1, "slow"), (2, "slow too")]
    assert len(client.sent("Echo")) > 2
    first = [next(one for one in client.sent("Echo") if text in one.request) for text in (b">slow<", b">slow too<")]
    assert [exchange.status for exchange in first] == [200 if patience > 1 else 202] * 2


@every_combination
async def test_one_way_messages_are_acknowledged_while_a_request_is_still_in_progress(profile: Profile) -> None:
    service = Service()
    gate = asyncio.Event()
    service.may_end = lambda text: text != "slow" or gate.is_set()
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, time_scale=10) as client:
        for number in range(1, 4):  # opens the window
            await client.notify("wcf", number)
        slow = asyncio.create_task(client.echo("wcf", 4, "slow"))
        await until(lambda: any(text == "slow" for _, text in service.handled), None)
        await client.notify("wcf", 5)
        assert not slow.done()
        gate.set()
        assert await slow == "slow"


@every_combination
@pytest.mark.parametrize("kind", ["Notify", "Echo"])
async def test_copies_that_cross_are_each_answered_so_that_the_session_lives(profile: Profile, kind: str) -> None:
    """In a two-way session an acknowledgement that leaves out the very message it answers is the session's end."""
    service = Service()
    async with running_destination(service.app) as url:
        client = ScriptedWCFClient(url, profile)
        await client.open()
        for number in range(1, 6):
            data, head = raw_message(client, kind, number, url)
            answers = await asyncio.gather(*(post(url, data, head) for _ in range(6)))
            for message in answers:
                if message.status == 202:
                    continue
                answer = read_answer(profile, message)
                assert answer.acknowledgement is not None
                assert number in answer.acknowledgement
                assert (answer.sequence is not None) == (kind == "Echo")
            assert any(message.status == 200 for message in answers)
        await client.abort()
    assert service.numbers == [1, 2, 3, 4, 5]


@every_combination
@pytest.mark.parametrize("kind", ["Notify", "Echo"])
async def test_a_message_there_is_no_room_for_is_accepted_without_a_word(profile: Profile, kind: str) -> None:
    service = Service(policy=holdfast.DestinationPolicy(buffer=4))
    async with running_destination(service.app) as url:
        client = ScriptedWCFClient(url, profile)
        await client.open()
        await client.notify("wcf", 1)
        data, head = raw_message(client, kind, 50, url)
        message = await post(url, data, head)
        assert (message.status, message.body) == (202, b"")
        await client.notify("wcf", 2)
        await client.abort()
    assert service.numbers == [1, 2]


def raw_message(client: ScriptedWCFClient, kind: str, number: int, url: str) -> tuple[bytes, bytes]:
    """A message of the client's session with any number, past its own bookkeeping, and the HTTP head for it."""
    p = client.profile
    action = wire.NOTIFY if kind == "Notify" else wire.ECHO
    headers = [wire.sequence(client.identifier, number), wire.action(action)]
    if kind == "Echo":
        headers += [wire.message_id(wire.new_id()), wire.reply_to_anonymous(p)]
    body = f'<{kind.lower()} xmlns="urn:holdfast:interop"><body>{number}</body></{kind.lower()}>'
    head = f"POST / HTTP/1.1\r\nContent-Type: {p.content_type}\r\n"
    head += f'SOAPAction: "{action}"\r\n' if p.soap == "1.1" else ""
    return wire.envelope(p, [*headers, wire.to(url)], body, application=True), head.encode()


@every_combination
async def test_an_applications_fault_is_a_reply_and_the_session_lives_on(profile: Profile) -> None:
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile, time_scale=FAST, drop_responses=["Echo 1"]) as client,
    ):
        with pytest.raises(ApplicationFault, match="the application says no"):
            await client.echo("wcf", 1, "fault")
        assert await client.echo("wcf", 2, "fine") == "fine"
    assert service.numbers == [1, 2]


@every_combination
async def test_the_keep_alive_of_an_idle_client_is_answered(profile: Profile) -> None:
    service = Service()
    async with (
        running_destination(service.app) as url,
        ScriptedWCFClient(url, profile) as client,
    ):
        await client.echo("wcf", 1)
        client.idle(300)
        await until(lambda: any(exchange.status == 200 for exchange in client.sent("AckRequested")), None)
        await client.echo("wcf", 2)


@every_combination
async def test_every_acknowledgement_advertises_the_buffer(profile: Profile) -> None:
    service = Service()
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile) as client:
        await client.notify("wcf", 1)
        await client.echo("wcf", 2)
    acknowledging = [exchange for exchange in client.transcript if b"SequenceAcknowledgement>" in exchange.response]
    assert len(acknowledging) >= 3
    for exchange in acknowledging:
        answer = wire.read(profile, profile.content_type, exchange.response)
        assert answer.acknowledgement is not None
        assert answer.acknowledgement.buffer is not None


# --- faults ----------------------------------------------------------------------------------------------------------


class Rewrite:
    """Changes one kind of request on its way, to make a client that is wrong."""

    def __init__(self, kind: str, pattern: bytes, replacement: bytes) -> None:
        self.kind, self.pattern, self.replacement = kind, pattern, replacement
        self.applied = 0

    def __call__(self, kind: str, data: bytes) -> bytes:
        if kind != self.kind:
            return data
        changed, count = re.subn(self.pattern, self.replacement, data, count=1)
        self.applied += count
        return changed


async def fault_of(profile: Profile, rewrite: Rewrite, **options: Any) -> SessionFaulted:
    """What kills the session of a client that sends Notify, Echo and the end with that change."""
    service = Service(**options)
    async with running_destination(service.app) as url:
        client = ScriptedWCFClient(url, profile, time_scale=0.01, inactivity=1e6, mutate=rewrite)
        try:
            await client.open()
            await client.notify("wcf", 1)
            await client.echo("wcf", 2)
            await client.close()
        except SessionFaulted as error:
            return error
        finally:
            await client.abort()
    pytest.fail("the destination took it")


@every_combination
@pytest.mark.parametrize(
    ("kind", "pattern", "replacement", "code"),
    [
        ("Notify", rb"(<r:Identifier>)[^<]*", rb"\1urn:uuid:nobody", "UnknownSequence"),
        ("Echo", rb"(<r:Identifier>)[^<]*", rb"\1urn:uuid:nobody", "UnknownSequence"),
        ("Notify", rb"(<r:MessageNumber>)1<", rb"\g<1>9223372036854775808<", "MessageNumberRollover"),
    ],
    ids=["unknown notify", "unknown echo", "rollover"],
)
async def test_a_fault_has_the_shape_the_client_recognises(
    profile: Profile, kind: str, pattern: bytes, replacement: bytes, code: str
) -> None:
    error = await fault_of(profile, Rewrite(kind, pattern, replacement))
    assert (error.code, error.recognised) == (code, True), error.reason


@every_combination
async def test_an_acknowledgement_of_replies_never_sent_is_an_invalid_one(profile: Profile) -> None:
    kind = "LastMessage" if profile.rm == "1.0" else "CloseSequence"
    rewrite = Rewrite(kind, rb'Upper="1"', rb'Upper="7"')
    error = await fault_of(profile, rewrite)
    assert rewrite.applied
    assert (error.code, error.recognised) == ("InvalidAcknowledgement", True), error.reason


@every_combination
async def test_a_refusal_says_why_in_the_shape_the_client_recognises(profile: Profile) -> None:
    service = Service(policy=holdfast.DestinationPolicy(max_sequences=1))
    async with running_destination(service.app) as url, ScriptedWCFClient(url, profile, "oneway"):
        with pytest.raises(SessionFaulted) as error:
            await ScriptedWCFClient(url, profile).open()
    assert (error.value.code, error.value.recognised) == ("CreateSequenceRefused", True)
    assert len(error.value.reason) > len("CreateSequenceRefused: ")


@every_combination
async def test_a_message_after_the_end_is_refused_in_the_versions_own_way(profile: Profile) -> None:
    service = Service()
    async with running_destination(service.app) as url:
        async with ScriptedWCFClient(url, profile, "oneway") as client:
            await client.notify("wcf", 1)
        message = await post(url, *raw_message(client, "Notify", 9, url))
    answer = read_answer(profile, message)
    assert message.status == 500
    assert answer.fault is not None
    allowed = {
        "1.0": {"LastMessageNumberExceeded", "SequenceTerminated"},
        "1.1": {"SequenceClosed", "SequenceTerminated"},
    }
    assert answer.fault.code in allowed[profile.rm] | {"UnknownSequence"}
    assert answer.fault.recognised
    assert service.numbers == [1]


# --- killed and restarted --------------------------------------------------------------------------------------------


class Process:
    """The destination as a process of its own, on one store and one port, killed and started again."""

    def __init__(self, directory: Path, log: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.store = directory / "store"
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        program = Path(__file__).parent / "wcf" / "destination.py"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), str(self.store), str(self.port), self.log, stderr=asyncio.subprocess.DEVNULL
        )
        while True:
            assert self._process.returncode is None, "the destination did not start"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    async def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


class Crowd:
    """Clients of all six combinations at once, each with its own session."""

    def __init__(self, url: str, contract: str, count: int) -> None:
        self.count = count
        self.done = 0
        self.clients = [
            ScriptedWCFClient(url, profile, contract, time_scale=0.5, inactivity=6000.0) for profile in COMBINATIONS
        ]

    async def run(self) -> None:
        await asyncio.gather(*(self._one(client) for client in self.clients))

    async def _one(self, client: ScriptedWCFClient) -> None:
        async with client:
            for number in range(1, self.count + 1):
                if client.two_way and number % 3:
                    assert await client.echo(str(client.profile), number, str(number)) == str(number)
                else:
                    await client.notify(str(client.profile), number, str(number))
                self.done += 1


async def killed_under(crowd: Crowd, process: Process) -> None:
    """Runs the crowd and kills the process a third and two thirds of the way."""
    total = crowd.count * len(crowd.clients)
    run = asyncio.create_task(crowd.run())
    try:
        for mark in (total // 3, 2 * total // 3):
            await until(lambda mark=mark: crowd.done >= mark or run.done(), None)
            await process.kill()
            await process.start()
        await run
    finally:
        run.cancel()
        await process.kill()


@pytest.mark.crash
@pytest.mark.slow
async def test_no_client_notices_that_the_destination_was_killed_and_started_again(tmp_path: Path) -> None:
    log = tmp_path / "handled.txt"
    process = Process(tmp_path, str(log))
    await process.start()
    crowd = Crowd(process.url, "twoway", 40)
    await killed_under(crowd, process)
    assert all(client.slow_close == [] for client in crowd.clients)
    assert any(exchange.outcome == "no connection" for client in crowd.clients for exchange in client.transcript)
    handled = [line.split() for line in log.read_text().splitlines()]
    for client in crowd.clients:
        numbers = [int(number) for sequence, number, _, _ in handled if sequence == client.identifier]
        # What was being handled when the process died is handled again; nothing is left out or out of order.
        first_times = list(dict.fromkeys(numbers))
        assert first_times == list(range(1, 41))
        assert len(numbers) <= 40 + 2 * 8


@pytest.mark.nightly  # the test of clients that notice no kill has most of it
@pytest.mark.crash
@pytest.mark.slow
async def test_every_acknowledged_message_is_in_the_queue_once_after_two_kills(tmp_path: Path) -> None:
    process = Process(tmp_path, "-")
    await process.start()
    crowd = Crowd(process.url, "oneway", 60)
    await killed_under(crowd, process)
    store = open_store(process.store)
    try:
        bounds = {place: limits for place, limits in store.load().bounds.items() if place[0] == "inbox"}
        records = []
        for (queue, partition), (first, end) in bounds.items():
            while first < end:
                batch = store.read(queue, partition, first, end)
                records += [record for _, record in batch]
                first = batch[-1][0] + 1
    finally:
        store.close()
    for client in crowd.clients:
        numbers = [record.message_number for record in records if record.sequence == client.identifier]
        assert numbers == list(range(1, 61))
