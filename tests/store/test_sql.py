"""A store in a database: its spaces, who may write to one, and what becomes of a lost connection. Real servers.

Covers store/sql/changes.py, store/sql/dialects.py, store/sql/fence.py, store/sql/postgresql_batch.py,
store/sql/records.py, store/sql/schema.py, store/sql/store.py and store/sql/transaction.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from cut_off import CutOff
from databases import GUARDED, PASSWORD, PATIENCE, PostgreSQL
from sqlalchemy import event, text
from staged import PARTITIONS, Side, row

from holdfast.core import staged_blocks as staged
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import (
    StoreAway,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFormatError,
    StoreLocked,
    StoreMissing,
)
from holdfast.store import open_store, store_exists
from holdfast.store.sql import changes as sql_changes
from holdfast.store.sql import dialects as sql_dialects
from holdfast.store.sql import schema as sql_schema
from holdfast.store.sql import store as sql
from holdfast.store.sql.store import SQLStore


def end_connections(database) -> None:
    """As an administrator, or a firewall, ends them."""
    if isinstance(database, PostgreSQL):
        database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'")
    else:
        asked = "SELECT id FROM information_schema.processlist WHERE user = 'tester' AND db = 'holdfast'"
        for number in database.sql(asked).split():
            database.sql(f"KILL CONNECTION {number}")


@pytest.fixture
def store(database):
    store = SQLStore(database.new_url())
    yield store
    store.close()


def connections(database, url) -> int:
    """How many connections the store at this URL has."""
    if isinstance(database, PostgreSQL):
        name = f"application_name = 'holdfast {url.rpartition('=')[2]}'"
        return int(database.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {name}"))
    return int(database.sql("SELECT count(*) FROM information_schema.processlist WHERE user = 'tester'"))


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_space_that_is_open_is_refused_and_whoever_has_it_is_named(database, monkeypatch):
    url = database.new_url()
    first = open_store(url)
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.3)
    with pytest.raises(StoreLocked, match=r"by process \d+ on ") as caught:
        open_store(url)
    assert "?space=" in caught.value.remedy
    first.commit(Batch(sequences={"urn:s": {"n": 1}}))
    first.close()
    monkeypatch.undo()
    second = open_store(url)
    assert second.load().sequences == {"urn:s": {"n": 1}}
    second.close()


HOLDER = """
import sys
from holdfast.core.records import Batch
from holdfast.store import open_store
store = open_store(sys.argv[1])
store.commit(Batch(sequences={"urn:s": {"n": 1}}))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
def test_of_two_processes_one_has_a_space_until_it_is_gone(database, monkeypatch):
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.3)
    url = database.new_url()
    other = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"open\n"
    with pytest.raises(StoreLocked, match=f"by process {other.pid} on "):
        open_store(url)
    other.kill()
    other.communicate()
    monkeypatch.undo()
    store = open_store(url)
    assert store.load().sequences == {"urn:s": {"n": 1}}
    store.close()


def test_spaces_of_one_database_have_nothing_in_common(database, record, content):
    urls = [database.new_url() for _ in range(3)]
    stores = [open_store(url) for url in urls]
    for n, store in enumerate(stores):
        store.commit(
            Batch(
                queues={"q": {"n": n}},
                appends=[("q", 0, offset, record(offset)) for offset in range(n + 1)],
                holds=[("urn:s", 9, record(n))],
                sequences={"urn:s": {"n": n}},
                homes={"urn:s": ("q", 0)},
                cursors={("q", 0, "a"): {"n": n}},
            )
        )
    stores[1].commit(Batch(deletes=[("q", 0)], sequences={"urn:s": None}))
    before = [content(store) for store in stores]
    assert before[1]["snapshot"] == Snapshot(queues={"q": {"n": 1}})
    assert [one["snapshot"].bounds for one in before] == [{("q", 0): (0, 1)}, {}, {("q", 0): (0, 3)}]
    for store in stores:
        store.close()
    for url, expected in zip(urls, before, strict=True):
        store = open_store(url)
        assert content(store) == expected
        store.close()


def test_many_may_open_spaces_of_a_new_database_at_a_time(database):
    database.sql("CREATE DATABASE anew")
    urls = [database.url(f"s{n}").replace("/holdfast?", "/anew?") for n in range(6)]
    failed: list[BaseException] = []

    def work(url):
        try:
            store = open_store(url)
            store.commit(Batch(sequences={url: {"n": 1}}))
            assert set(store.load().sequences) == {url}
            store.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.sql("DROP DATABASE anew")
    assert failed == []


