"""The requests of a membership on a real PostgreSQL, in particular those that meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from databases import GUARDED, PASSWORD, PostgreSQL

from holdfast.cluster import lease_database
from holdfast.cluster.inspection import read_status
from holdfast.cluster.lease_database import LeaseDatabase, conninfo_of
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.memory import NodeMemory
from holdfast.cluster.rows import (
    Claim,
    ClusterRefused,
    Declare,
    Enter,
    Entered,
    Join,
    Leave,
    Look,
    NoAnswer,
    Picture,
    Release,
    Report,
    Tell,
    space_of,
)
from holdfast.cluster.tables import CLAIM_LOCK
from holdfast.core.records import Batch, Record
from holdfast.endpoint.worker import Worker
from holdfast.exceptions import ConfigurationError, StoreAway, StoreFailed, StoreMissing
from holdfast.store import open_store
from holdfast.store.address import read_address, with_password_file
from holdfast.store.sql.dialects import is_refusal, postgresql_remedy

PARTITIONS = 8
Sessions = Callable[..., LeaseDatabase]


@pytest.fixture
def server(servers: Callable[[str], PostgreSQL]) -> PostgreSQL:
    return servers("postgresql")


@pytest.fixture
def sessions(server: PostgreSQL) -> Iterator[Sessions]:
    location = server.new_url()
    with ExitStack() as stack:

        def open_session(name: str, secret: str = "") -> LeaseDatabase:
            session = LeaseDatabase(location, name, f"http://{name}/", PARTITIONS, LeasePolicy(120.0), secret)
            stack.callback(session.close)
            return session

        yield open_session


@pytest.fixture
def long_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session waits for a lock until a test has seen it wait, which takes a second on a busy machine."""
    monkeypatch.setattr(lease_database, "LOCK_SECONDS", 240.0)


def joined(session: LeaseDatabase) -> int:
    assert session.run(Enter()) == Entered(True, False)
    incarnation = session.run(Join(False))
    assert isinstance(incarnation, int)
    return incarnation


def enter_again(session: LeaseDatabase) -> None:
    """Enter once the server has noticed that the earlier session of the name has ended."""
    while session.run(Enter()) != Entered(True, True):
        pass


def looked(session: LeaseDatabase, incarnation: int, *, renews: bool = False) -> Picture:
    picture = session.run(Look(incarnation, renews))
    assert isinstance(picture, Picture)
    return picture


def let_declare(session: LeaseDatabase) -> None:
    """Let a session judge as if the server had been running for more than a lease."""
    session._values["lease"] = 0.0


def test_others_see_what_a_node_reports_until_it_joins_again(sessions: Sessions) -> None:
    a, b = sessions("a"), sessions("b")
    first, second = joined(a), joined(b)
    a.run(Tell(first, Report((0, 5), {3: "no module", 12: "a 'quoted' reason"}, {"b": "refused"})))
    row = looked(b, second).nodes[0]
    assert (row.name, sorted(row.failed), row.unreachable) == ("a", [3, 12], ("b",))
    a.run(Tell(first + 9, Report()))  # of another incarnation
    assert looked(b, second).nodes[0].failed
    a.run(Join(False))
    assert (looked(b, second).nodes[0].failed, looked(b, second).nodes[0].unreachable) == ((), ())


@pytest.fixture
def restored(server: PostgreSQL) -> Iterator[Callable[[str], LeaseDatabase]]:
    """A node of a cluster in a database of its own, after some statements; the name of the database is "restored"."""
    server.sql("CREATE DATABASE restored", database="postgres")
    session = LeaseDatabase(
        server.url("x").replace("/holdfast?", "/restored?"), "a", "http://a/", 2, LeasePolicy(120.0)
    )
    joined(session)

    def change(statements: str) -> LeaseDatabase:
        session.close()
        server.sql(statements, database="restored")
        return session

    yield change
    session.close()
    server.sql("DROP DATABASE IF EXISTS restored", database="postgres")


DROPPED = "DROP TABLE holdfast_cluster, holdfast_node, holdfast_ownership"


