"""Stands between clients and a server's admin listener, and lets a test do what it likes at each request of a sink."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Meddler:
    """Passes each request on, and its answer back.

    ``on_sink`` is called with each request for a sink, "POST /sinks/...". It may return ``"before"`` to cut the
    connection before the server hears of it, ``"after"`` to cut it before the client hears the answer, or an event that
    the answer waits for. ``is_meant`` says which requests it is called with instead.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.is_meant: Callable[[str], bool] = lambda path: path.startswith("/sinks/")
        self.on_sink: Callable[[str], str | threading.Event | None] = lambda request: None
        self.requests: list[str] = []
        self._server = _Server(("127.0.0.1", 0), self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], meddler: Meddler) -> None:
        super().__init__(address, _Handler)
        self.meddler = meddler

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients and servers that are killed are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        meddler, said = self.server.meddler, f"{self.command} {self.path}"
        meddler.requests.append(said)
        what = meddler.on_sink(said) if meddler.is_meant(self.path) else None
        self.close_connection = True
        if what == "before":
            return
        connection = http.client.HTTPConnection(urlsplit(meddler.target).netloc, timeout=60)
        try:
            headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body, headers | {"Connection": "close"})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            return  # as the client sees a server that is away
        finally:
            connection.close()
        if isinstance(what, threading.Event):
            what.wait(300)
        if what == "after":
            return
        self.send_response(response.status)
        for name, text in response.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = _pass
