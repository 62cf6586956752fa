"""Several workers behind one address, as processes: what peers see of them, whoever is killed.

Covers cli/running/workers.py, endpoint/workers/routing.py, endpoint/workers/supervisor.py and http/server/binding.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import trustme
from crew import Crew, lives, stored, texts, wait_until

import holdfast
from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.errors import OffsetRefused
from holdfast.client.offsets import Range
from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequenceResponse,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.records import Batch, Record
from holdfast.endpoint.worker import identifier_of, worker_of
from holdfast.store import open_store
from holdfast.store.records import decode_record
from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

Start = Callable[..., Crew]

REPLYING = """
import holdfast
app = holdfast.Destination(store="inbox")
@app.on()
def reply(message) -> str:
    return "<reply/>"
"""


UNFINISHED = """
import pathlib, time
import holdfast
app = holdfast.Destination(store="inbox", partitions=2)
@app.on()
def reply(message) -> str:
    pathlib.Path("called").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return "<reply/>"
"""

KILLED_AT_FIRST = """
import os
import holdfast
start = len([one for one in os.listdir() if one.startswith("start-")])
open(f"start-{{start}}", "w").close()
if start in {starts}:
    os.kill(os.getpid(), {number})
app = holdfast.Destination(store="inbox")
"""
"""The signal, and the starts of workers, in their order, that it ends."""

HELD_BACK = """
import pathlib, time
import holdfast
while pathlib.Path("wait").exists():
    time.sleep(0.01)
app = holdfast.Destination(store="inbox", partitions=2)
"""


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


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of three workers that nobody kills."""
    server = Crew(tmp_path_factory.mktemp("standing"), "--port", "0", "--workers", "3")
    yield server.url()
    server.clean()