def test_a_wrong_password_is_told_with_the_remedy_and_the_password_is_not(database):
    wrong = "wr0ng" + "-word"  # so that it is in no line of a traceback
    with pytest.raises(StoreFailed) as caught:
        open_store(database.url("x", user=GUARDED, password=wrong))
    told = "".join(traceback.format_exception(caught.value))
    assert "password" in caught.value.remedy
    assert GUARDED in told
    assert wrong not in told
    assert not isinstance(caught.value, StoreAway)


def test_a_missing_password_is_refused_at_once_with_the_remedy(database):
    with pytest.raises(StoreFailed, match="password") as caught:
        open_store(database.url("x", user=GUARDED))
    assert not isinstance(caught.value, StoreAway)
    assert "password" in caught.value.remedy


def test_a_user_without_the_right_to_create_tables_learns_what_to_grant(database):
    database.sql("CREATE DATABASE bare" if isinstance(database, PostgreSQL) else "SELECT 1")
    with pytest.raises(StoreFailed) as caught:
        open_store(database.url("x", user=GUARDED, password=PASSWORD).replace("/holdfast?", "/bare?"))
    assert "GRANT" in caught.value.remedy
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_database_that_is_not_there_is_told_with_the_remedy(database):
    with pytest.raises(StoreFailed) as caught:
        open_store(database.url("x").replace("/holdfast?", "/nowhere?"))
    assert "Create the database" in caught.value.remedy


@pytest.mark.parametrize("url", ["postgresql://h/d?host=/nowhere/at/all", "mysql://h/d?unix_socket=/nowhere/at/all"])
def test_a_server_that_is_not_there_is_told(url):
    with pytest.raises(StoreFailed, match="/nowhere/at/all") as caught:
        open_store(url)
    assert "reachable" in caught.value.remedy


@pytest.mark.parametrize(("package", "url"), [("sqlalchemy", "mysql://h/d"), ("psycopg", "postgresql://a:word@h/d")])
def test_without_the_extra_it_is_said_how_to_install_it(package, url):
    program = f"import sys; sys.modules[{package!r}] = None\nfrom holdfast.store import open_store\nopen_store({url!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ConfigurationError" in done.stderr
    assert "pip install 'holdfast[sql]'" in done.stderr
    assert "word" not in done.stderr.splitlines()[-2]


def test_looking_makes_nothing_and_locks_nothing(database, record):
    url = database.new_url()
    assert not store_exists(url)
    with pytest.raises(StoreMissing):
        open_store(url, read_only=True)
    assert not store_exists(url)
    store = open_store(url)
    store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(9)]))
    view = open_store(url, read_only=True)
    store.commit(Batch(appends=[("q", 0, 9, record(9))], trims={("q", 0): 5}))
    assert view.load().bounds == {("q", 0): (5, 10)}
    assert [offset for offset, _ in view.read("q", 0, 0, 99)] == [5, 6, 7, 8, 9]
    with pytest.raises(StoreError, match="not open for writing"):
        view.commit(Batch())
    view.close()
    store.close()
    assert store_exists(url)


def test_a_view_of_what_was_deleted_meanwhile_looks_again(database, record, monkeypatch):
    monkeypatch.setattr(sql_changes, "SWEEP_BYTES", 0)
    url = database.new_url()
    store = open_store(url)
    store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(9)]))
    view = open_store(url, read_only=True)
    store.commit(Batch(trims={("q", 0): 5}))
    assert [offset for offset, _ in view.read("q", 0, 0, 99)] == [5, 6, 7, 8]
    view.close()
    store.close()


# --- tables of another version ----------------------------------------------------------------------------------------

TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', 'versions')"


@pytest.fixture
def old(database):
    """A database of its own, with a store in it."""
    database.sql("CREATE DATABASE versions")
    url = database.url("old").replace("/holdfast?", "/versions?")
    store = open_store(url)
    store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    store.close()
    yield url
    database.sql("DROP DATABASE versions")


def test_newer_tables_are_refused_untouched(database, old):
    database.sql(
        "UPDATE holdfast_schema SET version = 99; ALTER TABLE holdfast_spaces RENAME TO other", database="versions"
    )
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match="have version 99") as caught:
            open_store(old, read_only=read_only)
        assert caught.value.remedy
    assert database.sql("SELECT version FROM holdfast_schema", database="versions").strip() == "99"


