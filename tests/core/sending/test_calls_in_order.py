"""Several callers and a service that takes requests in order, and drops those that come early, as WCF does.

``tests/simulation/test_trial.py`` has the same figures for one-way messages. Here each message is a call, and the next
one of its caller waits for the reply. Time is virtual, and no retransmission timeout passes in it.
"""

from __future__ import annotations

import heapq
import random

import pytest
from sending import OLD, Sending

from holdfast.core.events import Delivered, Transmit
from holdfast.core.messages import (
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Sequence,
    SequenceAcknowledgement,
)
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy

CALLERS, CALLS = 8, 400
EXCHANGE = 0.0003
"""Seconds that an exchange takes beside the pause."""


class InOrder:
    """The service, the network before it, and the callers.

    Args:
        pause: Seconds at most before the service takes a request, each drawn at random: requests overtake each other.
        window: Of the source; None: its default.
        seed: Of the pauses.
    """

    def __init__(self, pause: float, window: int | None, seed: int) -> None:
        windows = {} if window is None else {"window": window, "initial_window": window}
        patient = RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0)
        self.sending = Sending(retransmission=patient, **windows)
        self.sending.choices = [(OLD, True)]
        self.outbox = self.sending.open()
        self.transmissions = 0
        self._pause, self._chance = pause, random.Random(seed)
        self._arriving: list[tuple[float, int, Transmit]] = []
        self._called = self._taken = 0
        self._offered = ""

    def run(self) -> float:
        """Make all calls, and return the seconds that they took."""
        began = self.sending.now
        for _ in range(CALLERS):
            self._call()
        self._send()
        while self._taken < CALLS:
            self.sending.now, _, sent = heapq.heappop(self._arriving)
            before = len(self.sending.told)
            self._arrive(sent)
            self.sending.settle()
            for effect in self.sending.told[before:]:
                if isinstance(effect, Delivered):
                    self._call()
            self._send()
        return self.sending.now - began

    def _call(self) -> None:
        if self._called < CALLS:
            self._called += 1
            record = Record("a", 0, "urn:a", b"<m/>", self.sending.now, f"urn:m:{self._called}", wants_reply=True)
            self.sending.protocol.submit(self.outbox, record, self.sending.now)

    def _send(self) -> None:
        for sent in self.sending.take():
            self.transmissions += sent.number > 0
            arrival = self.sending.now + EXCHANGE + self._pause * self._chance.random()
            heapq.heappush(self._arriving, (arrival, self.transmissions, sent))

    def _arrive(self, sent: Transmit) -> None:
        control, now = sent.envelope.control, self.sending.now
        if isinstance(control, CreateSequence):
            assert control.offer is not None
            self._offered = control.offer.identifier
            self.sending.answer(
                sent, control=CreateSequenceResponse("urn:s:a", accept_acks_to=EndpointReference("http://d/"))
            )
        elif sent.number > self._taken + 1:
            self.sending.protocol.received(sent, None, now)
        else:
            self._taken = max(self._taken, sent.number)
            ranges = SequenceAcknowledgement("urn:s:a", ((1, self._taken),))
            reply = {"sequence": Sequence(self._offered, sent.number), "acknowledgements": (ranges,)}
            self.sending.answer(sent, action="urn:aResponse", body=b"<r/>", **reply)


@pytest.mark.parametrize("pause", [0.0, 0.004, 0.04])
@pytest.mark.parametrize("seed", range(3))
def test_calls_in_order_take_no_more_round_trips_than_with_a_window_of_one(pause: float, seed: int) -> None:
    one, usual = InOrder(pause, 1, seed), InOrder(pause, None, seed)
    assert one.run() / usual.run() >= 0.95
    assert one.transmissions == CALLS
    assert usual.transmissions <= 1.05 * CALLS


def test_calls_that_do_not_overtake_each_other_are_on_their_way_together() -> None:
    assert InOrder(0.0, 1, 0).run() / InOrder(0.0, None, 0).run() > 7
