"""The model of large clusters: real memberships on a virtual clock, with Sequences and storms (``large_cluster``)."""

from __future__ import annotations

import pytest
from large_cluster import LargeCluster

NODES, PARTITIONS, SEQUENCES, START = 12, 30, 20_000, 0.5


@pytest.fixture
def cluster() -> LargeCluster:
    made = LargeCluster(7, NODES, PARTITIONS, SEQUENCES, start=START)
    made.storm("start", joins=NODES)
    return made


def test_partitions_and_sequences_are_divided_evenly(cluster: LargeCluster) -> None:
    found = cluster.sequences_of_nodes()
    assert (len(found), sum(found)) == (NODES, SEQUENCES)
    assert max(found) < 1.3 * 3 / PARTITIONS * SEQUENCES  # three of thirty partitions, unevenly filled
    # What the model assumes: the CRC of a MessageID fills partitions evenly.
    assert max(cluster.sequences.values()) < 1.2 * SEQUENCES / PARTITIONS


def test_a_takeover_storm_moves_only_what_was_lost(cluster: LargeCluster) -> None:
    cluster.run_until(cluster.now + 20.0)
    lost = {one.name for one in cluster.running()}
    storm = cluster.storm("a third is killed", kills=4)
    lost -= {one.name for one in cluster.running()}
    assert len(lost) == 4
    # 8 nodes have 3 or 4 of 30 partitions then; before, 12 nodes had 2 or 3.
    assert 8 <= storm.moved <= 12
    assert storm.unserved == pytest.approx(storm.moved / PARTITIONS, abs=0.05)
    # Two looks, at least 0.3 s apart, then claims one after the other, then the start of a worker.
    assert 0.3 + START < storm.longest < 0.3 + START + 3.0


def test_nodes_that_join_take_their_share_a_quarter_at_a_time(cluster: LargeCluster) -> None:
    cluster.run_until(cluster.now + 20.0)
    cluster.storm("half is killed", kills=NODES // 2)
    cluster.run_until(cluster.now + 20.0)
    storm = cluster.storm("half joins", joins=NODES // 2)
    assert 12 <= storm.moved <= 15  # their shares, and nothing else
    assert storm.most_starts <= 3
    assert storm.longest < 3.0


def test_a_cluster_that_never_settles_is_reported(cluster: LargeCluster) -> None:
    with pytest.raises(TimeoutError, match="0 of 30 partitions served"):
        cluster.storm("all are killed", kills=NODES, lost=5.0)