@pytest.mark.parametrize("change", [DROPPED, "DELETE FROM holdfast_cluster"], ids=["no tables", "no row"])
def test_a_node_waits_for_its_cluster_and_creates_no_other_one(
    server: PostgreSQL, restored: Callable[[str], LeaseDatabase], change: str
) -> None:
    before = server.sql("SELECT * FROM holdfast_cluster", database="restored").strip().split("|")
    session = restored(change)
    for _ in range(2):
        with pytest.raises(NoAnswer, match=f"the cluster {before[1]} is not in the database"):
            session.run(Enter())
    if change != DROPPED:
        assert not server.sql("SELECT * FROM holdfast_cluster", database="restored").strip()
        row = ", ".join(f"'{one}'" for one in before)
        server.sql(f"INSERT INTO holdfast_cluster VALUES ({row})", database="restored")
        assert session.run(Enter()) == Entered(True, True)
    else:
        assert not server.sql("SELECT to_regclass('holdfast_cluster')", database="restored").strip()


def test_a_node_whose_tables_are_dropped_while_it_is_connected_waits_too(
    server: PostgreSQL, restored: Callable[[str], LeaseDatabase]
) -> None:
    session = restored("SELECT 1")
    session.run(Enter())
    server.sql(DROPPED, database="restored")
    with pytest.raises(NoAnswer, match="is not in the database"):
        session.run(Look(1, True))


def test_a_node_refuses_a_cluster_that_replaced_its_own(restored: Callable[[str], LeaseDatabase]) -> None:
    session = restored("UPDATE holdfast_cluster SET id = gen_random_uuid()")
    with pytest.raises(ClusterRefused, match="but this node belongs to") as caught:
        session.run(Enter())
    assert "with all nodes stopped" in caught.value.remedy


@pytest.fixture
def remembering(server: PostgreSQL, tmp_path: Path) -> Iterator[Callable[..., LeaseDatabase]]:
    """Starts a node with a memory, in a database of its own."""
    server.sql("CREATE DATABASE remembered", database="postgres")
    location = server.url("x").replace("/holdfast?", "/remembered?")
    with ExitStack() as stack:

        def start(node: str = "a", *, is_restored: bool = False) -> LeaseDatabase:
            memory = NodeMemory(str(tmp_path), node)
            session = LeaseDatabase(
                location, node, f"http://{node}/", 2, LeasePolicy(120.0), "", memory, is_restored=is_restored
            )
            stack.callback(session.close)
            return session

        yield start
    server.sql("DROP DATABASE remembered WITH (FORCE)", database="postgres")


def test_a_node_that_starts_in_a_database_that_is_being_restored_creates_no_cluster(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase], tmp_path: Path
) -> None:
    first = remembering()
    first.run(Enter())
    first.close()
    server.sql(DROPPED, database="remembered")
    for is_restored in (False, True):
        with pytest.raises(NoAnswer, match="empty or being restored") as caught:
            remembering(is_restored=is_restored).run(Enter())
        assert caught.value.remedy == f"To create a new one, stop the nodes and delete {tmp_path / 'a.json'} of each."
    assert not server.sql("SELECT to_regclass('holdfast_cluster')", database="remembered").strip()
    (tmp_path / "a.json").unlink()
    assert remembering().run(Enter()) == Entered(True, False)


def test_a_node_that_starts_refuses_another_cluster_until_it_is_told_of_the_restore(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase]
) -> None:
    first = remembering()
    first.run(Enter())
    first.close()
    server.sql("UPDATE holdfast_cluster SET id = gen_random_uuid()", database="remembered")
    with pytest.raises(ClusterRefused, match="but this node belongs to"):
        remembering().run(Enter())
    told = remembering(is_restored=True)
    told.run(Enter())
    told.close()
    remembering().run(Enter())


def test_a_node_recognizes_a_database_that_went_back_to_an_older_copy(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase]
) -> None:
    first = remembering()
    incarnation = joined(first)
    store = open_store(Worker(1, 2).store_of(server.url("x").replace("/holdfast?", "/remembered?")))
    for number in range(5):
        store.commit(Batch(appends=[("inbox", 0, number, Record("urn:s", number + 1, "urn:a", b"<x/>", 0.0))]))
    store.close()
    for _ in range(2):
        looked(first, incarnation, renews=True)
    server.sql("UPDATE holdfast_spaces SET serial = 3", database="remembered")
    lost = "went back to an older copy: batch 5 of cluster partition 1 was durable, but it has only 3"
    first.close()
    first._memory.save()
    for session in (first, remembering()):
        with pytest.raises(ClusterRefused, match=lost) as caught:
            session.run(Enter())
        assert "start each node once with --restored" in caught.value.remedy
    told = remembering(is_restored=True)
    told.run(Enter())
    told.close()
    remembering().run(Enter())


