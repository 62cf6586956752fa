"""ServedPolls: the answers to polls: at most one message each, and whether another one waits (WS-MakeConnection 3.2).

A message that goes in the answer to a poll counts as transmitted. If the answer is lost, the Sequence retransmits it to
a later poll. A poll waits only while the store reads a record for it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.events import Respond, Transmit
from holdfast.core.messages import Envelope, TerminateSequence
from holdfast.core.sending.context import SendingContext
from holdfast.core.sending.exchanges import Exchanges
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.polling.mailboxes import Mailbox
from holdfast.core.sending.polling.waiting_polls import Poll


class ServedPolls:
    """Answers polls (WS-MakeConnection 3.2, 3.3)."""

    def __init__(
        self,
        context: SendingContext,
        exchanges: Exchanges,
        give_turn: Callable[[Outbox, float], None],
        terminate_sent: Callable[[str, bool, float], None],
    ) -> None:
        self._context = context
        self._exchanges = exchanges
        self._give_turn = give_turn
        self._terminate_sent = terminate_sent
        self._polls = context.polls

    def serve(self, now: float) -> None:
        if self._polls.waiting:
            is_recovering = self._context.reading.is_recovering
            waiting, self._polls.waiting = self._polls.waiting, []
            left = [poll for poll in waiting if not self._answer(poll, now, is_recovering=is_recovering)]
            self._polls.waiting += left

    def _answer(self, poll: Poll, now: float, *, is_recovering: bool) -> bool:
        box = self._context.mailboxes.get(poll.address)
        if box is not None and now < poll.until and is_recovering:
            return False
        envelope, is_reading = (None, False) if box is None else self._next(box, poll, now)
        if envelope is None and is_reading and now < poll.until:
            return False
        if envelope is not None and box is not None:
            envelope.message_pending = self._has_more(box, poll, now)
        self._context.effects.append(Respond(poll.back_channel, envelope))
        return True

    def _next(self, box: Mailbox, poll: Poll, now: float) -> tuple[Envelope | None, bool]:
        """Return the next message for a poll, and without one, whether the store reads one."""
        mailboxes, is_reading = self._context.mailboxes, False
        if poll.keys is None and not mailboxes.only_acknowledges(box) and (envelope := mailboxes.take(box)) is not None:
            self._renew(envelope)
            return envelope, False
        for key in self._keys(box, poll):
            outbox = self._context.outboxes[key]
            sent = self._transmitted(outbox, now)
            if sent is not None:
                if key in box.outboxes:
                    box.outboxes[key] = box.outboxes.pop(key)  # the others are served before it
                mailboxes.acknowledged(box, sent.envelope)
                return sent.envelope, False
            is_reading = is_reading or self._context.reading.is_reading(outbox)
        envelope = mailboxes.take(box) if poll.keys is None else None
        if envelope is not None:
            self._renew(envelope)
        return envelope, is_reading

    def _renew(self, envelope: Envelope) -> None:
        """Let a message that waited acknowledge what is acknowledged now, so that no peer takes it for a retraction."""
        present = (self._context.offered.acknowledgement(one.identifier) for one in envelope.acknowledgements)
        renewed = zip(envelope.acknowledgements, present, strict=True)
        envelope.acknowledgements = tuple(old if new is None or old.final else new for old, new in renewed)

    @staticmethod
    def _keys(box: Mailbox, poll: Poll) -> list[str]:
        return [key for key in box.outboxes if poll.keys is None or key in poll.keys]

    def _transmitted(self, outbox: Outbox, now: float) -> Transmit | None:
        effects, mailboxes = self._context.effects, self._context.mailboxes
        told = len(effects)
        mailboxes.serving = outbox.key
        self._give_turn(outbox, now)
        mailboxes.serving = None
        for at in range(told, len(effects)):
            sent = effects[at]
            if isinstance(sent, Transmit):
                # The message leaves in the answer to the poll instead of a post, so its exchange is over at once.
                del effects[at]
                self._exchanges.ended(sent, now)
                # A peer may never accept a reply, such as one that is too large: it must not hold back the others.
                if outbox.is_for_replies and outbox.source is not None:
                    outbox.source.transmissions.answered(sent.number, now, in_answers=False, is_reply=True)
                if isinstance(sent.envelope.control, TerminateSequence):
                    self._terminate_sent(sent.source, False, now)
                return sent
        return None

    def _has_more(self, box: Mailbox, poll: Poll, now: float) -> bool:
        if box.messages and poll.keys is None:
            return True
        sources = (self._context.outboxes[key].source for key in self._keys(box, poll))
        return any(source is not None and source.has_due(now) for source in sources)
