"""Nodes of a cluster as processes on a real database: any of them takes any request, and partitions move between them.

A test scripts which node has which partition; the tests of ``holdfast.cluster`` are about who decides that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from zlib import crc32

import pytest
from crew import stored, texts, wait_until
from databases import PostgreSQL
from scripted_nodes import Cluster
from waiting import until

import holdfast
from holdfast.cluster.view import DATABASE, KAFKA
from holdfast.core.messages import CreateSequenceResponse, TerminateSequence, TerminateSequenceResponse
from holdfast.endpoint.worker import identifier_of, worker_of
from holdfast.http.outcome import TransportError
from holdfast.outages import Trouble

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

Start = Callable[..., Cluster]


@pytest.fixture
def postgresql(servers: Callable[[str], Any]) -> PostgreSQL:
    return servers("postgresql")  # type: ignore[no-any-return]


@pytest.fixture
def cluster(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Start]:
    """Starts nodes; nothing of them outlives the test."""
    started: list[Any] = []

    def start(partitions: int, **owners: list[int]) -> Cluster:
        made = Cluster(tmp_path, postgresql, partitions)
        made.start(*owners)
        started.extend(made.nodes.values())
        made.own({one: name for name, several in owners.items() for one in several})
        return made

    yield start
    for one in started:
        one.clean()


def arrived(made: Cluster) -> dict[int, list[int]]:
    """Which messages of each source are stored, in the order of its partition."""
    found: dict[int, list[int]] = {}
    for records in stored(made.store, made.partitions).values():
        for text in texts(records):
            name, number = text.split("-")
            found.setdefault(int(name), []).append(int(number))
    return found


def ask(admin: str, path: str) -> Any:
    """What an admin listener answers."""
    with urlopen(admin + path, timeout=240) as answer:
        return json.loads(answer.read())


def refusal(admin: str, path: str) -> str:
    """Why an admin listener refuses; "" if it does not."""
    try:
        ask(admin, path)
    except HTTPError as error:
        return str(json.loads(error.read())["error"])
    return ""


def unread(url: str) -> int:
    """How many bytes a listener's connections have brought that its process has not read."""
    port = f":{urlsplit(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port) and row[3] == "01")


class Sources:
    """Sources that send to some nodes in turn, each its own Sequence."""

    def __init__(self, urls: list[str], count: int) -> None:
        self.sources = [holdfast.Source(urls[name % len(urls)], ":memory:") for name in range(count)]
        self.sent = 0

    async def __aenter__(self) -> Sources:
        for source in self.sources:
            await source.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(source.__aexit__(*error) for source in self.sources))

    async def send(self, count: int) -> None:
        """Send so many more in each Sequence, and wait until all are acknowledged."""
        for number in range(self.sent, self.sent + count):
            for name, source in enumerate(self.sources):
                await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
        self.sent += count
        await asyncio.gather(*(source.flush(60) for source in self.sources))


async def test_any_node_takes_any_message_while_partitions_move(cluster: Start) -> None:
    made = cluster(4, a=[0, 1], b=[2, 3])
    urls = [await asyncio.to_thread(node.url) for node in made]
    async with Sources(urls, 5) as sources:
        await sources.send(20)
        for partition, to in ((0, "b"), (2, "a"), (0, "a")):
            sending = asyncio.create_task(sources.send(20))
            await asyncio.to_thread(made.move, partition, to)
            await sending
    assert [await asyncio.to_thread(node.end) for node in made] == [0, 0]
    assert arrived(made) == {name: list(range(80)) for name in range(5)}


@pytest.mark.nightly
async def test_a_worker_that_is_starting_may_be_given_away(cluster: Start) -> None:
    made = cluster(2, a=[1], b=[])
    for _ in range(3):
        made.own({0: "a"})
        await asyncio.to_thread(made.move, 0, "b")
        await asyncio.to_thread(made.move, 0, "a")
        await asyncio.to_thread(made.move, 0, "b")
        del made.owners[0]
        made.tell()
        assert await asyncio.to_thread(made.nodes["b"].heard) == {"stopped": [0]}
    made.own({0: "a"})
    url = await asyncio.to_thread(made.nodes["b"].url)
    async with Sources([url], 4) as sources:
        await sources.send(5)
    assert [await asyncio.to_thread(node.end) for node in made] == [0, 0]
    assert arrived(made) == {name: list(range(5)) for name in range(4)}


