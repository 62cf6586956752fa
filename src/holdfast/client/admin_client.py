"""The client of an admin interface: one request and its JSON, over whichever transport.

Owns what an answer means: its errors in their own words, and lists that come in pages. A transport carries requests:
:class:`HTTPTransport` to the listener of a running server, ``stopped_store`` to a store that no server runs.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

from holdfast.client.admin import Access, describe_failure
from holdfast.exceptions import HoldfastError

PAGE = 1000
"""Page size of the requested lists."""
NEEDS_TLS = b"this port speaks https"
"""How the answer of a listener with TLS to a request without TLS begins."""
PATIENCE = 30.0
"""Seconds to wait for the answer of a listener."""


class Transport(Protocol):
    """Carries requests to one admin interface."""

    @property
    def place(self) -> str:
        """The name of the interface for people: its URL, or the location of the store."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether a running server answers."""
        ...

    def send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the content of the answer.

        Raises:
            HoldfastError: There is no answer.
        """
        ...

    def close(self) -> None:
        """Release what the transport holds."""
        ...


class AdminClient:
    """Asks one admin interface.

    Args:
        transport: Carries the requests; the client closes it.
        words: Rewrites a remedy of the server for the user of this client.
    """

    def __init__(self, transport: Transport, words: Callable[[str], str] = str) -> None:
        self._transport = transport
        self._words = words
        self.place = transport.place
        """The name of the interface for people."""
        self.is_running = transport.is_running
        """Whether a running server answers."""

    def close(self) -> None:
        """Release what the transport holds."""
        self._transport.close()

    def ask(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, and return the JSON object of its answer; an empty one for an empty answer.

        Args:
            path: The quoted path below the root of the interface, without a slash before it.
            method: The method of HTTP.
            body: The content; None for none.

        Raises:
            HoldfastError: There is no answer, or the request is refused, for the reason that the answer gives.
        """
        status, data = self._transport.send(method, f"/{path}", None if body is None else json.dumps(body).encode())
        try:
            found = json.loads(data) if data else {}
        except (ValueError, RecursionError) as error:
            if data.startswith(NEEDS_TLS):
                raise HoldfastError(
                    f"{self.place} cannot be read: this port speaks https", remedy="Change http to https in the URL."
                ) from None
            raise self._unreadable(f"its response {status} is not JSON") from error
        if not isinstance(found, dict):
            raise self._unreadable("its response is not a JSON object")
        if status >= 300:
            said = found.get("error", f"it responded with HTTP {status}")
            raise HoldfastError(f"{self.place}: {said}", remedy=self._words(str(found.get("remedy", ""))))
        return found

    def steer(self, path: str, **fields: Any) -> dict[str, Any]:
        """Post the fields that are not None, and return the answer.

        Raises:
            HoldfastError: As :meth:`ask`.
        """
        return self.ask(path, "POST", {name: value for name, value in fields.items() if value is not None})

    def all_of(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return the whole list of that name, page by page.

        Raises:
            HoldfastError: As :meth:`ask`.
        """
        found: list[dict[str, Any]] = []
        query = f"{path}{'&' if '?' in path else '?'}limit={PAGE}"
        following: object = ""
        while following is not None:
            answer = self.ask(query + (f"&after={quote(str(following), safe='')}" if following else ""))
            found += self.listed(answer, name)
            following = answer.get("next")
        return found

    def listed(self, answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
        """Return the list of that name in an answer.

        Raises:
            HoldfastError: The answer has no such list.
        """
        found = answer.get(name)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self._unreadable(f"its response has no {name}")
        return found

    def _unreadable(self, reason: str) -> HoldfastError:
        return HoldfastError(
            f"{self.place} cannot be read: {reason}",
            remedy="Check that this is the admin listener of a running server: holdfast serve ... --admin 8081",
        )


class HTTPTransport:
    """Requests to the admin listener of a running server, each on a separate connection."""

    is_running = True

    def __init__(self, url: str, access: Access, words: Callable[[str], str] = str) -> None:
        self.place = url.rstrip("/")
        self._access = access
        self._words = words

    def send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the content of the answer.

        Raises:
            HoldfastError: There is no answer.
        """
        connection = self._access.open(self.place, PATIENCE)
        try:
            answer = connection.send(method, path, body)
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason, remedy = describe_failure(error, self.place, connection.silence)
            raise HoldfastError(f"{self.place} cannot be read: {reason}", remedy=self._words(remedy)) from error
        finally:
            connection.http.close()

    def close(self) -> None:
        """Do nothing: no connection outlasts its request."""
