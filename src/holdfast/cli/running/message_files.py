"""The messages that ``holdfast send`` reads: a file each, or a line of JSON each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from holdfast.cli.running.operation_values import OperationValues, json_object
from holdfast.exceptions import ConfigurationError, EnvelopeError, HoldfastError, clause
from holdfast.settings import suggestion
from holdfast.wire.body import in_utf8

if TYPE_CHECKING:
    from holdfast.endpoint.envelopes.attachments import Attachment
    from holdfast.endpoint.source.operation_calls import MessageFields

TOGETHER = 256
"""Messages stored together, so that they share a sync."""
KEYS = ("body", "action", "key", "message_id", "attachments")
"""Keys of a line of ``--jsonl``."""
OF_RECEIVED = (
    "queue",
    "partition",
    "offset",
    "sequence",
    "message_number",
    "soap_version",
    "received_at",
    "delivered_at",
)
"""Columns of a received message that a line may have, too, as in a file for ``holdfast pipeline check --with``. The
next receiver gives the message its own values."""
UNSENT = ("to", "reply_to", "relates_to", "headers")
"""Columns of a received message that a line may only have without a value, because they would be lost."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message of the command line or of a line of JSON; ``name`` is its file, and line."""

    name: str
    body: bytes | str
    action: str
    key: str
    message_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    headers: bytes = b""

    def fields(self, attachments: Iterable[Attachment]) -> MessageFields:
        """Return the arguments for ``send`` and ``request``, with further attachments."""
        return {
            "action": self.action,
            "sequence_key": self.key,
            "message_id": self.message_id,
            "headers": self.headers,
            "attachments": (*self.attachments, *attachments),
        }


@dataclass(frozen=True, slots=True)
class MessageFiles:
    """The files of one command, read in their order.

    Args:
        names: Their names; ``-`` is standard input.
        is_jsonl: Whether each line is a message.
        action, key: Of messages that do not name their own.
        values: The operation that the files are values for; None if they are XML.
        are_alone: Whether each message is a batch, because something is attached to it.
    """

    names: tuple[str, ...]
    is_jsonl: bool
    action: str
    key: str
    values: OperationValues | None
    are_alone: bool

    def __iter__(self) -> Iterator[Outgoing]:
        for name in self.names:
            if self.is_jsonl:
                yield from self._lines(name)
            else:
                body, values = _read(name), self.values
                if not body.strip():
                    content = "one XML element" if values is None else "a JSON object"
                    raise ConfigurationError(f"{name} is empty", remedy=f"Put {content} into the file.")
                if values is not None:
                    yield self._of_values(name, body, values)
                else:
                    yield Outgoing(name, _utf8(name, body), self.action, self.key)

    def _lines(self, name: str) -> Iterator[Outgoing]:
        with _open(name) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{name}, line {number}"
                if self.values is not None:
                    yield self._of_values(where, line, self.values)
                    continue
                found = _line(where, line)
                action, key = found.get("action", self.action), found.get("key", self.key)
                attachments = found.get("attachments", ())
                yield Outgoing(where, found["body"], action, key, found.get("message_id"), attachments)

    def _of_values(self, name: str, text: bytes, values: OperationValues) -> Outgoing:
        body, headers = values.message(name, text)
        return Outgoing(name, body, values.action, self.key, headers=headers)

    def batches(self) -> Iterator[Batch]:
        """The messages in batches, up to the first one that cannot be sent."""
        messages = iter(self)
        while True:
            batch = self._next_batch(messages)
            if batch.messages or batch.problem is not None:
                yield batch
            if not batch.messages or batch.problem is not None:
                return

    def _next_batch(self, messages: Iterator[Outgoing]) -> Batch:
        some: list[Outgoing] = []
        try:
            for message in islice(messages, TOGETHER):
                _check(message, has_attachments=bool(message.attachments) or self.are_alone)
                some.append(message)
                if message.attachments or self.are_alone:  # which are checked when the message is stored
                    break
        except HoldfastError as error:
            return Batch(some, error)
        return Batch(some, None)

    def count(self) -> int | None:
        """Return the number of messages; None: standard input may have any."""
        if not self.is_jsonl:
            return len(self.names)
        if "-" in self.names:
            return None
        total = 0
        for name in self.names:
            with Path(name).open("rb") as file:
                total += sum(1 for line in file if line.strip())
        return total


class Batch(NamedTuple):
    """Messages to store together, and what is wrong with the one after them: none after that one may be stored."""

    messages: list[Outgoing]
    problem: HoldfastError | None


def _check(message: Outgoing, *, has_attachments: bool) -> None:
    """Raise ConfigurationError if a message cannot be sent."""
    from holdfast.endpoint.source.outgoing_record import attach, outgoing_record

    identifier = "urn:uuid:0" if message.message_id is None else message.message_id  # the source makes one
    try:
        record = outgoing_record(
            message.key, message.action, message.body, identifier, message.headers, 0.0, wants_reply=False
        )
        if not has_attachments:
            attach(record, (), None)
    except EnvelopeError as error:
        raise ConfigurationError(
            f"{message.name} cannot be sent: {clause(error.message)}", remedy=error.remedy
        ) from error


def _read(name: str) -> bytes:
    try:
        with _open(name) as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {name}: {error.strerror}") from error


def _utf8(name: str, body: bytes) -> bytes:
    """Return XML as UTF-8, by its own declaration if it has another encoding."""
    try:
        found = in_utf8(body)
        found.decode()
        return found
    except (EnvelopeError, UnicodeDecodeError):
        raise ConfigurationError(
            f"{name} is not XML in UTF-8, nor in the encoding that its XML declaration names",
            remedy="Save it as UTF-8.",
        ) from None


def _open(name: str) -> BinaryIO:
    # Not sys.stdin: a thread that reads from it would hold its lock when the program is interrupted.
    return open(0, "rb", closefd=False) if name == "-" else open(name, "rb")


def _line(where: str, line: bytes) -> dict[str, Any]:
    given = json_object(line, partial(_no_message, where))
    known = {*KEYS, *OF_RECEIVED, *UNSENT} - {"body"}
    found = {name: value for name, value in given.items() if value is not None or name not in known}
    for name, value in found.items():
        if name in OF_RECEIVED or (name in UNSENT and value == ""):
            continue
        if name in UNSENT:
            raise _no_message(where, f"the command does not send its {name}", "Remove it. ")
        if name not in KEYS:
            hint = suggestion(name, KEYS)
            raise _no_message(where, f"it has the unknown key {name!r}", f"{hint} " if hint else "")
        if name != "attachments" and not isinstance(value, str):
            raise _no_message(where, f"its {name} is not text but {type(value).__name__}")
    if not found.get("body", "").strip():
        raise _no_message(where, "its body is empty" if "body" in found else "it has no body")
    if "attachments" in found:
        from holdfast.cli.running.line_attachments import line_attachments

        found["attachments"] = line_attachments(found["attachments"], partial(_no_message, where))
    return found


def _no_message(where: str, why: str, hint: str = "") -> ConfigurationError:
    form = 'Write each line as {"body": "<order/>", "action": "urn:Submit"}.'
    return ConfigurationError(
        f"{where} is not a message: {why}", remedy=f"{hint}{form} The keys are {', '.join(KEYS)}."
    )
