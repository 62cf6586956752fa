"""A handler's effects and the delivery mark commit together, and a message leaves only if its transaction commits:
against real databases, with processes killed between the effect and the commit, and after it.

Covers endpoint/source/enqueued_messages.py, endpoint/source/sent.py, store/sql/message_ids.py and
store/sql/outgoing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from databases import PostgreSQL, Server
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from waiting import until

import holdfast
from holdfast import (
    ConfigurationError,
    Destination,
    HandlingPolicy,
    Message,
    RetransmissionPolicy,
    Source,
    SourcePolicy,
)
from holdfast.cli.inspection.outbox import outbox
from holdfast.core.records import Batch
from holdfast.endpoint.source import enqueued_messages as collecting
from holdfast.exceptions import EnvelopeError, StoreAway, StoreFailed
from holdfast.store import open_store
from holdfast.store.address import read_address
from holdfast.store.sql import message_ids
from holdfast.store.sql import store as sql
from holdfast.sync import Source as BlockingSource
from holdfast.testing.ports import free_ports

HERE = Path(__file__).resolve().parent
NOTE, PRICE = "urn:test:note", "urn:test:price"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))
SOON = HandlingPolicy(attempts=5, backoff=0.05)


class Shop:
    """An application's own table, beside the store's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.new_url()
        self.table = f"effects{server.spaces}"
        self.engine: Engine = create_engine(read_address(self.url).url, isolation_level="READ COMMITTED")
        self.run(f"CREATE TABLE {self.table} (body VARCHAR(80), process BIGINT)")

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def insert(self, connection: Connection, body: str) -> None:
        connection.execute(text(f"INSERT INTO {self.table} VALUES (:body, 0)"), {"body": body})

    @property
    def effects(self) -> Counter[str]:
        with self.engine.begin() as connection:
            return Counter(connection.scalars(text(f"SELECT body FROM {self.table}")))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "LOCK_SECONDS", 60.0)


@pytest.fixture
def shop(database: Server) -> Iterator[Shop]:
    shop = Shop(database)
    yield shop
    shop.engine.dispose()


def body(number: object) -> str:
    return f"<m xmlns='urn:test'>{number}</m>"


# --- the inbox --------------------------------------------------------------------------------------------------------


async def test_a_handlers_effects_its_reply_and_the_mark_are_one_transaction(shop, serve):
    seen: list[tuple[int, int]] = []
    app = Destination(shop.url)

    @app.on(PRICE)
    def price(message: Message, connection: Connection) -> str:
        shop.insert(connection, str(message.body.text))
        seen.append((message.message_number, sum(shop.effects.values())))
        return f"<price>{message.body.text}</price>"

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        replies = [await source.request(body(n), action=PRICE) for n in range(5)]
    assert [reply.body.text for reply in replies] == ["0", "1", "2", "3", "4"]
    assert seen == [(n + 1, n) for n in range(5)], "a handler's work is seen by others when it is committed"
    assert shop.effects == Counter("01234")
    await service.close(1.0)
    again = Destination(shop.url)
    again.on(PRICE)(lambda message: seen.append((0, message.message_number)))
    await serve(again)
    await again.running.dispatcher.done()
    assert len(seen) == 5, "all five are marked as handled"


async def test_what_a_handler_did_before_it_raised_is_undone(shop, serve):
    attempts: list[int] = []
    app = Destination(shop.url, handling=SOON)

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        shop.insert(connection, f"{message.body.text} at {message.attempt}")
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise OSError("not yet")

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        await source.send(body("a"), action=NOTE)
        await source.flush(60)
        await app.running.dispatcher.done()
    assert attempts == [1, 2, 3]
    assert shop.effects == Counter(["a at 3"])


async def test_in_order_a_handler_sees_what_the_one_before_it_committed(shop, serve):
    app = Destination(shop.url, handling=HandlingPolicy(concurrency=8))
    counted: dict[str, list[int]] = {}

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        asked = text(f"SELECT count(*) FROM {shop.table} WHERE body = :body")
        there = connection.scalar(asked, {"body": message.sequence})
        counted.setdefault(message.sequence, []).append(there)
        shop.insert(connection, message.sequence)

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        await asyncio.gather(
            *[source.send(body(n), action=NOTE, sequence_key=key) for n in range(20) for key in ("a", "b", "c")]
        )
        await source.flush(60)
        await app.running.dispatcher.done()
    assert list(counted.values()) == [list(range(20))] * 3