@pytest.mark.nightly
async def test_a_node_without_a_partition_takes_messages_too(cluster: Start) -> None:
    made = cluster(2, a=[0, 1], b=[])
    urls = [await asyncio.to_thread(node.url) for node in made]
    async with Sources(urls[1:], 4) as sources:
        await sources.send(10)
    assert [await asyncio.to_thread(node.end) for node in made] == [0, 0]
    assert arrived(made) == {name: list(range(10)) for name in range(4)}


async def test_another_node_carries_on_for_one_that_is_killed(cluster: Start) -> None:
    made = cluster(3, a=[0, 1], b=[2], c=[])
    urls = [await asyncio.to_thread(node.url) for node in made]
    dead = made.nodes["a"]
    async with Sources(urls[1:], 6) as sources:
        await sources.send(10)
        sending = asyncio.create_task(sources.send(30))
        await asyncio.to_thread(dead.kill)
        lost = made.lose("a")
        await asyncio.to_thread(made.own, dict(zip(lost, ("b", "c"), strict=True)))
        await sending
    assert [await asyncio.to_thread(node.end) for node in made] == [0, 0]
    assert arrived(made) == {name: list(range(40)) for name in range(6)}


async def test_a_paused_owner_that_wakes_after_its_takeover_accepts_nothing(cluster: Start, peer: Any) -> None:
    made = cluster(2, a=[0], b=[1])
    a, b = made.nodes["a"], made.nodes["b"]
    url_a, url_b = await asyncio.to_thread(a.url), await asyncio.to_thread(b.url)
    one = peer(url_b)
    while worker_of(one.identifier or "") != 0:
        await one.create()
    assert (await one.message(1)).ranges == ((1, 1),)
    a.signal(signal.SIGSTOP)
    asked = asyncio.create_task(one.message(2))  # by way of a node that asks the paused one
    await until(lambda: unread(a.node_url))
    made.lose("a")
    await asyncio.to_thread(made.own, {0: "b"})
    assert (await asked).ranges == ((1, 2),)
    for number in (3, 4):
        assert (await one.message(number)).ranges == ((1, number),)
    a.signal(signal.SIGCONT)
    # Nobody has told it yet that it has lost the partition: the store does.
    with contextlib.suppress(TransportError):
        answer = await peer(url_a).message(5, identifier=one.identifier, body=b"<never/>")
        assert (answer.status, answer.envelope) == (503, None), answer
    await until(lambda: "event='store.taken_over'" in a.errors.read_text())
    await asyncio.to_thread(a.kill)
    told = a.errors.read_text()  # it is no failure, and the other node must not be stopped
    assert "store.failed" not in told and "Stop one" not in told and "critical" not in told, told
    for number in (5, 6):
        while (answer := await one.message(number)).status == 503:
            assert answer.envelope is None
        assert answer.ranges == ((1, number),)
    assert await asyncio.to_thread(b.end) == 0
    bodies = [record.body for records in stored(made.store, 2).values() for record in records]
    assert len(bodies) == 6
    assert not any(b"never" in body for body in bodies)


async def test_a_node_that_nobody_vouches_for_accepts_nothing(cluster: Start, peer: Any) -> None:
    made = cluster(1, a=[0])
    (node,) = made
    one = peer(await asyncio.to_thread(node.url))
    await one.create()
    node.tell({"revoke": True})
    number = 1
    while (answer := await one.message(number)).status != 503:
        assert answer.ranges == ((1, number),)
        number += 1
    assert answer.envelope is None
    assert (await one.message(number)).status == 503
    await asyncio.to_thread(made.tell)  # the agent vouches for it again
    while (answer := await one.message(number)).status == 503:
        assert answer.envelope is None
    assert answer.ranges == ((1, number),)


