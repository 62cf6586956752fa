"""A broker whose legs are secured, and a service behind it: what the tests of each kind of security share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast import Destination, Message, MessageContext, Processor

ECHO = "urn:test:echo"
HASTY = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.3))
BASE = """
store = "store"
partitions = 1
sessions = 4
listen.port = 0
admin.port = 0
default_queue = "orders"
[queues.orders]
[queues.other]
[policies."*"]
refusals = 1
patience = "0s"
sending.retransmission = { initial = "200ms", floor = "50ms", cap = "300ms" }
"""
Start = Callable[[str], Any]


class Witness(Processor):
    """Keeps the bytes of each message as it arrives."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def inbound(self, context: MessageContext) -> None:
        self.data.append(context.data)


class Shop:
    """A service with these processors. It keeps the messages, and echoes those that ask for it."""

    def __init__(self, *processors: Processor) -> None:
        self.app = Destination(":memory:", processors=processors)
        self.got: list[Message] = []
        self.app.on(ECHO)(self._echo)
        self.app.on()(self._take)

    def _take(self, message: Message) -> None:
        self.got.append(message)

    def _echo(self, message: Message) -> str:
        self.got.append(message)
        return f"<echoed>{message.body.text}</echoed>"

    @property
    def texts(self) -> list[str | None]:
        return [message.body.text for message in self.got]
