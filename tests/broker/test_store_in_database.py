"""A broker whose store is in a database, which asks for a password that no configuration file holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import GUARDED, PASSWORD, Server

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config_file import read_config

NEW_PASSWORD = "another: @/%"


def replace_password(database: Server, password: str) -> None:
    """Replace the password, and end the connections that were made with the old one."""
    if database.kind == "postgresql":
        database.sql(f"ALTER ROLE {GUARDED} PASSWORD '{password}'")
        database.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{GUARDED}'")
        return
    database.sql(f"ALTER USER {GUARDED}@localhost IDENTIFIED BY '{password}'")
    database.sql(f"KILL USER {GUARDED}@localhost")


@pytest.fixture
def guarded(database: Server) -> Iterator[Server]:
    yield database
    replace_password(database, PASSWORD)


async def test_the_password_of_the_database_is_read_again_after_it_was_replaced(
    guarded: Server, tmp_path: Path
) -> None:
    database = guarded
    for statement in {
        "postgresql": (
            f"GRANT ALL ON SCHEMA public TO {GUARDED}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {GUARDED}",  # those that another test has made
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {GUARDED}",
        ),
        "mariadb": (f"GRANT ALL ON holdfast.* TO {GUARDED}@localhost",),
    }[database.kind]:
        database.sql(statement)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "broker.toml").write_text(
        f"store = '{database.url('broker', user=GUARDED)}'\n"
        "store_password_file = 'password'\npartitions = 1\nlisten.port = 0\nadmin.enabled = false\n"
    )
    broker = Broker(read_config(tmp_path / "broker.toml"))
    await broker.service.start()
    try:
        async with holdfast.Source(broker.service.url, ":memory:") as source:
            await (await source.send("<a/>", action="urn:a")).acknowledged(60)
        queue, store = broker.destination.running.queue, broker.destination.running.engine.store
        assert queue.partitions[0].durable_end == 1
        replace_password(database, NEW_PASSWORD)
        async with holdfast.Source(broker.service.url, ":memory:") as source:
            sent = await source.send("<b/>", action="urn:a")
            while "store_password_file" not in str(store.trouble):
                await asyncio.sleep(0.01)
            (tmp_path / "password").write_text(f"{NEW_PASSWORD}\n")
            await sent.acknowledged(60)
        assert queue.partitions[0].durable_end == 2
        assert store.trouble is None
    finally:
        await broker.service.close(0.5)