def test_older_tables_are_brought_up_to_date_step_by_step(database, old, monkeypatch):
    def add(connection):
        connection.execute(text("ALTER TABLE holdfast_queues ADD COLUMN extra INTEGER"))

    def fill(connection):
        connection.execute(text("UPDATE holdfast_queues SET extra = 1"))

    monkeypatch.setattr(sql_schema, "SCHEMA", 3)
    monkeypatch.setattr(sql_schema, "MIGRATIONS", {1: add, 2: fill})
    with pytest.raises(StoreFormatError, match="have version 1, but need 3") as caught:
        open_store(old, read_only=True)
    assert "upgrades" in caught.value.remedy
    store = open_store(old)
    assert store.load().sequences == {"urn:s": {"n": 1}}
    store.close()
    assert database.sql("SELECT version FROM holdfast_schema", database="versions").strip() == "3"
    assert database.sql("SELECT count(extra) FROM holdfast_queues", database="versions").strip() == "0"


def test_tables_of_earlier_programs_get_the_table_of_message_ids_for_a_source(database, old):
    database.sql("DROP TABLE holdfast_message_ids", database="versions")
    open_store(old).close()
    assert "holdfast_message_ids" not in database.sql(TABLES, database="versions")
    for _ in range(2):
        store = open_store(old)
        assert store.load().sequences == {"urn:s": {"n": 1}}
        store.keep_message_ids()
        store.close()
    assert "holdfast_message_ids" in database.sql(TABLES, database="versions")
    assert database.sql("SELECT version FROM holdfast_schema", database="versions").strip() == "1"


def test_a_failed_migration_leaves_the_old_version_and_postgresql_undoes_it(database, old, monkeypatch):
    def half(connection):
        connection.execute(text("ALTER TABLE holdfast_queues ADD COLUMN extra INTEGER"))
        connection.execute(text("SELECT nothing FROM nowhere"))

    with monkeypatch.context() as patched:
        patched.setattr(sql_schema, "SCHEMA", 2)
        patched.setattr(sql_schema, "MIGRATIONS", {1: half})
        with pytest.raises(StoreFailed):
            open_store(old)
    assert database.sql("SELECT version FROM holdfast_schema", database="versions").strip() == "1"
    if isinstance(database, PostgreSQL):
        asked = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'extra'"
        assert database.sql(asked, database="versions").strip() == "0"
    store = open_store(old)
    assert store.load().sequences == {"urn:s": {"n": 1}}
    store.close()


# --- settings of a server that would lose what it says it has ---------------------------------------------------------


