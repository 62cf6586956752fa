"""Several workers behind one address, as processes: what peers see of them, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from crew import Crew, stored, texts, wait_until

import holdfast
from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    CreateSequenceResponse,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.endpoint.worker import worker_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

Start = Callable[..., Crew]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Start]:
    """Starts servers with workers; nothing of them outlives the test."""
    started: list[Crew] = []

    def start(*options: str, **more: Any) -> Crew:
        started.append(Crew(tmp_path, "--port", "0", *options, **more))
        return started[-1]

    yield start
    for one in started:
        one.clean()


def send(url: str, name: int, count: int, **options: Any) -> None:
    """Send ``count`` messages in a Sequence of their own and wait until all are acknowledged."""
    with holdfast.sync.Source(url, store=":memory:", **options) as source:
        for number in range(count):
            last = source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
        last.acknowledged(60)


def send_together(url: str, sources: int, count: int, **options: Any) -> list[threading.Thread]:
    """The same from several sources at a time."""
    threads = [threading.Thread(target=send, args=(url, name, count), kwargs=options) for name in range(sources)]
    for thread in threads:
        thread.start()
    return threads


def arrived(directory: Path, workers: int) -> dict[int, list[int]]:
    """Which messages of each source are stored, in the order of its partition."""
    found: dict[int, list[int]] = {}
    for records in stored(directory, workers).values():
        for text in texts(records):
            name, number = text.split("-")
            found.setdefault(int(name), []).append(int(number))
    return found


def test_messages_arrive_once_and_in_order_while_workers_are_killed(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "3")
    threads = send_together(server.url(), 8, 400)
    chance = random.Random(1)
    for _ in range(5):
        server.kill(chance.randrange(3))
    for thread in threads:
        thread.join()
    assert server.end() == 0
    assert arrived(tmp_path, 3) == {name: list(range(400)) for name in range(8)}
    assert len({worker for (worker, _), records in stored(tmp_path, 3).items() if records}) > 1


def test_several_workers_speak_tls(crew: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = crew("--workers", "2", "--tls-cert", "server.pem")
    url = server.url()
    assert url.startswith("https://")
    for thread in send_together(url, 6, 30, ssl_context=trust):
        thread.join()
    assert server.end() == 0
    assert arrived(tmp_path, 2) == {name: list(range(30)) for name in range(6)}


def test_workers_end_with_a_supervisor_that_is_killed_and_their_messages_stay(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "2")
    send(server.url(), 0, 5)
    pids = server.pids
    assert len(pids) == 2
    server.process.kill()
    server.process.wait(60)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    again = crew("--workers", "2")
    send(again.url(), 1, 5)
    assert again.end() == 0
    assert arrived(tmp_path, 2) == {0: list(range(5)), 1: list(range(5))}


def test_a_second_signal_ends_all_at_once(crew: Start) -> None:
    module = (
        "import holdfast, time\n"
        "app = holdfast.Destination(store=':memory:')\n"
        "@app.on()\n"
        "def slow(message) -> None:\n"
        "    print('slow', flush=True)\n"
        "    time.sleep(600)\n"
    )
    server = crew("--workers", "2", module=module)
    send(server.url(), 0, 1)
    assert server.line() == "slow"
    pids = server.pids
    server.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in server.errors.read_text())
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_fewer_workers_than_have_stores_are_refused(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "3")
    server.url()
    assert server.end() == 0
    for options in (["--workers", "2"], []):
        refused = crew(*options)
        assert refused.process.wait(60) == 1
        assert "holdfast serve --workers 3" in refused.errors.read_text()
        refused.errors.unlink()


def test_a_server_of_one_process_becomes_one_of_several_and_its_sequences_go_on(crew: Start, tmp_path: Path) -> None:
    alone = crew()
    url = alone.url()
    port = url.rstrip("/").rpartition(":")[2]
    with holdfast.sync.Source(url, store=str(tmp_path / "outbox")) as source:
        source.send("<n>0-0</n>", action="urn:test:submit").acknowledged(60)
        assert alone.end() == 0
        several = crew("--workers", "3", "--port", port)
        several.url()
        for number in range(1, 10):
            source.send(f"<n>0-{number}</n>", action="urn:test:submit").acknowledged(60)
    assert several.end() == 0
    found = {where: texts(records) for where, records in stored(tmp_path, 3).items() if records}
    assert list(found.values()) == [[f"0-{number}" for number in range(10)]]
    assert {worker for worker, _ in found} == {0}


def test_what_keeps_a_worker_from_starting_is_said_once_and_ends_all(crew: Start) -> None:
    server = crew("--workers", "3", module="import no_such_module\n")
    assert server.process.wait(60) == 1
    assert server.errors.read_text().count("no_such_module'") == 1


async def test_a_repeated_create_sequence_finds_the_first_answer_on_any_connection(crew: Start, peer: Any) -> None:
    url = crew("--workers", "3").url()
    workers = set()
    for number in range(10):
        found = set()
        for _ in range(4):
            answer = await peer(url).create(message_id=f"urn:test:create:{number}")
            assert isinstance(answer.envelope.control, CreateSequenceResponse)
            found.add(answer.envelope.control.identifier)
        assert len(found) == 1
        workers.add(worker_of(found.pop()))
    assert len(workers) > 1
    assert workers <= {0, 1, 2}


async def sequences(url: str, peer: Any, workers: int) -> tuple[Any, dict[int, str]]:
    """A peer with a Sequence of each worker."""
    one = peer(url)
    found: dict[int, str] = {}
    while len(found) < workers:
        await one.create()
        found[worker_of(one.identifier)] = one.identifier  # type: ignore[index]
    return one, found


async def test_one_connection_may_carry_sequences_of_several_workers(crew: Start, peer: Any) -> None:
    one, found = await sequences(crew("--workers", "3").url(), peer, 3)
    for number in range(1, 8):
        for identifier in found.values():
            assert (await one.message(number, identifier=identifier)).ranges == ((1, number),)
    for identifier in found.values():
        ended = await one.say(control=TerminateSequence(identifier, 7), message_id=one.new_id())
        assert ended.status == 200


async def test_a_large_message_reaches_its_worker(crew: Start, peer: Any) -> None:
    _, found = await sequences(crew("--workers", "2").url(), peer, 2)
    body = b"<a>" + b"x" * 3_000_000 + b"</a>"
    url = _.url
    for identifier in found.values():
        for _turn in range(3):
            answer = await peer(url).message(1, body, identifier=identifier)
            assert answer.ranges == ((1, 1),)


async def test_acknowledgement_requests_and_unknown_sequences_are_answered_wherever_they_come(
    crew: Start, peer: Any
) -> None:
    one, found = await sequences(crew("--workers", "2").url(), peer, 2)
    for identifier in found.values():
        await one.message(1, identifier=identifier)
        for _ in range(3):
            asked = await peer(one.url).say(ack_requested=(AckRequested(identifier),), action="")
            assert asked.ranges == ((1, 1),)
            assert isinstance(asked.envelope.control, Acknowledge)
    for stranger in ("urn:test:stranger", "urn:uuid:00000000-0000-8fff-8000-000000000000"):
        for _ in range(3):
            answer = await peer(one.url).message(1, identifier=stranger)
            assert answer.fault == "UnknownSequence"
            answer = await peer(one.url).say(control=TerminateSequence(stranger, 1), message_id="urn:test:1")
            assert answer.fault == "UnknownSequence"


REPLYING = """
import holdfast
app = holdfast.Destination(store="inbox")
@app.on()
def reply(message) -> str:
    return "<reply/>"