@pytest.fixture(scope="module")
def replying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two workers whose handler replies."""
    server = Crew(tmp_path_factory.mktemp("replying"), "--port", "0", "--workers", "2", module=REPLYING)
    yield server.url()
    server.clean()


def send(url: str, name: int, count: int, **options: Any) -> None:
    """Send ``count`` messages in a Sequence of their own and wait until all are acknowledged."""
    with holdfast.sync.Source(url, store=":memory:", **options) as source:
        for number in range(count):
            source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
        source.flush(60)


def send_together(url: str, sources: int, count: int, **options: Any) -> list[threading.Thread]:
    """The same from several sources at a time."""
    threads = [threading.Thread(target=send, args=(url, name, count), kwargs=options) for name in range(sources)]
    for thread in threads:
        thread.start()
    return threads


def arrived(location: Path | str, workers: int) -> dict[int, list[int]]:
    """Which messages of each source are stored, in the order of its partition."""
    found: dict[int, list[int]] = {}
    for records in stored(location, workers).values():
        for text in texts(records):
            name, number = text.split("-")
            found.setdefault(int(name), []).append(int(number))
    return found


def test_messages_arrive_once_and_in_order_while_workers_are_killed(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "3")
    threads = send_together(server.url(), 16, 100)
    chance = random.Random(1)
    for _ in range(4):
        server.kill(chance.randrange(3))
    for thread in threads:
        thread.join()
    assert server.end() == 0
    assert arrived(tmp_path, 3) == {name: list(range(100)) for name in range(16)}
    assert len({worker for (worker, _), records in stored(tmp_path, 3).items() if records}) > 1


def test_several_workers_speak_tls(crew: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = crew("--workers", "2", "--tls-cert", "server.pem")
    url = server.url()
    assert url.startswith("https://")
    for thread in send_together(url, 6, 30, http=holdfast.SourceHTTP(ssl_context=trust)):
        thread.join()
    assert server.end() == 0
    assert arrived(tmp_path, 2) == {name: list(range(30)) for name in range(6)}


def test_workers_end_with_a_supervisor_that_is_killed_and_their_messages_stay(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "2")
    send(server.url(), 0, 5)
    pids = server.pids
    assert len(pids) == 2
    server.process.kill()
    server.process.wait(240)
    wait_until(lambda: not any(map(lives, pids)))
    again = crew("--workers", "2")
    send(again.url(), 1, 5)
    assert again.end() == 0
    assert arrived(tmp_path, 2) == {0: list(range(5)), 1: list(range(5))}


def test_a_supervisor_starts_while_orphans_of_a_killed_one_finish(crew: Start, tmp_path: Path) -> None:
    port, admin = free_ports(2)
    options = ("--workers", "2", "--port", str(port), "--admin", str(admin))
    server = crew(*options, module=UNFINISHED)
    url, orphans = server.url(), server.pids
    replies: list[bytes] = []

    def ask() -> None:
        with holdfast.sync.Source(url, store=":memory:") as source:
            replies.append(source.request("<n/>", action="urn:test:submit", timeout=240).body_bytes)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until((tmp_path / "called").exists)
    server.process.kill()
    server.process.wait(240)
    again = crew(*options, module=UNFINISHED)
    # A slow machine may not see the lock: an orphan ends after some seconds in any case.
    wait_until(lambda: "event='store.locked'" in again.errors.read_text() or not any(map(lives, orphans)))
    (tmp_path / "go").touch()
    assert again.url()
    asking.join(240)
    assert replies == [b"<reply/>"]
    wait_until(lambda: not any(map(lives, orphans)))
    assert again.end() == 0


def test_while_a_worker_is_away_the_others_create_sequences(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "2", module=HELD_BACK)
    url = server.url()
    (tmp_path / "wait").touch()
    server.kill(1)
    for name in range(8):  # each worker would own half of them
        send(url, name, 1, offer=False)
    (tmp_path / "wait").unlink()
    assert server.end() == 0


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
    assert server.process.wait(240) == 130
    assert not any(map(lives, pids))


def test_a_signal_to_every_process_is_a_clean_end_after_the_work_in_progress(crew: Start, tmp_path: Path) -> None:
    """As a service manager sends it: a worker then gets one more from its supervisor."""
    server = crew("--workers", "2", module=UNFINISHED)
    with holdfast.sync.Source(server.url(), store=":memory:", offer=False) as source:
        sent = source.send("<n>0</n>", action="urn:test:submit")
        wait_until((tmp_path / "called").exists)
        os.killpg(server.process.pid, signal.SIGTERM)
        wait_until(lambda: server.errors.read_text().count("server.stopping") == 2)
        (tmp_path / "go").touch()
        sent.acknowledged(60)
        source.close(0.0)  # nobody answers it
    assert server.process.wait(240) == 0
    told = server.errors.read_text()
    assert "error" not in told and "worker.died" not in told, told
    assert told.count("server.listening") == told.count("destination.ready") == 2, told


@pytest.mark.nightly  # test_worker.py decides it without processes
def test_fewer_workers_than_have_stores_with_messages_are_refused(crew: Start, tmp_path: Path) -> None:
    accident = crew("--workers", "3")
    accident.url()
    assert accident.end() == 0
    again = crew()
    again.url()
    assert again.end() == 0
    with contextlib.closing(open_store(tmp_path / "inbox" / "worker-2")) as store:
        store.commit(Batch(appends=[("inbox", 0, 0, Record("urn:s", 1, "urn:a", b"<x/>", 0.0))]))
    for options in (["--workers", "2"], []):
        refused = crew(*options)
        assert refused.process.wait(240) == 1
        assert "--workers 3" in refused.errors.read_text()
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
    assert server.process.wait(240) == 1
    assert server.errors.read_text().count("no_such_module'") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_that_are_killed_at_their_first_start_are_started_again(crew: Start, number: int) -> None:
    server = crew("--workers", "2", module=KILLED_AT_FIRST.format(number=int(number), starts=(0, 2)))
    url = server.url()
    assert server.errors.read_text().count(f"event='worker.died' number=0 code='{signal.Signals(number).name}'") == 1
    send(url, 0, 3)
    assert server.end() == 0
    told = server.errors.read_text()
    assert "start_failed" not in told and told.count("event='worker.died'") == 2


def test_a_worker_that_crashes_at_its_first_start_ends_all(crew: Start) -> None:
    server = crew("--workers", "2", module=KILLED_AT_FIRST.format(number=int(signal.SIGABRT), starts=(0,)))
    assert server.process.wait(240) == 1
    assert "event='worker.start_failed' number=0 code='SIGABRT'" in server.errors.read_text()


async def test_a_repeated_create_sequence_finds_the_first_answer_on_any_connection(standing: str, peer: Any) -> None:
    url = standing
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


async def test_one_connection_may_carry_sequences_of_several_workers(standing: str, peer: Any) -> None:
    one, found = await sequences(standing, peer, 3)
    for number in range(1, 8):
        for identifier in found.values():
            assert (await one.message(number, identifier=identifier)).ranges == ((1, number),)
    for identifier in found.values():
        ended = await one.say(control=TerminateSequence(identifier, 7), message_id=one.new_id())
        assert ended.status == 200


@pytest.mark.parametrize("number", ["", "001", "007"])
async def test_a_sequence_that_its_sender_begins_and_names_has_one_worker(
    standing: str, peer: Any, number: str
) -> None:
    """WS-RM 2003/03: the Identifier may be one that a worker of another server made."""
    identifier = f"urn:uuid:12345678-1234-8{number}-8234-123456789012" if number else "urn:any"
    for message in range(1, 7):
        one = peer(standing, holdfast.Versions("2003/03"))
        one.identifier = identifier
        assert (await one.message(message)).ranges == ((1, message),)
    one = peer(standing, holdfast.Versions("2003/03"))
    assert (await one.say(control=TerminateSequence(identifier))).status == 202
    assert (await one.message(7, identifier=identifier)).fault == "SequenceTerminated"


async def test_a_large_message_reaches_its_worker(standing: str, peer: Any) -> None:
    _, found = await sequences(standing, peer, 3)
    body = b"<a>" + b"x" * 3_000_000 + b"</a>"
    for identifier in found.values():
        for _turn in range(3):
            answer = await peer(standing).message(1, body, identifier=identifier)
            assert answer.ranges == ((1, 1),)


async def test_every_worker_answers_ack_requests_and_unknown_sequences(standing: str, peer: Any) -> None:
    one, found = await sequences(standing, peer, 3)
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


def offered_anywhere() -> str:
    return f"urn:test:offered:{uuid.uuid4()}"


def offered_by_a_worker() -> str:
    """An Identifier that a worker of another server made."""
    return identifier_of(1, uuid.uuid4().int)


async def requesters(
    url: str, peer: Any, new_offer: Callable[[], str] = offered_anywhere
) -> dict[int, tuple[Any, str]]:
    """A requester with a Sequence of each of two workers, by worker, and the Identifier that it offered."""
    found: dict[int, tuple[Any, str]] = {}
    while len(found) < 2:
        one, offered = peer(url), new_offer()
        await one.create(offer=offered)
        worker = worker_of(one.identifier)
        assert worker is not None
        found[worker] = one, offered
    return found


@pytest.mark.parametrize("message_id", ["another", None])
async def test_no_worker_accepts_an_offered_identifier_that_another_one_has(
    replying: str, peer: Any, message_id: str | None
) -> None:
    for _ in range(5):
        one, again, offered = peer(replying), peer(replying), offered_anywhere()
        await one.create(offer=offered)
        refused = await again.create(offer=offered, message_id=again.new_id() if message_id else None)
        assert refused.fault == "CreateSequenceRefused"


async def test_what_is_said_of_another_workers_sequence_reaches_it(replying: str, peer: Any) -> None:
    (one, _), (other, offered) = (await requesters(replying, peer)).values()
    reply = await other.request(1)
    assert reply.envelope.sequence.identifier == offered
    assert (await other.request(1)).envelope.sequence.identifier == offered  # not acknowledged: it comes again
    beside = SequenceAcknowledgement(offered, ((1, 1),))
    answer = await one.message(1, acknowledgements=(beside,), ack_requested=(AckRequested(other.identifier),))
    assert answer.envelope.fault is None
    assert one.identifier in {found.identifier for found in answer.envelope.acknowledgements}

    async with asyncio.timeout(240):
        while (await other.request(1)).envelope is not None:  # until it has it, the reply
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("new_offer", [offered_anywhere, offered_by_a_worker])
async def test_every_worker_takes_a_lone_acknowledgement_and_refuses_a_strangers(
    replying: str, peer: Any, new_offer: Callable[[], str]
) -> None:
    url = replying
    found = await requesters(url, peer, new_offer)
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


@pytest.mark.parametrize("end", [CloseSequence, TerminateSequence])
async def test_a_client_with_workers_ends_the_sequence_that_it_offered_through_any_worker(
    replying: str, peer: Any, end: type[CloseSequence] | type[TerminateSequence]
) -> None:
    """A worker of the client's server made the Identifier, so it has the number of a worker there."""
    answered = {CloseSequence: CloseSequenceResponse, TerminateSequence: TerminateSequenceResponse}[end]
    for number in (0, 1, 7, 0, 1, 7):  # connections of any worker
        found = await requesters(replying, peer, lambda number=number: identifier_of(number, uuid.uuid4().int))
        for one, offered in found.values():
            await one.request(1)
            ended = await peer(replying).say(control=end(offered), message_id=one.new_id())
            assert isinstance(ended.envelope.control, answered), ended
    for number in (0, 1, 7):
        stranger = identifier_of(number, uuid.uuid4().int)
        answer = await peer(replying).say(control=end(stranger), message_id="urn:test:1")
        assert answer.fault == "UnknownSequence"


