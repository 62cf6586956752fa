"""One connection to a server's admin listener: blocking HTTP with the standard library, and its error responses.

Knows nothing of Spark, or of the requested resources.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from holdfast.client.admin import CLIENT_CERTIFICATE, Access, AdminConnection, describe_failure
from holdfast.client.errors import NobodyThere, PipelineError, ServerAway
from holdfast.client.nodes import Nodes, reachable

TIMEOUT = 30.0
"""Seconds without a byte until a server counts as away."""
NODE_TIMEOUT = 10.0
"""The same for a node of a cluster that has been chosen for what it owns: another one may own it soon."""
CONNECT_TIMEOUT = 5.0

NOT_ADMIN = "broker names the admin listener of a server, not where messages go: holdfast serve ... --admin 8081"
"""The listener for messages answers a GET with 405, and a POST without SOAP with 415."""


_FAILED_AT: dict[str, float] = {}
"""Address of a node -> when it last failed a connection of this process. Each task of Spark makes new connections, and
must not wait for the same node again."""


class Connection:
    """One connection to one server. Not for two threads, not to be pickled; every method makes one attempt.

    Args:
        broker: URL of the server's admin listener; for a cluster, also of several nodes, separated by commas. Requests
            go to the first that has not failed, or to the one that failed longest ago.
        access: What to prove and to trust there.
        timeout: Seconds without a byte until the server counts as away.

    All methods raise ServerAway when there is no usable answer, and PipelineError when the server refuses.
    """

    kinds: ClassVar[dict[int, type[PipelineError]]] = {}
    """Status -> its error class, if not PipelineError."""
    remedies: ClassVar[dict[int, str]] = {
        401: "give the token with option tokenFile, or in the environment variable HOLDFAST_ADMIN_TOKEN of the driver",
        405: NOT_ADMIN,
        415: NOT_ADMIN,
    }
    """Status -> its remedy, if the server names none."""

    def __init__(self, broker: str, access: Access | None = None, timeout: float = TIMEOUT) -> None:
        self._addresses = broker.split(",")
        self._broker = self._least_failed()
        self._access = access or Access()
        self._timeout = timeout
        self._connection: AdminConnection | None = None

    def at(self, url: str) -> Self:
        """Return the same for another node of the cluster."""
        return type(self)(url, self._access, NODE_TIMEOUT)

    def nodes(self, sink: str = "") -> Nodes | None:
        """Return which node of a cluster has which partition; None if the server is no node of a cluster.

        Raises:
            PipelineError: Several addresses are given, but the server is no node of a cluster.
        """
        status, answer = self._request("GET", f"/nodes?{urlencode({'sink': sink})}" if sink else "/nodes")
        if status in (404, 405):  # it is older than this client
            status, answer = 200, {"workers": [], "partitions": 1}
        answer = self._checked(status, answer)
        with understood(self._broker):
            workers = tuple(reachable(one, self._broker) for one in answer["workers"])
            found = Nodes(answer["partitions"], workers, answer.get("sink"))
        if not workers and len(self._addresses) > 1:
            raise PipelineError(
                f"option broker names several servers, but {self._broker} is not a node of a cluster",
                remedy="Name one server, and use union() to combine several queries",
            )
        return found if workers else None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.http.close()
            self._connection = None

    def _json(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        return self._checked(*self._request(method, path, body=body))

    def _request(
        self, method: str, path: str, wait: float = 0.0, body: str | bytes | None = None, **how: Any
    ) -> tuple[int, dict[str, Any]]:
        response = self._open(method, path, wait, body, **how)
        return response.status, answer_of(self._read(response.read))

    def _open(
        self,
        method: str,
        path: str,
        wait: float = 0.0,
        body: str | bytes | None = None,
        *,
        kind: str = "application/json",
        again: bool = True,
    ) -> http.client.HTTPResponse:
        """Send a request. If the server has closed a kept connection in the meantime, retry once on a new one.

        Args:
            method, path, body: The request.
            wait: Seconds that its response may take longer.
            kind: The body's Content-Type.
            again: Whether it may arrive twice.
        """
        kept = self._connection is not None
        try:
            return self._send(method, path, wait, body, kind)
        except (OSError, http.client.HTTPException) as error:
            # A server that is silent has the request; one that closed a kept connection has not answered any.
            if not (kept and again) or isinstance(error, TimeoutError):
                raise self._away(error) from error
            self.close()
        try:
            return self._send(method, path, wait, body, kind)
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _send(
        self, method: str, path: str, wait: float, body: str | bytes | None, kind: str
    ) -> http.client.HTTPResponse:
        if self._connection is None or self._connection.http.sock is None:  # the server may close it after an answer
            self._connection = self._access.open(self._broker, CONNECT_TIMEOUT)
            self._connection.http.connect()
        self._connection.http.sock.settimeout(self._timeout + wait)
        return self._connection.send(method, path, body, kind)

    def _read(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> PipelineError:
        """Close the connection, and return why it failed."""
        what, remedy = describe_failure(
            error, self._broker, None if self._connection is None else self._connection.silence
        )
        self.close()
        text = f"the server at {self._broker} does not answer: {what}"
        if len(self._addresses) > 1:
            _FAILED_AT[self._broker] = time.monotonic()
            self._broker = self._least_failed()
        if isinstance(error, ssl.SSLError) and _TRUST.search(error.reason or ""):  # it will be no better in a moment
            return PipelineError(text, remedy=remedy)
        kind = NobodyThere if isinstance(error, ConnectionRefusedError | socket.gaierror) else ServerAway
        return kind(f"{text}. {remedy}" if remedy is CLIENT_CERTIFICATE else text, remedy=remedy)

    def _least_failed(self) -> str:
        return min(self._addresses, key=lambda one: _FAILED_AT.get(one, 0.0))

    def _checked(self, status: int, answer: dict[str, Any]) -> dict[str, Any]:
        if 200 <= status < 300:
            return answer
        reason = (
            f"the server at {self._broker} answered {status}: {str(answer.get('error', 'no reason given')).strip()}"
        )
        remedy = str(answer.get("remedy", ""))
        if status >= 500:
            raise ServerAway(reason, remedy=remedy)
        raise self.kinds.get(status, PipelineError)(reason, remedy=remedy or self.remedies.get(status, ""))


_TRUST = re.compile("CERTIFICATE|ALERT|WRONG_VERSION|HTTP_REQUEST")
"""Reasons of OpenSSL that another attempt does not change."""


class understood:
    """Raise a specific error for an unexpected response, instead of a KeyError."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | ValueError | TypeError | AttributeError):
            raise PipelineError(
                f"this version does not understand the response of the server at {self._broker}: {error!r}",
                remedy="Check that broker names the admin listener of a Holdfast server of this version",
            ) from error


def answer_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer's body; for any other body, its beginning as the error."""
    try:
        answer = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"error": body[:200].decode("utf-8", "replace")}
