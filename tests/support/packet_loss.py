"""A network between the nodes of a cluster, in which packets from one node to another may be lost.

Each node advertises the address of a proxy. The proxy finds in ``/proc`` which node has opened a connection, and passes
on what may arrive. Bytes that are held back arrive when the loss is over, as TCP repeats them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class PacketLoss:
    """Proxies before the cluster listeners of nodes.

    Args:
        ports: Name of a node -> port of its cluster listener.
        group_of: Returns the process group of a node, 0 while it has none.

    Attributes:
        urls: Name of a node -> URL of its proxy.
        held: How often bytes were held back.
    """

    def __init__(self, ports: dict[str, int], group_of: Callable[[str], int]) -> None:
        self._ports, self._group_of = ports, group_of
        self._lost: frozenset[tuple[str, str]] = frozenset()
        self._changed = threading.Condition()
        self._is_over = False
        self.held = 0
        self.urls: dict[str, str] = {}
        self._listeners: list[socket.socket] = []
        for name in ports:
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners.append(listener)
            self.urls[name] = f"http://127.0.0.1:{listener.getsockname()[1]}"
            threading.Thread(target=self._accept, args=(name, listener), daemon=True).start()

    def lose(self, *ways: tuple[str, str]) -> None:
        """Lose all packets of these ways, ``(from, to)``, from now on, and no others."""
        with self._changed:
            self._lost = frozenset(ways)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, to: str, listener: socket.socket) -> None:
        while True:
            try:
                near, address = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near, address[1], to), daemon=True).start()

    def _connect(self, near: socket.socket, port: int, to: str) -> None:
        who = self._node_with(port)
        try:
            far = socket.create_connection(("127.0.0.1", self._ports[to]))
        except OSError:  # the node is down
            near.close()
            return
        threading.Thread(target=self._pass_on, args=(near, far, (who, to)), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(far, near, (to, who)), daemon=True).start()

    def _node_with(self, port: int) -> str:
        """The node that has a connection from a port; "" if no node has it any more."""
        local = f":{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        links = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(local)}
        groups = {self._group_of(name): name for name in self._ports}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = groups.get(os.getpgid(int(process.name)))
                if name and any(os.readlink(one) in links for one in (process / "fd").iterdir()):
                    return name
        return ""

    def _pass_on(self, one: socket.socket, other: socket.socket, way: tuple[str, str]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._changed:
                    self.held += way in self._lost
                    while way in self._lost and not self._is_over:
                        self._changed.wait()
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
