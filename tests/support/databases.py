"""Private database servers for the tests, from what the machine has installed: in a directory of their own, on a socket
there, as an unprivileged user where the tests run as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote

import pytest

from demo.database import find_program, unprivileged

PATIENCE = 240.0
PASSWORD = "s3cret/word"
GUARDED = "guarded"
"""A user who needs the password; "tester" needs none."""


class Server:
    """A server of one kind, which the tests may kill and start again.

    Args:
        log: Where what it says goes.
    """

    kind = ""
    needs: tuple[str, ...] = ()
    """Programs; without them there is no such server here."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"holdfast-{self.kind}-"))
        self.user = unprivileged()
        if self.user is not None:
            shutil.chown(self.directory, self.user)
        self.process: subprocess.Popen[bytes] | None = None
        self.spaces = 0

    @classmethod
    def missing(cls) -> str:
        """Why there can be none here, "" if there can."""
        gone = [name for name in cls.needs if find_program(name) is None]
        return f"no {', '.join(gone)} here" if gone else ""

    def begin(self) -> None:
        """Make its data, and start it."""
        try:
            self.make()
            self.start()
            self.admit()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        if reason := self.missing():
            self.end()
            pytest.skip(reason)
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def make(self) -> None: ...

    def admit(self) -> None: ...

    def command(self) -> list[str]: ...

    def is_up(self) -> bool: ...

    def url(self, space: str = "", *, user: str = "tester", password: str = "") -> str: ...

    def new_url(self) -> str:
        """The URL of a space that nobody had."""
        self.spaces += 1
        return self.url(f"space{self.spaces}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        until = time.monotonic() + PATIENCE
        while True:
            log: IO[bytes] = (self.directory / "log").open("ab")
            with log:
                self.process = subprocess.Popen(
                    [*_with_us(), *self.command()], stdout=log, stderr=log, start_new_session=True, **self.as_user()
                )
            while self.process.poll() is None:
                if self.is_up():
                    return
                assert time.monotonic() < until, (self.directory / "log").read_text()
                time.sleep(0.02)
            # What is left of a killed one may still be ending.
            assert time.monotonic() < until, (self.directory / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill all of it, as a power cut would."""
        assert self.process is not None
        self._signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """Stop all of it where it is: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        for child in [self.process.pid, *_descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def end(self) -> None:
        """Stop it, and remove all that it had."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *command: str, input: str | None = None) -> str:
        """Let a program of the server's run to its end; what it printed."""
        done = subprocess.run(
            command, capture_output=True, text=True, input=input, timeout=300, cwd=self.directory, **self.as_user()
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def as_user(self) -> dict[str, Any]:
        return {} if self.user is None else {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid}


class PostgreSQL(Server):
    kind = "postgresql"
    needs = ("initdb", "postgres", "psql")

    def make(self) -> None:
        data = self.directory / "data"
        self.run(program("initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        hba = f"local all {GUARDED} scram-sha-256\nlocal all all trust\n"
        (data / "pg_hba.conf").write_text(hba)

    def command(self) -> list[str]:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.directory), "shared_buffers": "32MB"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.directory / "data"), *options]

    def is_up(self) -> bool:
        asked = [program("psql"), "-h", str(self.directory), "-U", "tester", "-c", "SELECT 1", "postgres"]
        return subprocess.run(asked, capture_output=True, **self.as_user()).returncode == 0

    def admit(self) -> None:
        self.sql("CREATE DATABASE holdfast", database="postgres")
        self.sql(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")

    def sql(self, statement: str, *, database: str = "holdfast") -> str:
        """Carry it out; what it printed."""
        psql = [program("psql"), "-h", str(self.directory), "-U", "tester", "-v", "ON_ERROR_STOP=1", "-At", database]
        return self.run(*psql, input=statement)

    def url(self, space: str = "", *, user: str = "tester", password: str = "") -> str:
        who = user + (f":{quote(password, safe='')}" if password else "")
        return f"postgresql://{who}@/holdfast?host={self.directory}" + (f"&space={space}" if space else "")


class MariaDB(Server):
    kind = "mariadb"
    needs = ("mariadbd", "mariadb-install-db", "mariadb")

    def make(self) -> None:
        data = self.directory / "data"
        self.run(
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={data}",
            f"--tmpdir={self.directory}",  # several are made at a time, and their temporary tables meet in /tmp
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *([f"--user={self.user}"] if self.user else []),
        )

    @property
    def socket(self) -> str:
        return str(self.directory / "socket")

    def command(self) -> list[str]:
        return [
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--tmpdir={self.directory}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'pid'}",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            *([f"--user={self.user}"] if self.user else []),
        ]

    def is_up(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(5)
                one.connect(self.socket)
                return bool(one.recv(1))
        except OSError:
            return False

    def admit(self) -> None:
        self.sql("CREATE DATABASE holdfast", database="mysql")
        for user, password in (("tester", ""), (GUARDED, PASSWORD)):
            self.sql(f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'")
        self.sql("GRANT ALL ON *.* TO tester@localhost")

    def sql(self, statement: str, *, database: str = "holdfast") -> str:
        """Carry it out; what it printed."""
        client = [program("mariadb"), "--no-defaults", f"--socket={self.socket}", "-u", "root", "-N", "-B", database]
        return self.run(*client, input=statement)

    def url(self, space: str = "", *, user: str = "tester", password: str = "") -> str:
        who = user + (f":{quote(password, safe='')}" if password else "")
        # For each connection PyMySQL would read all authorities of the machine, though the socket knows no TLS.
        where = f"unix_socket={self.socket}&ssl_disabled=true"
        return f"mariadb://{who}@localhost/holdfast?{where}" + (f"&space={space}" if space else "")


KINDS: dict[str, type[Server]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}


def program(name: str) -> str:
    found = find_program(name)
    assert found is not None, name
    return found


def _with_us() -> list[str]:
    """What lets a program end with the tests, however these end."""
    setpriv = find_program("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv is not None else []


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in thread.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found
