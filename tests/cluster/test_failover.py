"""Agents on a real primary with a synchronous standby: promoted, paused, and a wait for it that is cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from live_nodes import Node
from standby import Primary, Standby

from holdfast.cluster.inspection import read_status
from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Enter, Join, Look, NoAnswer

pytestmark = pytest.mark.nightly


@pytest.fixture
def primary() -> Iterator[Primary]:
    with Primary() as one:
        yield one


@pytest.fixture
def standby(primary: Primary) -> Iterator[Standby]:
    with Standby(primary) as one:
        primary.wait_for_standby()
        yield one


@pytest.fixture
def location(primary: Primary, standby: Standby) -> str:
    hosts = f"{primary.directory},{standby.directory}"
    return f"postgresql://tester@/holdfast?host={hosts}&target_session_attrs=read-write&space=orders"


@pytest.fixture
def nodes(location: str) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        found = [Node(location, name, 6, 3.0) for name in "ab"]
        for node in found:
            stack.callback(node.kill)
        for node in found:
            node.serves(3)
        yield found[0], found[1]


@pytest.mark.crash
def test_no_partition_moves_when_the_standby_is_promoted(
    primary: Primary, standby: Standby, nodes: tuple[Node, Node]
) -> None:
    mine = [node.view["mine"] for node in nodes]
    before = standby.sql("SELECT timeline FROM holdfast_cluster").strip()
    primary.kill()
    for node in nodes:
        node.wait(lambda node=node: node.logged("cluster.database_away"))
    standby.promote()
    for node in nodes:
        node.wait(lambda node=node: node.logged("cluster.database_back"))
        while sum(seconds > 0 for seconds in node.trust()) < 3:
            pass
    assert [node.view["mine"] for node in nodes] == mine
    assert all(len(node.logged("cluster.joined")) == 1 for node in nodes)
    assert (before, standby.sql("SELECT timeline FROM holdfast_cluster").strip()) == ("00000001", "00000002")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("pause", "no synchronous standby confirms them"),
        pytest.param("kill", "no synchronous standby is connected", marks=pytest.mark.crash),
    ],
)
def test_trust_ends_while_the_standby_confirms_nothing(
    standby: Standby, nodes: tuple[Node, Node], location: str, fault: str, why: str
) -> None:
    mine = [node.view["mine"] for node in nodes]
    getattr(standby, fault)()
    for node in nodes:
        node.wait(lambda node=node: node.logged("cluster.database_away"))
        assert str(node.logged("cluster.database_away")[0]["reason"]).startswith(f"commits wait, because {why}")
        while max(node.trust()) > 0:
            pass
    assert read_status(location).problems[0].startswith(f"Commits wait, because {why}")
    standby.resume() if fault == "pause" else standby.start()
    for node in nodes:
        while sum(seconds > 0 for seconds in node.trust()) < 3:
            pass
    assert [node.view["mine"] for node in nodes] == mine


def test_a_cancelled_wait_for_the_standby_renews_nothing(primary: Primary, standby: Standby, location: str) -> None:
    session = LeaseDatabase(location, "a", "http://a/", 6, LeasePolicy(60.0))
    session.run(Enter())
    incarnation = session.run(Join(False))
    assert isinstance(incarnation, int)
    standby.pause()
    with ThreadPoolExecutor(1) as pool:
        renewed = pool.submit(session.run, Look(incarnation, True))
        asked = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        while primary.sql(asked).strip() == "0":
            assert not renewed.done()
        with pytest.raises(NoAnswer, match="stopped waiting for its standby"):
            renewed.result(240)
    standby.resume()
    session.close()


def test_a_node_that_joins_logs_that_a_failover_can_lose_commits(standby: Standby, location: str) -> None:
    with ExitStack() as stack:
        for name, level in (("a", "remote_write"), ("b", "on")):
            node = Node(f"{location}&options=-csynchronous_commit%3D{level}", name, 6, 3.0)
            stack.callback(node.kill)
            node.wait(lambda node=node: node.logged("cluster.joined"))
            node.wait(lambda node=node: node.view["mine"])
            reasons = [str(one["reason"]) for one in node.logged("cluster.database_at_risk")]
            assert [reason.endswith("it is remote_write.") for reason in reasons] == [True] * (level != "on")
