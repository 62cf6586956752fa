"""gSOAP as a live peer: builds its RM Source and RM Destination, starts and stops them, reads what they report.

Owns two programs in processes of their own, compiled at test time from ``gsoap/`` and the plugin sources that the
system's gSOAP packages install. Knows nothing of Holdfast.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

Rm = Literal["1.0", "1.1"]
Soap = Literal["1.1", "1.2"]
Mode = Literal["oneway", "twoway"]

NAMESPACE = "urn:holdfast:interop"
_SOURCES = Path(__file__).with_name("gsoap")
_SHARE = Path(os.environ.get("GSOAP_SHARE", "/usr/share/gsoap"))
_DIRECTORIES = {"1.0": "rm10", "1.1": "rm11"}


def available() -> str | None:
    """Why the peers cannot be built on this machine, or None when they can."""
    for program in ("soapcpp2", "gcc", "pkg-config", "sh"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install gsoap libgsoap-dev gcc pkg-config)"
    for path in ("plugin/wsrmapi.c", "import/wsrm.h", "import/wsrm5.h", "custom/duration.c"):
        if not (_SHARE / path).is_file():
            return f"{_SHARE / path} is missing (Debian: apt-get install gsoap libgsoap-dev)"
    if subprocess.run(["pkg-config", "--exists", "gsoap"], check=False).returncode:
        return "pkg-config does not know gsoap (Debian: apt-get install libgsoap-dev)"
    return None


def _fingerprint() -> str:
    digest = hashlib.sha256(os.environ.get("CFLAGS", "").encode())
    for path in [*sorted(_SOURCES.iterdir()), *sorted((_SHARE / "plugin").glob("ws[ar][am]api.[ch]"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(cache_dir: Path) -> Path:
    """Build the peers under ``cache_dir``, unless the same sources were built there before.

    Returns:
        The directory with ``rm10/`` and ``rm11/``, each holding ``client`` and ``server``.

    Raises:
        RuntimeError: the build failed; the message ends with what the tools said.
    """
    done = cache_dir / f"gsoap-{_fingerprint()}"
    if done.is_dir():
        return done
    cache_dir.mkdir(parents=True, exist_ok=True)
    # Built aside and moved into place whole: two test workers may build at the same time.
    aside = Path(tempfile.mkdtemp(prefix="gsoap-building-", dir=cache_dir))
    try:
        built = subprocess.run(
            ["sh", str(_SOURCES / "build.sh"), str(aside)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "GSOAP_SHARE": str(_SHARE)},
        )
        if built.returncode:
            raise RuntimeError(f"building the gSOAP peers failed:\n{built.stdout[-4000:]}")
        with contextlib.suppress(OSError):  # another worker was first: its build is as good
            aside.rename(done)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return done


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as the gSOAP service got it."""

    operation: str
    key: str
    number: int


class GsoapServer:
    """The gSOAP RM Destination as a process, from ``with`` to its end.

    Args:
        built: what `build` returned.
        rm: the version of WS-ReliableMessaging it speaks. It accepts SOAP 1.1 and 1.2.
        log: file to which it appends each delivered message.
        stock: leave out what gSOAP's plugin leaves out: acknowledgements for one-way messages from anonymous
            sources, and the replay of a lost reply.
        threads: a thread for each connection, which is kept open; one-way messages alone, and no log of them.
        port: where it listens on 127.0.0.1; 0 takes a free one. A server started again where another one was killed
            knows nothing of that one's Sequences.
        sleep: milliseconds that it takes to answer a request.
    """

    def __init__(
        self,
        built: Path,
        rm: Rm,
        log: Path,
        *,
        stock: bool = False,
        threads: bool = False,
        port: int = 0,
        sleep: int = 0,
    ) -> None:
        self._command = [str(built / _DIRECTORIES[rm] / "server"), "--port", str(port), "--log", str(log)]
        self._command += ["--sleep", str(sleep)] * (sleep > 0) + ["--stock"] * stock + ["--threads"] * threads
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.pid = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        first = self._process.stdout.readline().split()
        if len(first) != 2 or first[0] != "ready":
            self.__exit__()
            raise RuntimeError(f"the gSOAP server did not start: {self._command}")
        self.url = f"http://127.0.0.1:{first[1]}/"
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # it has nothing to save: each delivered message is in the log already
            self._process.communicate()
            self._process = None

    def delivered(self) -> list[Delivered]:
        """Every message delivered so far, in the order of delivery."""
        if not self._log.exists():
            return []
        return [Delivered(**json.loads(line)) for line in self._log.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class ClientResult:
    """What the gSOAP RM Source reported."""

    exit_code: int
    """0: everything acknowledged, and every reply correct, exactly once."""
    events: list[dict[str, Any]]
    sent: int
    acked: int
    replies: list[dict[str, Any]]
    stderr: str

    def count(self, event: str) -> int:
        """How many events of this name there were: created, sent, failed, resend, reply, close, terminate."""
        return sum(each["event"] == event for each in self.events)


async def run_client(
    built: Path,
    url: str,
    *,
    rm: Rm,
    mode: Mode,
    count: int,
    key: str = "k",
    soap: Soap = "1.2",
    rounds: int = 1000,
    pause_ms: int = 20,
    ids: bool = True,
    timeout: float = 240.0,
) -> ClientResult:
    """Run the gSOAP RM Source to its end.

    Args:
        built: what `build` returned.
        url: the RM Destination's address (or that of a proxy before it).
        rounds: how often it tries an exchange, or the whole of what is unacknowledged, before it gives up.
        pause_ms: milliseconds between two tries.
        ids: whether requests have a MessageID.
        timeout: seconds after which it is killed.

    Raises:
        TimeoutError: it did not end in time.
    """
    process = await asyncio.create_subprocess_exec(
        str(built / _DIRECTORIES[rm] / "client"),
        *("--mode", mode, "--count", str(count), "--url", url, "--key", key, "--soap", soap),
        *("--rounds", str(rounds), "--pause", str(pause_ms), "--ids", "yes" if ids else "no"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in out.decode().splitlines()]
    if process.returncode is None or process.returncode not in (0, 1) or not lines or "sent" not in lines[-1]:
        raise RuntimeError(f"the gSOAP client ended with {process.returncode}: {err.decode()}\n{out.decode()[-2000:]}")
    return ClientResult(exit_code=process.returncode, events=lines[:-1], stderr=err.decode(), **lines[-1])