async def test_a_deferred_constraint_is_the_handlers_failure_and_not_the_stores(servers, serve):
    shop = Shop(servers("postgresql"))
    shop.run(f"ALTER TABLE {shop.table} ADD CONSTRAINT once{shop.table} UNIQUE (body) DEFERRABLE INITIALLY DEFERRED")
    app = Destination(shop.url, handling=HandlingPolicy(attempts=2, backoff=0.05))

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        shop.insert(connection, str(message.body.text))

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        for one in "aab":
            await source.send(body(one), action=NOTE)
        await source.flush(60)
        await app.running.dispatcher.done()
    assert shop.effects == Counter("ab")
    assert (app.running.dispatcher.handling.succeeded, app.running.dispatcher.handling.dead) == (2, 1)
    assert app.running.engine.failure is None
    shop.engine.dispose()


async def test_a_connection_lost_while_a_handler_works_makes_it_run_again(shop, serve):
    app = Destination(shop.url, handling=SOON)

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        shop.insert(connection, f"{message.body.text} at {message.attempt}")
        if message.attempt == 1:
            number = "pg_backend_pid()" if isinstance(shop.server, PostgreSQL) else "connection_id()"
            found = connection.scalar(text(f"SELECT {number}"))
            kill = f"SELECT pg_terminate_backend({found})"
            shop.server.sql(kill if isinstance(shop.server, PostgreSQL) else f"KILL CONNECTION {found}")

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        await source.send(body("a"), action=NOTE)
        await source.flush(60)
        await app.running.dispatcher.done()
    assert shop.effects == Counter(["a at 2"])
    assert app.running.engine.failure is None


async def test_a_handler_that_ends_the_transaction_itself_has_failed(shop, serve):
    app = Destination(shop.url, handling=HandlingPolicy(attempts=1))

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        connection.rollback()

    service = await serve(app)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        await source.send(body("a"), action=NOTE)
        await source.flush(60)
        await app.running.dispatcher.done()
    assert app.running.dispatcher.handling.dead == 1
    assert app.running.engine.failure is None