@pytest.mark.nightly
async def test_a_repeated_create_sequence_finds_the_first_answer_at_any_node(cluster: Start, peer: Any) -> None:
    made = cluster(4, a=[0, 1], b=[2, 3], c=[])
    urls = [await asyncio.to_thread(node.url) for node in made]
    workers = set()
    for number in range(8):
        found = set()
        for url in urls:
            answer = await peer(url).create(message_id=f"urn:test:create:{number}")
            assert isinstance(answer.envelope.control, CreateSequenceResponse), answer
            found.add(answer.envelope.control.identifier)
        assert len(found) == 1
        workers.add(worker_of(found.pop()))
    assert len(workers) > 1


@pytest.mark.nightly
async def test_any_node_ends_the_sequence_that_a_client_with_workers_offered(cluster: Start, peer: Any) -> None:
    """The Identifier has the number of a worker of the client's server, which is also that of a partition here."""
    made = cluster(4, a=[0, 1], b=[2, 3], c=[])
    urls = [await asyncio.to_thread(node.url) for node in made]
    for number in range(4):
        for url in urls:
            one, offered = peer(url), identifier_of(number, uuid.uuid4().int)
            await one.create(offer=offered)
            other = peer(urls[(urls.index(url) + 1) % 3])
            ended = await other.say(control=TerminateSequence(offered), message_id=one.new_id())
            assert isinstance(ended.envelope.control, TerminateSequenceResponse), ended


@pytest.mark.nightly
async def test_without_an_owner_a_request_waits_and_is_then_put_off(cluster: Start, peer: Any) -> None:
    made = cluster(2, a=[0, 1], b=[])
    a, b = made.nodes["a"], made.nodes["b"]
    one = peer(await asyncio.to_thread(b.url))
    await asyncio.to_thread(a.url)
    while worker_of(one.identifier or "") != 0:
        await one.create()
    del made.owners[0]
    await asyncio.to_thread(made.tell)
    assert await asyncio.to_thread(a.heard) == {"stopped": [0]}
    answer = await one.message(1)
    assert (answer.status, answer.envelope) == (503, None)
    asking = asyncio.create_task(one.message(1))
    await asyncio.to_thread(made.own, {0: "b"})
    while (answer := await asking).status == 503:
        asking = asyncio.create_task(one.message(1))
    assert answer.ranges == ((1, 1),)


@pytest.mark.nightly
def test_any_node_answers_operators_for_all_and_names_what_it_cannot_reach(cluster: Start) -> None:
    made = cluster(2, a=[0], b=[1], c=[])
    a, b, c = made
    urls = [(node.url(), node.url()) for node in (a, b, c)]
    sent, found = 0, list[list[str]]()
    while not found or {worker_of(one) for one in found[0]} != {0, 1}:
        for url, _ in urls:
            with holdfast.sync.Source(url, store=":memory:") as source:
                source.send(f"<n>{sent}-0</n>", action="urn:test:submit").acknowledged(60)
            sent += 1
        found = [[one["identifier"] for one in ask(admin, "/sequences")["sequences"]] for _, admin in urls]
    assert len(found[0]) == sent
    assert found[0] == found[1] == found[2]
    assert [len(ask(admin, "/queues")["queues"]["inbox"]["partitions"]) for _, admin in urls] == [34] * 3
    admins = [admin for _, admin in urls]
    for admin in admins:
        told = ask(admin, "/nodes?sink=x")
        assert told == {"v": 1, "url": admin, "partitions": 17, "workers": admins[:2], "sink": crc32(b"x") % 2}
    assert [ask(admin, "/readyz")["status"] for _, admin in urls] == ["ready"] * 3
    b.kill()
    made.lose("b")
    made.tell()
    for _, admin in (urls[0], urls[2]):
        wait_until(
            lambda admin=admin: "cluster partition 1 does not answer: no node has it" in refusal(admin, "/sequences")
        )
        assert ask(admin, "/nodes")["workers"] == [admins[0], None]
    assert [ask(admin, "/readyz")["status"] for _, admin in (urls[0], urls[2])] == ["ready"] * 2
    a.tell({"view": {"node": "a", "mine": {}, "owners": {}, "nodes": {}, "is_draining": True}})
    assert a.heard() == {"stopped": [0]}
    wait_until(lambda: "knows no other node" in refusal(urls[0][1], "/readyz"))
    assert ask(urls[0][1], "/healthz") == {"status": "ok"}


