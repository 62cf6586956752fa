"""Queue: what is kept, for whom and how long; who may call a cursor what; what is made of saved states gone wild.

Covers core/queues/partitions.py and core/queues/retention_enforcement.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lines_run import lines_of

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Incident, ReadWanted
from holdfast.core.handling.handler_cursor import HandlerCursor, HandlingPolicy
from holdfast.core.queues.cursors import ASIDE, HANDLER, OUTBOUND, TooManyReaders, check_reader
from holdfast.core.queues.deletion import TRIM_EVERY
from holdfast.core.queues.description import fingerprint_of
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import DAY, RetentionPolicy
from holdfast.core.queues.retention_enforcement import PARTITIONS_AT_ONCE
from holdfast.core.records import Batch, Record, State
from holdfast.exceptions import ConfigurationError
from holdfast.store.memory import MemoryStore

DEFAULT = RetentionPolicy()


class Home:
    """A queue over a store; every call is durable when it returns."""

    def __init__(self, store: MemoryStore | None = None, now: float = 0.0, **options: Any) -> None:
        self.store = store or MemoryStore()
        self.now = now
        self.options = options
        handled = options.pop("is_handled", False)
        options.setdefault("retention", DEFAULT)
        self.queue = Queue("inbox", **options)
        self.queue.deletion.is_handled = handled
        options["is_handled"] = handled
        self.commit = GroupCommit()
        self.effects: list[Any] = []
        self.looks = 0
        self.queue.join(self.commit, self.effects, self._read)
        self.queue.recover(self.store.load(), now)
        if not self.queue.description.epoch:
            self.queue.description.begin("e")
        self.settle()

    def _read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        self.looks += 1
        return self.store.read(queue, partition, start, end)

    def settle(self) -> None:
        while True:
            wanted = [effect for effect in self.effects if isinstance(effect, ReadWanted)]
            self.effects[:] = [effect for effect in self.effects if not isinstance(effect, ReadWanted)]
            for one in wanted:
                one.take(self._read(one.queue, one.partition, one.start, one.end), self.now)
            if self.commit.is_wanted:
                self.store.commit(self.commit.take())
                self.commit.durable(self.now)
            elif not wanted:
                return

    def restart(self, **options: Any) -> Home:
        return Home(self.store, self.now, **{**self.options, **options})

    def fill(self, count: int, partition: int = 0, size: int = 10) -> None:
        for _ in range(count):
            record = Record("urn:s", 1, "urn:a", b"x" * size, self.now)
            offset = self.queue.records.append(partition, record)
            self.commit.then(lambda now, offset=offset: self.queue.stored(partition, offset, now))
        self.settle()

    def at(self, now: float) -> None:
        """Time passes; what is due on the way is done when it is due."""
        while (due := self.queue.deadline()) is not None and due <= now:
            self.now = max(self.now, due)
            self.queue.pump(self.now)
            self.settle()
        self.now = now

    def move(self, name: str, offset: int, partition: int = 0) -> int:
        stands = self.queue.move_cursor(name, partition, offset, self.now)
        self.settle()
        return stands

    def handle(self, offset: int) -> None:
        self.queue.move_cursor(HANDLER, 0, offset, self.now, {"done": [1, offset]})
        self.settle()

    def fingerprint(self, position: int) -> str:
        known = self.queue.description.fingerprint(0, position)
        if known is not None:
            return known
        ((_, record),) = self.store.read(self.queue.name, 0, position - 1, position)
        return fingerprint_of(record)

    @property
    def kept(self) -> range:
        (first, end) = self.store.load().bounds[self.queue.name, 0]
        assert (first, end) == (self.queue.records.firsts[0], self.queue.records.ends[0])
        return range(first, end)

    def told(self, name: str) -> list[Incident]:
        return [effect for effect in self.effects if isinstance(effect, Incident) and effect.name == name]

    def described(self, ages: dict[str, float]) -> list[dict[str, Any]]:
        cursors = self.queue.cursors
        return [cursors.shown(one, self.now, ages.get(name, 0.0)) for name, one in sorted(cursors.items())]


# --- retention ----------------------------------------------------------------------------------------------------


def test_a_record_is_kept_for_seven_days_whoever_reads_it() -> None:
    home = Home()
    home.fill(10)
    home.move("spark", 10)
    home.at(7 * DAY - 1)
    assert home.kept == range(10)
    home.at(7 * DAY + 3600)
    assert home.kept == range(10, 10)


def test_a_reader_that_begins_at_the_end_deletes_nothing() -> None:
    home = Home()
    home.fill(1000)
    home.move("latest", 1000)
    home.at(DAY)
    assert home.kept == range(1000)


def test_dropping_a_cursor_deletes_nothing_either() -> None:
    home = Home()
    home.fill(1000)
    home.move("trial", 500)
    assert home.queue.drop_cursor("trial", home.now)
    assert not home.queue.drop_cursor("trial", home.now)
    home.settle()
    home.at(DAY)
    assert home.kept == range(1000)


def test_a_reader_keeps_what_it_has_not_passed_up_to_a_limit() -> None:
    home = Home(retention=RetentionPolicy(DAY, None, 10 * DAY))
    home.fill(10)
    home.move("slow", 4)
    home.at(9 * DAY)
    assert home.kept == range(4, 10)
    assert not home.told("reader.left_behind")
    home.at(11 * DAY)
    assert home.kept == range(10, 10)
    (told,) = home.told("reader.left_behind")
    assert told.detail is not None
    assert (told.detail["cursor"], told.detail["records"]) == ("slow", 6)


def test_what_nobody_read_is_deleted_with_a_word() -> None:
    home = Home(retention=RetentionPolicy(60.0))
    home.fill(5)
    home.at(120.0)
    assert home.kept == range(5, 5)
    (told,) = home.told("queue.unread_records_deleted")
    assert told.detail is not None
    assert told.detail["records"] == 5


def test_only_time_in_which_the_queue_is_served_makes_its_records_old() -> None:
    home = Home(retention=RetentionPolicy(7 * DAY))
    home.fill(10)
    home.at(3 * DAY)
    home.now = 33 * DAY  # an outage, or a clock that is wrong
    home = home.restart()
    home.at(36 * DAY)
    assert home.kept == range(10)
    home = home.restart()
    home.at(36.5 * DAY)
    assert home.kept == range(10), "an earlier outage is remembered"
    home.fill(5)
    home.at(37.2 * DAY)
    assert home.kept == range(10, 15)
    home.now = 50 * DAY
    home = home.restart()
    home.at(56 * DAY)
    assert home.kept == range(10, 15)
    home.at(57 * DAY)
    assert home.kept == range(15, 15)


@example([(60.0, False, 1), (60.0, True, 1), (60.0, False, 0)])
@given(st.lists(st.tuples(st.floats(60.0, 3 * DAY), st.booleans(), st.integers(0, 2)), max_size=12))
def test_no_record_goes_before_the_queue_was_served_for_its_age(runs: list[tuple[float, bool, int]]) -> None:
    """However it is restarted: each run lasts some time, may follow an outage of ten days, and stores some records."""
    home, served, since = Home(retention=RetentionPolicy(7 * DAY)), 0.0, list[float]()
    for seconds, is_after_outage, count in runs:
        if is_after_outage:
            home.now += 10 * DAY
        home = home.restart()
        home.fill(count)
        since += [served] * count
        home.at(home.now + seconds)
        served += seconds
        # Short stops and the time since the last sign of life count, or do not, as the retention documents.
        assert all(
            served - since[offset] >= 7 * DAY - 3 * 3600.0 * len(runs)
            for offset in range(home.kept.start if since else 0)
        )


def test_that_a_queue_is_served_is_saved_now_and_then_while_it_holds_something() -> None:
    home = Home(retention=RetentionPolicy(7 * DAY))
    home.fill(1)
    home.at(5 * DAY)
    alive = home.store.load().queues["inbox"]["alive"]
    assert 5 * DAY - 3700 <= alive <= 5 * DAY


def test_what_the_handlers_are_not_done_with_is_kept_for_ever() -> None:
    home = Home(is_handled=True, retention=RetentionPolicy(60.0, None, 60.0))
    home.fill(5)
    home.handle(2)
    home.move("spark", 5)
    home.at(100 * DAY)
    assert home.kept == range(2, 5)
    home.handle(5)
    home.at(200 * DAY)
    assert home.kept == range(5, 5)
    assert not home.told("queue.unread_records_deleted")


def test_handlers_that_are_away_are_waited_for_like_a_reader() -> None:
    home = Home(is_handled=True)
    home.fill(5)
    home.handle(2)
    home = home.restart(is_handled=False)
    home.at(8 * DAY)
    assert home.kept == range(2, 5)
    home.at(31 * DAY)
    assert home.kept == range(5, 5)
    assert home.restart(is_handled=True).queue.cursors.handled(0)["done"] == [1, 5]


def test_handled_records_are_deleted_until_the_first_reader_comes() -> None:
    home = Home(is_handled=True, drops_passed=True)
    assert home.queue.deletion.keeps == "until it is handled"
    home.fill(2 * TRIM_EVERY)
    home.handle(TRIM_EVERY + 5)
    assert home.kept.start == TRIM_EVERY + 5
    assert home.queue.deadline() is None
    home.move("spark", 0)
    home = home.restart()
    home.handle(2 * TRIM_EVERY)
    assert home.kept.start == TRIM_EVERY + 5
    home.queue.drop_cursor("spark", home.now)
    home.fill(TRIM_EVERY)
    home.handle(3 * TRIM_EVERY)
    assert home.kept.start == TRIM_EVERY + 5
    assert home.restart().queue.deletion.keeps == "7d readers 30d"
    home.at(8 * DAY)
    assert home.kept.start == 3 * TRIM_EVERY


def test_without_retention_nothing_is_deleted_and_nothing_is_ever_due() -> None:
    home = Home(retention=RetentionPolicy(None, None))
    home.fill(10)
    home.at(1000 * DAY)
    assert home.kept == range(10)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=20), st.integers(0, 200))
def test_records_go_by_age_soon_after_their_time_and_never_before(arrivals, later) -> None:
    home = Home(retention=RetentionPolicy(100.0))
    times: list[float] = []
    for count, pause in arrivals:
        home.fill(count)
        times += [home.now] * count
        home.at(home.now + pause)
    home.at(home.now + later)
    kept = list(home.kept) if times else []
    for offset, at in enumerate(times):
        if home.now - at < 100.0:
            assert offset in kept
        if home.now - at > 102.0:
            assert offset not in kept


def test_looking_for_what_is_old_costs_few_reads_however_full_the_queue_is() -> None:
    home = Home(retention=RetentionPolicy(1000.0))
    for _ in range(100):
        home.fill(50)
        home.at(home.now + 1)
    home.looks = 0
    home.at(2000.0)
    assert home.kept.stop == 5000 and not home.kept
    assert home.looks < 2000


def test_by_size_the_oldest_go_and_about_the_limit_stays() -> None:
    home = Home(retention=RetentionPolicy(None, 100_000))
    for _ in range(10):
        home.fill(50, size=800)
        home.at(home.now + 2)
    assert 100 <= len(home.kept) <= 105
    home = home.restart()
    home.fill(50, size=800)
    home.at(home.now + 2)
    assert 100 <= len(home.kept) <= 105


def test_by_size_a_reader_keeps_more_up_to_its_own_limit() -> None:
    home = Home(retention=RetentionPolicy(None, 50_000, None, 100_000))
    home.move("slow", 0)
    home.fill(80, size=800)
    home.at(home.now + 2)
    assert len(home.kept) == 80
    home.fill(200, size=800)
    home.at(home.now + 2)
    assert 100 <= len(home.kept) <= 105


def test_a_queue_of_many_partitions_is_looked_through_a_few_at_a_time() -> None:
    home = Home(count=100, retention=RetentionPolicy(60.0))
    for partition in range(100):
        home.fill(3, partition)
    assert home.queue.deadline() is not None
    home.now = 100.0
    home.looks = 0
    home.queue.pump(home.now)
    assert home.looks == 0, "the core waits for no store"
    assert sum(isinstance(effect, ReadWanted) for effect in home.effects) == PARTITIONS_AT_ONCE
    assert home.queue.deadline() is None, "the others wait until these are through"
    home.settle()
    home.at(101.0)
    assert home.queue.records.firsts == [3] * 100


def test_a_reader_that_comes_while_is_looked_for_what_is_too_old_loses_nothing() -> None:
    home = Home(retention=RetentionPolicy(60.0))
    home.fill(10)
    home.now = 100.0
    home.queue.pump(home.now)
    assert any(isinstance(effect, ReadWanted) for effect in home.effects)
    home.queue.advance("late", {0: 0}, home.now)
    assert home.queue.deadline() is None, "nothing is begun twice"
    home.settle()
    home.at(DAY)
    assert home.kept == range(10)
    home.at(31 * DAY)
    assert home.kept == range(10, 10), "its own limit is looked at too"


def test_what_comes_or_goes_while_bytes_are_counted_is_counted_once() -> None:
    home = Home(retention=RetentionPolicy(None, 100_000))
    home.fill(50, size=800)
    home.now += 2
    home.queue.pump(home.now)
    (wanted,) = [effect for effect in home.effects if isinstance(effect, ReadWanted)]
    home.effects.clear()
    home.fill(20, size=800)
    assert home.queue.deadline() is None, "nothing is begun twice"
    one = home.queue.partitions[0]
    assert one.sizes is not None
    wanted.take(home.store.read("inbox", 0, wanted.start, wanted.end), home.now)
    home.settle()
    assert one.sizes.total == 70_000
    wanted.take(home.store.read("inbox", 0, wanted.start, wanted.end), home.now)
    home.settle()
    assert one.sizes.total == 70_000
    home.fill(150, size=800)
    home.at(home.now + 2)
    assert 100 <= len(home.kept) <= 105


# --- cursors ------------------------------------------------------------------------------------------------------


def test_a_cursor_never_moves_back_nor_beyond_the_end() -> None:
    home = Home()
    home.fill(10)
    assert home.move("spark", 4) == 4
    assert home.move("spark", 2) == 4
    assert home.move("spark", 99) == 10
    assert home.restart().queue.cursors["spark"].offsets == {0: 10}


@pytest.mark.parametrize("name", [HANDLER, "", " ", "a b", "own/sizes", "aside/x", "é", "-x", "x" * 101, "a\n", "a/b"])
def test_a_reader_may_not_be_called_what_is_ours_or_unfit(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_reader(name)
    if name != HANDLER:
        home = Home()
        with pytest.raises(ConfigurationError):
            home.move(name, 0)
        assert not home.commit.is_wanted


def test_cursors_of_readers_are_bounded_in_number() -> None:
    home = Home(retention=RetentionPolicy(max_readers=3))
    for number in range(3):
        home.move(f"r{number}", 0)
    with pytest.raises(TooManyReaders, match="3 readers"):
        home.move("r3", 0)
    home.move("r1", 0)
    home.queue.drop_cursor("r2", 0.0)
    home.move("r3", 0)


def test_the_handlers_cursor_cannot_be_dropped() -> None:
    home = Home(is_handled=True)
    home.handle(0)
    assert not home.queue.drop_cursor(HANDLER, 0.0)


def test_handlers_that_are_new_to_a_queue_begin_at_what_is_there() -> None:
    home = Home(retention=RetentionPolicy(60.0))
    home.fill(10)
    home.at(50.0)
    home.fill(5)
    home.at(70.0)
    assert home.kept == range(10, 15)
    cursor = HandlerCursor(HandlingPolicy(), True, home.restart(is_handled=True).queue.cursors.handled(0))
    assert (cursor.floor, cursor.next_offset) == (10, 10)


# --- what a message of a queue with many forwarded partitions costs -----------------------------------------------


def followed(partitions: int) -> Home:
    """A queue whose partitions an outbound Sequence each follows, with two records in each."""
    home = Home(count=partitions, drops_passed=True, retention=None)
    for partition in range(partitions):
        home.queue.follow(f"{OUTBOUND}forwarder/{partition}", partition, None, lambda *_: None)
        home.fill(2, partition)
    return home


def test_the_cursors_of_other_partitions_cost_a_passed_message_nothing() -> None:
    one, many = followed(1), followed(64)
    assert lines_of(lambda: many.queue.deletion.keep_from(0)) == lines_of(lambda: one.queue.deletion.keep_from(0))


def test_a_batch_that_deletes_in_many_partitions_describes_the_queue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    home = followed(64)
    described: list[State] = []
    describe = home.queue.description.to_state

    def counted() -> State:
        described.append(describe())
        return described[-1]

    monkeypatch.setattr(home.queue.description, "to_state", counted)
    for partition in range(64):
        home.queue.move_cursor(f"{OUTBOUND}forwarder/{partition}", partition, 2, home.now)
    home.settle()
    assert home.queue.records.firsts == [2] * 64
    assert len(described) == 1 and len(described[0]["before"]) == 64
    assert home.restart().fingerprint(2) == home.fingerprint(2) != ""


# --- fingerprints -------------------------------------------------------------------------------------------------


def test_a_position_keeps_the_fingerprint_of_the_deleted_record_below_it() -> None:
    home = Home(retention=RetentionPolicy(60.0))
    home.fill(5)
    prints = [home.fingerprint(position) for position in range(6)]
    assert prints[0] == "" and len(prints[5]) == 16
    home.at(50.0)
    home.fill(5)
    assert home.fingerprint(6) != prints[5]
    home.at(70.0)
    assert home.kept == range(5, 10)
    assert home.fingerprint(5) == prints[5]
    assert home.fingerprint(4) == ""
    assert home.fingerprint(11) == ""
    assert home.restart().fingerprint(5) == prints[5]


def test_who_comes_while_the_last_record_that_goes_is_read_loses_nothing() -> None:
    home = Home(is_handled=True, drops_passed=True)
    home.fill(2 * TRIM_EVERY)
    home.looks = 0
    home.queue.move_cursor(HANDLER, 0, TRIM_EVERY, home.now, {"done": [1, TRIM_EVERY]})
    assert home.looks == 0, "the core waits for no store"
    home.queue.advance("spark", {0: 0}, home.now)
    home.settle()
    assert home.kept == range(2 * TRIM_EVERY)
    home.at(8 * DAY)
    assert home.kept == range(2 * TRIM_EVERY)
    home.move("spark", TRIM_EVERY)
    home.at(9 * DAY)
    assert home.kept == range(TRIM_EVERY, 2 * TRIM_EVERY)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_a_queue_that_was_put_back_and_grew_on_differs_wherever_it_grew(before, one, other) -> None:
    left, right = Home(), Home()
    for home, after in ((left, one), (right, other)):
        home.fill(before)
        home.now = 10.0 + (home is right)
        home.fill(after)
    for position in range(1, before + min(one, other) + 1):
        same = left.fingerprint(position) == right.fingerprint(position)
        assert same == (position <= before)


# --- saved states gone wild ---------------------------------------------------------------------------------------

wild = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
wild_states = st.dictionaries(
    st.sampled_from(["done", "offset", "at", "epoch", "partitions", "before", "alive", "pauses", "marks"]), wild
)
names = st.sampled_from([HANDLER, "spark", "own/sizes", ASIDE + "x", "a b", "é", ""]) | st.text(max_size=20)


@given(
    st.dictionaries(st.tuples(st.integers(0, 3), names), wild_states, max_size=4),
    st.none() | wild_states,
    st.booleans(),
)
@example({(0, HANDLER): {}}, {"partitions": 1}, False)
def test_whatever_a_store_returns_a_queue_starts_and_deletes_no_new_record(saved, description, handled):
    store = MemoryStore()
    batch = Batch(appends=[("inbox", 0, n, Record("urn:s", n + 1, "urn:a", b"<x/>", 0.0)) for n in range(5)])
    batch.cursors = {("inbox", partition, name): state for (partition, name), state in saved.items()}
    if description is not None:
        batch.queues = {"inbox": description}
    store.commit(batch)
    home = Home(store, count=2, is_handled=handled, retention=RetentionPolicy(60.0, 10**6, 60.0))
    if home.queue.description.stored_partitions not in (None, 2):
        assert not home.effects  # whoever opened it refuses to start, and nothing is touched
        return
    for partition in range(2):
        for at_most_once in (False, True):
            HandlerCursor(HandlingPolicy(), True, home.queue.cursors.handled(partition, at_most_once=at_most_once))
    home.queue.description.begin("e")
    home.settle()
    home.described({})
    home.at(30.0)
    assert home.kept == range(5)
    told = len(home.told("state.unreadable"))
    again = home.restart()
    assert not again.told("state.unreadable")
    kept_aside = [name for _, _, name in store.load().cursors if name.startswith(ASIDE)]
    assert len(kept_aside) + any(name.startswith(ASIDE) for name in store.load().queues) >= told


@pytest.mark.parametrize(
    "state",
    [{}, {"offset": 3}, {"done": 1}, {"done": [1]}, {"done": [2, 1]}, {"done": [1, 2, 3, 4]}, {"done": [1, 99]},
     {"done": [0, 1]}, {"done": ["a", "b"]}, {"done": [True, 2]}],
)  # fmt: skip
def test_a_place_of_the_handlers_that_cannot_be_understood_is_set_aside_and_told(state: dict[str, Any]) -> None:
    store = MemoryStore()
    appends = [("inbox", 0, n, Record("urn:s", n + 1, "urn:a", b"<x/>", 0.0)) for n in range(5)]
    store.commit(Batch(appends=appends, cursors={("inbox", 0, HANDLER): state}))
    home = Home(store, is_handled=True)
    (told,) = home.told("state.unreadable")
    assert told.level == "error"
    assert home.queue.cursors.handled(0) == {"done": [], "floor": 0}
    assert home.queue.cursors.handled(0, at_most_once=True) == {"done": [1, 5], "floor": 0}
    assert store.load().cursors == {("inbox", 0, ASIDE + HANDLER): state}


def test_what_is_listed_says_how_far_behind_each_cursor_is() -> None:
    home = Home(is_handled=True)
    home.fill(4)
    home.handle(3)
    home.now = 100.0
    home.fill(2)
    home.move("spark", 5)
    home.now = 160.0
    assert home.queue.cursors.unpassed() == {HANDLER: [(0, 3)], "spark": [(0, 5)]}
    handler, spark = home.described({HANDLER: 160.0, "spark": 60.0})
    assert (handler["kind"], handler["lag"], handler["age"]) == ("handler", 3, 160.0)
    assert (spark["name"], spark["lag"], spark["age"], spark["idle"]) == ("spark", 1, 60.0, 60.0)
    home.move("spark", 6)
    assert home.queue.cursors.unpassed() == {HANDLER: [(0, 3)], "spark": []}
    _, spark = home.described({"spark": 60.0})
    assert (spark["lag"], spark["age"]) == (0, 0.0), "it passed what was read of meanwhile"
