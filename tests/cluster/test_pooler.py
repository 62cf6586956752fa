"""Leases behind a real PgBouncer: it may pool sessions, but not transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crew import wait_until
from databases import PostgreSQL, find_program, program

from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import ClusterRefused, Enter, Entered, Join, Look, Picture

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_program("pgbouncer") is None, reason="no pgbouncer here: apt-get install pgbouncer"),
]
CONFIG = """
[databases]
holdfast = host={database} dbname=holdfast user=tester
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = 6432
auth_type = any
pool_mode = {mode}
logfile = {directory}/log
"""


@pytest.fixture
def pooled(servers: Callable[[str], PostgreSQL]) -> Iterator[Callable[[str], str]]:
    """Starts a pooler with a mode; the URL of the database behind it."""
    server = servers("postgresql")
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        (directory / "ini").write_text(CONFIG.format(database=server.directory, directory=directory, mode=mode))
        directory.chmod(0o777)
        started.append(subprocess.Popen([program("pgbouncer"), "-q", *user, str(directory / "ini")]))
        wait_until((directory / ".s.PGSQL.6432").exists)
        return f"postgresql://tester@/holdfast?host={directory}&port=6432&space=pooled-{mode}"

    yield start
    for one in started:
        one.kill()
        one.wait()
    shutil.rmtree(directory)


def session(location: str, name: str) -> LeaseDatabase:
    return LeaseDatabase(location, name, f"http://{name}/", 4, LeasePolicy(60.0))


def test_a_pooler_of_transactions_is_refused_with_a_sentence(pooled: Callable[[str], str]) -> None:
    location = pooled("transaction")
    for name in "ab":
        with pytest.raises(ClusterRefused, match="is behind a pooler that keeps no sessions") as caught:
            session(location, name).run(Enter())
        assert "pool sessions instead of transactions" in str(caught.value)


def test_a_pooler_of_sessions_keeps_the_leases_of_nodes(pooled: Callable[[str], str]) -> None:
    location = pooled("session")
    nodes = [session(location, name) for name in "ab"]
    for node in nodes:
        assert node.run(Enter()) == Entered(True, False)
        incarnation = node.run(Join(False))
        assert isinstance(incarnation, int)
        picture = node.run(Look(incarnation, True))
        assert isinstance(picture, Picture)
        assert all(one.has_lock for one in picture.nodes)
    for node in nodes:
        node.close()
