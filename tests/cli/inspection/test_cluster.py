"""``holdfast cluster``: a cluster's status, a drain and a check, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from databases import PostgreSQL

from holdfast import Destination, Versions
from holdfast.cli.inspection.cluster import ranges_text
from holdfast.cluster import inspection
from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Claim, Enter, Join, Look, Picture, Release, Report, Tell
from holdfast.cluster.trust import Trust
from holdfast.core.records import Record
from holdfast.endpoint.worker import Worker


class Cluster:
    """Two nodes, a with the partitions 0 to 2, and b with 3."""

    def __init__(self, location: str, stack: ExitStack) -> None:
        self.location = location
        self.a, self.incarnation = self._join(stack, "a", 0, 1, 2)
        self.b, self.other = self._join(stack, "b", 3)

    def _join(self, stack: ExitStack, name: str, *partitions: int) -> tuple[LeaseDatabase, int]:
        session = LeaseDatabase(self.location, name, f"http://{name}:8082", 4, LeasePolicy(120.0))
        stack.callback(session.close)
        session.run(Enter())
        incarnation = session.run(Join(False))
        assert isinstance(incarnation, int)
        session.run(Claim(incarnation, partitions, 4))
        session.run(Tell(incarnation, Report(partitions)))
        return session, incarnation

    def give_when_drained(self, *, is_served: bool = True) -> None:
        """Release all partitions of a once its row says that it drains. Then let b serve them."""
        while True:
            picture = self.a.run(Look(self.incarnation, False))
            assert isinstance(picture, Picture)
            if picture.nodes[0].is_draining:
                self.a.run(Release(self.incarnation, {0: 1, 1: 1, 2: 1}))
                break
        if is_served:
            self.b.run(Claim(self.other, (0, 1, 2), 4))
            self.b.run(Tell(self.other, Report((0, 1, 2, 3))))


@pytest.fixture
def cluster(servers: Callable[[str], PostgreSQL]) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(servers("postgresql").new_url(), stack)


def test_the_status_is_a_table_or_json(run: Any, cluster: Cluster, tmp_path: Path) -> None:
    result = run("cluster", "status", cluster.location)
    assert result.code == 0, result
    first, *table = result.out.splitlines()
    assert first.startswith("Cluster at postgresql://tester@/holdfast?host=") and first.endswith(
        ": 4 cluster partitions."
    )
    words = [line.split() for line in table[:3]]
    assert words[0] == ["node", "state", "partitions", "owns", "serves", "joined", "url"]
    assert [line[:5] + line[-1:] for line in words[1:]] == [
        ["a", "live", "3", "0-2", "0-2", "http://a:8082"],
        ["b", "live", "1", "3", "3", "http://b:8082"],
    ]
    assert table[3].startswith("Warning: One server has the data.")
    (tmp_path / "broker.toml").write_text(f'store = "{cluster.location}"\nstore_password_file = "password"\n')
    (tmp_path / "password").write_text("of no use to a server that trusts everyone\n")
    with (tmp_path / "broker.toml").open("a") as file:  # the operator may not be able to read the nodes' secret
        file.write('[cluster]\nsecret_file = "missing"\n')
    facts = json.loads(run("cluster", "status", "broker.toml", "--json").out)
    assert [one["partitions"] for one in facts["nodes"]] == [[0, 1, 2], [3]]


def test_a_partition_without_an_owner_fails_the_status(run: Any, cluster: Cluster) -> None:
    cluster.a.run(Release(cluster.incarnation, {1: 1}))
    result = run("cluster", "status", cluster.location)
    assert result.code == 1
    assert "Problem: No node owns cluster partition 1.\n" in result.out


def test_a_drain_waits_until_other_nodes_serve_the_partitions(run: Any, cluster: Cluster) -> None:
    giving = threading.Thread(target=cluster.give_when_drained)
    giving.start()
    result = run("cluster", "drain", cluster.location, "a")
    giving.join()
    assert result.code == 0, result
    assert result.out.endswith("a owns no partitions. You can stop it.\n")
    assert run("cluster", "status", cluster.location).code == 0


def test_a_drain_says_that_nobody_serves_the_partitions_yet(
    run: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = inspection.drain_node

    def drain_and_give(location: str, node: str) -> None:
        drain(location, node)
        cluster.give_when_drained(is_served=False)

    monkeypatch.setattr(inspection, "drain_node", drain_and_give)
    result = run("cluster", "drain", cluster.location, "a", "--timeout", "0.1")
    assert result.code == 1, result
    assert (
        "a owns no partitions, but other nodes do not serve 3 of those it had yet.\nDo not stop it yet." in result.out
    )


def test_a_drain_that_takes_longer_fails_and_goes_on(run: Any, cluster: Cluster) -> None:
    result = run("cluster", "drain", cluster.location, "a", "--timeout", "0.1")
    assert result.code == 1
    assert result.out.startswith("a still owns 3 partitions.\na keeps draining.")
    assert run("cluster", "drain", cluster.location, "a", "--timeout", "0").out == "a drains.\n"


def test_a_move_waits_until_the_node_serves_the_partitions(run: Any, cluster: Cluster, servers: Any) -> None:
    def give_and_take() -> None:
        while True:
            picture = cluster.a.run(Look(cluster.incarnation, False))
            assert isinstance(picture, Picture)
            moved = [row.partition for row in picture.ownership if row.wanted]
            if moved:
                break
        cluster.a.run(Release(cluster.incarnation, dict.fromkeys(moved, 1)))
        assert set(cluster.b.run(Claim(cluster.other, tuple(moved), 2)) or ()) == {1, 2}  # type: ignore[arg-type]
        cluster.b.run(Tell(cluster.other, Report((1, 2, 3))))

    moving = threading.Thread(target=give_and_take)
    moving.start()
    result = run("cluster", "move", cluster.location, "1-2", "b")
    moving.join()
    assert result.code == 0, result
    assert result.out.endswith("b serves partitions 1-2.\n")
    space = cluster.location.rpartition("=")[2]
    wanted = f"SELECT string_agg(wanted::text, ' ' ORDER BY partition) FROM holdfast_ownership WHERE space = '{space}'"
    assert servers("postgresql").sql(wanted).split() == ["0", str(cluster.other), str(cluster.other), "0"]
    cluster.a.run(Claim(cluster.incarnation, (1,), 1))  # which is not free


def test_a_move_that_takes_longer_fails_and_goes_on(run: Any, cluster: Cluster) -> None:
    result = run("cluster", "move", cluster.location, "0", "b", "--timeout", "0.1")
    assert result.code == 1
    assert result.out.startswith("b serves 0 of 1.\nb does not serve all of them yet.")
    assert run("cluster", "move", cluster.location, "0", "b", "--timeout", "0").out == "b takes partition 0.\n"


def test_a_move_that_fails_says_why_the_node_could_not_serve(run: Any, cluster: Cluster) -> None:
    cluster.b.run(Tell(cluster.other, Report((3,), {0: "The store needs another version.", 2: "something else"})))
    result = run("cluster", "move", cluster.location, "0-1", "b", "--timeout", "0.1")
    assert (result.code, "something else" in result.out) == (1, False)
    assert result.out.endswith("b could not start cluster partition 0: The store needs another version.\n"), result.out


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (("move", "0", "a"), "cluster partition 0 was moved to a meanwhile"),
        (("release", "0-1"), "cluster partitions 0, 1 were released meanwhile, or b was restarted"),
        (("drain", "b"), "b takes no partitions: it is draining"),
        (("drain", "b", "resume"), "cluster partitions 0, 1 were released meanwhile, or b was restarted"),
    ],
)
def test_a_move_ends_with_the_reason_when_another_operator_changes_it(
    run: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...], reason: str
) -> None:
    move = inspection.move_partitions

    def lose(*given: Any) -> None:
        move(*given)
        match other:
            case ("move", number, node):
                move(cluster.location, [int(number)], node)
            case ("release", _):
                inspection.release_partitions(cluster.location, [0, 1])
            case ("drain", node, *then):
                inspection.drain_node(cluster.location, node)
                if then:
                    inspection.resume_node(cluster.location, node)

    monkeypatch.setattr(inspection, "move_partitions", lose)
    result = run("cluster", "move", cluster.location, "0-1", "b", "--timeout", "900", "--json")
    assert (result.code, json.loads(result.out)["serving"]) == (1, [])
    assert json.loads(result.out)["why"] == f"b does not serve all of them, and will not: {reason}."
    assert ("Moved to b" in run("cluster", "status", cluster.location).out) == (other[0] == "move")


def test_a_move_as_json_names_what_the_node_serves(run: Any, cluster: Cluster) -> None:
    result = run("cluster", "move", cluster.location, "0,3", "b", "--timeout", "0.1", "--json")
    assert (result.code, json.loads(result.out)) == (
        1,
        {
            "node": "b",
            "partitions": [0, 3],
            "serving": [3],
            "why": f"b does not serve all of them yet. To see why: holdfast cluster status {cluster.location}",
        },
    )
    assert "b serves 1 of 2." in result.err
    result = run("cluster", "move", cluster.location, "3", "b", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"node": "b", "partitions": [3], "serving": [3], "why": ""})


def test_moved_partitions_are_shown_and_released(run: Any, cluster: Cluster) -> None:
    run("cluster", "move", cluster.location, "0-1,3", "b", "--timeout", "0")
    assert "Moved to b, which keeps them: partitions 0-1, 3.\n" in run("cluster", "status", cluster.location).out
    result = run("cluster", "release", cluster.location, "1-2")
    assert (result.code, result.out.splitlines()) == (
        0, ["The nodes share partition 1 again.", "Not moved to a node before: partition 2."],
    )  # fmt: skip
    result = run("cluster", "release", cluster.location, "0-3", "--json")
    assert json.loads(result.out) == {"partitions": [0, 1, 2, 3], "released": [0, 3]}
    assert "Moved" not in run("cluster", "status", cluster.location).out


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-2-3", "-1", "1,,2", "1000", "٣"])
def test_a_move_of_something_else_is_refused(run: Any, text: str) -> None:
    result = run("cluster", "move", "postgresql://u@h/n", "--", text, "b")
    assert result.code == 1
    assert "is not a list of partitions" in result.err


def test_a_verification_reports_broken_rules(run: Any, cluster: Cluster, servers: Any) -> None:
    result = run("cluster", "verify", cluster.location, "--watch", "0.1")
    assert (result.code, result.out.rpartition(": ")[2]) == (0, "0 stores with 0 records. All rules hold.\n")
    space = cluster.location.rpartition("=")[2]
    servers("postgresql").sql(f"DELETE FROM holdfast_ownership WHERE partition = 2 AND space = '{space}'")
    result = run("cluster", "verify", cluster.location)
    assert result.code == 1
    assert result.out.startswith("- The cluster has 4 cluster partitions, but rows for [0, 1, 3].\n")
    assert result.out.endswith("A rule is broken.\n")
    assert json.loads(run("cluster", "verify", cluster.location, "--json").out)["problems"]


def test_commands_that_take_a_store_read_all_partitions_of_a_cluster(run: Any, cluster: Cluster) -> None:
    async def serve(number: int) -> None:
        app = Destination(cluster.location, partitions=3, queues={"inbox": "7d"})
        trust = Trust(4)
        trust.set(number, math.inf)
        app.settings.worker = Worker(number, 4, trust=trust.of(number))
        await app.start()
        engine = app.running.engine
        outbox = engine.protocol.outbound.open(f"to/{number}", "http://127.0.0.1:9/", [(Versions(), False)])
        record = Record(f"to/{number}", 0, "urn:r", b"<r/>", 1.0, f"urn:m:{number}")
        engine.protocol.submit(outbox, record, engine.clock())
        await engine.durable()
        await engine.settled()
        await app.close(0.0)

    assert "There is no store" in run("queues", cluster.location).err
    for number in (1, 3):  # the others have never been served
        asyncio.run(serve(number))
    queue, letters = json.loads(run("queues", cluster.location, "--json").out)["queues"]
    assert (queue["name"], letters["name"]) == ("inbox", "dead-letters")
    numbers, size = sorted(map(int, queue["partitions"])), len(queue["partitions"]) // 2
    assert numbers == [*range(size, 2 * size), *range(3 * size, 4 * size)]
    waiting = json.loads(run("outbox", "list", cluster.location, "--json").out)["messages"]
    assert [one["message"] for one in waiting] == ["1:to/1/0", "3:to/3/0"]
    assert json.loads(run("outbox", "discard", cluster.location, "3:to/3/0", "--yes", "--json").out)["discarded"] == 1
    assert len(json.loads(run("outbox", "list", cluster.location, "--json").out)["messages"]) == 1
    for command in (("receive", "--out", "landed", "--port", "0"), ("send", "--to", "http://127.0.0.1:9/", "x.xml")):
        Path("x.xml").write_text("<x/>")
        refused = run(*command, "--store", cluster.location)
        assert (refused.code, "belongs to a cluster of 4 cluster partitions" in refused.err) == (1, True), refused
    for command in (("store", "check"), ("store", "repair")):
        refused = run(*command, cluster.location)
        assert (refused.code, "holdfast cluster verify" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("argument", "content", "problem"),
    [
        ("missing.toml", None, "'missing.toml' is neither a file nor the URL of a database"),
        ("broker.toml", 'store = "inbox"\n', "the brokers of broker.toml are no cluster"),
        ("mysql://u:pass-word@host/db", None, "'mysql://u@host/db' is not the URL of a PostgreSQL database"),
    ],
)
def test_a_place_that_is_no_cluster_is_an_error(
    run: Any, tmp_path: Path, argument: str, content: str | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / argument).write_text(content)
    result = run("cluster", "status", argument)
    assert result.code == 1
    assert problem in result.err and "pass-word" not in result.err


def test_numbers_are_told_as_ranges() -> None:
    assert ranges_text(()) == ""
    assert ranges_text((0, 1, 2, 4, 6, 7)) == "0-2, 4, 6-7"