def test_a_server_that_does_not_make_durable_what_it_commits_is_refused(database):
    setting = "fsync" if isinstance(database, PostgreSQL) else "innodb_flush_log_at_trx_commit"
    try:
        if isinstance(database, PostgreSQL):
            database.sql("ALTER SYSTEM SET fsync = off")
            database.sql("SELECT pg_reload_conf()")
            until = time.monotonic() + PATIENCE
            while database.sql("SHOW fsync").strip() != "off":
                assert time.monotonic() < until
        else:
            database.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        with pytest.raises(StoreFailed, match=setting) as caught:
            open_store(database.new_url())
        assert setting in caught.value.remedy
    finally:
        if isinstance(database, PostgreSQL):
            database.sql("ALTER SYSTEM RESET fsync")
            database.sql("SELECT pg_reload_conf()")
            while database.sql("SHOW fsync").strip() != "on":
                assert time.monotonic() < until
        else:
            database.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_statements_too_short_for_a_record_are_refused(servers):
    database = servers("mariadb")
    before = database.sql("SELECT @@GLOBAL.max_allowed_packet").strip()
    database.sql("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with pytest.raises(StoreFailed, match=r"at most 1,048,576 bytes") as caught:
            open_store(database.new_url())
        assert "max_allowed_packet" in caught.value.remedy
    finally:
        database.sql(f"SET GLOBAL max_allowed_packet = {before}")


def test_a_session_ends_when_its_client_falls_silent_in_any_state(servers):
    database = servers("postgresql")
    store = SQLStore(database.new_url())
    with store.engine.connect() as connection:
        shown = {
            name: connection.scalar(text(f"SHOW {name}"))
            for name in ("tcp_user_timeout", "client_connection_check_interval")
        }
    # On a Unix socket there is no TCP, and the server shows 0.
    assert shown == {"tcp_user_timeout": "0", "client_connection_check_interval": "5s"}
    store.close()


def test_tables_whose_rows_are_deleted_are_vacuumed_by_their_dead_rows(servers):
    database = servers("postgresql")
    SQLStore(database.new_url()).close()
    asked = "SELECT relname FROM pg_class WHERE 'autovacuum_vacuum_threshold=20000' = ANY (reloptions)"
    tuned = set(database.sql(asked).split())
    names = ("records", "pieces", "contents", "references", "outgoing", "message_ids")
    tables = {f"holdfast_{name}" for name in names}
    assert {one for one in tuned if not one.startswith("pg_toast")} == tables
    assert sum(one.startswith("pg_toast") for one in tuned) == len(tables)


def test_commits_are_durable_whatever_is_the_default_of_the_database(servers):
    database = servers("postgresql")
    store = SQLStore(database.new_url() + "&options=-csynchronous_commit%3Doff")
    with store.engine.connect() as connection:
        assert connection.scalar(text("SHOW synchronous_commit")) == "on"
    store.close()


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_records_of_many_megabytes_and_of_any_bytes_are_kept(store, record):
    nasty = Record("urn:s", 1, "urn:a", bytes(range(256)) * 12_000 + b"'\\" * 2_000_000, 1.0)
    empty = Record("", 0, "", b"", 0.0)
    store.commit(Batch(appends=[("q", 0, 0, nasty), ("q", 0, 1, empty)], holds=[("urn:s", 2, nasty)]))
    store.commit(Batch(releases=[("urn:s", 2, "q", 0, 2, 5.0)]))
    assert store.read("q", 0, 0, 1) == [(0, nasty)]
    (offset, one), *_ = store.read("q", 0, 2, 3)
    assert (offset, one.body) == (2, nasty.body)
    assert len(store.read("q", 0, 0, 3, 1000)) == 1


def test_names_and_numbers_of_any_length_are_kept_apart(database, record, content):
    url = database.new_url()
    store = open_store(url)
    names = ["x" * length for length in (199, 200, 201, 202, 70_000)] + ["ä" * 100, "ä" * 101, "a ", "a", "A"]
    most = (1 << 64) - 1
    store.commit(
        Batch(
            queues={name: {"n": name} for name in names},
            appends=[(name, most, 0, record(n)) for n, name in enumerate(names)],
            holds=[(name, most - n, record(n)) for n, name in enumerate(names)],
            sequences={name: {"n": name} for name in names},
            cursors={(name, most, other): {"n": name + other} for name in names[:4] for other in names[:4]},
            homes={name: (name, most) for name in names},
        )
    )
    before = content(store)
    assert set(before["snapshot"].sequences) == set(names)
    store.close()
    store = open_store(url)
    assert content(store) == before
    store.commit(Batch(deletes=[(name, most) for name in names], sequences=dict.fromkeys(names)))
    assert store.load() == Snapshot(queues={name: {"n": name} for name in names})
    store.close()


# --- a connection that is lost ----------------------------------------------------------------------------------------


def test_after_a_lost_connection_it_connects_again_and_loses_nothing(database, store, record):
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    for n in range(1, 4):
        end_connections(database)
        assert len(store.read("q", 0, 0, 99)) == n
        store.commit(Batch(appends=[("q", 0, n, record(n))]))
        assert store.reconnections == n
    assert len(store.read("q", 0, 0, 99)) == 4
    assert store.trouble is None


@pytest.fixture
def cut(database, tmp_path):
    """A way to the server that can be cut, and the URL by it."""
    directory = database.directory
    if isinstance(database, PostgreSQL):
        (directory / "by").mkdir(exist_ok=True)
        name = directory / "by" / ".s.PGSQL.5432"
        name.unlink(missing_ok=True)
        one, url = (
            CutOff(name, directory / ".s.PGSQL.5432"),
            database.new_url().replace(str(directory), str(name.parent)),
        )
    else:
        name = directory / "by"
        name.unlink(missing_ok=True)
        one, url = CutOff(name, directory / "socket"), database.new_url().replace(database.socket, str(name))
    yield one, url
    one.close()


def cut_at(way, store, lost):
    """Let the next batch lose its connection: before anything of it is asked, before the first answer, or before the
    answer to the commit, which is the only one of PostgreSQL."""
    way.cuts = "answered" if lost == "committed" and isinstance(store._dialect, sql_dialects.PostgreSQL) else lost
    if way.cuts == "committed":
        way.cuts = ""

        def commits(connection):
            way.cuts = "answered"

        event.listen(store.engine, "commit", commits, once=True)


LOST = ["asked", "answered", "committed"]


@pytest.mark.parametrize("lost", LOST)
def test_a_batch_of_unknown_outcome_is_written_once(cut, record, lost):
    way, url = cut
    store = SQLStore(url)
    for n in range(6):
        cut_at(way, store, lost)
        batch = Batch(appends=[("q", 0, n, record(n))], sequences={"urn:s": {"n": n}})
        store.commit(batch)
        assert way.cuts == ""
        assert store.load().bounds == {("q", 0): (0, n + 1)}
    assert way.times == store.reconnections == 6
    assert store.content.serial == 6
    store.close()
    again = open_store(url)
    assert [offset for offset, _ in again.read("q", 0, 0, 99)] == list(range(6))
    again.close()


@pytest.fixture
def without_standby(database):
    """PostgreSQL with a synchronous standby that does not exist, so that no commit returns."""
    if not isinstance(database, PostgreSQL):
        pytest.skip("a commit of MariaDB waits for no standby")

    def set_standby(how: str) -> None:
        database.sql(f"ALTER SYSTEM {how}; SELECT pg_reload_conf()")

    yield lambda: set_standby("SET synchronous_standby_names = 'nobody'"), lambda: set_standby("RESET ALL")
    set_standby("RESET ALL")


def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_asked_about(database, record, without_standby):
    take_away, give_back = without_standby
    store = SQLStore(database.new_url())
    over = threading.Event()

    def fill() -> None:
        while not over.is_set():
            store.commit(Batch(appends=[("q", 0, store.content.serial, record(1))]))

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    take_away()  # which takes effect some batches later
    cancelled: dict[str, int] = {}
    while len(cancelled) < 3:  # the commit, and two attempts to find out what became of it
        for pid in database.sql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'").split():
            if pid not in cancelled:
                cancelled[pid] = store.content.serial
                database.sql(f"SELECT pg_cancel_backend({pid})")
    assert len(set(cancelled.values())) == 1  # no batch counted as durable
    over.set()
    give_back()
    thread.join(PATIENCE)
    assert store.content.serial == cancelled.popitem()[1] + 1
    assert store.reconnections == 1
    store.close()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_batches_of_every_size_are_read_back(store, record, count):
    for start in range(0, 5 * count, count):  # five times, so that statements are prepared
        store.commit(
            Batch(
                appends=[("q", 255, n, record(n)) for n in range(start, start + count)],
                sequences={f"urn:{n}": {"n": -n} for n in range(count)},
                cursors={("q", 255, f"c{n}"): {"n": start} for n in range(count)},
            )
        )
    assert store.read("q", 255, 0, 99) == [(n, record(n)) for n in range(5 * count)]
    assert store.load().sequences == {f"urn:{n}": {"n": -n} for n in range(count)}


def test_rows_arrive_once_although_no_commit_gets_an_answer(cut, monkeypatch):
    monkeypatch.setattr(staged, "MOST_ROWS", 3)
    way, url = cut
    store, commits = SQLStore(url), 0
    side = Side(reopen=lambda: store)
    large = "x" * (sql_changes.PIECE_BYTES + 1000)  # a record in pieces, staged and moved

    def settle():
        nonlocal commits
        while side.protocol.effects or side.taken or side.wanted or side.protocol.wants_commit:
            if side.taken:
                cut_at(way, store, LOST[commits % 3])
                commits += 1
            side.step()
            assert way.cuts == ""

    for batch in range(2):  # of which every commit is lost, each in one way or the other
        bodies = [f"{batch}-{n}" for n in range(7)] + [f"{batch}-{large}"]
        side.stage(
            batch, f"t{batch}", [row(body, body[:3], ("inbox", "other")[n % 2]) for n, body in enumerate(bodies)]
        )
        settle()
        assert sorted(side.bodies()) == [f"{one}-{n}" for one in range(batch) for n in range(0, 8, 2)]
        side.publish(batch, f"t{batch}", count=8)
        settle()
    assert way.times == store.reconnections == commits >= 10
    store.close()
    store = open_store(url)
    side.start()
    assert sorted(side.bodies()) == [f"{batch}-{n}" for batch in range(2) for n in range(0, 8, 2)]
    assert sorted(side.bodies("other")) == sorted(f"{batch}-{n}" for batch in range(2) for n in (1, 3, 5, large))
    for partition in range(PARTITIONS):
        found = [*side.records("inbox", partition), *side.records("other", partition)]
        assert sorted(one.message_number for one in found) == list(range(1, len(found) + 1))
    assert not [where for where in side.snapshot.bounds if where[0].startswith("staging/")]
    assert side.staging.bytes_held == 0
    store.close()


@pytest.mark.parametrize(
    ("when", "lost", "is_there"), [("commit", "answered", True), ("commit", "asked", False), ("write", "asked", False)]
)
def test_a_handlers_transaction_of_unknown_outcome_is_all_or_nothing_with_its_batch(cut, record, when, lost, is_there):
    way, url = cut
    store = SQLStore(url)
    store.commit(Batch(appends=[("q", 0, 0, record(0))]))
    with store.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE work{store.space} (n INTEGER)"))
    transaction = store.begin()
    transaction.connection.execute(text(f"INSERT INTO work{store.space} VALUES (1)"))
    transaction.check()
    commit = transaction.connection.commit

    def cut_and_commit():
        way.cuts = lost
        commit()

    if when == "commit":
        transaction.connection.commit = cut_and_commit
    else:
        way.cuts = lost
    batch = Batch(appends=[("q", 0, 1, record(1))])
    if is_there:
        transaction.commit(batch)
        store.commit(Batch(appends=[("q", 0, 2, record(2))]))
    else:
        with pytest.raises(StoreFailed, match="The transaction is rolled back") as caught:
            transaction.commit(batch)
        assert caught.value.remedy
        with pytest.raises(StoreFailed, match="failed earlier"):
            store.commit(Batch())
    assert way.times == 1
    name = f"work{store.space}"
    store.close()
    again = SQLStore(url)
    assert len(again.read("q", 0, 0, 9)) == (3 if is_there else 1)
    with again.engine.begin() as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {name}")) == int(is_there)
    again.close()


def test_a_transaction_that_is_ended_leaves_nothing_and_stops_nobody(store, record):
    transaction = store.begin()
    transaction.connection.execute(text(f"CREATE TABLE work{store.space} (n INTEGER)"))
    transaction.connection.execute(text(f"INSERT INTO work{store.space} VALUES (1)"))
    transaction.end()
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    assert len(store.read("q", 0, 0, 9)) == 1


def test_a_store_has_one_connection_to_write_and_one_that_all_readers_share(database, record):
    url = database.new_url()
    before = connections(database, url)
    store = open_store(url)
    try:
        store.load()
        assert_count(database, url, before + 1)
        store.commit(Batch(queues={"q": {}}, appends=[("q", p, 0, record()) for p in range(8)]))
        meet = threading.Barrier(8)

        def read(partition: int) -> int:
            meet.wait()
            content = store.contents.create()
            content.write(b"x")
            content.finish()
            return len(store.read("q", partition, 0, 1))

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(read, range(8))) == [1] * 8
        assert_count(database, url, before + 2)
    finally:
        store.close()


