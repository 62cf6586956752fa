"""A network between the nodes of a cluster, or between them and Kafka, in which packets may be lost.

Each node, and each of Kafka's brokers, advertises the address of a proxy. The proxy finds in ``/proc`` which node has
opened a connection, and passes on what may arrive. Bytes that are held back arrive when the loss is over, as TCP
repeats them.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cut_off import Cuts

_REPEATED_AFTER = 0.2
"""Seconds: Linux' shortest time until TCP repeats a packet."""
_PRODUCE = b"\0\0"
"""The number of this request in Kafka's protocol. It follows the length of the request."""


class PacketLoss(Cuts):
    """Proxies before listeners. The connections to cut are those on which a node asks Kafka to store records.

    Args:
        ports: Name of a node or a server -> port of its listener.
        group_of: Returns the process group of a node, 0 while it has none.
        nodes: The names of those that connect; by default all who have a listener.

    Attributes:
        urls: Name of a node or a server -> URL of its proxy.
        held: How often bytes were held back.
        share: How large a share of packets is lost at random. They arrive later, as TCP repeats them, and a tenth of
            them ends the connection.
        repeated: How often a packet arrived later for that.
        ended: How many connections ended for that.
    """

    def __init__(self, ports: dict[str, int], group_of: Callable[[str], int], nodes: Sequence[str] = ()) -> None:
        super().__init__()
        self._ports, self.group_of, self._nodes = ports, group_of, nodes or tuple(ports)
        self._lost: frozenset[tuple[str, str]] = frozenset()
        self._changed = threading.Condition()
        self._is_over = False
        self.held = 0
        self.share = 0.0
        self.repeated = self.ended = 0
        self._random = random.Random(1)
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
        threading.Thread(target=self._pass_on, args=(near, far, (who, to), near), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(far, near, (to, who), near), daemon=True).start()

    def _node_with(self, port: int) -> str:
        """The node that has a connection from a port; "" if no node has it any more."""
        local = f":{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        links = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(local)}
        groups = {self.group_of(name): name for name in self._nodes}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = groups.get(os.getpgid(int(process.name)))
                if name and any(os.readlink(one) in links for one in (process / "fd").iterdir()):
                    return name
        return ""

    def _is_lost(self) -> bool:
        """Let a share of packets arrive later; whether the connection ends."""
        with self._changed:
            if self._random.random() >= self.share:
                return False
            self.repeated += 1
            self._changed.wait(_REPEATED_AFTER)
            is_end = self._random.random() < 0.1
            self.ended += is_end
            return is_end

    def means(self, asked: bytes) -> bool | None:
        return asked[4:6] == _PRODUCE

    def _pass_on(self, one: socket.socket, other: socket.socket, way: tuple[str, str], client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._changed:
                    self.held += way in self._lost
                    while way in self._lost and not self._is_over:
                        self._changed.wait()
                if self.is_cut(client, "asked" if one is client else "answered", data) or self._is_lost():
                    break
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
