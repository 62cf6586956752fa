"""Callbacks: messages that a duplex service sends to a source on its own, stored and handled as at a destination.

This module owns their queue in the source's store, and the choice of the messages that go there. The handlers run in
the destination's ``Dispatcher``; replies to requests are not its business (``replies``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.events import Handle
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import Envelope, Routed
from holdfast.core.policy import Assurance
from holdfast.core.protocol_settings import MessageRules
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Snapshot
from holdfast.endpoint.engine.engine import CALLBACKS_QUEUE, Engine
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.fault_replies import passed_on, set_aside
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.endpoint.handling.dispatcher import Dispatcher
from holdfast.endpoint.handling.handlers import HandlerTable, check_transactions
from holdfast.exceptions import ConfigurationError
from holdfast.store import Transactional

_ROUTED = Routed((CALLBACKS_QUEUE,))


class Callbacks:
    """The handlers of one opening of a source, and the messages for them."""

    def __init__(self, table: HandlerTable, policy: HandlingPolicy) -> None:
        self._table = table
        letters = DeadLetters(seal, unseal)
        self._queue = Queue(CALLBACKS_QUEUE, drops_passed=True, dead_letters=letters)
        self._queue.deletion.is_handled = True
        self.queues: list[Queue] = []
        """Of the store: none until the first handler."""
        self._all = [self._queue, letters]
        self.settings = HandlerSettings(policy, set_aside, CALLBACKS_QUEUE) if table.handlers else None
        self.letters = letters if table.handlers else None
        self.dispatcher: Dispatcher | None = None
        self.rules = MessageRules(
            replies=table.replies, always_replies=table.always_replies, unrequested=self._route, tell=passed_on
        )

    def divide(self, snapshot: Snapshot) -> None:
        """Choose the queues: those of an earlier opening stay, also without handlers."""
        if self.settings is not None or CALLBACKS_QUEUE in snapshot.queues:
            self.queues += self._all

    def begin(self, engine: Engine, assurance: Assurance, envelopes: Envelopes) -> None:
        """Call handlers from now on: first for the messages that an earlier opening stored.

        Raises:
            ConfigurationError: A handler asks for a transaction that the store does not have.
        """
        check_transactions(self._table.handlers, assurance, are_there=isinstance(engine.store, Transactional))
        handling = engine.protocol.handling
        if handling is not None:
            self.dispatcher = Dispatcher(engine, handling, self._table.handlers, self._table.reply_actions, envelopes)
            handling.start(engine.clock())

    def _route(self, envelope: Envelope) -> Routed | None:
        is_message = envelope.relates_to is None and envelope.fault is None
        return _ROUTED if self.settings is not None and is_message and self._table.replies(envelope.action) else None

    def hand_over(self, handle: Handle) -> None:
        """Call the handler of a message."""
        assert self.dispatcher is not None
        self.dispatcher.hand_over(handle)

    @property
    def is_busy(self) -> bool:
        return self.dispatcher is not None and self.dispatcher.is_busy

    async def stop(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for running handlers. The next opening calls the others again."""
        if self.dispatcher is not None:
            await self.dispatcher.stop(grace)

    def when_returned(self, call: Callable[[], object]) -> None:
        """Call ``call`` once when no plain handler runs any more: now, or in the thread of the last one."""
        if self.dispatcher is None:
            call()
        else:
            self.dispatcher.when_returned(call)

    def store_failed(self) -> None:
        """Report that no further handler result can be stored."""
        if self.dispatcher is not None:
            self.dispatcher.store_failed()


def check_reachable(handlers: Mapping[str, Any], *, listens: bool, offers: bool) -> None:
    """Check that a service can send messages to a source with handlers.

    Raises:
        ConfigurationError: The source has neither a listener nor an offered Sequence.
    """
    if handlers and not (listens or offers):
        raise ConfigurationError(
            "the source has handlers, but a service cannot send to it: it neither listens nor offers a Sequence",
            remedy="Set http=SourceHTTP(listen=(host, port)), or remove offer=False.",
        )