def assert_count(database, url, wanted) -> None:
    """Wait until the store has so many connections: the server notices the end of a connection a moment later."""
    until = time.monotonic() + PATIENCE
    while (found := connections(database, url)) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_a_store_waits_for_a_free_connection_and_says_how_to_get_more(servers, record):
    server = servers("postgresql")
    url = server.url("slots", user=GUARDED, password=PASSWORD)
    server.sql(f"CREATE SCHEMA slots AUTHORIZATION {GUARDED}; ALTER ROLE {GUARDED} SET search_path TO slots")
    try:
        store = open_store(url)
        store.commit(Batch(queues={"q": {}}, appends=[("q", 0, 0, record())]))
        server.sql(f"ALTER ROLE {GUARDED} CONNECTION LIMIT 1")
        with pytest.raises(StoreAway) as caught:
            open_store(url + "x")
        assert "CONNECTION LIMIT" in caught.value.remedy
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(store.read, "q", 0, 0, 1)
            while not store.trouble:
                time.sleep(0.01)
            assert "too many connections" in str(store.trouble)
            server.sql(f"ALTER ROLE {GUARDED} CONNECTION LIMIT 9")
            assert len(reading.result(PATIENCE)) == 1
        assert store.trouble is None
        store.close()
    finally:
        server.sql(
            f"ALTER ROLE {GUARDED} RESET ALL; ALTER ROLE {GUARDED} CONNECTION LIMIT -1; DROP SCHEMA slots CASCADE"
        )