def test_a_node_that_leaves_remembers_the_last_batches_of_all_nodes(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase]
) -> None:
    leaving = remembering()
    incarnation = joined(leaving)
    store = open_store(Worker(1, 2).store_of(server.url("x").replace("/holdfast?", "/remembered?")))
    store.commit(Batch(appends=[("inbox", 0, 0, Record("urn:s", 1, "urn:a", b"<x/>", 0.0))]))
    store.close()
    leaving.run(Leave(incarnation))
    leaving.close()
    server.sql("UPDATE holdfast_spaces SET serial = serial - 1", database="remembered")
    with pytest.raises(ClusterRefused, match="of cluster partition 1 was durable"):
        remembering().run(Enter())


def test_all_nodes_refuse_an_older_copy_that_one_of_them_recognizes(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase]
) -> None:
    location = server.url("x").replace("/holdfast?", "/remembered?")
    proving, running = remembering("a"), remembering("b")
    joined(proving)
    incarnation = joined(running)
    proving._memory._batches[1] = (1, 5)
    proving._memory.save()
    proving.close()
    running.run(Look(incarnation, True))
    with pytest.raises(ClusterRefused, match="batch 5 of cluster partition 1 was durable"):
        remembering("a").run(Enter())
    for request, session in ((Look(incarnation, True), running), (Enter(), running), (Enter(), remembering("c"))):
        with pytest.raises(ClusterRefused, match="older copy: found by node a: batch 5") as caught:
            session.run(request)
        assert "start each node once with --restored" in caught.value.remedy
    assert "went back to an older copy, as found by node a" in read_status(location).problems[0]
    accepted = remembering("b", is_restored=True)
    accepted.run(Enter())
    incarnation = accepted.run(Join(False))
    assert isinstance(incarnation, int)
    assert "older copy" not in " ".join(read_status(location).problems)
    with pytest.raises(ClusterRefused, match="batch 5"):  # it was not told of the restore
        remembering("a").run(Enter())
    accepted.run(Look(incarnation, True))
    remembering("a", is_restored=True).run(Enter())


@pytest.mark.parametrize(
    ("change", "mode", "waits"),
    [
        ("SELECT", "ACCESS SHARE", False),
        ("SELECT", "SHARE", True),
        ("ALTER TABLE holdfast_cluster DROP COLUMN went_back", "ACCESS SHARE", True),
    ],
    ids=["a dump", "an index that is built", "a dump of an older version's table"],
)
def test_a_node_ends_only_after_it_has_recorded_an_older_copy(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase], change: str, mode: str, *, waits: bool
) -> None:
    proving = remembering("a")
    joined(proving)
    server.sql(change, database="remembered")
    proving._memory._batches[1] = (1, 5)
    location = server.url("x").replace("/holdfast?", "/remembered?")
    with psycopg.connect(conninfo_of(location, 60.0, "another")) as other:
        other.execute(f"LOCK TABLE holdfast_cluster IN {mode} MODE".encode())
        for _ in range(2 * waits):
            proving.close()
            with pytest.raises(NoAnswer, match=r"another session locks holdfast_cluster, .* an older copy"):
                proving.run(Enter())
        if not waits:
            proving.close()
            with pytest.raises(ClusterRefused, match="batch 5"):
                proving.run(Enter())
    with pytest.raises(ClusterRefused, match="batch 5"):
        proving.run(Enter())
    with pytest.raises(ClusterRefused, match="older copy: found by node a: batch 5"):
        remembering("b").run(Enter())


def test_an_acceptance_of_an_older_copy_waits_until_it_is_recorded(
    server: PostgreSQL, remembering: Callable[..., LeaseDatabase]
) -> None:
    remembering("a").run(Enter())
    server.sql("UPDATE holdfast_cluster SET went_back = 'node b: batch 5'", database="remembered")
    location, accepted = server.url("x").replace("/holdfast?", "/remembered?"), remembering("a", is_restored=True)
    with psycopg.connect(conninfo_of(location, 60.0, "another")) as other:
        other.execute(b"LOCK TABLE holdfast_cluster IN SHARE MODE")
        with pytest.raises(NoAnswer, match="the operator accepts this copy"):
            accepted.run(Enter())
    accepted.run(Enter())
    remembering("c").run(Enter())


