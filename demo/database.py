"""The database of a demo: a private PostgreSQL server for one run, or one that the user names."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.processes import DemoFailed


def find_program(name: str) -> str | None:
    """Return where a program is, also where Debian does not put it on the path; of several versions, the newest."""
    places = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/sbin"]))


def unprivileged() -> str | None:
    """Return the user whom a server runs as, None for the current one: no server wants to be root."""
    return "nobody" if os.geteuid() == 0 else None


@contextmanager
def private_database() -> Iterator[str]:
    """Run a PostgreSQL server in a temporary directory, and yield its URL.

    Raises:
        DemoFailed: PostgreSQL is not installed, or does not start.
    """
    initdb, pg_ctl = find_program("initdb"), find_program("pg_ctl")
    if initdb is None or pg_ctl is None:
        raise DemoFailed(
            "PostgreSQL is not installed on this machine",
            remedy="Install it (Debian and Ubuntu: apt-get install postgresql), or name a database with --database.",
        )
    user = unprivileged()
    group = None if user is None else pwd.getpwnam(user).pw_gid
    with TemporaryDirectory(prefix="holdfast-demo-") as directory:
        if user is not None:
            shutil.chown(directory, user)
        log = Path(directory, "demo.log")

        def call(*command: str) -> None:
            with log.open("ab") as output:
                code = subprocess.run(
                    command, stdout=output, stderr=output, cwd=directory, user=user, group=group, start_new_session=True
                ).returncode
            if code:
                raise DemoFailed(f"{command[0]} failed", remedy=log.read_text(encoding="utf-8", errors="replace"))

        data = f"{directory}/data"
        call(initdb, "-D", data, "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = f"-c listen_addresses= -c unix_socket_directories={directory}"
        try:
            call(pg_ctl, "-D", data, "-l", f"{directory}/server.log", "-o", settings, "-w", "start")
            yield f"postgresql://holdfast@/postgres?host={directory}"
        finally:
            with suppress(DemoFailed):  # it has not started
                call(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")


def check_database(url: str) -> None:
    """Connect once, so that a wrong URL is an error now: a broker would wait until the database is back.

    Raises:
        ConfigurationError: the URL is not one of PostgreSQL.
        DemoFailed: psycopg is not installed, or the database cannot be reached.
    """
    try:
        import psycopg

        from holdfast.cluster.lease_database import conninfo_of
    except ImportError as error:
        raise DemoFailed(f"{error.name} is not installed", remedy="pip install 'holdfast[sql]'") from error
    try:
        psycopg.connect(conninfo_of(url, 10.0, "holdfast demo")).close()
    except psycopg.Error as error:
        raise DemoFailed(f"the database cannot be reached: {error}", remedy="Check the URL and the server.") from error
