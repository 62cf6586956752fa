"""What every store promises (holdfast.store.base), run against each of them.

Covers store/changes.py, store/memory.py and store/sql/content.py.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest
from databases import KINDS

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.staged_blocks import ROW_BYTES, Run, unpack
from holdfast.exceptions import StoreFailed
from holdfast.store.records import encode_record
from holdfast.store.staged import blocks_of_records

pytestmark = pytest.mark.parametrize(
    "opened", ["memory", "rocksdb", *KINDS, pytest.param("kafka", marks=pytest.mark.nightly)], indirect=True
)


def test_a_new_store_is_empty(opened):
    assert opened.store.load() == Snapshot()
    assert opened.store.read("q", 0, 0, 10) == []
    assert opened.store.read_encoded("q", 0, 0, 10) == []


def test_a_batch_is_there_whole_after_opening_again(opened, record):
    full = Record("urn:s", 1, "urn:a", b"<x/>", 12.25, "urn:m", "http://to", "http://r", "urn:q", "1.1", b"<h/>", True)
    opened.store.commit(
        Batch(
            queues={"orders": {"epoch": "e1", "partitions": 4}},
            appends=[("orders", 3, 0, full), ("orders", 3, 1, record(2)), ("other", 0, 0, record(1))],
            holds=[("urn:s", 5, record(5)), ("urn:s", 4, record(4))],
            sequences={"urn:s": {"ranges": [[1, 2], [4, 5]], "last": None, "raw": b"\x00\xff", "f": 0.5, "t": True}},
            cursors={("orders", 3, "handler"): {"offset": 1, "done": {"a": [1, "b"]}}},
            homes={"urn:s": ("orders", 3)},
        )
    )
    store = opened.reopen()
    assert store.load() == Snapshot(
        queues={"orders": {"epoch": "e1", "partitions": 4}},
        bounds={("orders", 3): (0, 2), ("other", 0): (0, 1)},
        sequences={"urn:s": {"ranges": [[1, 2], [4, 5]], "last": None, "raw": b"\x00\xff", "f": 0.5, "t": True}},
        cursors={("orders", 3, "handler"): {"offset": 1, "done": {"a": [1, "b"]}}},
        held={"urn:s": [4, 5]},
        homes={"urn:s": ("orders", 3)},
    )
    assert store.read("orders", 3, 0, 2) == [(0, full), (1, record(2))]
    assert store.read("other", 0, 0, 9) == [(0, record(1))]


def test_attachments_are_stored_appended_and_released(opened, record):
    one, held = replace(record(1), attachments=b"parts"), replace(record(2), attachments=b"\x00" * 70_000)
    opened.store.commit(Batch(appends=[("q", 0, 0, one)], holds=[("urn:s", 2, held)]))
    opened.store.commit(Batch(releases=[("urn:s", 2, "q", 0, 1, 20.0)]))
    assert opened.reopen().read("q", 0, 0, 9) == [(0, one), (1, replace(held, released_at=20.0))]


def test_reads_give_the_asked_range_and_nothing_of_other_partitions(opened, record):
    opened.store.commit(
        Batch(appends=[("q", p, o, record(o + 1, sequence=f"urn:{p}")) for p in (0, 1, 256) for o in range(300)])
    )
    assert [o for o, _ in opened.store.read("q", 1, 254, 258)] == [254, 255, 256, 257]
    assert {r.sequence for _, r in opened.store.read("q", 1, 0, 999)} == {"urn:1"}
    assert len(opened.store.read("q", 256, 0, 999)) == 300
    assert opened.store.read("q", 1, 300, 400) == []
    assert opened.store.read("q", 1, 5, 5) == []
    assert opened.store.read("q", 1, 9, 5) == []
    assert opened.store.read("q", 2, 0, 5) == []


def test_queues_with_similar_names_do_not_mix(opened, record):
    names = ["a", "aa", "a\x00", "", "ä", "a/0", "b"]
    opened.store.commit(Batch(appends=[(name, 0, 0, record(i, sequence=name)) for i, name in enumerate(names)]))
    store = opened.reopen()
    assert set(store.load().bounds) == {(name, 0) for name in names}
    assert [store.read(name, 0, 0, 9)[0][1].sequence for name in names] == names


@pytest.mark.every(5)
@pytest.mark.parametrize(("max_bytes", "count"), [(0, 1), (1, 1), (10_000, 1), (20_000, 2), (20_500, 3), (1 << 20, 10)])
def test_a_read_stops_once_max_bytes_are_reached_but_gives_one_record_at_least(opened, record, max_bytes, count):
    size = 10_000 - len(encode_record(record(1, size=9000))) + 9000
    opened.store.commit(Batch(appends=[("q", 0, n, record(1, size=size)) for n in range(10)]))
    assert len(opened.store.read_encoded("q", 0, 0, 10)[0][1]) == 10_000
    assert len(opened.store.read("q", 0, 0, 10, max_bytes)) == count


def test_encoded_reads_are_what_encode_record_wrote(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    assert opened.store.read_encoded("q", 0, 0, 1) == [(0, encode_record(record(1)))]


def test_appends_and_releases_of_one_batch_fill_the_offsets_together(opened, record):
    opened.store.commit(Batch(holds=[("urn:s", 3, record(3))]))
    opened.store.commit(
        Batch(
            appends=[("q", 0, 0, record(1)), ("q", 0, 1, record(2)), ("q", 0, 3, record(4)), ("q", 0, 5, record(6))],
            holds=[("urn:s", 5, record(5)), ("urn:s", 7, record(7))],
            releases=[("urn:s", 3, "q", 0, 2, 7.0), ("urn:s", 5, "q", 0, 4, 8.0)],
        )
    )
    store = opened.reopen()
    assert [(o, r.message_number) for o, r in store.read("q", 0, 0, 9)] == [(n, n + 1) for n in range(6)]
    assert store.load().held == {"urn:s": [7]}


def test_a_held_record_moves_with_all_its_content(opened, record):
    opened.store.commit(Batch(holds=[("urn:s", 2, record(2, size=5000))]))
    opened.reopen().commit(Batch(releases=[("urn:s", 2, "q", 7, 0, 9.5)]))
    assert opened.store.read("q", 7, 0, 1) == [(0, replace(record(2, size=5000), released_at=9.5))]
    assert opened.store.load().held == {}


def test_a_held_record_may_go_into_several_queues_at_once(opened, record):
    opened.store.commit(Batch(holds=[("urn:s", 2, record(2))]))
    stored, new = ("urn:s", 2), ("urn:s", 3)
    opened.store.commit(
        Batch(
            holds=[(*new, record(3))],
            releases=[(*one, queue, 1, n, 9.5) for queue in ("q", "r") for n, one in enumerate((stored, new))],
        )
    )
    store = opened.reopen()
    for queue in ("q", "r"):
        assert store.read(queue, 1, 0, 9) == [(n, replace(record(n + 2), released_at=9.5)) for n in range(2)]
    assert store.load().held == {}


def test_drops_throw_held_records_away_also_those_of_the_same_batch(opened, record):
    opened.store.commit(Batch(holds=[("urn:s", n, record(n)) for n in (2, 3, 4)]))
    opened.store.commit(
        Batch(holds=[("urn:s", 9, record(9))], drops=[("urn:s", 9), ("urn:s", 3), ("urn:s", 77), ("urn:other", 1)])
    )
    assert opened.store.load().held == {"urn:s": [2, 4]}
    assert opened.reopen().load().held == {"urn:s": [2, 4]}


def test_forgetting_a_sequence_drops_what_it_holds_and_nothing_else(opened, record):
    opened.store.commit(
        Batch(
            holds=[(f"urn:s{i}", 300, record(300)) for i in ("", 1, 2)],
            sequences={f"urn:s{i}": {"n": 1} for i in ("", 1, 2)},
        )
    )
    opened.store.commit(Batch(holds=[("urn:s1", 4, record(4))], sequences={"urn:s1": None, "urn:unknown": None}))
    for again in (False, True):
        store = opened.reopen() if again else opened.store
        assert store.load().held == {"urn:s": [300], "urn:s2": [300]}
        assert set(store.load().sequences) == {"urn:s", "urn:s2"}


def test_a_forgotten_sequence_may_come_again(opened, record):
    opened.store.commit(Batch(holds=[("urn:s", 2, record(2))], sequences={"urn:s": {"n": 1}}))
    opened.store.commit(Batch(sequences={"urn:s": None}))
    opened.store.commit(Batch(holds=[("urn:s", 8, record(8))], sequences={"urn:s": {"n": 2}}))
    store = opened.reopen()
    assert store.load().held == {"urn:s": [8]}
    assert store.load().sequences == {"urn:s": {"n": 2}}


def test_cursors_are_kept_replaced_and_forgotten(opened):
    opened.store.commit(Batch(cursors={("q", 0, "a"): {"o": 1}, ("q", 0, "b"): {"o": 2}, ("q", 1, "a"): {"o": 3}}))
    opened.store.commit(Batch(cursors={("q", 0, "a"): {"o": 9}, ("q", 0, "b"): None, ("x", 0, "none"): None}))
    assert opened.reopen().load().cursors == {("q", 0, "a"): {"o": 9}, ("q", 1, "a"): {"o": 3}}


def test_trimmed_records_are_gone_and_offsets_go_on(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(10)]))
    opened.store.commit(Batch(trims={("q", 0): 4}))
    assert opened.store.load().bounds == {("q", 0): (4, 10)}
    assert [o for o, _ in opened.store.read("q", 0, 0, 10)] == [4, 5, 6, 7, 8, 9]
    opened.store.commit(Batch(trims={("q", 0): 2}))
    assert opened.store.load().bounds == {("q", 0): (4, 10)}, "a trim never goes back"
    opened.store.commit(Batch(trims={("q", 0): 99, ("unknown", 1): 5}))
    store = opened.reopen()
    assert store.load().bounds == {("q", 0): (10, 10)}, "nor above the end"
    assert store.read("q", 0, 0, 99) == []
    store.commit(Batch(appends=[("q", 0, 10, record(10)), ("q", 0, 11, record(11))], trims={("q", 0): 11}))
    assert opened.reopen().load().bounds == {("q", 0): (11, 12)}


def test_deleting_a_partition_takes_its_records_and_cursors_and_no_others(opened, record):
    opened.store.commit(
        Batch(
            queues={"q": {"partitions": 2}},
            appends=[("q", p, o, record(o)) for p in (0, 1) for o in range(100)],
            cursors={("q", 0, "a"): {"o": 1}, ("q", 1, "a"): {"o": 2}, ("q", 256, "a"): {"o": 3}},
        )
    )
    opened.store.commit(
        Batch(appends=[("q", 0, 100, record(1))], cursors={("q", 0, "b"): {"o": 4}}, deletes=[("q", 0), ("none", 0)])
    )
    for again in (False, True):
        store = opened.reopen() if again else opened.store
        snapshot = store.load()
        assert snapshot.bounds == {("q", 1): (0, 100)}
        assert snapshot.cursors == {("q", 1, "a"): {"o": 2}, ("q", 256, "a"): {"o": 3}}
        assert snapshot.queues == {"q": {"partitions": 2}}
        assert store.read("q", 0, 0, 200) == []
        assert len(store.read("q", 1, 0, 200)) == 100


def test_a_deleted_partition_begins_again_at_nought(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(5)], trims={("q", 0): 3}))
    opened.store.commit(Batch(deletes=[("q", 0)]))
    opened.store.commit(Batch(appends=[("q", 0, 0, record(50))]))
    store = opened.reopen()
    assert store.load().bounds == {("q", 0): (0, 1)}
    assert store.read("q", 0, 0, 9) == [(0, record(50))]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "wrong",
    [
        Batch(appends=[("q", 0, 4, None)]),
        Batch(appends=[("q", 0, 1, None)]),
        Batch(appends=[("q", 0, 2, None), ("q", 0, 2, None)]),
        Batch(appends=[("q", 0, 3, None), ("q", 0, 3, None), ("q", 0, 2, None)]),
        Batch(appends=[("new", 0, 1, None)]),
        Batch(releases=[("urn:s", 8, "q", 0, 2, 1.0)]),
        Batch(releases=[("urn:s", 9, "q", 0, 3, 1.0)]),
        Batch(releases=[("urn:s", 9, "q", 0, 2, 1.0), ("urn:s", 9, "q", 0, 3, 1.0)]),
    ],
    ids=["gap", "taken", "twice", "twice ahead", "not from 0", "not held", "gap by release", "released twice"],
)
def test_a_batch_that_breaks_the_rules_changes_nothing_and_ends_the_store(opened, record, content, wrong):
    opened.store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(2)], holds=[("urn:s", 9, record(9))]))
    before = content(opened.store)
    wrong.appends = [(queue, partition, offset, record(1)) for queue, partition, offset, _ in wrong.appends]
    wrong.sequences = {"urn:t": {"n": 1}}
    with pytest.raises(StoreFailed):
        opened.store.commit(wrong)
    with pytest.raises(StoreFailed, match="failed earlier"):
        opened.store.commit(Batch(sequences={"urn:u": {"n": 1}}))
    assert content(opened.reopen()) == before


def test_a_state_that_cannot_be_kept_is_refused_whole(opened, record):
    with pytest.raises(StoreFailed):
        opened.store.commit(Batch(appends=[("q", 0, 0, record(1))], sequences={"urn:s": {"bad": object()}}))
    assert opened.reopen().load() == Snapshot()


def test_what_was_read_or_loaded_is_not_the_stores_own_object(opened, record):
    state = {"ranges": [[1, 1]]}
    mine = record(1)
    opened.store.commit(Batch(appends=[("q", 0, 0, mine)], sequences={"urn:s": state}))
    state["ranges"].append([3, 3])
    mine.action = "changed"
    opened.store.load().sequences["urn:s"]["ranges"].clear()
    opened.store.read("q", 0, 0, 1)[0][1].action = "changed"
    assert opened.store.load().sequences == {"urn:s": {"ranges": [[1, 1]]}}
    assert opened.store.read("q", 0, 0, 1) == [(0, record(1))]


def test_each_batch_goes_on_from_what_those_before_it_left(opened, record):
    for batch in (
        Batch(appends=[("q", 0, 0, record(1))], holds=[("urn:s", 3, record(3))], sequences={"urn:s": {"n": 1}}),
        Batch(releases=[("urn:s", 3, "q", 0, 1, 1.0)], trims={("q", 0): 1}, cursors={("p", 0, "c"): {"o": 1}}),
        Batch(appends=[("q", 0, 2, record(4)), ("p", 0, 0, record(5))], sequences={"urn:s": {"n": 2}}),
        Batch(deletes=[("p", 0)]),
        Batch(appends=[("p", 0, 0, record(6))]),
    ):
        opened.store.commit(batch)
    for again in (False, True):
        store = opened.reopen() if again else opened.store
        assert store.load() == Snapshot(bounds={("q", 0): (1, 3), ("p", 0): (0, 1)}, sequences={"urn:s": {"n": 2}})
        assert store.read("q", 0, 0, 9) == [(1, replace(record(3), released_at=1.0)), (2, record(4))]
        assert store.read("p", 0, 0, 9) == [(0, record(6))]


def test_staged_rows_become_records_among_others_wherever_they_go(opened, record):
    full = Record("k2", 0, "urn:b", b"<b/>", 8.0, "urn:mine", "urn:to", "urn:reply", "urn:r", headers=b"<h xmlns='u'/>")
    rows = [
        Record("k1", 0, "urn:a", b"", 8.0),
        full,
        *(replace(record(9, size), received_at=8.0) for size in (300, 80_000)),
    ]
    (block,) = blocks_of_records([("q", one) for one in rows], 8.0)
    assert (block.rows, block.size) == (4, sum(len(one.body) + len(one.headers) + ROW_BYTES for one in rows))
    found = unpack(block.data)
    assert found.entries == [("q", crc32(one.sequence.encode())) for one in rows]
    batch = Batch(appends=[("q", 0, offset, record(offset)) for offset in (0, 3)])
    for where, offset, chosen in ((("q", 0), 1, (0, 3)), (("other", 3), 0, (1, 2))):
        numbers, places = [[4, 300, 1 << 20, 1 << 40][n] for n in chosen], [found.places[n] for n in chosen]
        batch.runs.append(Run(*where, offset, "s", "urn:sink", "urn:made:", 8.0, 9.5, block.data, numbers, places))
    opened.store.commit(batch)
    named = {"sequence": "urn:sink", "released_at": 9.5}
    first, last = (
        replace(rows[n], message_number=m, message_id=f"urn:made:{m:012x}", **named) for n, m in ((0, 4), (3, 1 << 40))
    )
    third = replace(rows[2], message_number=1 << 20, message_id=f"urn:made:{1 << 20:012x}", **named)
    for again in (False, True):
        store = opened.reopen() if again else opened.store
        assert store.read("q", 0, 0, 9) == [(0, record(0)), (1, first), (2, last), (3, record(3))]
        assert store.read("other", 3, 0, 9) == [(0, replace(full, message_number=300, **named)), (1, third)]


def test_a_sequence_lives_with_one_partition_until_it_moves_or_is_forgotten(opened):
    def living(store, partition):
        return [name for name, home in store.load().homes.items() if home == ("q", partition)]

    opened.store.commit(Batch(sequences={"urn:s": {"n": 1}, "urn:t": {"n": 1}}, homes={"urn:s": ("q", 0)}))
    opened.store.commit(Batch(sequences={"urn:s": {"n": 2}}))
    assert (living(opened.store, 0), living(opened.store, 1)) == (["urn:s"], [])
    opened.store.commit(Batch(homes={"urn:s": ("q", 1)}))
    assert (living(opened.reopen(), 0), living(opened.store, 1)) == ([], ["urn:s"])
    opened.store.commit(Batch(sequences={"urn:s": None, "urn:u": None}, homes={"urn:u": ("q", 1)}))
    opened.store.commit(Batch(sequences={"urn:s": {"n": 3}}))
    assert (living(opened.reopen(), 0), living(opened.store, 1)) == ([], [])
    assert opened.store.load() == Snapshot(sequences={"urn:s": {"n": 3}, "urn:t": {"n": 1}})


def test_a_partition_trimmed_deleted_and_begun_again_has_all_that_was_put_in_since(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(5)]))
    opened.store.commit(Batch(trims={("q", 0): 3}))
    opened.store.commit(Batch(deletes=[("q", 0)]))
    opened.store.commit(Batch(appends=[("q", 0, n, record(10 + n)) for n in range(4)]))
    for is_again in (False, True):
        store = opened.reopen() if is_again else opened.store
        assert store.load().bounds == {("q", 0): (0, 4)}
        assert [one.message_number for _, one in store.read("q", 0, 0, 9)] == [10, 11, 12, 13]


def test_a_partition_trimmed_and_deleted_by_one_batch_is_gone(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(5)]))
    opened.store.commit(Batch(trims={("q", 0): 3}, deletes=[("q", 0)]))
    assert opened.store.load() == Snapshot()
    assert opened.reopen().load() == Snapshot()


def test_an_empty_batch_changes_nothing(opened, record, content):
    opened.store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    before = content(opened.store)
    opened.store.commit(Batch())
    assert content(opened.reopen()) == before
