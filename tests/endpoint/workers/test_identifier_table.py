"""The table of granted Identifiers, in memory that several processes share."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable

import pytest

from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.endpoint.workers import identifier_table
from holdfast.endpoint.workers.identifier_table import IdentifierTable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

TO = "http://shop/"


def granted(name: str, local_id: str = "") -> GrantedIdentifier:
    return GrantedIdentifier(local_id or f"local:{name}", TO, name)


def in_child(call: Callable[[], None]) -> int:
    """Fork; the child makes the call and is killed with SIGKILL, or ends with 1 if the call raises. Its pid."""
    pid = os.fork()
    if not pid:
        try:
            call()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    return pid


def killed(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_claims_of_a_killed_process_stand_until_its_successor_announces_its_own() -> None:
    table = IdentifierTable(2)
    one = table.of(1)
    one.announce([])

    def work() -> None:
        zero = table.of(0)
        zero.announce([])
        for number in range(5):
            assert zero.claim(granted(f"urn:{number}")) is ClaimResult.CLAIMED
        zero.release("local:urn:0")

    assert killed(in_child(work))
    results = [one.claim(granted(f"urn:{number}")) for number in range(5)]
    assert results == [ClaimResult.CLAIMED] + 4 * [ClaimResult.IN_USE]
    zero = table.of(0)
    zero.announce([granted("urn:2", "recovered"), granted("urn:7")])
    results = [one.claim(granted(f"urn:{number}")) for number in range(8)]
    assert [result is ClaimResult.IN_USE for result in results] == [number in (2, 7) for number in range(8)]
    zero.release("recovered")
    assert one.claim(granted("urn:2")) is ClaimResult.CLAIMED


def test_a_full_table_has_room_for_the_same_sequences_at_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifier_table, "MOST_CLAIMS", 3)
    table = IdentifierTable(2)
    zero, one = table.of(0), table.of(1)
    one.announce([])
    zero.announce(granted(f"urn:{number}") for number in range(3))
    moved = [GrantedIdentifier(f"local:urn:{number}", "http://moved/", f"urn:{number}") for number in range(3)]
    zero.announce([moved[0], granted("urn:1"), moved[2]])
    assert one.claim(moved[0]._replace(local_id="other")) is ClaimResult.IN_USE
    assert one.claim(granted("urn:1", "other")) is ClaimResult.IN_USE
    assert one.claim(granted("urn:2", "other")) is ClaimResult.CLAIMED


def test_of_processes_that_claim_one_identifier_at_once_one_gets_it() -> None:
    table = IdentifierTable(4)
    for number in range(4):
        table.of(number).announce([])
    reading, writing = os.pipe()
    gate, opener = os.pipe()

    def work(number: int) -> None:
        mine = table.of(number)
        os.close(opener)
        os.read(gate, 1)  # until all are there
        for name in range(1000):
            while (result := mine.claim(granted(f"urn:{name}"))) is ClaimResult.UNKNOWN:
                pass
            if result is ClaimResult.CLAIMED:
                os.write(writing, b"%d " % name)

    pids = [in_child(lambda number=number: work(number)) for number in range(4)]  # type: ignore[misc]
    os.close(opener)
    os.close(gate)
    os.close(writing)
    with os.fdopen(reading, "rb") as claimed:
        assert sorted(map(int, claimed.read().split())) == list(range(1000))
    assert [killed(pid) for pid in pids] == [True] * 4


def test_a_claim_is_unknown_until_every_worker_has_announced_its_sequences() -> None:
    table = IdentifierTable(3)
    zero = table.of(0)
    zero.announce([])
    table.of(1).announce([])
    assert zero.claim(granted("urn:x")) is ClaimResult.UNKNOWN
    table.of(2).announce([granted("urn:x")])
    assert zero.claim(granted("urn:x")) is ClaimResult.IN_USE
    assert zero.claim(granted("urn:y")) is ClaimResult.CLAIMED


def test_a_claim_is_unknown_while_a_stopped_process_holds_the_lock() -> None:
    table = IdentifierTable(2)
    zero = table.of(0)
    zero.announce([])
    table.of(1).announce([])
    reading, writing = os.pipe()

    def hold() -> None:
        fcntl.lockf(table._lock, fcntl.LOCK_EX)
        os.write(writing, b"x")
        signal.pause()

    pid = in_child(hold)
    try:
        assert os.read(reading, 1) == b"x"
        assert zero.claim(granted("urn:x")) is ClaimResult.UNKNOWN
    finally:
        os.kill(pid, signal.SIGKILL)
        assert killed(pid)
    assert zero.claim(granted("urn:x")) is ClaimResult.CLAIMED
    os.close(reading)
    os.close(writing)


def test_a_repeated_claim_of_the_same_sequence_succeeds_and_uses_no_room() -> None:
    table = IdentifierTable(2)
    zero, one = table.of(0), table.of(1)
    zero.announce([])
    one.announce([])
    for _ in range(3):
        assert zero.claim(granted("urn:x")) is ClaimResult.CLAIMED
    zero.release("local:urn:x")
    zero.release("local:urn:x")
    assert one.claim(granted("urn:x")) is ClaimResult.CLAIMED