def test_an_error_of_a_statement_is_no_outage(restored: Callable[[str], LeaseDatabase]) -> None:
    session = restored("ALTER TABLE holdfast_cluster RENAME COLUMN partitions TO parts")
    with pytest.raises(ClusterRefused, match='column "partitions"'):
        session.run(Enter())


def test_a_node_with_another_secret_does_not_join_while_others_are_live(sessions: Sessions) -> None:
    incarnation = joined(sessions("a", "one"))
    other = sessions("b", "another")
    assert other.run(Enter()) == Entered(True, False)
    with pytest.raises(ClusterRefused, match="The secret of this node differs from that of node a") as caught:
        other.run(Join(False))
    assert "same secret file" in caught.value.remedy
    same = sessions("c", "one")
    assert joined(same) == incarnation + 1, "a refused join leaves nothing"


def test_a_secret_may_change_when_no_other_node_is_live(sessions: Sessions) -> None:
    first = sessions("a", "one")
    first.run(Leave(joined(first)))
    joined(sessions("b", "another"))


def test_nodes_that_start_at_once_create_one_cluster(sessions: Sessions) -> None:
    barrier = threading.Barrier(6)
    nodes = [sessions(f"node-{number}") for number in range(6)]

    def enter(node: LeaseDatabase) -> int:
        barrier.wait(240)
        return joined(node)

    with ThreadPoolExecutor(6) as pool:
        incarnations = list(pool.map(enter, nodes))
    assert sorted(incarnations) == list(range(1, 7))
    picture = looked(nodes[0], incarnations[0])
    assert len(picture.nodes) == 6 and all(node.has_lock and not node.is_expired for node in picture.nodes)
    assert [(row.partition, row.owner, row.epoch) for row in picture.ownership] == [
        (number, "", 0) for number in range(PARTITIONS)
    ]


def test_claims_at_once_give_each_partition_to_one_node(sessions: Sessions) -> None:
    nodes = [sessions(f"node-{number}") for number in range(4)]
    incarnations = [joined(node) for node in nodes]
    barrier = threading.Barrier(4)

    def claim(node: LeaseDatabase, incarnation: int) -> list[int]:
        barrier.wait(240)
        claimed = node.run(Claim(incarnation, tuple(range(PARTITIONS)), 3))
        assert isinstance(claimed, dict) and set(claimed.values()) <= {1}
        return list(claimed)

    with ThreadPoolExecutor(4) as pool:
        claimed = [one for found in pool.map(claim, nodes, incarnations) for one in found]
    assert sorted(claimed) == list(range(PARTITIONS))


def test_a_claim_that_waits_too_long_for_another_one_claims_nothing(server: PostgreSQL, sessions: Sessions) -> None:
    a = sessions("a")
    incarnation = joined(a)
    with psycopg.connect(server.url()) as paused:
        paused.execute(CLAIM_LOCK.encode(), a._values)
        assert a.run(Claim(incarnation, (0,), 1)) == {}
    assert a.run(Claim(incarnation, (0,), 1)) == {0: 1}, "the session is the same"
    assert a._is_locked


def test_a_claim_follows_the_order_of_preference(sessions: Sessions) -> None:
    a = sessions("a")
    incarnation = joined(a)
    assert a.run(Claim(incarnation, (5, 2, 0), 2)) == {5: 1, 2: 1}
    assert a.run(Claim(incarnation, (5, 2, 0), 2)) == {0: 1}
    assert a.run(Release(incarnation, {5: 1, 2: 7})) is None
    owners = [row.owner for row in looked(a, incarnation).ownership]
    assert owners == ["a", "", "a", "", "", "", "", ""], "a release of another epoch changes nothing"


def test_a_node_without_a_row_claims_nothing(sessions: Sessions) -> None:
    a = sessions("a")
    incarnation = joined(a)
    a.run(Claim(incarnation, (0,), 1))
    assert a.run(Leave(incarnation)) is None
    assert a.run(Claim(incarnation, (1,), 1)) == {}
    assert not looked(a, incarnation, renews=True).is_member


