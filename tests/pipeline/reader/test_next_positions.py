"""Batches of a stream that is limited: the oldest records of all queues, one request for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, pairwise

import pytest
from fake_server import FakeServer, record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows

from examples import examples
from holdfast.client.offsets import parse, ranges_between
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource

NOW, HOUR = 1_790_000_000, 3600
NUMBERS = count()
READER = {"reader": "spark", "waitSeconds": "0", "awaySeconds": "0"}


@pytest.fixture(scope="module")
def running() -> Iterator[FakeServer]:
    fake = FakeServer().start()
    yield fake
    fake.stop()


def stream(server: FakeServer, queues: str) -> WsrmStreamReader:
    made = WsrmDataSource(options=CaseInsensitiveDict({"broker": server.url, "queue": queues, **READER}))
    return made.streamReader(made.schema())


backlogs = st.lists(
    st.lists(
        st.builds(
            lambda begin, steps: [begin + sum(steps[: n + 1]) for n in range(len(steps))],
            st.integers(NOW - 40 * HOUR, NOW),
            st.lists(st.sampled_from([0, 0, 0.001, 1, HOUR]), max_size=25),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=2,
)


@given(backlogs, st.integers(3, 40))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_batch_has_a_record_older_than_one_of_an_earlier_batch(
    running: FakeServer, backlog: list[list[list[float]]], most: int
) -> None:
    names = [f"q{next(NUMBERS)}" for _ in backlog]
    times: dict[tuple[str, int], list[float]] = {}
    for name, partitions in zip(names, backlog, strict=True):
        running.create(name, partitions=len(partitions))
        for partition, delivered in enumerate(partitions):
            running.append(name, partition, [record(n, received_at=at) for n, at in enumerate(delivered)])
            times[name, partition] = delivered
    reader = stream(running, ",".join(names))
    start = reader.initialOffset()
    running.requests.clear()
    batches: list[list[float]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(most))) != start:
        ranges = ranges_between(parse(start), parse(end))
        batches.append([at for queue, part in ranges for at in times[queue, part.partition][part.start : part.end]])
        start = end
    assert running.requests == ["POST /next-positions"] * (len(batches) + 1)
    assert sorted(chain.from_iterable(batches)) == sorted(chain.from_iterable(times.values()))
    assert all(len(one) <= most for one in batches)
    for before, after in pairwise(batches):
        assert max(before) <= min(after)
