"""A writer's client for the sinks of a server: stage, publish, discard."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from holdfast.client.connection import Connection, understood
from holdfast.client.errors import BatchRefused, RowRefused, ServerAway, SinkBound, TokenKnown
from holdfast.pipeline.writer.rows import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one sink.

    Args:
        sink: The sink's name on the server.
        query: The query that numbers the batches.
        number: The number of the batch.
        jumps: Whether numbers may be skipped.
        is_final: Whether no batch follows.
    """

    sink: str
    query: str
    number: int
    jumps: bool = False
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Args:
        is_new: Whether this request published the batch.
        attempt: The name of the published attempt; None: the server no longer knows it.
    """

    is_new: bool
    attempt: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of staging a part.

    Args:
        rows: Number of its rows that are durably staged.
        already: The batch was published before; nothing of the part is stored.
        refused: Rows that cannot be sent: position in the part, reason, the column at fault, and the remedy.
        attempt: The name of the published attempt; None: the server no longer knows it.
    """

    rows: int
    already: bool = False
    refused: tuple[tuple[int, str, str, str], ...] = ()
    attempt: str | None = None


class SinkPlane(Connection):
    remedies: ClassVar = {
        **Connection.remedies,
        404: "the server is an older version without sinks: upgrade it",
    }

    def stage(self, batch: Batch, token: str, part: bytes, *, tell: bool) -> Taken:
        """Stage a part with a token that was never used. When this returns, it is durable, but not visible to readers.

        Args:
            batch: The batch of the part.
            token: The name of the part.
            part: Encoded rows.
            tell: Whether to store the other rows of a part if one cannot be sent, and report that row.

        Raises:
            ServerAway: No usable answer: the part may or may not be staged. Stage it again with another token.
            TokenKnown: The token was already used.
            RowRefused: A row cannot be sent; no row of the part is stored.
            SinkBound, BatchRefused: The sink does not accept this batch.
        """
        asked = {"query": batch.query, "batch": str(batch.number), "token": token}
        if tell:
            asked["refused"] = "tell"
        if batch.jumps:
            asked["jump"] = "1"
        path = f"{_path(batch.sink)}/parts?{urlencode(asked)}"
        # Never repeated automatically on a broken connection, because the token would then be known.
        answer = self._taken(*self._request("POST", path, body=part, kind=CONTENT_TYPE, again=False))
        with understood(self._broker):
            told = tuple(
                (int(one["row"]), str(one["error"]), str(one.get("column") or ""), str(one.get("remedy") or ""))
                for one in answer.get("refused", ())
            )
            return Taken(int(answer["rows"]), bool(answer.get("already")), told, answer.get("attempt"))

    def publish(self, batch: Batch, tokens: list[str], rows: int, attempt: str = "") -> Published:
        """Publish the parts staged with these tokens, in this order, unless the batch is already published.

        Args:
            tokens: The tokens of all its parts.
            rows: The number of their rows.
            attempt: The name of this attempt. The answer names the attempt that was published.

        Raises:
            ServerAway: No usable answer: repeat the request.
            SinkBound, BatchRefused: The sink does not accept this batch, or no longer has its staged parts.
        """
        asked: dict[str, Any] = {"query": batch.query, "tokens": tokens, "rows": rows, "attempt": attempt}
        if batch.jumps:
            asked["jump"] = True
        if batch.is_final:
            asked["final"] = True
        answer = self._taken(
            *self._request("POST", f"{_path(batch.sink)}/batches/{batch.number}", body=json.dumps(asked))
        )
        with understood(self._broker):
            return Published(bool(answer["published"]), answer.get("attempt"))

    def last(self, batch: Batch) -> tuple[int, str | None] | None:
        """Return the last published batch of this query, and the name of its attempt; None: no batch was published."""
        status, answer = self._request("GET", _path(batch.sink))
        if status == 404 or self._checked(status, answer).get("query") != batch.query:
            return None
        with understood(self._broker):
            return None if answer["batch"] is None else (int(answer["batch"]), answer["attempt"])

    def discard(self, sink: str, tokens: list[str]) -> None:
        """Delete rows staged under these tokens; the server keeps published ones."""
        self._taken(*self._request("POST", f"{_path(sink)}/discard", body=json.dumps({"tokens": tokens})))

    def bind(self, sink: str, query: str) -> None:
        self._taken(*self._request("POST", f"{_path(sink)}/bind", body=json.dumps({"query": query})))

    def forget(self, sink: str) -> None:
        """Forget a sink; its published rows are still delivered."""
        status, answer = self._request("DELETE", _path(sink))
        if status != 404:
            self._checked(status, answer)

    def _taken(self, status: int, answer: dict[str, Any]) -> dict[str, Any]:
        if status == 422 and "row" in answer:
            with understood(self._broker):
                says = (str(answer.get(name) or "") for name in ("error", "column", "remedy"))
                raise RowRefused(int(answer["row"]), *says)
        if status == 507:  # a retry helps: published rows free space as they enter their queues
            said = f"{answer.get('error', 'it has no room')} {answer.get('remedy', '')}".strip()
            raise ServerAway(f"the server at {self._broker} answered 507: {said}")
        if status == 409:
            kind = {"bound": SinkBound, "token": TokenKnown}.get(str(answer.get("why")), BatchRefused)
            raise kind(
                f"the server at {self._broker} answered 409: {answer.get('error', 'no reason given')}",
                remedy=str(answer.get("remedy", "")),
            )
        return self._checked(status, answer)


def _path(sink: str) -> str:
    return f"/sinks/{quote(sink, safe='')}"


__all__ = ["Batch", "Published", "SinkPlane", "Taken"]