def test_probes_give_the_true_reason_while_a_node_may_not_act(cluster: Start) -> None:
    made = cluster(2, a=[0, 1])
    (node,) = made
    node.url()
    admin = node.url()
    wait_until(lambda: ask(admin, "/readyz") == {"status": "ready", "partitions": {"0": "serving", "1": "serving"}})
    node.tell({"revoke": True})
    wait_until(lambda: "the lease of this node was not renewed" in refusal(admin, "/readyz"))
    assert ask(admin, "/healthz") == {"status": "ok"}
    made.tell(trouble=Trouble("connection refused"))
    node.tell({"revoke": True})
    why = "this node has no contact with the database of the cluster: connection refused"
    wait_until(lambda: refusal(admin, "/readyz") == why)
    wait_until(lambda: refusal(admin, "/queues") == why)
    assert ask(admin, "/healthz")["trouble"].startswith(f"{why}. Check the database of the cluster.")
    made.tell(trouble=Trouble("no answer"), engine="Kafka")
    wait_until(lambda: refusal(admin, "/readyz") == "this node has no contact with Kafka: no answer")
    assert ask(admin, "/healthz")["trouble"].endswith(
        "Kafka: no answer. Check Kafka. The node then continues on its own."
    )
    with urlopen(f"{admin}/metrics", timeout=240) as answer:
        text = answer.read()
        assert b'worker="1"' in text and b"holdfast_node_without_contact 1.0" in text
    made.tell(trouble=Trouble("refused login: no.", "Check the password."), engine="Kafka")
    wait_until(lambda: refusal(admin, "/readyz").endswith("Kafka: refused login: no."))
    assert ask(admin, "/healthz")["trouble"].endswith("no. Check the password. The node then continues on its own.")
    made.tell()
    wait_until(lambda: refusal(admin, "/readyz") == "")
    assert ask(admin, "/healthz") == {"status": "ok"}


def test_a_node_that_others_cannot_reach_says_so_itself(cluster: Start) -> None:
    made = cluster(2, a=[0, 1])
    (node,) = made
    node.url()
    admin = node.url()

    def cut_off() -> str:
        with urlopen(f"{admin}/metrics", timeout=240) as answer:
            found = [line for line in answer.read().decode().splitlines() if line.startswith("holdfast_node_cut_off ")]
        assert len(found) == 1
        return found[0].split()[1]

    assert cut_off() == "0.0"
    made.tell(cut_off_by=["b", "c"])
    wait_until(lambda: cut_off() == "1.0")
    for path in ("/healthz", "/readyz"):
        told = ask(admin, path)["cut_off"]
        assert told.startswith(f"most of the other nodes cannot reach this node at {node.node_url}: b, c. Check url")
    made.tell()
    wait_until(lambda: cut_off() == "0.0")
    assert ask(admin, "/healthz") == {"status": "ok"}


def test_a_node_is_not_ready_while_others_do_what_it_cannot(cluster: Start) -> None:
    made = cluster(2, a=[0], b=[1])
    admins = []
    for node in made:
        node.url()
        admins.append(node.url())
    for admin in admins:
        wait_until(lambda admin=admin: refusal(admin, "/readyz") == "")
    made.tell(failed={"a": {1: "the queue is not configured."}})
    wait_until(lambda: refusal(admins[0], "/readyz").endswith("partition 1: the queue is not configured"))
    assert refusal(admins[1], "/readyz") == ""
    assert ask(admins[0], "/healthz") == {"status": "ok"}
    made.move(0, "b")
    made.tell(cut_off_by=["b", "c"])
    wait_until(lambda: "cannot reach this node" in refusal(admins[0], "/readyz"))
    made.owners = {0: "b"}  # a partition that no node can serve does not stop the others
    made.tell(failed={"b": {1: "the store is damaged"}})
    for admin in admins:
        wait_until(lambda admin=admin: refusal(admin, "/readyz") == "")


