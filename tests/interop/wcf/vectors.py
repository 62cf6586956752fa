"""The recorded exchanges of real .NET peers, and what makes two exchanges the same but for ids, ports and paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from wcf.wire import COMBINATIONS, Profile

DIRECTORY = Path(__file__).resolve().parents[2] / "data" / "vectors" / "wcf"
SERVER = DIRECTORY.with_name("wcf-server")
"""Our own requests, and what WCF's server answered."""


@dataclass(slots=True)
class Recorded:
    """One recorded exchange. ``response_head`` and ``response`` are empty if there was no answer."""

    number: int
    request_head: bytes
    request: bytes
    response_head: bytes
    response: bytes


def cases(directory: Path = DIRECTORY) -> list[str]:
    """The names of the recorded cases. Raises FileNotFoundError when the vectors are not there: none is no result."""
    names = sorted(path.name for path in directory.iterdir() if path.is_dir())
    if not names:
        raise FileNotFoundError(f"no recorded case in {directory}")
    return names


def load(case: str, directory: Path = DIRECTORY) -> list[Recorded]:
    """The exchanges of one case, in order."""
    exchanges = []
    for path in sorted((directory / case).glob("*-req.http")):
        answer = path.with_name(path.name.replace("-req", "-res"))
        request_head, request = _split(path.read_bytes())
        response_head, response = _split(answer.read_bytes()) if answer.exists() else (b"", b"")
        exchanges.append(Recorded(int(path.name.partition("-")[0]), request_head, request, response_head, response))
    return exchanges


def course(case: str, directory: Path = SERVER) -> list[tuple[int, str]]:
    """What the recorder saw, in order of time: the number of an exchange, and "request", "answer" or "refused" (the
    server refused the connection)."""
    found = []
    for line in (directory / case / "index.txt").read_text().splitlines():
        number = int(line.split()[0])
        if number:
            found.append((number, "request" if " -> " in line else "answer"))
        elif "ConnectionRefusedError" in line:
            found.append((found[-1][0], "refused"))
    return found


def profile_of(case: str) -> Profile:
    """The combination a case's name says it speaks."""
    for profile in COMBINATIONS:
        if f"-{profile}-" in case:
            return profile
    raise ValueError(f"{case} names no combination")


def _split(data: bytes) -> tuple[bytes, bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


class Normaliser:
    """Replaces what differs from run to run: each UUID by its place in the order of appearance, and the service's URL.

    One instance serves one side of a comparison, from its first exchange to its last.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, bytes] = {}

    def __call__(self, data: bytes) -> bytes:
        data = re.sub(rb"urn:uuid:[0-9a-f-]{36}", self._name, data)
        data = re.sub(rb"http://(localhost|127\.0\.0\.1):\d+/\w+", b"URL", data)
        data = re.sub(rb"(?m)^POST \S+ ", b"POST PATH ", data)
        return re.sub(rb"(?m)^(Host|Content-Length): [^\r\n]*", rb"\1: VARIES", data)

    def _name(self, found: re.Match[bytes]) -> bytes:
        return self._names.setdefault(found.group(), b"UUID-%d" % (len(self._names) + 1))
