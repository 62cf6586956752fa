"""A broker whose store is in a database, which asks for a password that no configuration file holds."""

from __future__ import annotations

from pathlib import Path

from databases import GUARDED, PASSWORD, Server

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config_file import read_config


async def test_the_password_of_the_database_is_read_from_its_file(database: Server, tmp_path: Path) -> None:
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
        assert broker.destination.running.queue.partitions[0].durable_end == 1
    finally:
        await broker.service.close(0.5)
