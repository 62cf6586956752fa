"""Sockets that several processes listen on: bound and listening before the first of them is there."""

from __future__ import annotations

import os
import socket

from holdfast.http.server.descriptors import backlog


def bind(host: str, port: int, max_connections: int) -> list[socket.socket]:
    """Listen at every address that a name stands for.

    Args:
        port: TCP port, 0 for any free one, the same at each address.
        max_connections: As the listeners' limits say it.

    Raises:
        OSError: One of them cannot be listened on.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            one = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(one)
            if os.name == "posix":
                # A restart must not wait for connections of the last process. On Windows it would share the port.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # The IPv4 address of the same name has a separate socket.
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = port or one.getsockname()[1]
            one.listen(backlog(max_connections))
            one.setblocking(False)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