def test_what_an_earlier_incarnation_claimed_is_free(sessions: Sessions) -> None:
    a, b = sessions("a"), sessions("b")
    first = joined(a)
    incarnation = joined(b)
    assert a.run(Claim(first, (0, 1), 2)) == {0: 1, 1: 1}
    assert b.run(Claim(incarnation, (0, 1), 2)) == {}
    a.close()
    enter_again(a)
    assert a.run(Join(False)) == 3
    assert b.run(Claim(incarnation, (0, 1), 2)) == {0: 2, 1: 2}


def waits(future: Future[object], server: PostgreSQL) -> None:
    """Wait until a session waits for a lock."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while server.sql(asked).strip() == "0":
        assert not future.done()


@pytest.mark.usefixtures("long_locks")
@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_declaration_waits_for_a_renewal_that_runs(server: PostgreSQL, sessions: Sessions, is_renewed: bool) -> None:
    a, b = sessions("a"), sessions("b")
    incarnation = joined(a)
    joined(b)
    let_declare(b)
    server.sql("UPDATE holdfast_node SET expires_at = clock_timestamp() - interval '1 second' WHERE name = 'a'")
    with psycopg.connect(server.url()) as renewal, ThreadPoolExecutor(1) as pool:
        renewal.execute("UPDATE holdfast_node SET expires_at = clock_timestamp() + interval '60 s' WHERE name = 'a'")
        declared = pool.submit(b.run, Declare("a", incarnation))
        waits(declared, server)
        renewal.commit() if is_renewed else renewal.rollback()
        assert declared.result(240) is not is_renewed
    assert looked(a, incarnation).is_member is is_renewed


@pytest.mark.usefixtures("long_locks")
def test_a_renewal_that_waits_for_a_declaration_fails(server: PostgreSQL, sessions: Sessions) -> None:
    a = sessions("a")
    incarnation = joined(a)
    with psycopg.connect(server.url()) as declaration, ThreadPoolExecutor(1) as pool:
        declaration.execute("DELETE FROM holdfast_node WHERE name = 'a'")
        renewed = pool.submit(looked, a, incarnation, renews=True)
        waits(renewed, server)
        declaration.commit()
        assert not renewed.result(240).is_member


def test_only_the_absence_of_the_lock_without_a_renewal_is_death(server: PostgreSQL, sessions: Sessions) -> None:
    a, b = sessions("a"), sessions("b")
    incarnation = joined(a)
    looker = joined(b)
    let_declare(b)
    (end,) = [node.lease_end for node in looked(b, looker).nodes if node.name == "a"]
    assert b.run(Declare("a", incarnation)) is False, "its lease has not ended"
    assert b.run(Declare("a", incarnation, end)) is False, "it has the lock"
    a.close()
    while looked(b, looker).nodes[0].has_lock:  # until the server has noticed it
        pass
    assert b.run(Declare("a", incarnation + 1, end)) is False, "another incarnation"
    assert b.run(Declare("a", incarnation, end - 1)) is False, "renewed since"
    assert b.run(Declare("a", incarnation, end)) is True
    assert b.run(Declare("a", incarnation, end)) is False, "it is dead already"


def test_a_session_whose_lock_another_one_has_renews_nothing(server: PostgreSQL, sessions: Sessions) -> None:
    a, twin = sessions("a"), sessions("a")
    incarnation = joined(a)
    assert twin.run(Enter()) == Entered(False, True)
    a.close()
    enter_again(twin)
    with pytest.raises(NoAnswer, match="another session has the lock"):
        a.run(Look(incarnation, True))
    twin.run(Join(False))
    assert not looked(a, incarnation, renews=True).is_member


def test_a_new_session_ends_the_one_that_it_replaces(server: PostgreSQL, sessions: Sessions) -> None:
    """After a network failure, the server may not know that the earlier session is gone, and keeps its lock."""
    a = sessions("a")
    incarnation = joined(a)
    kept, a._connection = a._connection, None
    a._is_locked = False
    assert looked(a, incarnation, renews=True).is_member
    assert kept is not None
    with pytest.raises(psycopg.OperationalError):
        kept.execute("SELECT 1")


@pytest.mark.parametrize("looks", [0, 3], ids=["idle", "with an answer"])
def test_changes_are_notified_to_other_sessions(sessions: Sessions, looks: int) -> None:
    a, b = sessions("a"), sessions("b")
    first, incarnation = joined(a), joined(b)
    while not a.notified():
        pass  # of the join of b
    b.run(Claim(incarnation, (0,), 1))
    for _ in range(looks):
        looked(a, first)
    while not a.notified():
        pass


def test_a_claim_ends_the_wish_that_its_node_knew_and_no_later_one(server: PostgreSQL, sessions: Sessions) -> None:
    a, b = sessions("a"), sessions("b")
    first, other = joined(a), joined(b)
    server.sql(f"UPDATE holdfast_ownership SET wanted = {other} WHERE space = '{a._space}'")
    assert a.run(Claim(first, (0, 1), 2, (other, 0))) == {0: 1, 1: 1}
    assert [row.wanted for row in looked(a, first).ownership][:3] == [0, other, other]
    assert b.run(Claim(other, (2,), 1, (other,))) == {2: 1}
    assert [row.wanted for row in looked(a, first).ownership][:3] == [0, other, other]


@pytest.mark.parametrize("location", ["postgresql://host/db?space=orders", "postgresql://u:p@host/db"])
def test_the_spaces_are_those_of_the_workers_stores(location: str) -> None:
    space = read_address(location).space
    for number in range(3):
        store = Worker(number, 3).store_of(location)
        assert read_address(str(store)).space == space_of(space, number)


@pytest.mark.parametrize(("first", "second"), [("{}", "{}/worker-7"), ("{}/worker-7", "{}")])
def test_two_clusters_share_no_space(server: PostgreSQL, first: str, second: str) -> None:
    location, _, space = server.new_url().rpartition("=")

    def enter(name: str) -> None:
        session = LeaseDatabase(f"{location}={name}", "a", "http://a/", PARTITIONS, LeasePolicy(120.0))
        try:
            session.run(Enter())
        finally:
            session.close()

    enter(first.format(space))
    for _ in range(2):
        with pytest.raises(ClusterRefused, match=f"would share the space {space}/worker-7 with that of"):
            enter(second.format(space))
    enter(f"{space}/worker-{PARTITIONS}")  # which the first cluster does not use


@pytest.mark.usefixtures("long_locks")
def test_two_clusters_that_are_founded_together_share_no_space(server: PostgreSQL, sessions: Sessions) -> None:
    """Neither sees the rows that the other has not committed."""
    joined(sessions("a"))  # the tables are there
    location, _, space = server.new_url().rpartition("=")

    def enter(name: str) -> str:
        session = LeaseDatabase(f"{location}={name}", "a", "http://a/", PARTITIONS, LeasePolicy(120.0))
        try:
            session.run(Enter())
            return "founded"
        except ClusterRefused as refused:
            return str(refused)
        finally:
            session.close()

    with psycopg.connect(server.url()) as other, ThreadPoolExecutor(2) as pool:
        other.execute("LOCK TABLE holdfast_ownership IN EXCLUSIVE MODE")
        founded = [pool.submit(enter, name) for name in (space, f"{space}/worker-7")]
        while server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").strip() != "2":
            assert not any(one.done() for one in founded)
        other.rollback()
        refused, success = sorted((one.result() for one in founded), key="founded".__eq__)
    assert success == "founded"
    assert f"would share the space {space}/worker-7 with that of" in refused


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not the URL of a PostgreSQL database"):
        LeaseDatabase("mysql://u@host/db", "a", "http://a/", PARTITIONS, LeasePolicy())


@pytest.mark.parametrize("content", ["", "\n", None])
def test_a_process_that_starts_without_the_password_waits_for_it(
    server: PostgreSQL, tmp_path: Path, content: str | None
) -> None:
    """A secret may be mounted, or a file written again, while it starts."""
    server.sql(f"CREATE SCHEMA IF NOT EXISTS late AUTHORIZATION {GUARDED}")
    server.sql(f"ALTER ROLE {GUARDED} SET search_path TO late")
    file = tmp_path / "password"
    location = with_password_file(server.url("late", user=GUARDED), str(file)) + "&patience=7"
    if content is not None:
        file.write_text(content)
    session = LeaseDatabase(location, "a", "http://a/", PARTITIONS, LeasePolicy(120.0))
    try:
        with pytest.raises(NoAnswer, match="is empty or cannot be read") as caught:
            session.run(Enter())
        assert caught.value.remedy.startswith("Write the password into it")
        with pytest.raises(StoreAway, match="is empty or cannot be read") as away:
            open_store(location)
        assert (away.value.patience, away.value.remedy) == (7, caught.value.remedy)
        file.write_text("wrong")
        with pytest.raises(ClusterRefused):
            session.run(Enter())
        with pytest.raises(StoreFailed, match="password") as failed:
            open_store(location)
        assert not isinstance(failed.value, StoreAway)
        file.write_text(PASSWORD)
        session.run(Enter())
        open_store(location).close()
    finally:
        session.close()
        server.sql(f"ALTER ROLE {GUARDED} RESET ALL")


def test_a_node_reads_a_replaced_password_from_its_file(server: PostgreSQL, tmp_path: Path) -> None:
    server.sql(f"CREATE SCHEMA rotated AUTHORIZATION {GUARDED}; ALTER ROLE {GUARDED} SET search_path TO rotated")
    (tmp_path / "password").write_text(PASSWORD)
    location = with_password_file(server.url("rotated", user=GUARDED), str(tmp_path / "password"))
    session = LeaseDatabase(location, "a", "http://a/", PARTITIONS, LeasePolicy(120.0))
    try:
        session.run(Enter())
        server.sql(f"ALTER ROLE {GUARDED} PASSWORD 'new'")
        server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{GUARDED}'")
        with pytest.raises(NoAnswer):
            session.run(Enter())
        with pytest.raises(NoAnswer) as caught:
            session.run(Enter())
        assert "store_password_file and ~/.pgpass again" in caught.value.remedy
        (tmp_path / "password").write_text("new\n")
        assert session.run(Enter()) == Entered(True, False)
        assert read_status(location).partitions
    finally:
        session.close()
        server.sql(f"ALTER ROLE {GUARDED} PASSWORD '{PASSWORD}'; ALTER ROLE {GUARDED} RESET ALL")


def test_a_database_without_an_encoding_is_refused(server: PostgreSQL) -> None:
    server.sql("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    location = server.url().replace("/holdfast?", "/ascii?")
    session = LeaseDatabase(location, "a", "http://a/", PARTITIONS, LeasePolicy(120.0))
    try:
        with pytest.raises(ClusterRefused) as refused:
            session.run(Enter())
        assert "ENCODING 'UTF8'" in refused.value.remedy
        with pytest.raises(StoreFailed, match="has no encoding") as failed:
            open_store(location)
        assert "ENCODING 'UTF8'" in failed.value.remedy
        with pytest.raises(StoreMissing):
            open_store(location, read_only=True)
    finally:
        server.sql("DROP DATABASE ascii WITH (FORCE)")


def test_tls_that_a_server_does_not_have_is_a_mistake_of_the_url() -> None:
    text = 'connection to server at "127.0.0.1", port 5432 failed: server does not support SSL, but SSL was required'
    assert is_refusal(text)
    assert "sslmode" in postgresql_remedy("", text)


@pytest.mark.parametrize(
    "reason",
    [
        "terminating connection due to unexpected postmaster exit",
        "terminating connection due to administrator command",
        "terminating connection because of crash of another server process",
        "canceling authentication due to timeout",
        "the database system is starting up",
        "the database system is shutting down",
        "the database system is in recovery mode",
        "the database system is not yet accepting connections",
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)
def test_what_a_server_says_while_it_ends_begins_or_is_busy_is_no_refusal(reason: str) -> None:
    assert not is_refusal(
        f'connection failed: connection to server on socket "/tmp/.s.PGSQL.5432" failed: FATAL:  {reason}'
    )


@pytest.mark.parametrize(
    ("place", "right"),
    [
        ("table holdfast_records", "GRANT SELECT, INSERT, UPDATE, DELETE"),
        ("sequence holdfast_outgoing_number_seq", "GRANT USAGE ON ALL SEQUENCES"),
        ("schema public", "GRANT CREATE, USAGE ON SCHEMA"),
    ],
)
def test_the_remedy_for_a_missing_right_names_that_right(place: str, right: str) -> None:
    assert right in postgresql_remedy("42501", f"permission denied for {place}")
