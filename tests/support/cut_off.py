"""A way to a server's socket that can be cut at a chosen moment, as a network may: before what is asked, or before what
is answered."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path


class CutOff:
    """Passes on what comes to ``path`` to the socket at ``to``.

    Attributes:
        cuts: "asked" or "answered": of the next thing that is said on any connection, this does not arrive any more,
            and the connection ends; "" for no cut.
        times: How often that happened.
    """

    def __init__(self, path: Path, to: Path) -> None:
        self.cuts = ""
        self.times = 0
        self._to = str(to)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        os.chmod(path, 0o777)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._to)
            threading.Thread(target=self._pass_on, args=(near, far, "asked"), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, "answered"), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, which: str) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if self.cuts == which:
                    self.cuts = ""
                    self.times += 1
                    break
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