"""


async def requesters(url: str, peer: Any) -> dict[int, tuple[Any, str]]:
    """A requester with a Sequence of each of two workers, by worker, and the Identifier that it offered."""
    found: dict[int, tuple[Any, str]] = {}
    while len(found) < 2:
        one = peer(url)
        offered = f"urn:test:offered:{id(one)}"
        await one.create(offer=offered)
        worker = worker_of(one.identifier)
        assert worker is not None
        found[worker] = one, offered
    return found


async def test_what_is_said_of_another_workers_sequence_reaches_it(crew: Start, peer: Any) -> None:
    server = crew("--workers", "2", module=REPLYING)
    (one, _), (other, offered) = (await requesters(server.url(), peer)).values()
    reply = await other.request(1)
    assert reply.envelope.sequence.identifier == offered
    assert (await other.request(1)).envelope.sequence.identifier == offered  # not acknowledged: it comes again
    beside = SequenceAcknowledgement(offered, ((1, 1),))
    answer = await one.message(1, acknowledgements=(beside,), ack_requested=(AckRequested(other.identifier),))
    assert answer.envelope.fault is None
    assert one.identifier in {found.identifier for found in answer.envelope.acknowledgements}

    async with asyncio.timeout(60):
        while (await other.request(1)).envelope is not None:  # until it has it, the reply
            await asyncio.sleep(0.01)


async def test_an_acknowledgement_by_itself_is_taken_wherever_it_comes_and_a_strangers_is_refused(
    crew: Start, peer: Any
) -> None:
    server = crew("--workers", "2", module=REPLYING)
    url = server.url()
    found = await requesters(url, peer)
    for one, offered in found.values():
        await one.request(1)
        for _ in range(4):
            answer = await peer(url).say(
                control=Acknowledge(), acknowledgements=(SequenceAcknowledgement(offered, ((1, 1),)),)
            )
            assert answer.status == 202, answer
    answer = await peer(url).say(
        control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:test:nobodys", ((1, 1),)),)
    )
    assert answer.fault == "UnknownSequence"