def test_who_lost_the_space_writes_nothing_any_more(database, record, content, monkeypatch):
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.3)
    url = database.new_url()
    first = SQLStore(url)
    first.commit(Batch(appends=[("q", 0, 0, record(1))]))
    end_connections(database)
    second = SQLStore(url)
    second.commit(Batch(appends=[("q", 0, 1, record(2))]))
    before = content(second)
    with pytest.raises(StoreFailed, match="Another process took over"):
        first.commit(Batch(appends=[("q", 0, 1, record(666))]))
    with pytest.raises(StoreFailed, match="failed earlier"):
        first.commit(Batch())
    first.close()
    assert content(second) == before
    second.commit(Batch(appends=[("q", 0, 2, record(3))]))
    second.close()


def test_what_the_next_owner_of_the_space_deleted_is_no_damage(database, record):
    """A node that is paused for longer than its lease reads after the next one has delivered the messages."""
    url = database.new_url()
    first = SQLStore(url)
    first.commit(Batch(appends=[("q", 0, 0, record(1))], holds=[("urn:s", 9, record(9))]))
    end_connections(database)
    second = SQLStore(url)
    second.commit(Batch(drops=[("urn:s", 9)], deletes=[("q", 0)]))
    for read in (lambda: first.read("q", 0, 0, 9), lambda: first.held("urn:s", [9])):
        with pytest.raises(StoreFailed, match="Another process took over") as told:
            read()
        assert not isinstance(told.value, StoreDamaged)
    first.close()
    second.close()


