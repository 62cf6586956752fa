"""``holdfast serve`` in a process of its own, to be killed, with the contract of the interoperability tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit


class Served:
    """The process, from ``with`` to its end. Its store and its log lie in ``directory``.

    Args:
        directory: For these.
        environment: Further variables of its environment.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = directory / "log"
        self._environment = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "INTEROP_STORE": str(directory / "inbox"),
            "INTEROP_LOG": str(self._log),
        }
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Start it, where it was before if it was."""
        program = "from holdfast.cli.main import main; main()"
        port = urlsplit(self.url).port if self.url else 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "holdfast_service:app", "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        assert self._process.stdout is not None
        word, _, self.url = self._process.stdout.readline().strip().rpartition(" ")
        assert word == "listening on", f"holdfast serve ended with {self._process.poll()}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def delivered(self) -> list[int]:
        if not self._log.exists():
            return []
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [line["number"] for line in lines]