def refused(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        call()
    assert caught.value.remedy


async def test_who_cannot_have_a_transaction_is_told_before_any_message_comes(shop):
    async def asynchronous(message: Message, connection: Connection) -> None: ...

    def plain(message: Message, connection: Connection) -> None: ...

    refused(lambda: Destination(shop.url).on(NOTE)(asynchronous), "is async and asks for the connection")
    for store, assurance, what in [
        (":memory:", "exactly-once", "the store is not in a database"),
        (shop.url, "at-most-once", "at-most-once marks a message"),
    ]:
        app = Destination(store, assurance=assurance)
        app.on(NOTE)(plain)
        with pytest.raises(ConfigurationError, match=what) as caught:
            await app.start()
        assert caught.value.remedy
    late = Destination(":memory:")
    late.on("urn:other")(print)
    await late.start()
    refused(lambda: late.on(NOTE)(plain), "the store is not in a database")
    await late.close()


class Child:
    """transaction_child.py, one life after another."""

    def __init__(self, *arguments: object) -> None:
        self._arguments = [str(one) for one in arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: object) -> None:
        path = os.pathsep.join(filter(None, [str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "transaction_child.py"), *self._arguments, *map(str, more)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


@pytest.mark.crash
@pytest.mark.parametrize("dies", [pytest.param("before", marks=pytest.mark.nightly), "after"])
async def test_killed_before_or_after_the_commit_the_effect_is_there_once(shop, dies):
    (port,) = free_ports(1)
    child = Child("inbox", shop.url, shop.table, port)
    await asyncio.to_thread(child.start, dies)
    async with Source(f"http://127.0.0.1:{port}/", ":memory:", policy=QUICK) as source:
        await source.send(body("a"), action=NOTE)
        await until(lambda: not child.is_alive)
        child.kill()
        assert shop.effects == (Counter() if dies == "before" else Counter("a"))
        await asyncio.to_thread(child.start, "")
        await source.send(body("b"), action=NOTE)
        await until(lambda: sum(shop.effects.values()) >= 2)
        await source.flush(60)
    child.kill()
    assert shop.effects == Counter("ab")


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_whenever_it_is_killed_each_effect_is_there_exactly_once(shop):
    draw = random.Random(11)
    (port,) = free_ports(1)
    child = Child("inbox", shop.url, shop.table, port, "")
    await asyncio.to_thread(child.start)
    count = 120
    async with Source(f"http://127.0.0.1:{port}/", ":memory:", policy=QUICK) as source:
        for n in range(count):
            await source.send(body(n), action=NOTE, sequence_key=str(n % 3))
        for _ in range(4):
            there = sum(shop.effects.values())
            wanted = min(count, there + draw.randrange(1, 25))
            await until(lambda wanted=wanted: sum(shop.effects.values()) >= wanted, None)
            child.kill()
            await asyncio.to_thread(child.start)
        await until(lambda: sum(shop.effects.values()) >= count, None)
        await source.flush(60)
    child.kill()
    assert shop.effects == Counter(map(str, range(count)))


# --- the outbox -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def landed(serve):
    """A destination in memory that notes what it gets, in its order."""
    app = Destination(":memory:")
    got: list[str] = []

    @app.on(NOTE)
    async def note(message: Message) -> None:
        got.append(str(message.body.text))

    service = await serve(app)
    return service.url, got


async def test_a_message_leaves_when_its_transaction_has_committed_and_never_else(shop, landed):
    url, got = landed
    async with Source(url, shop.url, policy=QUICK) as source:
        with shop.engine.connect() as connection:
            sent = await source.send(body("undone"), action=NOTE, connection=connection)
            assert sent.message_id
            connection.rollback()
        with shop.engine.connect() as connection:
            source.send(body("a"), action=NOTE, connection=connection)
            shop.insert(connection, "a")
            await source.send(body("b"), action=NOTE)
            await until(lambda: got == ["b"])
            connection.commit()
        await until(lambda: got == ["b", "a"])
        await source.flush(60)
        assert source.progress.acknowledged == 2
    assert shop.effects == Counter("a")


async def test_the_transaction_may_be_that_of_a_connection_of_the_driver(shop, landed):
    """PEP 249, as frameworks without SQLAlchemy have it."""
    url, got = landed
    async with Source(url, shop.url, policy=QUICK) as source:
        pooled = shop.engine.raw_connection()
        driver = pooled.driver_connection
        source.send(body("undone"), action=NOTE, connection=driver)
        driver.rollback()
        source.send(body("a"), action=NOTE, connection=driver)
        with driver.cursor() as cursor:
            cursor.execute(f"INSERT INTO {shop.table} VALUES ('a', 0)")
        driver.commit()
        await until(lambda: got == ["a"])
        refused(
            lambda: Source("http://h/", shop.server.new_url()).send(body(1), action=NOTE, connection=driver),
            "There is no store at",
        )
        pooled.close()
    assert shop.effects == Counter("a")


def grants_in(page: str, user: str) -> list[str]:
    """The grants that a page of the documentation names, to ``user``."""
    content = (HERE.parents[1] / "docs" / page).read_text()
    found = re.findall(r"^ *(GRANT .* )TO (?:shop|holdfast);$", content, re.MULTILINE)
    return [f"{grant}TO {user}" for grant in found if "holdfast.*" not in grant]


@pytest.mark.parametrize("through", ["SQLAlchemy", "the driver"])
async def test_the_rights_that_the_page_names_are_enough_to_enqueue_a_message(servers, landed, through):
    server = servers("postgresql")
    url, got = landed
    store, role = server.new_url(), f"shop{server.spaces}"
    server.sql(f"CREATE ROLE {role} LOGIN")
    async with Source(url, store, policy=QUICK) as source:
        grants = grants_in("how-to/effects-exactly-once.md", role)
        assert grants
        for grant in grants:
            server.sql(grant)
        engine = create_engine(read_address(store.replace("tester", role)).url)
        with contextlib.closing(engine.raw_connection()) as pooled, engine.begin() as connection:
            driver = pooled.driver_connection
            source.send(body("a"), action=NOTE, connection=connection if through == "SQLAlchemy" else driver)
            driver.commit()
        await until(lambda: got == ["a"])
        engine.dispose()


async def test_the_rights_that_the_page_names_are_enough_once_the_tables_exist(servers, landed):
    server = servers("postgresql")
    url, got = landed
    store, role = server.new_url(), f"shop{server.spaces}"
    server.sql(f"CREATE ROLE {role} LOGIN")
    async with Source("http://127.0.0.1:9/", store):
        pass
    grants = grants_in("how-to/databases.md", role)
    assert grants
    for grant in grants:
        server.sql(grant)
    async with Source(url, store.replace("tester", role), policy=QUICK) as source:
        await (await source.send(body("a"), action=NOTE)).acknowledged(60)
        engine = create_engine(read_address(store.replace("tester", role)).url)
        with engine.begin() as connection:
            source.send(body("b"), action=NOTE, connection=connection)
        engine.dispose()
        await until(lambda: got == ["a", "b"])


DJANGO = """
import sys
from django.conf import settings
host, name, url, store, table = sys.argv[1:]
database = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "NAME": name, "USER": "tester"}
settings.configure(DATABASES={"default": database})
import django
django.setup()
from django.db import connection, transaction
import holdfast
source = holdfast.Source(url, store=store)

def order(what):
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (%s, 0)", [what])
    source.send(f"<note xmlns='urn:test'>{what}</note>", action="urn:test:note", connection=connection)

with transaction.atomic():
    order("a")
    try:
        with transaction.atomic():
            order("undone")
            raise LookupError
    except LookupError:
        order("b")
"""


async def test_the_transaction_may_be_djangos(servers, landed):
    server = servers("postgresql")
    shop, (url, got) = Shop(server), landed
    address = make_url(read_address(shop.url).url)
    async with Source(url, shop.url, policy=QUICK):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DJANGO, address.query["host"], address.database, url, shop.url, shop.table
        )
        assert await process.wait() == 0
        await until(lambda: len(got) == 2)
    assert sorted(got) == ["a", "b"]
    assert shop.effects == Counter("ab")


async def test_a_confirmation_is_part_of_the_handlers_transaction(shop, serve, landed):
    url, got = landed
    out = shop.server.new_url()
    async with Source(url, out, policy=QUICK):
        source = Source(url, out)  # another one, as in another process: it is not open
        app = Destination(shop.url, handling=SOON)

        @app.on(NOTE)
        def note(message: Message, connection: Connection) -> None:
            shop.insert(connection, str(message.body.text))
            source.send(body(f"{message.body.text} at {message.attempt}"), action=NOTE, connection=connection)
            if message.attempt == 1:
                raise OSError("after it was sent")

        service = await serve(app)
        async with Source(service.url, ":memory:", policy=QUICK) as first:
            for n in range(3):
                await first.send(body(n), action=NOTE)
            await until(lambda: len(got) >= 3)
            await app.running.dispatcher.done()
    assert got == ["0 at 2", "1 at 2", "2 at 2"]
    assert shop.effects == Counter("012")


async def test_a_source_takes_about_a_megabyte_of_enqueued_messages_at_a_time(shop, landed, monkeypatch):
    url, got = landed
    sizes: list[int] = []
    enqueued = sql.SQLStore.enqueued

    def counted(store: sql.SQLStore, *limits: int) -> list[Any]:
        found = enqueued(store, *limits)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(sql.SQLStore, "enqueued", counted)
    async with Source(url, shop.url) as waiting:
        pass  # which makes the store
    with shop.engine.connect() as connection:
        for n in range(20):
            waiting.send(body(f"{n} {'x' * 1_000_000}"), action=NOTE, connection=connection)
        connection.commit()
    async with Source(url, shop.url, policy=QUICK) as source:
        await source.flush(60)
    assert [one.partition(" ")[0] for one in got] == [str(n) for n in range(20)]
    assert sum(sizes) == 20
    assert max(sizes) <= 2


async def test_transactions_that_end_in_any_order_lose_double_and_overtake_nothing(shop, landed, monkeypatch):
    monkeypatch.setattr(collecting, "AT_ONCE", 7)
    url, got = landed
    source = Source(url, shop.url)
    async with Source(url, shop.url, policy=QUICK) as running:
        committed: list[list[str]] = [[] for _ in range(4)]

        def work(key: int) -> None:
            draw = random.Random(key)
            for n in range(25):
                with shop.engine.connect() as connection:
                    mine = [f"{key}-{n}-{i}" for i in range(draw.randrange(3))]
                    for one in mine:
                        source.send(body(one), action=NOTE, sequence_key=str(key), connection=connection)
                    if draw.random() < 0.3:
                        connection.rollback()
                    else:
                        connection.commit()
                        committed[key] += mine

        threads = [threading.Thread(target=work, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await running.flush(60)
    for key in range(4):
        assert [one for one in got if one.startswith(f"{key}-")] == committed[key]


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_whenever_the_sending_process_is_killed_what_was_committed_arrives_once(shop, landed):
    url, got = landed
    child = Child("outbox", shop.url, url)
    await asyncio.to_thread(child.start)
    source = Source(url, shop.url)
    draw = random.Random(5)
    for n in range(60):
        with shop.engine.begin() as connection:
            source.send(body(n), action=NOTE, connection=connection)
        await asyncio.sleep(0)
        if n % 15 == 14:
            if draw.random() < 0.7:
                await until(lambda n=n: len(got) > n - draw.randrange(15), None)
            child.kill()
            await asyncio.to_thread(child.start)
    await until(lambda: len(got) >= 60, None)
    await asyncio.to_thread(child.kill)
    async with Source(url, shop.url, policy=QUICK) as last:
        await last.flush(60)
    assert got == [str(n) for n in range(60)]


async def test_a_repeated_transaction_stores_an_acknowledged_message_once(shop, landed):
    url, got = landed

    def send(content: str, message_id: str | None, **fields: Any) -> None:
        with shop.engine.begin() as connection:
            outside.send(body(content), action=NOTE, message_id=message_id, connection=connection, **fields)

    outside = Source(url, shop.url)
    async with Source(url, shop.url, policy=QUICK) as source:
        send("a", "urn:x:1")
        send("a", "urn:x:1")
        await source.flush(60)
        send("a", "urn:x:1")
        for content, key in [("other", ""), ("a", "k")]:
            with pytest.raises(EnvelopeError, match="another message with the MessageID urn:x:1") as refused:
                send(content, "urn:x:1", sequence_key=key)
            assert refused.value.remedy
        send("b", None)
        send("b", None)
        await source.flush(60)
    assert got == ["a", "b", "b"]


@pytest.mark.parametrize("through", ["SQLAlchemy", "the driver"])
async def test_while_no_source_runs_a_message_with_its_message_id_waits_once(shop, landed, through):
    url, got = landed
    async with Source(url, shop.url, policy=QUICK) as source:
        pass
    pooled = shop.engine.raw_connection() if through == "the driver" else shop.engine.connect()
    connection: Any = pooled.driver_connection if through == "the driver" else pooled

    def send(content: str, message_id: str) -> None:
        source.send(body(content), action=NOTE, message_id=message_id, connection=connection)

    send("a", "urn:x:1")
    connection.rollback()
    for _ in range(2):
        send("b", "urn:x:1")
        connection.commit()
    send("b", "urn:x:1")
    with pytest.raises(EnvelopeError, match="another message with the MessageID urn:x:1"):
        send("a", "urn:x:1")
    connection.rollback()
    pooled.close()
    async with Source(url, shop.url, policy=QUICK) as source:
        await source.flush(60)
    assert got == ["b"]


async def test_an_open_transaction_with_a_message_id_delays_no_message_and_no_close(shop):
    """The source's batches never wait for a transaction of an application."""
    source = Source("http://127.0.0.1:9/", shop.url)
    await source.open()
    with shop.engine.connect() as connection:
        source.send(body("a"), action=NOTE, message_id="urn:x:1", connection=connection)
        await source.send(body("a"), action=NOTE, message_id="urn:x:1")
        await source.send(body("b"), action=NOTE)
        with shop.engine.begin() as other:
            source.send(body("c"), action=NOTE, message_id="urn:x:2", connection=other)
        await until(lambda: source.progress.stored == 3)
        # In the opposite order of the source: no deadlock.
        await source.send(body("d"), action=NOTE, message_id="urn:x:3")
        source.send(body("d"), action=NOTE, message_id="urn:x:3", connection=connection)
        await source.close(1.0)
        connection.commit()
    async with source:
        assert source.progress.outstanding == 6


async def test_old_message_ids_that_a_transaction_locks_delay_nothing(shop, monkeypatch, caplog):
    monkeypatch.setattr(message_ids, "REMEMBERED", 1)
    monkeypatch.setattr(collecting, "KEEPING_ROUNDS", 1)
    source = Source("http://127.0.0.1:9/", shop.url)
    await source.open()
    store = source._running.store
    with shop.engine.connect() as connection:
        source.send(body("old"), action=NOTE, message_id="urn:x:1", connection=connection)
        connection.commit()
        locked = text("SELECT message_key FROM holdfast_message_ids WHERE space = :space FOR UPDATE")
        assert len(connection.execute(locked, {"space": store.space}).all()) == 1
        with shop.engine.begin() as other:
            source.send(body("new"), action=NOTE, message_id="urn:x:2", connection=other)
        await until(lambda: "message_ids.away" in caplog.text)
        with shop.engine.begin() as other:
            source.send(body("c"), action=NOTE, connection=other)
        await source.send(body("d"), action=NOTE)
        await until(lambda: source.progress.stored == 4)
        assert store.trouble is None
        await source.close(1.0)
    assert caplog.text.count("message_ids.away") == 1
    async with source:
        await until(lambda: len(ids_in(shop, source)) == 1)


async def test_only_sources_need_the_table_of_message_ids(servers, landed, serve, caplog):
    """The tables are those of an earlier version, and the user may not create tables."""
    server = servers("postgresql")
    url, got = landed
    server.new_url()
    role = earlier = f"earlier{server.spaces}"
    for created in (f"DATABASE {earlier}", f"ROLE {role} LOGIN"):
        server.sql(f"CREATE {created}")
    own, theirs = (server.url("a", user=user).replace("/holdfast?", f"/{earlier}?") for user in ("tester", role))
    async with Source(url, own):
        pass
    revoked = "REVOKE CREATE ON SCHEMA public FROM PUBLIC; DROP TABLE holdfast_message_ids"
    server.sql("; ".join([revoked, *grants_in("how-to/databases.md", role)]), database=earlier)
    exists = "SELECT count(*) FROM pg_tables WHERE tablename = 'holdfast_message_ids'"
    app = Destination(own.replace("space=a", "space=b"))
    app.on(NOTE)(lambda message: None)
    await serve(app)
    assert server.sql(exists, database=earlier).strip() == "0"
    async with Source(url, theirs, policy=QUICK) as source:
        await until(lambda: "message_ids.away" in caplog.text)
        assert "GRANT CREATE" in caplog.text
        engine = create_engine(read_address(theirs).url)
        with engine.begin() as connection:
            source.send(body("a"), action=NOTE, connection=connection)
        with pytest.raises(ProgrammingError, match="holdfast_message_ids"), engine.begin() as connection:
            source.send(body("a"), action=NOTE, message_id="urn:x:1", connection=connection)
        await source.flush(60)
    async with Source(url, own):
        await until(lambda: server.sql(exists, database=earlier).strip() == "1")
    granted = [grant for grant in grants_in("how-to/effects-exactly-once.md", role) if "message_ids" in grant]
    server.sql("; ".join(granted), database=earlier)
    async with Source(url, theirs, policy=QUICK) as source:
        for _ in range(2):
            with engine.begin() as connection:
                source.send(body("b"), action=NOTE, message_id="urn:x:1", connection=connection)
        await source.flush(60)
    engine.dispose()
    assert got == ["a", "b"]


async def test_the_source_compares_its_own_messages_with_those_of_transactions(shop):
    async with Source("http://127.0.0.1:9/", shop.url) as source:
        with shop.engine.begin() as connection:
            source.send(body("a"), action=NOTE, message_id="urn:x:1", connection=connection)
        await until(lambda: source.progress.stored == 1)
        assert (await source.send(body("a"), action=NOTE, message_id="urn:x:1")).offset == 0
        with pytest.raises(EnvelopeError, match="urn:x:1"):
            await source.send(body("b"), action=NOTE, message_id="urn:x:1")
        assert source.progress.stored == 1


async def test_of_two_concurrent_transactions_with_one_message_id_one_stores_the_message(shop, landed):
    url, got = landed
    async with Source(url, shop.url, policy=QUICK) as source:

        def work(_number: int) -> None:
            with shop.engine.begin() as connection:
                source.send(body("a"), action=NOTE, message_id="urn:x:1", connection=connection)

        await asyncio.gather(*[asyncio.to_thread(work, number) for number in range(8)])
        await source.flush(60)
    assert got == ["a"]


def ids_in(shop: Shop, source: Source) -> list[str]:
    """The MessageIDs that the store of an open source remembers."""
    with shop.engine.begin() as connection:
        asked = text("SELECT message_key FROM holdfast_message_ids WHERE space = :space")
        found = connection.scalars(asked, {"space": source._running.store.space})
        return sorted(bytes(one).decode() for one in found)


async def test_a_store_remembers_only_the_newest_message_ids(shop, landed, monkeypatch):
    monkeypatch.setattr(message_ids, "REMEMBERED", 3)
    monkeypatch.setattr(collecting, "KEEPING_ROUNDS", 1)
    url, _got = landed
    async with Source(url, shop.url, policy=QUICK) as source:
        for number in range(9):
            with shop.engine.begin() as connection:
                source.send(body(number), action=NOTE, message_id=f"urn:x:{number}", connection=connection)
        await until(lambda: ids_in(shop, source) == ["urn:x:6", "urn:x:7", "urn:x:8"])


async def test_what_waits_is_sent_when_the_source_is_opened_next(shop, landed):
    url, got = landed
    async with Source(url, shop.url, policy=QUICK):
        pass
    source = BlockingSource(url, shop.url)
    with shop.engine.begin() as connection:
        source.send(body("a"), action=NOTE, connection=connection)
    assert got == []
    listed = await asyncio.to_thread(CliRunner().invoke, outbox, ["list", shop.url])
    assert listed.output.startswith("1 committed message waits in holdfast_outgoing of ")
    async with Source(url, shop.url) as opened:
        await opened.flush(60)
    assert got == ["a"]
    listed = await asyncio.to_thread(CliRunner().invoke, outbox, ["list", shop.url, "--json"])
    assert json.loads(listed.output) == {"messages": [], "count": 0, "enqueued": 0}


async def test_what_cannot_be_part_of_a_transaction_is_refused(shop):
    with shop.engine.connect() as connection:
        for store, what in [
            ("outbox", "is not in a database"),
            (":memory:", "is not in a database"),
            (shop.url, "There is no store at"),
        ]:
            source = Source("http://h/", store)
            refused(lambda source=source: source.send(body(1), action=NOTE, connection=connection), what)
            connection.rollback()
        with pytest.raises(EnvelopeError):
            Source("http://h/", shop.url).send("no xml", action=NOTE, connection=connection)


# --- a database that is away -----------------------------------------------------------------------------------------


@pytest.fixture
def own_server(servers) -> Iterator[Server]:
    """One that is up again afterwards, whatever a test does to it."""
    server = servers("postgresql")
    yield server
    if not server.is_up():
        server.start()


@pytest.mark.crash
async def test_an_endpoint_that_starts_waits_for_its_database(own_server, caplog):
    url = f"{own_server.new_url()}&patience=60"
    own_server.kill()
    app = Destination(url)
    starting = asyncio.create_task(app.start())
    await until(lambda: "store.away" in caplog.text)
    assert not starting.done()
    await asyncio.to_thread(own_server.start)
    await starting
    await app.close()


@pytest.mark.crash
async def test_a_start_that_waits_for_its_database_ends_on_request_or_after_patience(own_server):
    url = own_server.new_url()
    own_server.kill()
    waiting = asyncio.create_task(Destination(f"{url}&patience=600").start())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(StoreAway) as away:
        await Destination(f"{url}&patience=0").start()
    assert "database is running" in away.value.remedy


async def test_what_waiting_does_not_mend_is_told_at_once(servers):
    server = servers("postgresql")
    for url, hint in (
        (server.url("x").replace("/holdfast?", "/nosuch?"), "Create the database"),
        (server.url("x", user="guarded", password="wrong"), "password"),
    ):
        with pytest.raises(StoreFailed) as refused:
            await Destination(f"{url}&patience=600").start()
        assert not isinstance(refused.value, StoreAway)
        assert hint in refused.value.remedy


class Away:
    """The dialect of a store whose database is away: every write and every lock fails as a lost connection does."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.tries = 0
        self.is_away = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _fail(self) -> None:
        self.tries += 1
        if self.is_away:
            raise OperationalError(
                "", None, ConnectionError("server closed the connection"), connection_invalidated=True
            )

    def write(self, *arguments: Any, **options: Any) -> None:
        self._fail()
        self._real.write(*arguments, **options)

    def lock(self, *arguments: Any) -> bool:
        self._fail()
        return bool(self._real.lock(*arguments))


class LostOnce(Away):
    """As :class:`Away`, for its first try."""

    def _fail(self) -> None:
        self.is_away = self.tries == 0
        super()._fail()


async def probe(service: Any, path: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"{service.admin_url}/{path}") as answer:
        return answer.status, await answer.json()


async def test_a_database_that_is_away_for_longer_than_the_patience_ends_no_server(database, serve, peer):
    app = Destination(f"{database.new_url()}&patience=0")
    service = await serve(app)
    one = peer(service.url)
    await one.create()
    away = app.running.store._dialect = Away(app.running.store._dialect)
    sent = asyncio.ensure_future(one.message(1))
    await until(lambda: away.tries > 3)
    status, told = await probe(service, "healthz")
    assert (status, told["status"]) == (200, "ok")
    assert "failed" in told["trouble"]
    assert (await probe(service, "readyz"))[0] == 503
    assert not app.running.engine.needs_restart
    away.is_away = False
    assert (await sent).ranges == ((1, 1),)
    assert await probe(service, "readyz") == (200, {"status": "ready"})
    assert "trouble" not in (await probe(service, "healthz"))[1]


async def test_a_server_that_is_stopped_waits_for_no_database(database, serve, peer):
    app = Destination(f"{database.new_url()}&patience=3600")
    service = await serve(app)
    one = peer(service.url)
    await one.create()
    away = app.running.store._dialect = Away(app.running.store._dialect)
    sent = asyncio.ensure_future(one.message(1))
    await until(lambda: away.tries > 1)
    await service.close(0.0)
    assert app.running.engine.failure is not None
    with contextlib.suppress(Exception):
        await sent


def test_a_lost_connection_costs_an_end_none_of_its_last_writes(database):
    """They begin when the end has waited as long as it may."""
    url = database.new_url()
    store = open_store(url)
    store.retry_for(0.0)
    lost = store._dialect = LostOnce(store._dialect)
    store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    assert lost.tries > 1
    store.close()
    again = open_store(url)
    assert again.load().sequences == {"urn:s": {"n": 1}}
    again.close()


@pytest.mark.crash
async def test_the_list_of_an_outbox_waits_for_no_database(own_server, serve):
    app = Destination(f"{own_server.new_url()}&patience=3600")
    service = await serve(app)
    assert await probe(service, "outbox") == (200, {"messages": [], "count": 0, "enqueued": None})
    await asyncio.to_thread(own_server.kill)
    for _ in range(40):
        assert (await probe(service, "outbox"))[1]["enqueued"] is None
    await asyncio.to_thread(own_server.start)


@pytest.mark.crash
async def test_a_source_that_closes_waits_for_no_database(own_server):
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}/"
    source = Source(nobody, f"{own_server.new_url()}&patience=3600", policy=QUICK)
    await source.open()
    await source.send("<a/>", action=NOTE)
    closing = asyncio.create_task(source.close(1.0))
    await asyncio.to_thread(own_server.kill)
    await until(lambda: source._opened.store.trouble or closing.done())
    await closing
    await asyncio.to_thread(own_server.start)
    async with source:
        assert source.progress.outstanding == 1


# --- a database that went back ----------------------------------------------------------------------------------------


async def test_a_store_that_went_back_is_opened_only_by_who_says_that_it_was_restored(servers):
    server = servers("postgresql")
    url = server.new_url()
    app = Destination(url, partitions=1)
    await app.start()
    before = app.running.queue.description.epoch
    await asyncio.to_thread(
        server.sql, f"UPDATE holdfast_spaces SET serial = serial - 1 WHERE id = {app.running.store.space}"
    )
    app.running.queue.description.begin("another")  # anything to store
    app.running.engine.touch()
    await until(lambda: app.running.engine.failure is not None)
    with pytest.raises(StoreFailed, match="went back to an older copy"):
        app.running.engine.check()
    await app.close()
    with pytest.raises(StoreFailed, match="restored from an older copy") as refused:
        await Destination(url, partitions=1).start()
    assert "--restored" in refused.value.remedy
    restored = Destination(url, partitions=1).keep(restored=True)
    await restored.start()
    assert restored.running.queue.description.epoch != before
    await until(lambda: not restored.running.store.went_back)
    await restored.close()
    last = Destination(url, partitions=1)
    await last.start()
    await last.close()


@pytest.mark.parametrize(
    ("connection", "remedy"),
    [
        (5, "Pass an open SQLAlchemy connection"),
        ("a URL", "Pass an open SQLAlchemy connection"),
        (sqlite3.connect(":memory:"), "Pass an open SQLAlchemy connection"),
        (create_engine("sqlite://"), "engine.begin()"),
        (type("AsyncConnection", (), {"__module__": "sqlalchemy.ext.asyncio.engine"})(), "connection.run_sync"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_object_that_is_no_connection_is_refused_with_a_remedy(connection: Any, remedy: str) -> None:
    source = Source("http://127.0.0.1:9/", store="postgresql://127.0.0.1:9/shop")
    with pytest.raises(ConfigurationError, match="which cannot store a message") as refused:
        source.send("<a/>", action="urn:a", connection=connection)
    assert remedy in refused.value.remedy