@pytest.mark.parametrize("is_cut", [False, True], ids=["by the fence", "after a lost connection"])
def test_a_restored_database_is_told_from_a_space_that_was_taken_over(database, record, is_cut):
    """As by a standby that had not received everything, or a copy that was put back under a running process."""
    url = database.new_url()
    store = SQLStore(url)
    for offset in range(3):
        store.commit(Batch(appends=[("q", 0, offset, record(offset))]))
    database.sql(f"UPDATE holdfast_spaces SET serial = serial - 1 WHERE id = {store.space}")
    low = store.space << sql_schema.SPACE_SHIFT
    database.sql(f"DELETE FROM holdfast_records WHERE part > {low} AND part < {low + 99} AND position = 2")
    if is_cut:
        end_connections(database)
    with pytest.raises(StoreFailed, match="went back to an older copy: batch 3 was durable") as told:
        store.commit(Batch(appends=[("q", 0, 3, record(3))]))
    assert "--restored" in told.value.remedy
    store.close()
    for _ in range(2):  # it is asked until somebody answered
        again = SQLStore(url)
        assert "it had batch 2, although batch 3 had been durable" in again.went_back
        assert list(again.load().queues) == []
        again.close()
    again = SQLStore(url)
    again.forget_went_back()
    assert again.went_back == ""
    again.close()
    last = SQLStore(url)
    assert last.went_back == ""
    last.close()


def test_even_with_its_connection_nobody_writes_to_a_space_of_another_epoch(database, store, record):
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    database.sql(f"UPDATE holdfast_spaces SET epoch = epoch + 1 WHERE id = {store.space}")
    with pytest.raises(StoreFailed, match="took over"):
        store.commit(Batch(appends=[("q", 0, 1, record(2))]))
    low = store.space << sql_schema.SPACE_SHIFT
    counted = database.sql(f"SELECT count(*) FROM holdfast_records WHERE part > {low} AND part < {low + 99}")
    assert counted.strip() == "1"


@pytest.mark.crash
def test_while_the_server_is_away_it_says_so_and_takes_it_up_where_it_was(database, store, record):
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    database.kill()
    done = threading.Thread(target=store.commit, args=(Batch(appends=[("q", 0, 1, record(2))]),))
    done.start()
    until = time.monotonic() + PATIENCE
    while not store.trouble:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "failed" in str(store.trouble)
    assert done.is_alive()
    database.start()
    done.join(PATIENCE)
    assert not done.is_alive()
    assert store.trouble is None
    assert len(store.read("q", 0, 0, 9)) == 2


@pytest.mark.crash
def test_when_its_patience_is_over_the_store_has_failed_and_says_what_to_do(database, record):
    url = database.new_url()
    store = open_store(url + "&patience=0.2")
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    database.kill()
    try:
        with pytest.raises(StoreFailed, match="could not be written") as caught:
            store.commit(Batch(appends=[("q", 0, 1, record(2))]))
        assert caught.value.remedy
        with pytest.raises(StoreFailed, match="failed earlier"):
            store.commit(Batch())
        with pytest.raises(StoreFailed):
            store.read("q", 0, 0, 9)
        store.close()
    finally:
        database.start()
    again = open_store(url)
    assert len(again.read("q", 0, 0, 9)) in (1, 2)
    again.close()


def test_a_statement_that_the_server_refuses_leaves_all_as_it_was(database, store, record, content):
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    before = content(store)
    low = store.space << sql_schema.SPACE_SHIFT
    part = store.part_of(("q", 0))
    assert part is not None
    assert part > low
    database.sql(f"INSERT INTO holdfast_records VALUES ({part}, 1, 1, 'x')")
    with pytest.raises(StoreFailed) as caught:
        store.commit(Batch(appends=[("q", 0, 1, record(2))], sequences={"urn:s": {"n": 1}}))
    assert caught.value.remedy
    assert "urn:action" not in "".join(traceback.format_exception(caught.value)), "nothing of a message is told"
    assert content(store) == before
    database.sql(f"DELETE FROM holdfast_records WHERE part = {part} AND position = 1")


