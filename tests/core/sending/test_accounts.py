"""Credentials that a destination refuses: whatever waits for it, one outbox tries them, and the others learn of it."""

from __future__ import annotations

from typing import Any

import pytest
from sending import NEW, OLD, Sending

from holdfast.core.events import Stopped, Transmit
from holdfast.core.faults import LOCKS_ACCOUNT, REFUSES_ACCOUNT
from holdfast.core.messages import CloseSequenceResponse, CreateSequence, Envelope, Fault
from holdfast.core.sending.accounts import FIRST_ALONE
from holdfast.core.versions import Versions
from tests.core.sending.test_circuit import Fleet


class Shop(Fleet):
    """A destination that checks credentials."""

    def __init__(self, partitions: int, *, has_credentials: bool = True, **policy: Any) -> None:
        super().__init__(partitions, **policy)
        self.protocol.outbound.context.accounts.has_credentials = lambda _to: has_credentials
        self.code = ""
        """With which it refuses them; "" if it accepts them."""
        self.refuses = (CreateSequence, type(None))
        self.is_silent = False

    def exchange(self, sent: Transmit) -> None:
        if self.is_silent:
            self.arrived.append((self.now, sent.source, sent.number))
            self.protocol.failed(sent, self.now, "no answer", has_left=True)
        elif self.code and isinstance(sent.envelope.control, self.refuses):
            self.arrived.append((self.now, sent.source, sent.number))
            fault = Envelope(sent.envelope.soap, fault=Fault(self.code, "no"))
            self.protocol.received(sent, fault, self.now)
        else:
            super().exchange(sent)

    @property
    def stopped(self) -> list[Stopped]:
        return [one for one in self.told if isinstance(one, Stopped)]

    @property
    def filled(self) -> int:
        """The number of messages in the queue."""
        return sum(self.queue.records.ends[partition] for partition in range(len(self.queue.partitions)))

    def resume(self) -> None:
        for outbox in self.protocol.outbound.outboxes.values():
            if outbox.lifecycle.stopped:
                outbox.resume(outbox.lifecycle.choices, self.now)
        self.settle()


@pytest.mark.parametrize("code", sorted(LOCKS_ACCOUNT))
def test_one_of_many_partitions_is_refused_and_the_others_stop(code: str) -> None:
    shop = Shop(24)
    shop.code = code
    shop.fill(3)
    shop.run(1000.0)
    assert len(shop.arrived) == 1
    first, *others = shop.stopped
    assert (first.code, first.reason) == (code, "no")
    assert len(others) == 23
    assert {one.code for one in others} == {code}
    assert {one.reason for one in others} == {f"no (refused for {first.key!r}, which has the same credentials)"}
    shop.resume()
    shop.run(1000.0)
    assert len(shop.arrived) == 2  # once more, in all
    shop.code = ""
    shop.resume()
    shop.run(100.0)
    assert len(shop.received) == shop.filled


def test_a_changed_password_is_sent_only_with_messages_already_on_their_way() -> None:
    shop = Shop(24)
    shop.fill(1)
    shop.run(100.0)
    assert len(shop.received) == shop.filled
    shop.code = "HTTP 401"
    before, sent = len(shop.arrived), shop.filled
    shop.fill(2 * sent)
    on_their_way = len(shop.sent)
    shop.run(1000.0)
    assert len(shop.arrived) - before <= on_their_way
    assert len(shop.stopped) == 24
    now = len(shop.arrived)
    shop.fill(2 * sent + 2)
    shop.run(1000.0)
    assert len(shop.arrived) == now


def test_without_credentials_all_begin_at_once() -> None:
    shop = Shop(8, has_credentials=False)
    shop.fill(1)
    shop.settle()
    assert len({sent.source for sent in shop.sent}) == 8


def test_the_first_answer_lets_all_others_send() -> None:
    shop = Shop(8)
    shop.fill(1)
    shop.settle()
    assert len({sent.source for sent in shop.sent}) == 1
    shop.run(1.0)
    assert len(shop.received) == shop.filled


