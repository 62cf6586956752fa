"""Tables that several nodes share, on a real PostgreSQL that restarts and pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from databases import PostgreSQL
from waiting import until

from holdfast.cluster.shared.database import PATIENCE, SharedDatabase
from holdfast.cluster.shared.tables import TablesAway
from holdfast.exceptions import ConfigurationError

SCHEMA = "CREATE TABLE IF NOT EXISTS shared_test (space text, name text, number int, PRIMARY KEY (space, name))"
ADD = "INSERT INTO shared_test VALUES (:space, :name, 1) ON CONFLICT DO NOTHING RETURNING number"
COUNT = "SELECT count(*) FROM shared_test WHERE space = :space"


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server of its own: the tests restart and pause it."""
    with PostgreSQL() as made:
        yield made


def test_what_one_node_writes_another_finds_and_another_cluster_does_not(
    servers: Callable[[str], PostgreSQL],
) -> None:
    server = servers("postgresql")
    location = server.new_url()
    one, two, other = SharedDatabase(location), SharedDatabase(location), SharedDatabase(server.new_url())
    assert one.run(SCHEMA, ADD, name="a") == [(1,)]
    assert two.run(SCHEMA, ADD, name="a") == []
    assert other.run(SCHEMA, COUNT) == [(0,)]
    with pytest.raises(TablesAway, match="no_such_table"):
        two.run(SCHEMA, ADD, "SELECT * FROM no_such_table", name="b")
    assert one.run(SCHEMA, COUNT) == [(1,)], "all statements of a call, or none"
    for database in (one, two, other):
        database.close()


def test_a_connection_that_is_seldom_used_is_not_kept(servers: Callable[[str], PostgreSQL]) -> None:
    location = servers("postgresql").new_url()
    one, two = SharedDatabase(location), SharedDatabase(location)
    mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast-shared ' || :space"
    assert one.run(SCHEMA, ADD, name="a") == [(1,)] and two.run(SCHEMA, COUNT) == [(1,)]
    assert one.run(SCHEMA, mine) == [(2,)]
    two.is_kept = True
    one.rest()
    two.rest()
    while two.run(SCHEMA, mine) != [(1,)]:
        pass  # the server ends a session a moment later
    assert one.run(SCHEMA, COUNT) == [(1,)]
    for database in (one, two):
        database.close()


def test_a_new_connection_creates_nothing_again_and_waits_for_no_vacuum(servers: Callable[[str], PostgreSQL]) -> None:
    location = servers("postgresql").new_url()
    one, two = SharedDatabase(location), SharedDatabase(location)
    schema = SCHEMA + "; CREATE INDEX IF NOT EXISTS shared_test_number ON shared_test (number)"
    assert one.run(schema, ADD, name="a") == [(1,)]
    with psycopg.connect(one._conninfo()) as vacuum:
        vacuum.execute("LOCK TABLE shared_test IN SHARE UPDATE EXCLUSIVE MODE")
        assert two.run(schema, COUNT) == [(1,)]
    two.close()


def test_only_postgresql_is_shared() -> None:
    with pytest.raises(ConfigurationError, match="not the URL of a PostgreSQL database"):
        SharedDatabase("mysql://u@h/n")


@pytest.mark.nightly
async def test_a_restart_of_the_server_costs_no_call_and_a_pause_a_bounded_wait(server: PostgreSQL) -> None:
    database = SharedDatabase(server.new_url())
    assert database.run(SCHEMA, ADD, name="a") == [(1,)]
    server.kill()
    server.start()
    assert database.run(SCHEMA, COUNT) == [(1,)]
    server.pause()
    begun = time.monotonic()
    with pytest.raises(TablesAway, match="no answer for 2 s"):
        database.run(SCHEMA, COUNT)
    assert time.monotonic() - begun >= PATIENCE
    for _ in range(100):  # which would take minutes if each waited
        with pytest.raises(TablesAway, match="a moment ago"):
            database.run(SCHEMA, COUNT)
    server.resume()

    def answers() -> bool:
        try:
            return database.run(SCHEMA, COUNT) == [(1,)]
        except TablesAway:
            return False

    await until(answers)
    database.close()
