"""The sinks of a server, seen from a writer: stage, publish, discard. Owns the requests and what their answers mean."""

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
        query: Whose batches are counted.
        number: Which of them.
        jumps: Whether numbers may be left out.
        is_final: Whether none comes after it.
    """

    sink: str
    query: str
    number: int
    jumps: bool = False
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch.

    Args:
        is_new: Whether it is published by this request, and was not before.
        attempt: What the attempt is called that was published; None: the server does not know it any more.
    """

    is_new: bool
    attempt: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a part.

    Args:
        rows: How many of its rows are staged, durably.
        already: The batch was published before; nothing of the part is kept.
        refused: Of the rows that cannot be sent: which of the part, why, and the column to blame.
        attempt: What the attempt is called that was published; None: the server does not know it any more.
    """

    rows: int
    already: bool = False
    refused: tuple[tuple[int, str, str], ...] = ()
    attempt: str | None = None


class SinkPlane(Connection):
    """The sinks of one server."""

    remedies: ClassVar = {
        **Connection.remedies,
        404: "the server is of an older version that has no sinks: update it",
    }

    def stage(self, batch: Batch, token: str, part: bytes, *, tell: bool) -> Taken:
        """Stage a part under a token that was never used. Durable when this returns, and seen by nobody.

        Args:
            batch: What it is of.
            token: Names the part.
            part: Encoded rows.
            tell: Whether to keep the other rows of a part with one that cannot be sent, and to tell of it.

        Raises:
            ServerAway: No usable answer: the part may be there or not. Stage it again under another token.
            TokenKnown: The token was used.
            RowRefused: A row cannot be sent; nothing of the part is kept.
            SinkBound, BatchRefused: The sink takes no such batch.
        """
        asked = {"query": batch.query, "batch": str(batch.number), "token": token}
        if tell:
            asked["refused"] = "tell"
        if batch.jumps:
            asked["jump"] = "1"
        path = f"{_path(batch.sink)}/parts?{urlencode(asked)}"
        # Not again by itself on a connection that breaks: the token would be known then.
        answer = self._taken(*self._request("POST", path, body=part, kind=CONTENT_TYPE, again=False))
        with understood(self._broker):
            told = tuple(
                (int(one["row"]), str(one["error"]), str(one.get("column") or "")) for one in answer.get("refused", ())
            )
            return Taken(int(answer["rows"]), bool(answer.get("already")), told, answer.get("attempt"))

    def publish(self, batch: Batch, tokens: list[str], rows: int, attempt: str = "") -> Published:
        """Publish what was staged under these tokens, in this order, and nothing else, unless the batch was before.

        Args:
            batch: Which.
            tokens: Of all its parts.
            rows: How many there are in them.
            attempt: What this attempt is called. Whoever publishes the batch, too, is told which was published.

        Raises:
            ServerAway: No usable answer: ask again.
            SinkBound, BatchRefused: The sink takes no such batch, or does not have what was staged any more.
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
        """The last batch of this one's query that was published, and which attempt it was; None: there is none."""
        status, answer = self._request("GET", _path(batch.sink))
        if status == 404 or self._checked(status, answer).get("query") != batch.query:
            return None
        with understood(self._broker):
            return None if answer["batch"] is None else (int(answer["batch"]), answer["attempt"])

    def discard(self, sink: str, tokens: list[str]) -> None:
        """Drop what was staged under these tokens; the server keeps what is published."""
        self._taken(*self._request("POST", f"{_path(sink)}/discard", body=json.dumps({"tokens": tokens})))

    def bind(self, sink: str, query: str) -> None:
        """Let a sink take this query's batches from now on, and no other's."""
        self._taken(*self._request("POST", f"{_path(sink)}/bind", body=json.dumps({"query": query})))

    def forget(self, sink: str) -> None:
        """Forget a sink; what it published is delivered all the same."""
        status, answer = self._request("DELETE", _path(sink))
        if status != 404:
            self._checked(status, answer)

    def _taken(self, status: int, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or the error that it is."""
        if status == 422 and "row" in answer:
            with understood(self._broker):
                says = (str(answer.get(name) or "") for name in ("error", "column", "remedy"))
                raise RowRefused(int(answer["row"]), *says)
        if status == 507:  # worth waiting for: what is published makes room while it comes into its queues
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