# --- the admin listener -----------------------------------------------------------------------------------------------


def read_all(admin: str, meanwhile: Callable[[], None], without: Sequence[str] = ()) -> dict[int, list[str]]:
    """What a reader of the data plane gets, by partition."""
    plane, patience = DataPlane(admin), Patience(60.0)
    ends = patience.call(lambda: plane.ends("inbox"))
    found: dict[int, list[str]] = {}
    for partition, (first, end) in ends.partitions.items():
        parts = read_range(plane, "inbox", ends.epoch, Range(partition, first, end), patience, (), without)
        records = []
        for some in parts:
            meanwhile()
            records += some
        assert [offset for offset, _ in records] == list(range(first, end))
        found[partition] = texts([decode_record(data) for _, data in records])
    plane.close()
    return found


@pytest.mark.nightly
def test_a_reader_gets_every_record_once_though_workers_are_killed(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "3", "--admin", "0")
    url, admin = server.url(), server.url()
    for thread in send_together(url, 9, 40):
        thread.join()
    chance = random.Random(4)
    found = read_all(admin, lambda: server.kill(chance.randrange(3)))
    assert sorted(found) == list(range(6))
    everything = [text for some in found.values() for text in some]
    assert sorted(everything) == sorted(f"{name}-{number}" for name in range(9) for number in range(40))
    counts = {partition: len(some) for partition, some in found.items()}
    spared = read_all(admin, lambda: None, ["body"])
    assert {partition: len(some) for partition, some in spared.items()} == counts
    assert {text for some in spared.values() for text in some} == {""}
    assert server.end() == 0
    where = {worker * 2 + partition: texts(records) for (worker, partition), records in stored(tmp_path, 3).items()}
    assert {partition: some for partition, some in found.items() if some} == where


