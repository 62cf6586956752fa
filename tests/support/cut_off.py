"""A way to a server's socket that can be cut at a chosen moment, as a network may: before what is asked, or before what
is answered."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

_FAREWELLS = (b"X\x00\x00\x00\x04", b"\x01\x00\x00\x00\x01")
"""What a client of PostgreSQL or MariaDB says when it closes a connection: nothing that could be lost."""


class Cuts:
    """Decides when a connection ends.

    Attributes:
        cuts: "asked" or "answered": of the next thing that is said on any of the connections to cut, this does not
            arrive any more, and the connection ends; "" for no cut.
        times: How often something was cut.
    """

    def __init__(self) -> None:
        self.cuts = ""
        self.times = 0
        self._meant: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()

    def means(self, asked: bytes) -> bool | None:
        """Whether a connection is one to cut after this was asked on it; None: as before."""
        raise NotImplementedError

    def is_cut(self, client: socket.socket, which: str, data: bytes) -> bool:
        """Whether a connection ends with something that its client asked, or that it was answered."""
        with self._lock:
            if which == "asked" and (is_meant := self.means(data)) is not None:
                self._meant[client] = is_meant
            if self.cuts != which or not self._meant.get(client) or data in _FAREWELLS:
                return False
            self.cuts = ""
            self.times += 1
            return True


class CutOff(Cuts):
    """Passes on what comes to ``path`` to the socket at ``to``.

    Attributes:
        only: Only connections are cut on which these bytes were asked.
        is_open: While it is not set, nothing arrives: not on connections that are there, and not on new ones.
    """

    def __init__(self, path: Path, to: Path) -> None:
        super().__init__()
        self.only = b""
        self.is_open = threading.Event()
        self.is_open.set()
        self._to = str(to)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        os.chmod(path, 0o777)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def means(self, asked: bytes) -> bool | None:
        return self.only in asked or None

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._to)
            except OSError:  # the server is down
                near.close()
                continue
            threading.Thread(target=self._pass_on, args=(near, far, "asked"), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, "answered"), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, which: str) -> None:
        with contextlib.suppress(OSError):
            client = one if which == "asked" else other
            while data := one.recv(1 << 16):
                self.is_open.wait()
                if self.is_cut(client, which, data):
                    break
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
