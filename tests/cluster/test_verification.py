"""The rules of a cluster's rows and of its stores: each is broken once, and found.

Covers cluster/contents.py and cluster/operating/verification.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from databases import PostgreSQL

from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.operating.verification import Verification
from holdfast.cluster.rows import Claim, Enter, Join
from holdfast.cluster.verification import verify_cluster
from holdfast.core.queues.dead_letters import LETTERS
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.records import Batch, Record, with_content
from holdfast.core.states.inbound import DestinationState
from holdfast.endpoint.worker import Worker
from holdfast.store import open_store


@pytest.fixture
def server(servers: Callable[[str], PostgreSQL]) -> PostgreSQL:
    return servers("postgresql")


@pytest.fixture
def location(server: PostgreSQL) -> str:
    """A cluster of two partitions, each with a store of five records, of which two are trimmed."""
    found = server.new_url()
    session = LeaseDatabase(found, "a", "http://a/", 2, LeasePolicy(120.0))
    session.run(Enter())
    incarnation = session.run(Join(False))
    assert isinstance(incarnation, int)
    session.run(Claim(incarnation, (0, 1), 2))
    session.close()
    for partition in range(2):
        fill(found, partition)
    return found


def fill(location: str, partition: int) -> None:
    store = open_store(Worker(partition, 9).store_of(location))
    for number in range(5):
        store.commit(Batch(appends=[("inbox", 3, number, Record("urn:s", number + 1, "urn:a", b"<x/>", 0.0))]))
    store.commit(Batch(trims={("inbox", 3): 2}))
    store.close()


def test_an_intact_cluster_obeys_all_rules(location: str) -> None:
    found = verify_cluster(location)
    assert found.problems == ()
    assert (found.partitions, found.records) == (2, 6)
    assert verify_cluster(location, found).problems == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DELETE FROM holdfast_records WHERE part = {part} AND position = 3", "1 record is missing between 2 and 4"),
        ("UPDATE holdfast_partitions SET swept = 3 WHERE part = {part}", "records up to 3 are deleted, but those"),
        (
            "DELETE FROM holdfast_ownership WHERE partition = 1 AND space = '{space}'",
            "has 2 cluster partitions, but rows for",
        ),
        (
            "UPDATE holdfast_ownership SET incarnation = 9 WHERE space = '{space}'",
            "Cluster partition 0 belongs to a with epoch",
        ),
        ("UPDATE holdfast_node SET incarnation = 9 WHERE space = '{space}'", "Node a has incarnation 9, but only 1"),
        (
            "INSERT INTO holdfast_node SELECT space, 'b', incarnation, url, expires_at, false, joined_at, secret "
            "FROM holdfast_node WHERE space = '{space}'",
            "Two nodes have the same incarnation.",
        ),
    ],
)
def test_a_broken_rule_is_found(server: PostgreSQL, location: str, change: str, problem: str) -> None:
    space = location.rpartition("=")[2]
    asked = f"SELECT max(part) FROM holdfast_partitions p JOIN holdfast_spaces s ON s.id = space WHERE name = '{space}'"
    server.sql(change.format(space=space, part=server.sql(asked).strip()))
    found = verify_cluster(location)
    assert any(problem in one for one in found.problems), found.problems


def test_every_record_and_cursor_of_an_intact_cluster_can_be_read(location: str) -> None:
    found = verify_cluster(location, reads_all=True)
    assert (found.problems, found.bodies) == ((), 6)


def test_a_number_that_occurs_twice_a_broken_body_and_a_wrong_cursor_are_found(location: str) -> None:
    store = open_store(Worker(1, 9).store_of(location))
    for offset, number, body in ((5, 4, b"<x/>"), (6, 7, b"<x>"), (7, 8, b""), (8, 9, b"a<b/><b/>")):
        store.commit(Batch(appends=[("inbox", 3, offset, Record("urn:s", number, "urn:a", body, 0.0))]))
    store.commit(Batch(cursors={("inbox", 3, "audit"): {"offset": 12}}))
    store.close()
    found = verify_cluster(location, reads_all=True)
    where = "Cluster partition 1, queue 'inbox', partition 3: "
    assert [one.removeprefix(where) for one in found.problems] == [
        "the cursor 'audit' is at 12, but the partition ends at 9.",
        "record 5 repeats number 4 of Sequence urn:s.",
        "the body of record 6 is not XML: mismatched tag: line 1, column 11.",
    ]
    assert found.bodies == 10
    assert verify_cluster(location).problems == ()
    store = open_store(Worker(1, 9).store_of(location))
    store.commit(Batch(cursors={(DEAD_LETTERS, 0, LETTERS): {"offset": 0, "over": [1, 1], "asked": []}}))
    store.close()
    assert not any("repeats" in one for one in verify_cluster(location, reads_all=True).problems), "it was requeued"
    store = open_store(Worker(1, 9).store_of(location))
    store.commit(Batch(appends=[("inbox", 3, 9, Record("urn:s", 4, "urn:a", b"<x/>", 0.0))]))
    store.close()
    repeats = [one for one in verify_cluster(location, reads_all=True).problems if "repeats" in one]
    assert repeats == [f"{where}record 9 repeats number 4 of Sequence urn:s."], "only one dead letter has ended"


def test_a_message_that_is_stored_but_not_accepted_or_held_but_not_stored_is_found(location: str) -> None:
    store = open_store(Worker(1, 9).store_of(location))
    state: dict[str, Any] = {"role": "destination", "accepted": [1, 4, 7, 9], "held": [7, 8, 10, 10]}
    state["state"] = DestinationState.CREATED.value
    held = [("urn:s", number, Record("urn:s", number, "urn:a", b"<x/>", 0.0)) for number in (7, 11)]
    store.commit(Batch(sequences={"urn:s": state}, holds=held))
    found = verify_cluster(location, reads_all=True).problems
    where = "Cluster partition 1"
    assert found == (
        f"{where}: message 8 of Sequence urn:s counts as held, but is not stored.",
        f"{where}: message 11 of Sequence urn:s is held, but not accepted.",
        f"{where}, queue 'inbox', partition 3: record 4 is message 5 of Sequence urn:s, which is not accepted.",
    )
    state |= {"accepted": [1, 5, 7, 11], "state": DestinationState.CLOSED.value}  # what it held may be discarded
    store.commit(Batch(sequences={"urn:s": state}))
    assert verify_cluster(location, reads_all=True).problems == ()
    store.close()


def sequence(accepted: list[int], unqueued: int = 0) -> dict[str, Any]:
    state = DestinationState.CREATED.value
    return {"role": "destination", "accepted": accepted, "unqueued": unqueued, "state": state}


def test_an_accepted_message_that_is_neither_stored_nor_deleted_is_found(location: str) -> None:
    """Messages 3, 4 and 5 of the Sequence are stored, and two records are deleted."""
    store = open_store(Worker(1, 9).store_of(location))

    def problems(*accepted: int, unqueued: int = 0) -> tuple[str, ...]:
        store.commit(Batch(sequences={"urn:s": sequence([*accepted], unqueued)}))
        return verify_cluster(location, reads_all=True).problems

    assert problems(1, 5) == problems(1, 7, unqueued=2) == ()
    where, deleted = "Cluster partition 1", "and only 2 records were ever deleted"
    assert problems(1, 6) == (
        f"{where}: 3 messages of Sequence urn:s are accepted, but not stored: of 1-2 6-6, {deleted}.",
    )
    store.commit(Batch(sequences={"urn:t": sequence([1, 1])}, homes={"urn:t": ("inbox", 3)}))
    assert problems(1, 5) == (f"{where}: a message of Sequence urn:t is accepted, but not stored: of 1-1, {deleted}.",)
    store.commit(Batch(sequences={"urn:t": sequence([1, 1], 1)}))
    assert problems(1, 5) == ()
    store.close()


def test_an_outbound_sequence_whose_numbers_belong_to_other_records_is_found(location: str) -> None:
    store = open_store(Worker(1, 9).store_of(location))
    store.commit(Batch(sequences={"key": {"role": "source", "start": 3}}))
    before = verify_cluster(location, reads_all=True)
    assert verify_cluster(location, before, reads_all=True).problems == ()
    store.commit(Batch(sequences={"key": {"role": "source", "start": 4}}))
    assert verify_cluster(location, before, reads_all=True).problems == (
        "Message 1 of outbound Sequence key in cluster partition 1 was record 3 of its outbox, but is 4 now.",
    )
    store.close()


@pytest.mark.parametrize("number", [0, 1, 2, None], ids=str)
def test_attachments_without_a_piece_are_found(server: PostgreSQL, location: str, number: int | None) -> None:
    store = open_store(Worker(1, 9).store_of(location))
    writer = store.contents.create()
    writer.write(bytes(5 << 19))
    writer.finish()
    record = Record("urn:s", 6, "urn:a", b"<x/>", 0.0)
    record.attachments = with_content(writer.hold, writer.size, b"\x93")
    store.commit(Batch(appends=[("inbox", 3, 5, record)]))
    name = writer.hold.name.hex()
    assert verify_cluster(location, reads_all=True).problems == ()
    where = "" if number is None else f"AND piece = {number}"
    server.sql(f"DELETE FROM holdfast_contents WHERE name = '\\x{name}' {where}")
    told = {0: "2 of 3 pieces are there", 1: "2 of 3 pieces are there", None: "they are missing"}
    rows, whole = verify_cluster(location).problems, verify_cluster(location, reads_all=True).problems
    if number in told:
        assert rows == (f"Cluster partition 1: a record names attachments {name}: {told[number]}.",)
    read = {0: 0, 1: 1 << 20, 2: 1 << 21, None: 0}[number]
    what = f"{read} of {5 << 19} bytes of the attachments of record 5"
    assert whole == (*rows, f"Cluster partition 1, queue 'inbox', partition 3: {what} are stored.")
    store.close()


def test_a_store_of_no_partition_is_found(location: str) -> None:
    fill(location, 2)
    (problem,) = verify_cluster(location).problems
    assert problem.endswith("/worker-2' belongs to no cluster partition, so no node serves it.")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE holdfast_ownership SET epoch = 0, owner = ''", "The epoch of cluster partition 0 fell from 1 to 0."),
        ("UPDATE holdfast_spaces SET serial = 3", "The number of batches of cluster partition 0 fell from 6 to 3."),
        ("UPDATE holdfast_cluster SET incarnations = 0", "The number of joins fell from 1 to 0."),
    ],
)
def test_a_number_that_fell_is_found(server: PostgreSQL, location: str, change: str, problem: str) -> None:
    before = verify_cluster(location)
    space = location.rpartition("=")[2]
    column = "convert_from(name, 'UTF8')" if "spaces" in change else "space"
    server.sql(f"{change} WHERE {column} = '{space}'")
    found: Verification = verify_cluster(location, before)
    assert problem in found.problems