def test_cursors_are_in_all_workers_and_a_new_one_changes_no_number_or_epoch(crew: Start, tmp_path: Path) -> None:
    server = crew("--workers", "2", "--admin", "0")
    url, admin = server.url(), server.url()
    for thread in send_together(url, 6, 10):
        thread.join()
    plane = DataPlane(admin)
    ends = plane.ends("inbox")
    prints = plane.fingerprints("inbox", ends.epoch, ends.ends)
    known = [(partition, ends.ends[partition], text) for partition, text in prints.items() if text]
    assert plane.all_ends() == {"inbox": ends}
    assert plane.offsets_at("inbox", ends.epoch, dict.fromkeys(ends.ends, 0)) == ends.firsts
    assert plane.offsets_at("inbox", ends.epoch, dict.fromkeys(ends.ends, 2**52)) == ends.ends
    assert plane.offsets_at("inbox", ends.epoch, {3: 2**52}) == {3: ends.ends[3]}
    assert plane.advance_cursor("inbox", "spark", ends.epoch, ends.ends, known) == ends.ends
    assert plane.cursor("inbox", "spark") == (ends.epoch, ends.ends)
    with pytest.raises(OffsetRefused):
        plane.advance_cursor("inbox", "spark", "0123456789abcdef", ends.ends)
    plane.close()
    assert server.end() == 0
    grown = crew("--workers", "3", "--admin", "0")
    _, admin = grown.url(), grown.url()
    plane = DataPlane(admin)
    again = plane.ends("inbox")
    assert again.epoch == ends.epoch
    assert {one: again.partitions[one] for one in ends.partitions} == ends.partitions
    assert {again.partitions[one] for one in (4, 5)} == {(0, 0)}
    assert plane.cursor("inbox", "spark") == (ends.epoch, ends.ends)
    stands = plane.advance_cursor("inbox", "spark", again.epoch, again.ends, known)
    assert stands == again.ends
    plane.close()