def test_without_an_answer_another_outbox_tries_after_a_while() -> None:
    shop = Shop(3)
    shop.is_silent = True
    shop.fill(1)
    shop.run(FIRST_ALONE / 2)
    assert len({source for _, source, _ in shop.arrived}) == 1
    shop.is_silent = False
    shop.run(200.0)
    assert len(shop.received) == shop.filled


def test_a_status_403_stops_one_outbox_alone() -> None:
    """It may refuse one message: a filter before the service, or one operation that this user may not call."""
    assert {"HTTP 403"} == REFUSES_ACCOUNT - LOCKS_ACCOUNT
    shop = Shop(3)
    shop.fill(1)
    shop.code = "HTTP 403"
    shop.settle()
    shop.exchange(shop.sent.pop(0))
    shop.code = ""
    shop.run(100.0)
    (stopped,) = shop.stopped
    left = shop.protocol.outbound.outboxes[stopped.key].records.waiting
    assert len(shop.received) == shop.filled - left


def test_an_outbox_that_is_closed_lets_the_next_one_try() -> None:
    shop = Shop(2)
    shop.fill(1)
    shop.settle()
    (sent,) = shop.sent
    shop.sent.clear()
    outbox = shop.protocol.outbound.sequences.by_local_id[sent.source]
    shop.protocol.outbound.registry.close(outbox.key, shop.now)
    shop.run(FIRST_ALONE / 2)
    assert len(shop.received) == 1


# --- every request of a source ----------------------------------------------------------------------------------------

HOUR = 3600.0


def opened(versions: Versions, *, wants_end: bool = False, is_acknowledged: bool = True) -> tuple[Sending, Transmit]:
    """A Sequence with one message, and what it sends next."""
    sending = Sending()
    sending.choices = [(versions, False)]
    outbox, (message,) = sending.opened("a", "1")
    if not is_acknowledged:
        return sending, message
    sending.acknowledge(message, (1, 1))
    if wants_end:
        outbox.want_end(sending.now)
    (sent,) = sending.take() if wants_end else sending.wait(HOUR)[:1]
    return sending, sent


def create() -> tuple[Sending, Transmit]:
    sending = Sending()
    sending.choices = [(NEW, False), (OLD, False)]
    return sending, sending.creating()[1]


def terminate() -> tuple[Sending, Transmit]:
    sending, close = opened(NEW, wants_end=True)
    sending.answer(close, control=CloseSequenceResponse("urn:s:a"))
    (sent,) = sending.take()
    return sending, sent


def terminate_old() -> tuple[Sending, Transmit]:
    sending, last = opened(OLD, wants_end=True)
    sending.acknowledge(last, (1, 2))
    (sent,) = sending.take()
    return sending, sent


REQUESTS = {
    "CreateSequence": create,
    "message": lambda: opened(NEW, is_acknowledged=False),
    "AckRequested": lambda: opened(NEW),
    "LastMessage": lambda: opened(OLD, wants_end=True),
    "CloseSequence": lambda: opened(NEW, wants_end=True),
    "TerminateSequence": terminate,
    "TerminateSequence of 1.0": terminate_old,
}


@pytest.mark.parametrize("code", sorted(LOCKS_ACCOUNT))
@pytest.mark.parametrize("blames_sender", [True, False])
@pytest.mark.parametrize("request_", REQUESTS)
def test_refused_credentials_are_sent_with_no_further_request(request_: str, blames_sender: bool, code: str) -> None:
    sending, sent = REQUESTS[request_]()
    sending.refuse(sent, code, is_rm=False, sender=blames_sender)
    assert sending.wait(HOUR) == []
    outbox = sending.protocol.outbound.outboxes["a"]
    # Any answer to the one-way TerminateSequence of 1.0 ends the Sequence.
    assert outbox.source is None if request_ == "TerminateSequence of 1.0" else outbox.lifecycle.stopped == code
    if outbox.lifecycle.stopped:
        outbox.resume(sending.choices, sending.now)
        again = (sending.take() or sending.wait(HOUR))[0]
        assert type(again.envelope.control) is type(sent.envelope.control)
