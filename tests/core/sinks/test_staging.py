"""Staging: a batch of rows comes into its queues whole, once and in order, or not at all, whatever happens when.

Covers core/queues/queue_limit.py, core/sinks/moves.py, core/sinks/parts.py, core/sinks/sink.py and
core/staged_blocks.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from staged import PARTITIONS, Row, Side, exact, partition_of, row, rows

from holdfast.core import staged_blocks as staged
from holdfast.core.events import Delivered, Incident
from holdfast.core.policy import StagingPolicy
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.core.sinks import sink as sinks
from holdfast.core.sinks import staging
from holdfast.core.sinks.sink import Batch, NoRoomToStage, NoSuchSink, NotStaged, Why
from holdfast.exceptions import ConfigurationError
from holdfast.store.staged import blocks_of_records


@pytest.fixture
def side() -> Side:
    return Side()


def test_nothing_is_queued_before_its_publication_or_left_staged_after(side: Side) -> None:
    side.stage(0, "a", rows("1", "2"))
    side.stage(0, "b", rows("3"))
    side.settle()
    assert side.bodies() == []
    side.publish(0, "b", "a", count=3)
    side.settle()
    assert side.bodies() == ["3", "1", "2"]
    left = side.store.load()
    assert not [where for where in left.bounds if where[0].startswith("staging")]
    assert not [key for key in left.cursors if key[2] == sinks.PART]
    assert side.staging.bytes_held == 0
    assert sum(one.count for one in side.told if isinstance(one, Delivered)) == 3


def test_a_token_is_free_again_once_its_last_rows_are_on_their_way_and_not_before(side: Side) -> None:
    """A writer that does not look at the answer would lose the rows that it stages under such a token."""
    side.stage(0, "t", rows("1", "2"))
    side.publish(0, "t", count=2)
    side.take()
    side.durable()
    assert side.wanted  # published, and not read yet
    with pytest.raises(NotStaged) as refused:
        side.stage(1, "t", rows("3"))
    assert refused.value.why is Why.TOKEN
    with pytest.raises(NotStaged):
        side.publish(1, "t", count=1)
    side.read()
    assert side.bodies() == []  # on their way, and not durable
    side.stage(1, "t", rows("3"))
    side.publish(1, "t", count=1)
    side.settle()
    assert side.bodies() == ["1", "2", "3"]


def test_rows_of_one_key_are_in_one_partition_which_is_that_of_its_hash(side: Side) -> None:
    keys = ["", "ä", *"abcdefgh"]
    side.stage(0, "t", [row(f"{key}{n}", key) for n in range(3) for key in keys])
    side.publish(0, "t", count=30)
    side.settle()
    for partition in range(PARTITIONS):
        mine = [key for key in keys if partition_of(key) == partition]
        assert [one.body.decode() for one in side.records("inbox", partition)] == [
            f"{key}{n}" for n in range(3) for key in mine
        ]


def test_no_crash_changes_sequence_number_or_message_id_of_a_row() -> None:
    found = []
    for crash in (False, True):
        side = Side()
        side.stage(0, "t", rows(*"abc"))
        side.publish(0, "t", count=3)
        while side.wanted or side.taken or side.protocol.wants_commit:
            side.take()
            if crash and side.wanted:
                side.read()
                side.start()
                side.take_effects()
            else:
                side.durable()
                if side.wanted:
                    side.read()
        side.settle()
        found.append([(one.sequence, one.message_number, one.message_id) for one in side.records("inbox", 0)])
    assert found[0] == found[1]
    assert [number for _, number, _ in found[0]] == [1, 2, 3]
    assert len({message_id for _, _, message_id in found[0]}) == 3


def test_a_publication_larger_than_a_chunk_moves_chunk_by_chunk(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "MOST_ROWS", 10)
    side.stage(0, "t", rows(*(f"{n:03}" for n in range(95))))
    side.publish(0, "t", count=95)
    side.take()
    side.durable()
    moving = []
    while side.wanted:
        moving.append(side.staging.sink("s").rows_moving)
        side.read()
        (batch,) = [side.protocol.take_batch()]
        assert sum(len(run.places) for run in batch.runs) <= 10
        side.taken.append(batch)
        side.durable()
    assert moving == [95, 85, 75, 65, 55, 45, 35, 25, 15, 5]
    assert side.bodies() == [f"{n:03}" for n in range(95)]


def test_while_a_queue_is_full_rows_wait_for_it_and_then_go_on(side: Side) -> None:
    side.protocol.inbound.limits["inbox"] = QueueLimit(side.protocol.inbound.queue, 4)
    side.stage(0, "t", rows(*"123456"))
    side.publish(0, "t", count=6)
    side.settle()
    assert side.bodies() == ["1", "2", "3", "4"]
    side.wait(staging.LOOK_AGAIN)
    shown = side.staging.sink("s").describe()
    assert (shown["moving"], shown["waits_for"]) == (2, "the queue 'inbox' is full")
    assert [one.name for one in side.told if isinstance(one, Incident) and one.level == "warning"] == [
        "queue.full",
        "sink.waiting",
    ]
    side.protocol.inbound.queue.deletion.purge(0, 4)
    side.settle()
    side.wait(staging.LOOK_AGAIN)
    assert side.bodies() == ["5", "6"]
    assert side.staging.sink("s").describe()["waits_for"] == ""


def test_a_block_cut_by_a_full_queue_continues_there_after_a_death(side: Side) -> None:
    side.protocol.inbound.limits["inbox"] = QueueLimit(side.protocol.inbound.queue, 4)
    some = [row(f"{n}", f"k{n}", ("inbox", "other")[n % 3 == 2]) for n in range(12)]
    side.stage(0, "t", some)
    side.publish(0, "t", count=12)
    side.settle()
    for begun in (6, 12):
        shown = side.staging.sink("s").describe()
        assert (shown["moving"], sum(len(side.bodies(name)) for name in side.queue_names)) == (12 - begun, begun)
        if begun < 12:
            assert side.staging.sink("s").moving[0].begun == begun
            assert side.staging.bytes_held == sum(staged.ROW_BYTES + len(one.body) for _, one in some)
        side.start()
        side.protocol.inbound.limits["inbox"] = QueueLimit(side.protocol.inbound.queue, 8)
        side.settle()
    for partition in range(PARTITIONS):
        mine = [n for n in range(12) if partition_of(f"k{n}") == partition]
        found = [one for name in side.queue_names for one in side.records(name, partition)]
        numbered = sorted((one.message_number, one.body.decode()) for one in found)
        assert numbered == [(number, f"{n}") for number, n in enumerate(mine, 1)]
        assert {one.sequence for one in found} == {f"urn:sink:0#{partition}"}
    assert side.staging.bytes_held == 0


def test_rows_for_a_queue_that_is_gone_wait_until_it_is_back() -> None:
    side = Side()
    side.stage(0, "t", [*rows("1"), *rows("2", queue="other"), *rows("3")])
    side.settle()
    side.publish(0, "t", count=3)
    side.take()
    side.durable()
    side.queue_names = ("inbox",)
    side.start()
    side.settle()
    side.wait(staging.LOOK_AGAIN)
    assert side.bodies() == ["1"]
    assert "'other' no longer exists" in side.staging.sink("s").describe()["waits_for"]
    side.queue_names = ("inbox", "other")
    side.start()
    side.settle()
    assert (side.bodies(), side.bodies("other")) == (["1", "3"], ["2"])


def test_a_block_with_a_changed_bit_moves_no_row_is_reported_and_stops_nothing_else() -> None:
    whole = block_of([row("a", "ä", "other"), row("b"), row("c", "k")])
    for place in range(len(whole)):
        side = Side()
        side.stage(0, "t", [row("a", "ä", "other"), row("b"), row("c", "k")])
        side.publish(0, "t", count=3)
        side.stage(0, "t", rows("1", "2"), sink="u")
        side.publish(0, "t", count=2, sink="u")
        side.take()
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        (part,) = [one for one in side.taken[0].appends if one[3].body == whole]
        part[3].body = bytes(spoilt)
        side.settle()
        side.wait(staging.LOOK_AGAIN)
        assert (side.bodies(), side.bodies("other")) == (["1", "2"], []), place
        shown = side.staging.sink("s").describe()
        assert (shown["moving"], shown["staged"]) == (3, 0)
        assert shown["waits_for"].endswith("are damaged: part 't', starting at its row 0")
        warnings = [one.name for one in side.told if isinstance(one, Incident) and one.level == "warning"]
        assert warnings == ["sink.waiting"]


def block_of(some: list[Row]) -> bytes:
    """The one block of these rows, as it is staged by a side that is new."""
    (block,) = blocks_of_records(some, 1000.0)
    return block.data


def test_what_nobody_publishes_goes_when_it_is_too_old_and_not_before() -> None:
    side = Side(StagingPolicy(max_age=100.0))
    side.stage(0, "old", rows("1"))
    side.settle()
    side.wait(60.0)
    side.stage(0, "young", rows("2"))
    side.settle()
    side.start()
    assert side.protocol.deadline() == 1100.0
    side.wait(39.0)
    assert set(side.staging.sink("s").parts) == {"old", "young"}
    side.wait(1.0)
    assert set(side.staging.sink("s").parts) == {"young"}
    with pytest.raises(NotStaged, match="deleted after a timeout") as refused:
        side.publish(0, "old", "young", count=2)
    assert refused.value.why is Why.UNKNOWN
    side.publish(0, "young", count=1)
    side.wait(1000.0)
    assert side.bodies() == ["2"]
    assert side.staging.deadline() is None


@pytest.mark.parametrize("how", ["discarded", "too old"])
def test_a_sink_that_published_nothing_is_gone_with_its_last_part(how: str) -> None:
    side = Side(StagingPolicy(max_age=100))
    side.stage(0, "a", rows("1"))
    side.stage(0, "b", rows("2"))
    side.settle()
    side.staging.discard("s", ["a"])
    assert list(side.staging.sinks) == ["s"]
    if how == "discarded":
        side.staging.discard("s", ["b"])
    else:
        side.wait(101.0)
    side.settle()
    assert not side.staging.sinks
    left = side.store.load()
    assert not [key for key in left.cursors if key[2] in (sinks.SINK, sinks.PART)]


def test_more_than_may_be_staged_is_refused_and_nothing_of_it_is_kept() -> None:
    side = Side(StagingPolicy(max_bytes=5 * (staged.ROW_BYTES + 1)))
    side.stage(0, "a", rows(*"1234"))
    with pytest.raises(NoRoomToStage, match="may be"):
        side.stage(0, "b", rows("5", "6"))
    side.stage(0, "c", rows("5"))
    side.settle()
    side.start()
    assert side.staging.bytes_held == 5 * (staged.ROW_BYTES + 1)
    with pytest.raises(NoRoomToStage):
        side.stage(0, "d", rows("6"))
    side.staging.discard("s", ["c"])
    side.stage(0, "d", rows("6"))


def test_parts_without_rows_have_a_limit() -> None:
    side = Side(StagingPolicy(max_parts=3))
    for token in "abc":
        side.stage(0, token, rows())
    with pytest.raises(NoRoomToStage, match="3 parts are staged"):
        side.stage(0, "d", rows())
    side.settle()
    side.start()
    with pytest.raises(NoRoomToStage):
        side.stage(0, "d", rows())
    side.staging.discard("s", ["a"])
    side.stage(0, "d", rows("1"))
    side.settle()
    side.staging.publish(Batch("s", "q", 0), ["d"], 1, side.now)
    side.settle()
    for token in "efg":
        side.stage(1, token, rows())
    side.settle()


def test_sinks_have_a_limit_whatever_makes_them() -> None:
    side = Side(StagingPolicy(max_sinks=2))
    side.stage(0, "a", rows("1"))
    side.staging.bind("other", "q", after=4)
    side.settle()
    side.start()
    with pytest.raises(NoRoomToStage, match="2 sinks"):
        side.staging.bind("third", "q", after=4)
    with pytest.raises(NoRoomToStage):
        side.staging.publish(Batch("third", "q", 0), [], 0, side.now)
    side.staging.forget("other")
    side.staging.bind("third", "q", after=4)


def test_binds_are_remembered_up_to_a_limit_over_all_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FORMER_OF_EACH", 2)
    side = Side(StagingPolicy(max_sinks=2))
    for name in ("one", "two"):
        side.staging.bind(name, "q0", after=4)
        for number in range(1, 20):
            side.staging.bind(name, f"q{number}", after=4)
    assert len(side.staging.sinks["two"].former) == 1
    assert list(side.staging.sinks["two"].former) == ["q18"], "the newest"
    assert len(side.staging.sinks["one"].former) <= sinks.MOST_FORMER


def test_rows_of_a_sink_forgotten_while_they_move_arrive(side: Side) -> None:
    side.stage(0, "t", rows("1", "2"))
    side.settle()
    side.publish(0, "t", count=2)
    side.take()
    side.durable()
    side.staging.forget("s")
    side.take()
    side.durable()
    side.start()
    with pytest.raises(NoSuchSink):
        side.staging.sink("s")
    side.stage(0, "t", rows("3"))
    side.publish(0, "t", count=1)
    side.settle()
    assert sorted(side.bodies()) == ["1", "2", "3"]
    assert len({one.sequence for one in side.records("inbox", 0)}) == 2
    side.staging.forget("s")
    side.settle()
    left = side.store.load()
    assert not [name for _, _, name in left.cursors if name in (sinks.SINK, sinks.PART)]
    assert not side.staging.every


def test_a_sink_remembers_a_hundred_queries_that_it_was_bound_to(side: Side) -> None:
    for number in range(150):
        side.publish(7, count=0, query=f"q{number}", jumps=True)
        side.staging.bind("s", f"q{number + 1}")
    side.settle()
    side.start()
    side.staging.bind("s", "q149")
    assert side.staging.sink("s").last == 7
    side.staging.bind("s", "q3")
    assert side.staging.sink("s").last is None


def test_what_is_published_and_on_its_way_is_not_published_again_by_another_query(side: Side) -> None:
    side.stage(0, "t", rows("1"))
    side.publish(0, "t", count=1)
    side.take()
    side.durable()
    side.staging.bind("s", "r")
    with pytest.raises(NotStaged):
        side.publish(0, "t", count=1, query="r")
    with pytest.raises(NotStaged, match="already"):
        side.stage(0, "t", rows("2"), query="r")
    side.settle()
    assert side.bodies() == ["1"]


def write(side: Side, batches: int, dies: Callable[[], bool]) -> int:
    """A query that writes batches of two tasks, and begins a batch again when somebody died meanwhile; how often."""
    deaths = 0
    tokens = (f"t{number}" for number in count())
    for batch in range(batches):
        while not _written(side, batch, [next(tokens), next(tokens)], dies):
            deaths += 1
    while not _settled(side, dies):
        deaths += 1
    return deaths


def _written(side: Side, batch: int, tokens: list[str], dies: Callable[[], bool]) -> bool:
    for task, token in enumerate(tokens):
        side.stage(batch, token, [row(f"{batch}-{task}-{n}", f"k{n}") for n in range(4)])
        if not _settled(side, dies):
            return False
    if batch > (side.staging.sink("s").last if side.staging.sink("s").last is not None else -1):
        side.publish(batch, *tokens, count=8)
    return _settled(side, dies)


def _settled(side: Side, dies: Callable[[], bool]) -> bool:
    while side.taken or side.wanted or side.protocol.wants_commit or side.protocol.effects:
        if dies():
            side.start()
            side.take_effects()
            return False
        side.step()
    return True


def test_killed_after_any_event_every_row_is_there_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "MOST_ROWS", 3)
    for event in count():
        side, events = Side(), iter(range(1_000_000))
        deaths = write(side, 3, lambda events=events, event=event: next(events) == event)
        assert side.bodies() == exact(3), event
        if not deaths:
            break
    assert event > 50


class Narrow(Side):
    """One whose queue takes one row more each time that it is full."""

    room = 1

    def start(self) -> None:
        super().start()
        self.widen(0)

    def widen(self, more: int) -> None:
        self.room += more
        self.protocol.inbound.limits["inbox"] = QueueLimit(self.protocol.inbound.queue, self.room)
        self.now += staging.LOOK_AGAIN
        self.protocol.pump(self.now)


def test_killed_after_any_event_within_a_block_every_row_is_there_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged, "MOST_ROWS", 3)
    for event in count():
        side, events = Narrow(), iter(range(1_000_000))

        def dies(events: Iterator[int] = events, event: int = event) -> bool:
            return next(events) == event

        deaths = write(side, 1, dies)
        while side.staging.sink("s").rows_moving:
            side.widen(1)
            deaths += not _settled(side, dies)
        assert side.bodies() == exact(1), event
        assert side.staging.bytes_held == 0
        assert side.room <= 9  # a death costs a look at most
        if not deaths:
            break
    assert event > 40


def test_after_the_store_was_put_back_nothing_new_has_a_name_that_something_else_had(side: Side) -> None:
    side.stage(0, "a", rows("1"))
    side.publish(0, "a", count=1)
    side.settle()
    copy = side.copy()
    side.stage(1, "b", rows("2", "3"))
    side.publish(1, "b", count=2)
    side.settle()
    lost = [(one.sequence, one.message_number, one.message_id) for one in side.records("inbox", 0)[1:]]
    side.put_back(copy)
    side.stage(1, "c", rows("4", "5"))
    side.publish(1, "c", count=2)
    side.settle()
    side.start()
    side.settle()
    assert [one.body for one in side.records("inbox", 0)] == [b"1", b"4", b"5"]
    new = [(one.sequence, one.message_number, one.message_id) for one in side.records("inbox", 0)[1:]]
    for before, after in zip(lost, new, strict=True):
        assert before[:2] != after[:2]
        assert before[2] != after[2]


def test_what_was_published_before_the_copy_keeps_its_name_when_it_moves_again(side: Side) -> None:
    side.stage(0, "a", rows("1", "2"))
    side.publish(0, "a", count=2)
    side.take()
    side.durable()  # published, and not moved
    copy, found = side.copy(), []
    for put_back in (False, True):
        if put_back:
            side.put_back(copy)
        side.settle()
        found.append([(one.sequence, one.message_number, one.message_id, one.body) for one in side.records("inbox", 0)])
    assert len(found[0]) == 2
    assert found[0] == found[1]


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_after_a_restore_a_batch_after_possible_losses_waits_for_a_decision(
    side: Side, known: bool, jumps: bool
) -> None:
    copy = side.copy()
    for batch in range(3):
        side.publish(batch, count=0)
        side.settle()
        if batch == 0 and known:
            copy = side.copy()
    side.put_back(copy)
    for restart in (False, True):
        if restart:
            side.settle()
            side.start()
        with pytest.raises(NotStaged, match="missing") as refused:
            side.publish(3, count=0, jumps=jumps)
        assert (refused.value.why, "holdfast sinks bind s q --after 2" in refused.value.remedy) == (Why.JUMP, True)
        with pytest.raises(NotStaged, match="missing"):
            side.stage(3, "t", rows("1"), jumps=jumps)
    side.staging.bind("s", "q", after=2)
    assert side.publish(2, count=0, jumps=jumps) is False
    side.stage(3, "t", rows("1"), jumps=jumps)
    assert side.publish(3, "t", count=1, jumps=jumps)
    side.settle()
    assert side.bodies() == ["1"]
    assert side.publish(6, count=0, jumps=True)


def test_an_unknown_sink_begins_with_batch_0_unless_batches_may_be_left_out(side: Side) -> None:
    with pytest.raises(NotStaged, match="the first one of the sink"):
        side.publish(5, count=0)
    assert side.publish(5, count=0, sink="t", jumps=True)
    assert side.publish(0, count=0)
    side.staging.forget("s")
    with pytest.raises(NotStaged, match="the first one of the sink"):
        side.publish(1, count=0)


def test_an_overtaken_batch_is_refused_and_a_published_one_is_not(side: Side) -> None:
    for batch in (5, 6):
        side.stage(batch, f"t{batch}", rows(str(batch)), jumps=True)
    assert side.publish(6, "t6", count=1, jumps=True)
    for restart in (False, True):
        if restart:
            side.settle()
            side.start()
        for attempt in (
            lambda: side.publish(5, "t5", count=1, jumps=True),
            lambda: side.stage(5, "u5", rows("5"), jumps=True),
        ):
            with pytest.raises(NotStaged, match="published before batch 5, which the server has not") as refused:
                attempt()
            assert refused.value.why is Why.OVERTAKEN
        assert side.publish(6, "t6", count=1, jumps=True) is False
    assert side.publish(7, count=0, jumps=True)
    assert side.publish(6, "t6", count=1, jumps=True) is False
    side.settle()
    assert side.bodies() == ["6"]


def test_what_a_sink_knows_of_its_batches_does_not_grow_with_them(side: Side) -> None:
    for batch in range(1000):
        side.publish(batch, count=0, sink="all", jumps=True)
        side.publish(10 * batch, count=0, sink="some", jumps=True)
    side.settle()
    assert side.staging.sink("all").to_state()["done"] == [1, 1000]
    assert len(side.staging.sink("some").to_state()["done"]) == 2 * sinks.MOST_RANGES
    assert side.publish(0, count=0, sink="all", jumps=True) is False
    assert side.publish(9990, count=0, sink="some", jumps=True) is False
    with pytest.raises(NotStaged, match="as far as it remembers"):
        side.publish(0, count=0, sink="some", jumps=True)


DAY = 86_400.0


def test_only_sinks_with_a_final_batch_are_forgotten_after_a_time() -> None:
    side = Side(StagingPolicy(remember=30 * DAY))
    for number, name in enumerate(("once", "once-more", "goes-on")):
        side.stage(0, "t", rows(f"{number}"), sink=name)
        side.publish(0, "t", count=1, sink=name, is_final=name != "goes-on")
        side.settle()
        side.wait(DAY)
    for _ in range(2):  # by what it saved, too
        assert side.publish(0, count=1, sink="once") is False
        side.start()
        side.settle()
    side.wait(27 * DAY - 1)
    assert [*side.staging.sinks] == ["once", "once-more", "goes-on"]
    for left in (["once-more", "goes-on"], ["goes-on"]):
        side.wait(DAY)
        assert [*side.staging.sinks] == left
    assert side.staging.deadline() is None
    side.wait(1000 * DAY)
    side.start()
    assert [*side.staging.sinks] == ["goes-on"]
    assert sorted(side.bodies()) == ["0", "1", "2"]
    queues = {name for name, _, what in side.store.load().cursors if what == sinks.SINK}
    assert len(queues) == 1  # nothing of the others is in the store


def test_however_many_sinks_end_the_store_holds_those_of_the_time_that_is_remembered() -> None:
    side = Side(StagingPolicy(remember=10 * DAY))
    for night in range(50):
        side.publish(0, count=0, sink=f"night-{night}", is_final=True)
        side.settle()
        side.wait(DAY)
    assert [*side.staging.sinks] == [f"night-{night}" for night in range(41, 50)]
    assert sum(what == sinks.SINK for _, _, what in side.store.load().cursors) == 9
    side.policy = StagingPolicy(remember=3 * DAY)
    side.staging.use(side.policy, side.now)
    side.wait(0.0)
    assert [*side.staging.sinks] == [f"night-{night}" for night in range(48, 50)]


def test_an_ended_sink_is_kept_while_its_rows_wait_or_a_writer_continues() -> None:
    side = Side(StagingPolicy(remember=DAY))
    side.protocol.inbound.limits["inbox"] = QueueLimit(side.protocol.inbound.queue, 1)
    side.stage(0, "t", rows("1", "2"), sink="waits")
    side.publish(0, "t", count=2, sink="waits", is_final=True)
    for name in ("next", "bound"):
        side.publish(0, count=0, sink=name, is_final=True)
    side.publish(1, count=0, sink="next")
    side.staging.bind("bound", "other")
    side.settle()
    side.wait(DAY)
    side.wait(DAY - 1)
    assert [*side.staging.sinks] == ["waits", "next", "bound"]
    side.protocol.inbound.queue.deletion.purge(0, 1)
    side.settle()
    side.wait(1.0)
    assert side.bodies() == ["2"]
    side.wait(1.0)
    assert [*side.staging.sinks] == ["next", "bound"]


def test_a_publisher_learns_the_published_attempt_of_the_last_batch(side: Side) -> None:
    def publish(number: int, attempt: str) -> tuple[bool, str | None]:
        published = side.staging.publish(Batch("s", "q", number), [], 0, side.now, attempt)
        return published.is_new, published.attempt

    assert publish(0, "ours") == (True, "ours")
    assert publish(0, "another") == (False, "ours")
    side.settle()
    side.start()
    assert publish(0, "another") == (False, "ours")
    assert publish(1, "") == (True, "")
    assert publish(0, "another") == (False, None)
    side.staging.bind("s", "q", 5)
    assert publish(5, "another") == (False, None)


def test_a_side_that_is_stopped_moves_nothing_more_and_the_next_goes_on(side: Side) -> None:
    side.stage(0, "t", rows("1"))
    side.staging.moves.stop()
    side.publish(0, "t", count=1)
    side.settle()
    assert side.bodies() == []
    side.start()
    side.settle()
    assert side.bodies() == ["1"]


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "é", "a" * 201, "a\n"])
def test_names_are_letters_digits_dots_hyphens_and_underscores(side: Side, name: str) -> None:
    for attempt in (
        lambda: side.stage(0, "t", rows("1"), sink=name),
        lambda: side.stage(0, name, rows("1")),
        lambda: side.publish(0, count=0, sink=name),
    ):
        with pytest.raises(ConfigurationError, match="cannot be a"):
            attempt()
    assert not side.staging.every


@pytest.mark.parametrize("name", ["", "a\n", "q; rm -rf x", "\x1b[2J", "a" * 201])
def test_queries_and_attempts_have_names_that_an_operator_may_paste_into_a_shell(side: Side, name: str) -> None:
    side.publish(0, count=0)
    for attempt in (
        lambda: side.stage(0, "t", rows("1"), sink="new", query=name),
        lambda: side.stage(0, "t", rows("1"), query=name),
        lambda: side.publish(0, count=0, query=name),
        lambda: side.staging.bind("s", name),
        lambda: side.staging.bind("new", name, 7),
        lambda: side.staging.publish(Batch("s", "q", 1), [], 0, side.now, name or "-"),
    ):
        with pytest.raises(ConfigurationError, match="cannot be a"):
            attempt()
    assert [one.query for one in side.staging.every] == ["q"]


def test_of_thousands_of_parts_one_that_is_missing_is_found_by_looking_at_each_once(side: Side) -> None:
    looked = 0

    class Token(str):
        def __hash__(self) -> int:
            nonlocal looked
            looked += 1
            return super().__hash__()

    tokens = [Token(f"t{number}") for number in range(300)]
    for token in tokens[:-1]:
        side.stage(0, token, rows("1"))
    looked = 0
    with pytest.raises(NotStaged, match="of 300 parts of batch 0, 1 are missing here, such as 't299'"):
        side.publish(0, *tokens, count=299)
    assert looked < 10 * len(tokens)


@dataclass
class Known:
    """What a sink is to know. Of what it published, what came after each restore has a name of its own."""

    query: str
    done: set[int] = field(default_factory=set)
    former: dict[str, set[int]] = field(default_factory=dict)
    staged: dict[str, tuple[str, int, list[str]]] = field(default_factory=dict)
    published: list[list[str]] = field(default_factory=lambda: [[]])
    is_sure: bool = True
    final_at: float | None = None


@dataclass
class World:
    """What is to be known of all sinks, and what ever was to arrive of those that are forgotten."""

    sinks: dict[str, Known] = field(default_factory=dict)
    gone: list[list[str]] = field(default_factory=list)
    is_restored: bool = False

    @property
    def publications(self) -> list[list[str]]:
        """What ever was to arrive, split as it goes into partitions."""
        published = [*self.gone, *(bodies for one in self.sinks.values() for bodies in one.published)]
        places = [[(partition_of(key_of(body)), body) for body in bodies] for bodies in published]
        return [[body for at, body in some if at == one] for some in places for one in range(PARTITIONS)]

    def known(self, sink: str, query: str) -> Known:
        return self.sinks.setdefault(sink, Known(query, is_sure=not self.is_restored))


def key_of(body: str) -> str:
    return f"k{int(body) % 5}"


BATCH_NUMBERS = range(4)
REMEMBER = 3 * DAY
SINKS, TOKENS, BATCHES = (st.sampled_from(one) for one in (["s", "t"], "abc", BATCH_NUMBERS))
QUERIES = st.sampled_from(["q", "jumps"])
"""The second leaves numbers out, as batch writes may."""


class Life(RuleBasedStateMachine):
    """Sinks against a plain model, with a death between any two events, and a store that is put back to a copy. What
    was answered as durable holds after a death, and of what was not, all or nothing; no name is ever given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.side = Side(StagingPolicy(max_age=10_000 * DAY, remember=REMEMBER))
        self.model, self.durable_model = World(), World()
        self.promised: list[World] = []
        self.bodies = (f"{number}" for number in count())
        self.backup = (self.side.copy(), World())
        self.named: dict[tuple[str, int], str] = {}

    def next(self, sink: str, query: str, batch: int) -> str:
        """What a sink says to that batch."""
        known = self.model.sinks.get(sink)
        if known is not None and known.query != query:
            return "bound"
        done = known.done if known is not None else set()
        if batch in done:
            return "old"
        if batch < max(done, default=0):
            return "overtaken"
        is_sure = known.is_sure if known is not None else not self.model.is_restored
        if batch == max(done, default=-1) + 1 or (query == "jumps" and is_sure):
            return "new"
        return "jump"

    @rule(sink=SINKS, query=QUERIES, batch=BATCHES, token=TOKENS, size=st.integers(0, 4))
    def stage(self, sink: str, query: str, batch: int, token: str, size: int) -> None:
        said, jumps = self.next(sink, query, batch), query == "jumps"
        bodies = [next(self.bodies) for _ in range(size)]
        some = [row(body, key_of(body), ("inbox", "other")[int(body) % 2]) for body in bodies]
        known = self.model.sinks.get(sink)
        if said not in ("new", "old") or (said == "new" and known is not None and token in known.staged):
            with pytest.raises(NotStaged) as refused:
                self.side.stage(batch, token, some, sink, query, jumps)
            assert refused.value.why.value == (said if said != "new" else "token")
        elif self._is_moving(sink, token):
            with pytest.raises(NotStaged):
                self.side.stage(batch, token, some, sink, query, jumps) or _already()
        else:
            assert self.side.stage(batch, token, some, sink, query, jumps) is (said == "new")
            if said == "new":
                self.model.known(sink, query).staged[token] = (query, batch, bodies)

    @rule(sink=SINKS, query=QUERIES, size=st.integers(1, 4))
    def write(self, sink: str, query: str, size: int) -> None:
        """A whole batch, the next one of its query if the sink takes that, which comes into its queues."""
        batch = next((one for one in BATCH_NUMBERS if self.next(sink, query, one) == "new"), None)
        known = self.model.sinks.get(sink)
        if batch is not None and not (known is not None and "a" in known.staged) and not self._is_moving(sink, "a"):
            self.stage(sink, query, batch, "a", size)
            self.publish(sink, query, batch, ["a"], lie=False)
            self.rest()

    def _is_moving(self, sink: str, token: str) -> bool:
        """Whether a part of that name is published and not yet in its queues."""
        one = self.side.staging.sinks.get(sink)
        return one is not None and token in [part.token for part in one.moving]

    @rule(
        sink=SINKS,
        query=QUERIES,
        batch=BATCHES,
        tokens=st.lists(TOKENS, max_size=3),
        lie=st.booleans(),
        is_final=st.booleans(),
    )
    def publish(self, sink: str, query: str, batch: int, tokens: list[str], lie: bool, is_final: bool = False) -> None:
        said, known, jumps = self.next(sink, query, batch), self.model.sinks.get(sink), query == "jumps"
        staged = known.staged if known is not None else {}
        bodies = [body for token in tokens for body in staged.get(token, ("", 0, []))[2]]
        is_there = len({*tokens}) == len(tokens) and all(
            token in staged and staged[token][1] == batch for token in tokens
        )
        if is_there or said != "new":
            size = len(bodies) + lie
        else:  # as many as are there under these names, of whatever batch
            one = self.side.staging.sinks.get(sink)
            size = sum(one.parts[token].staged for token in {*tokens} if token in one.parts) if one is not None else 0
        if (said == "new" and (not is_there or lie)) or said not in ("new", "old"):
            with pytest.raises(NotStaged) as refused:
                self.side.publish(batch, *tokens, count=size, sink=sink, query=query, jumps=jumps)
            assert refused.value.why.value == said or said == "new"
            return
        is_new = self.side.publish(batch, *tokens, count=size, sink=sink, query=query, jumps=jumps, is_final=is_final)
        assert is_new is (said == "new")
        if said == "new":
            known = self.model.known(sink, query)
            known.final_at = self.side.now if is_final else None
            known.published[-1] += bodies
            known.done.add(batch)
            known.is_sure = True
            known.staged.clear()

    @rule(sink=SINKS, tokens=st.lists(TOKENS, max_size=2))
    def discard(self, sink: str, tokens: list[str]) -> None:
        known = self.model.sinks.get(sink)
        gone = {token for token in tokens if known is not None and known.staged.pop(token, None)}
        assert self.side.staging.discard(sink, tokens) == len(gone)
        if known is not None and not known.staged and not known.former and not known.done:
            del self.model.sinks[sink]

    @rule(sink=SINKS, query=QUERIES, after=st.none() | BATCHES)
    def bind(self, sink: str, query: str, after: int | None) -> None:
        known = self.model.sinks.get(sink)
        if known is None and after is None:
            with pytest.raises(NoSuchSink):
                self.side.staging.bind(sink, query)
            return
        self.side.staging.bind(sink, query, after)
        known = self.model.known(sink, query)
        if known.query != query:
            if known.done:
                known.former[known.query] = last_range(known.done)
            known.query, known.done = query, known.former.pop(query, set())
            known.is_sure = not self.model.is_restored
            known.staged.clear()
        if after is not None:
            known.done |= {*range(after + 1)}
            known.is_sure = True
        known.final_at = None

    @rule()
    def pass_time(self) -> None:
        """All rests, and then a third of the time goes by that a sink is remembered after its end."""
        self.rest()
        self.side.now += REMEMBER / 3
        self.side.protocol.pump(self.side.now)
        for name, one in list(self.model.sinks.items()):
            if one.final_at is not None and one.final_at + REMEMBER <= self.side.now and not one.staged:
                self.model.gone += self.model.sinks.pop(name).published
        assert self.side.staging.sinks.keys() == self.model.sinks.keys()

    @rule(sink=SINKS)
    def forget(self, sink: str) -> None:
        if sink in self.model.sinks:
            self.side.staging.forget(sink)
            self.model.gone += self.model.sinks.pop(sink).published
        else:
            with pytest.raises(NoSuchSink):
                self.side.staging.forget(sink)

    @precondition(lambda self: self.side.protocol.wants_commit)
    @rule()
    def take(self) -> None:
        self.side.take()
        self.promised.append(deepcopy(self.model))

    @precondition(lambda self: self.promised)
    @rule()
    def durable(self) -> None:
        self.side.durable()
        self.durable_model = self.promised.pop(0)

    @precondition(lambda self: self.side.wanted)
    @rule()
    def read(self) -> None:
        self.side.read()

    @rule()
    def die(self) -> None:
        self.side.start()
        self.side.take_effects()
        self.model, self.promised = deepcopy(self.durable_model), []
        staged = sum(len(part[2]) for one in self.model.sinks.values() for part in one.staged.values())
        assert sum(part.rows for one in self.side.staging.every for part in one.staged) == staged

    @rule()
    def copy(self) -> None:
        self.backup = self.side.copy(), deepcopy(self.durable_model)

    @rule()
    def put_back(self) -> None:
        self.side.put_back(self.backup[0])
        self.side.take_effects()
        self.model, self.durable_model = deepcopy(self.backup[1]), deepcopy(self.backup[1])
        self.promised = []
        self.model.is_restored = True
        for one in self.model.sinks.values():
            one.is_sure = False
            one.published.append([])

    @rule()
    def rest(self) -> None:
        """All that is published arrives, if nobody dies any more."""
        while self.side.taken or self.side.wanted or self.side.protocol.wants_commit:
            if self.promised:
                self.durable()
            elif self.side.protocol.wants_commit:
                self.take()
            else:
                self.read()
        expected = [bodies for bodies in self.model.publications if bodies]
        assert sorted(self.arrived().values()) == sorted(expected)
        assert not any(one.moving for one in self.side.staging.every)

    def arrived(self) -> dict[str, list[str]]:
        """Of each Sequence of a sink what is in the queues, by its numbers, which begin with 1 and leave none out."""
        places: dict[str, set[int]] = defaultdict(set)
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for queue in self.side.queue_names:
            for partition in range(PARTITIONS):
                numbers: dict[str, int] = {}
                for one in self.side.records(queue, partition):
                    found[one.sequence].append((one.message_number, one.body.decode()))
                    places[one.sequence].add(partition)
                    assert one.message_number > numbers.get(one.sequence, 0)  # in each partition they ascend
                    numbers[one.sequence] = one.message_number
        for numbered in found.values():
            numbered.sort()
            assert [number for number, _ in numbered] == list(range(1, 1 + len(numbered)))
        assert all(len(partitions) == 1 for partitions in places.values())
        return {sequence: [body for _, body in numbered] for sequence, numbered in found.items()}

    @invariant()
    def what_arrived_is_the_beginning_of_what_was_published_durably(self) -> None:
        published = self.durable_model.publications
        for bodies in self.arrived().values():
            assert any(one[: len(bodies)] == bodies for one in published), (bodies, published)

    @invariant()
    def a_name_is_of_one_row_for_ever(self) -> None:
        for queue in self.side.queue_names:
            for partition in range(PARTITIONS):
                for one in self.side.records(queue, partition):
                    body = one.body.decode()
                    assert self.named.setdefault((one.sequence, one.message_number), body) == body
                    assert self.named.setdefault((one.message_id or "", 0), body) == body

    @invariant()
    def bytes_are_counted(self) -> None:
        parts = [part for one in self.side.staging.every for part in one.parts.values()]
        assert self.side.staging.bytes_held == sum(part.bytes for part in parts)

    def teardown(self) -> None:
        self.rest()
        self.side.start()
        self.side.settle()


def last_range(batches: set[int]) -> set[int]:
    last = max(batches)
    return {*range(next(one for one in range(last, -2, -1) if one not in batches) + 1, last + 1)}


def _already() -> None:
    raise NotStaged(Why.TOKEN, "it is published already", "nothing")


TestLife = Life.TestCase