def test_a_record_that_is_gone_is_damage_and_is_told(database, store, record):
    store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(5)], holds=[("urn:s", 9, record(9))]))
    part, held = store.part_of(("q", 0)), store.part_of("urn:s")
    database.sql(f"DELETE FROM holdfast_records WHERE part = {part} AND position = 2")
    database.sql(f"DELETE FROM holdfast_records WHERE part = {held}")
    with pytest.raises(StoreFailed, match="partition 0 of 'q' is missing from offset 0 on"):
        store.read("q", 0, 0, 9)
    assert len(store.read("q", 0, 3, 9)) == 2
    with pytest.raises(StoreFailed, match="the held message 9 of urn:s is missing"):
        store.commit(Batch(releases=[("urn:s", 9, "q", 0, 5, 1.0)]))


@pytest.mark.parametrize(
    "name",
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout",
     "transaction_timeout"],
)  # fmt: skip
def test_no_timeout_of_an_administrator_ends_a_session_of_a_store(servers, record, name):
    server = servers("postgresql")
    if not server.sql(f"SELECT 1 FROM pg_settings WHERE name = '{name}'", database="postgres").strip():
        pytest.skip(f"this version has no {name}")
    server.sql(f"ALTER DATABASE holdfast SET {name} = '77s'", database="postgres")
    try:
        store = SQLStore(server.new_url())
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql(f"SHOW {name}").scalar() == "0"
        store.close()
        given = server.new_url()
        given += f"{'&' if '?' in given else '?'}options=-c{name}%3D88s"
        store = SQLStore(given)
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql(f"SHOW {name}").scalar() == "88s", "the URL decides"
        store.close()
    finally:
        server.sql(f"ALTER DATABASE holdfast RESET {name}", database="postgres")


_FATAL = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    ("state", "text", "remedy"),
    [
        ("", _FATAL + 'too many connections for role "holdfast"', "ALTER ROLE name CONNECTION LIMIT"),
        ("53300", 'too many connections for database "holdfast"', "ALTER DATABASE name CONNECTION LIMIT"),
        ("", _FATAL + "sorry, too many clients already", "max_connections"),
        ("", _FATAL + 'role "holdfast" is not permitted to log in', "ALTER ROLE name LOGIN"),
        ("28000", 'role "holdfast" is not permitted to log in', "ALTER ROLE name LOGIN"),
        ("28P01", 'password authentication failed for user "holdfast"', "Check the user and the password"),
        ("", _FATAL + 'permission denied for database "holdfast"', "GRANT CONNECT"),
        ("", _FATAL + 'database "holdfast" is not currently accepting connections', "ALLOW_CONNECTIONS"),
        ("", 'private key file "/k" has group or world access; file must have permissions u=rw (0600)', "chmod 600"),
        ("", 'certificate present, but not private key file "/k"', "sslkey"),
        ("", 'could not load private key file "/k": bad end line', "sslkey"),
        ("", 'could not open certificate file "/c": No such file or directory', "sslcert"),
        ("", 'root certificate file "/r" does not exist', "sslrootcert"),
        ("25006", "cannot execute INSERT in a read-only transaction", "default_transaction_read_only"),
        ("57014", "canceling statement due to statement timeout", "statement_timeout"),
        ("25P03", "terminating connection due to idle-in-transaction timeout", "idle_in_transaction_session_timeout"),
        ("25P04", "terminating connection due to transaction timeout", "transaction_timeout"),
        ("57P05", "terminating connection due to idle-session timeout", "idle_session_timeout"),
        ("26000", 'prepared statement "_pg3_0" does not exist', "session pooling"),
        ("53100", "could not extend file: No space left on device", "disk"),
        ("53200", "out of memory", "memory"),
        ("58030", "could not read block 1: Input/output error", "disk"),
        ("XX001", "invalid page in block 3", "log"),
        ("3D000", 'database "holdfast" does not exist', "createdb"),
    ],
)
def test_the_remedy_for_an_error_of_postgresql_names_what_to_change(state, text, remedy):
    assert remedy in sql_dialects.postgresql_remedy(state, text)


@pytest.mark.parametrize("text", ['private key file "/k" has group or world access', 'certificate file "/c": No such'])
def test_a_file_of_tls_that_cannot_be_used_is_no_outage(text):
    assert sql_dialects.is_refusal(f'connection to server at "127.0.0.1", port 5432 failed: {text}')