def ask(admin: str, path: str, method: str = "GET", body: object = None) -> Any:
    """An answer of the admin listener."""
    content = json.dumps(body).encode() if body is not None else None
    with urlopen(Request(admin + path, content, method=method), timeout=240) as answer:
        data = answer.read()
    return json.loads(data) if answer.headers["Content-Type"] == "application/json" else data.decode()


async def test_one_admin_listener_shows_and_steers_all_workers(crew: Start, peer: Any) -> None:
    server = crew("--workers", "3", "--admin", "0")
    url, admin = server.url(), server.url()
    one, found = await sequences(url, peer, 3)
    for identifier in found.values():
        await one.message(1, identifier=identifier)

    def look() -> None:
        every = ask(admin, "/sequences")
        shown = {row["identifier"] for row in every["sequences"]}
        assert shown >= set(found.values())
        assert every["count"] == len(shown) == len(every["sequences"])
        pages, after = [], ""
        while after is not None:
            page = ask(admin, f"/sequences?limit=2&after={quote(after)}")
            assert len(page["sequences"]) <= 2
            assert page["count"] == every["count"]
            pages += [row["identifier"] for row in page["sequences"]]
            after = page["next"]
        assert sorted(pages) == sorted(shown)
        for worker, identifier in found.items():
            row = ask(admin, f"/sequences/{quote(identifier, safe='')}")
            assert row["identifier"] == identifier
            assert row["partition"] // 2 == worker
            closed = ask(admin, f"/sequences/{quote(identifier, safe='')}/close", "POST", {})
            assert closed["state"] != row["state"]
        queue = ask(admin, "/queues/inbox")
        assert queue["records"] == 3
        assert sorted(map(int, queue["partitions"])) == list(range(6))
        filled = [int(one) for one, bounds in queue["partitions"].items() if bounds["end"]]
        assert {partition // 2 for partition in filled} == {0, 1, 2}
        for partition in filled:
            peeked = ask(admin, f"/queues/inbox/{partition}/messages")
            assert (peeked["partition"], len(peeked["messages"])) == (partition, 1)
        metrics = ask(admin, "/metrics")
        for worker in range(3):
            assert re.search(rf'holdfast_messages_accepted_total{{[^}}]*worker="{worker}"}} 1.0', metrics)
        assert metrics.count("# TYPE holdfast_messages_accepted_total ") == 1
        assert ask(admin, "/healthz") == {"status": "ok"}
        for missing in ("/sequences/urn:nobody", "/queues/inbox/6/messages", "/dead-letters/1000000000000", "/nothing"):
            with pytest.raises(HTTPError) as refused:
                ask(admin, missing)
            assert refused.value.code == 404
        purged = ask(admin, "/queues/inbox/purge", "POST", {})
        assert (purged["records"], purged["left"]) == (3, 0)

    await asyncio.to_thread(look)


def test_while_a_worker_is_away_its_part_is_told_to_be_missing_and_comes_back(crew: Start) -> None:
    server = crew("--workers", "2", "--admin", "0")
    url, admin = server.url(), server.url()
    send(url, 0, 3)
    server.kill(1)
    plane = DataPlane(admin)
    assert sorted(Patience(60.0).call(lambda: plane.ends("inbox")).partitions) == [0, 1, 2, 3]
    plane.close()


def test_dead_letters_of_all_workers_are_listed_retried_and_discarded(crew: Start) -> None:
    module = (
        "import holdfast\n"
        "from holdfast.endpoint.handling import dead_letters as letters\n"
        "letters.PAGE_BYTES = 5\n"  # two bodies
        "app = holdfast.Destination(store='inbox', handling=holdfast.HandlingPolicy(attempts=1))\n"
        "@app.on()\n"
        "def fails(message) -> None:\n"
        "    raise ValueError('no')\n"
    )
    server = crew("--workers", "2", "--admin", "0", module=module)
    url, admin = server.url(), server.url()
    for thread in send_together(url, 16, 1):
        thread.join()
    wait_until(lambda: ask(admin, "/dead-letters")["count"] == 16)
    letters, start = [], 0
    while start is not None:
        page = ask(admin, f"/dead-letters?limit=3&from={start}")
        letters += [letter["letter"] for letter in page["dead_letters"]]
        start = page["next"]
    assert len(letters) == len(set(letters)) == 16
    whole: list[int] = []
    plane, following = DataPlane(admin), 0
    while following is not None:
        some, following = plane.letters(following)
        assert len(some) <= 2
        whole += [letter["letter"] for letter in some if letter["body"]]
    plane.close()
    assert whole == letters
    assert {letter // 10**12 for letter in letters} == {0, 1}
    for letter in letters:
        assert ask(admin, f"/dead-letters/{letter}")["letter"] == letter
    gone = ask(admin, f"/dead-letters/{letters[-1]}/discard", "POST")
    assert gone["discarded"] == 1
    assert ask(admin, "/dead-letters/all/retry", "POST")["retried"] == 15

    def are_back() -> bool:
        shown = ask(admin, "/dead-letters")["dead_letters"]
        return len(shown) == 15 and not any(letter["retry"] for letter in shown)

    wait_until(are_back)
    assert ask(admin, "/dead-letters/all/discard", "POST")["discarded"] == 15


def test_connections_that_come_together_are_shared_out_before_they_speak_tls(crew: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = crew("--workers", "2", "--tls-cert", "server.pem")
    host, _, port = server.url().removeprefix("https://").rstrip("/").partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            plain = stack.enter_context(socket.create_connection((host, int(port)), 60))
            stack.enter_context(trust.wrap_socket(plain, server_hostname=host))
        counts = [connections_of(pid, int(port)) for pid in server.pids]
    assert sum(counts) == 12
    assert min(counts) >= 3


def connections_of(pid: int, port: int) -> int:
    """How many connections to a port a process has."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "01":
            inodes.add(f"socket:[{fields[9]}]")
    return sum(os.readlink(one) in inodes for one in Path(f"/proc/{pid}/fd").iterdir())


def test_a_worker_that_is_full_gives_new_connections_to_another(crew: Start) -> None:
    server = crew("--workers", "2", "--max-connections", "16")
    url = server.url()
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            one = stack.enter_context(socket.create_connection((host, int(port)), 60))
            # Busy, and not idle, when it is told to go on: then it is not closed for another one.
            one.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
            assert b"100 Continue" in one.recv(100)
        assert [connections_of(pid, int(port)) for pid in server.pids] == [8, 8]


def test_health_says_which_worker_does_not_answer(crew: Start) -> None:
    server = crew("--workers", "2", "--admin", "0")
    server.url()
    admin = server.url()
    stopped = server.pids[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(HTTPError) as refused:
            # Asked at worker 0: the stopped one accepts nothing.
            ask(admin, "/healthz")
        assert refused.value.code == 503
        assert "worker 1" in json.loads(refused.value.read())["error"]
        assert 'worker="0"' in ask(admin, "/metrics")
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert ask(admin, "/healthz") == {"status": "ok"}


@pytest.mark.nightly
def test_workers_have_spaces_of_their_own_in_a_database(crew: Start, servers: Any) -> None:
    url = servers("postgresql").new_url()
    module = f"import holdfast\napp = holdfast.Destination(store={url!r}, partitions=2)\n"
    server = crew("--workers", "2", module=module)
    threads = send_together(server.url(), 16, 25)
    for number in (0, 1):
        server.kill(number)
    for thread in threads:
        thread.join()
    assert server.end() == 0
    assert arrived(url, 2) == {name: list(range(25)) for name in range(16)}
    assert {worker for (worker, _), records in stored(url, 2).items() if records} == {0, 1}
    refused = crew(module=module)
    assert refused.process.wait(240) == 1
    assert "--workers 2" in refused.errors.read_text()