def test_the_listener_of_a_node_is_for_nodes_with_the_secret(cluster: Start) -> None:
    made = cluster(1, a=[0])
    (node,) = made
    node.url()
    for headers in ({}, {"Holdfast-Nonce": "0" * 32, "Holdfast-Proof": "0" * 64}):
        with pytest.raises(HTTPError, match="403"):
            urlopen(Request(f"{node.node_url}/0/knows/urn:x", headers=headers), timeout=240)


@pytest.mark.parametrize("engine", [DATABASE, pytest.param(KAFKA, marks=pytest.mark.nightly)])
def test_a_signal_to_every_process_of_a_node_is_a_clean_end(cluster: Start, engine: str) -> None:
    """As a service manager sends it. A node on Kafka first lets other nodes prepare, while its workers run on."""
    made = cluster(2, a=[0, 1])
    made.tell(engine=engine)
    (node,) = made
    node.url()
    node.signal(signal.SIGTERM)
    assert node.process.wait(240) == 0
    told = node.errors.read_text()
    assert "error" not in told and "worker.died" not in told, told
    stopping, ready = told.index("server.stopping"), re.compile("server.listening|destination.ready")
    assert ready.search(told) and not ready.search(told, stopping), told


@pytest.mark.nightly
def test_a_gateway_that_ends_is_named_in_the_log(cluster: Start) -> None:
    made = cluster(2, a=[0])
    (node,) = made
    node.url()
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
    wait_until(lambda: "event='worker.died' number='gateway'" in node.errors.read_text())
    assert node.end() == 0


@pytest.mark.nightly
def test_a_node_whose_agent_ends_ends_too(cluster: Start) -> None:
    made = cluster(2, a=[0, 1])
    (node,) = made
    node.url()
    node.end_agent()
    assert node.process.wait(240) == 1
    assert "cluster.node_ended" in node.errors.read_text()


def test_a_node_that_the_cluster_refuses_says_why_and_ends(cluster: Start) -> None:
    made = cluster(2, a=[])
    (node,) = made
    node.tell({"refused": {"problem": "the cluster has 24 partitions, not 2", "remedy": "Set partitions = 24."}})
    assert node.process.wait(240) == 1
    assert "the cluster has 24 partitions, not 2" in node.errors.read_text()
    assert "Set partitions = 24." in node.errors.read_text()


@pytest.mark.nightly
def test_a_worker_that_cannot_start_is_left_to_other_nodes(cluster: Start) -> None:
    made = cluster(2, a=[0, 1])
    (a,) = made
    a.url()
    made.config = made.config.replace("partitions = 1", "partitions = 2", 1)
    made.start("b")
    del made.owners[1]
    made.tell()
    assert a.heard() == {"stopped": [1]}
    made.own({1: "b"})
    b = made.nodes["b"]
    told = b.heard()["failed"]["1"]
    assert told.startswith("in this store, the queue 'inbox' has 1 partitions, not 2. Set partitions=1, or use another")
    del made.owners[1]
    made.tell()
    assert b.heard() == {"stopped": [1]}
    assert "event='worker.given_up' number=1" in b.errors.read_text()
    made.own({1: "a"})
    assert b.url(), "it passes requests on"


@pytest.mark.nightly
def test_a_worker_that_is_killed_starts_again_at_its_node(cluster: Start) -> None:
    made = cluster(2, a=[0, 1])
    (node,) = made
    url = node.url()
    errors = node.errors
    workers = re.findall(r"destination.ready.*?worker=(\d)", errors.read_text())
    assert sorted(workers) == ["0", "1"]
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    before = [int(one) for one in children.read_text().split()]
    for pid in before[2:]:  # the agent and the gateway come first
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: errors.read_text().count("destination.ready") >= 5)
    with holdfast.sync.Source(url, store=":memory:") as source:
        source.send("<n>0-0</n>", action="urn:test:submit").acknowledged(60)
    assert node.end() == 0
    assert arrived(made) == {0: [0]}
