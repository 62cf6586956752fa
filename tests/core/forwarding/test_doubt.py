"""A Sequence that its destination ended: what is in doubt, and what goes on by itself with exactly-once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sending import NEW, OLD, STEADY, Sending, numbers

from holdfast.core.events import Transmit
from holdfast.core.faults import SEQUENCE_CLOSED, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE
from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    Fault,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import Assurance
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions

ENDS = [
    (versions, code)
    for versions, codes in (
        (NEW, (UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED, SEQUENCE_CLOSED)),
        (OLD, (UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED)),
    )
    for code in codes
]
EACH_END = pytest.mark.parametrize(("versions", "code"), ENDS)


def sent(versions: Versions, *bodies: str, **policy: object) -> tuple[Sending, Outbox, list[Transmit]]:
    """A Sequence, and its messages, which left together."""
    sending = Sending(initial_window=16, **policy)
    sending.choices = [(versions, False)]
    outbox, left = sending.opened("a", *bodies)
    assert numbers(left) == list(range(1, len(bodies) + 1))
    return sending, outbox, left


def refuse(sending: Sending, one: Transmit, code: str, *acknowledged: tuple[int, int]) -> None:
    """Answer a message with a fault that ends its Sequence, perhaps with what it has of that."""
    is_final = code == SEQUENCE_CLOSED  # WS-RM 1.1, 3.5: the final acknowledgement goes with it
    ack = SequenceAcknowledgement("urn:s:a", acknowledged, (), is_final)
    more = {"acknowledgements": (ack,)} if acknowledged or is_final else {}
    sending.answer(one, fault=Fault(code, "it is over", is_rm=True, identifier="urn:s:a"), **more)


def end(sending: Sending, one: Transmit) -> None:
    """Answer what ends a Sequence."""
    control = one.envelope.control
    if isinstance(control, CloseSequence):
        sending.answer(one, control=CloseSequenceResponse(control.identifier))
    elif isinstance(control, TerminateSequence):
        sending.answer(one, control=TerminateSequenceResponse(control.identifier))


def went_on(sending: Sending) -> list[bytes]:
    """What leaves in the Sequences that follow, from a peer that takes everything."""
    went: list[bytes] = []
    for count in range(40):
        for one in sending.wait(STEADY.floor / 2):
            if isinstance(one.envelope.control, CreateSequence):
                sending.grant(one, f"urn:s:{count}")
            elif one.number:
                went += [one.envelope.body] if one.envelope.control is None else []
                sending.acknowledge(one, (one.number, one.number))
            else:
                end(sending, one)
    return went


@EACH_END
def test_a_message_that_was_sent_once_and_refused_is_not_in_doubt(versions: Versions, code: str) -> None:
    sending, _, (one,) = sent(versions, "1")
    refuse(sending, one, code)
    assert sending.stopped == []
    assert went_on(sending) == [b"1"]


@EACH_END
def test_the_answers_to_all_others_are_awaited_before_anything_is_decided(versions: Versions, code: str) -> None:
    sending, outbox, (one, two, three) = sent(versions, "1", "2", "3")
    refuse(sending, two, code)
    assert outbox.source is not None and sending.stopped == []
    sending.acknowledge(one, (1, 1))
    refuse(sending, three, code)
    assert sending.stopped == []
    assert went_on(sending) == [b"2", b"3"]


@EACH_END
def test_a_message_without_an_answer_is_in_doubt_and_named(versions: Versions, code: str) -> None:
    sending, _, (one, two, three) = sent(versions, "1", "2", "3")
    refuse(sending, one, code)
    sending.protocol.failed(two, sending.now, "the connection was cut")
    refuse(sending, three, code)
    assert [stopped.in_doubt for stopped in sending.stopped] == ["2-2"]


@EACH_END
def test_a_repeat_that_is_refused_says_nothing_of_the_first_transmission(versions: Versions, code: str) -> None:
    sending, _, (one,) = sent(versions, "1")
    sending.protocol.failed(one, sending.now, "the connection was cut")
    (again,) = sending.wait(STEADY.cap)
    refuse(sending, again, code)
    assert [stopped.in_doubt for stopped in sending.stopped] == ["1-1"]


@EACH_END
def test_a_transmission_that_found_no_connection_is_no_doubt(versions: Versions, code: str) -> None:
    sending, _, (one,) = sent(versions, "1")
    sending.protocol.failed(one, sending.now, "connection.refused", has_left=False)
    (again,) = sending.wait(STEADY.cap)
    refuse(sending, again, code)
    assert sending.stopped == []
    assert went_on(sending) == [b"1"]


@EACH_END
def test_what_the_fault_acknowledges_is_in_no_doubt(versions: Versions, code: str) -> None:
    sending, _, (one, two) = sent(versions, "1", "2")
    sending.protocol.failed(one, sending.now, "the connection was cut")
    refuse(sending, two, code, (1, 1))
    assert sending.stopped == []
    assert went_on(sending) == [b"2"]


@EACH_END
def test_a_sequence_that_ends_with_a_gap_has_no_successor_where_order_is_promised(
    versions: Versions, code: str
) -> None:
    """The destination may have delivered what it acknowledged behind the gap: what is missing would come too late."""
    sending, _, (one, two, three) = sent(versions, "1", "2", "3", assurance=Assurance.parse("exactly-once in-order"))
    sending.acknowledge(two, (2, 2))
    refuse(sending, one, code)
    refuse(sending, three, code)
    (stopped,) = sending.stopped
    assert stopped.code == code and "was to follow the numbers 1-1" in stopped.reason
    assert stopped.first > stopped.last, "nothing is in doubt"


@EACH_END
def test_a_sequence_that_ends_with_a_gap_has_a_successor_where_no_order_is_promised(
    versions: Versions, code: str
) -> None:
    sending, _, (one, two, three) = sent(versions, "1", "2", "3", assurance=Assurance.parse("exactly-once"))
    sending.acknowledge(two, (2, 2))
    refuse(sending, one, code)
    refuse(sending, three, code)
    assert sending.stopped == []
    assert went_on(sending) == [b"1", b"3"]


@EACH_END
def test_what_another_process_may_have_sent_is_in_doubt(versions: Versions, code: str) -> None:
    before, _, _ = sent(versions, "1")
    sending = Sending(before.store)
    sending.open()
    (again,) = sending.take()
    refuse(sending, again, code)
    assert [stopped.in_doubt for stopped in sending.stopped] == ["1-1"]


@EACH_END
def test_where_duplicates_are_allowed_no_answer_is_awaited(versions: Versions, code: str) -> None:
    sending, _, (one, _, _) = sent(versions, "1", "2", "3", assurance=Assurance.parse("at-least-once"))
    refuse(sending, one, code)
    assert sending.stopped == []
    assert went_on(sending)[-1:] == [b"3"]


class Peer:
    """A destination that forgets the Sequence after some transmissions, over connections that may be cut."""

    def __init__(self, sending: Sending, takes: int, code: str) -> None:
        self.sending = sending
        self.takes = takes
        self.code = code
        self.taken: list[bytes] = []
        self.known: set[tuple[str, int]] = set()

    def answer(self, one: Transmit, fate: str) -> None:
        sending = self.sending
        if isinstance(one.envelope.control, CreateSequence):
            return sending.grant(one, f"urn:s:{len(self.taken)}:{sending.now}")
        if not one.number:
            return end(sending, one)
        assert one.envelope.sequence is not None
        name = one.envelope.sequence.identifier, one.number
        is_known = name[0] != "urn:s:a" or self.takes > 0
        if fate == "request lost":
            return sending.protocol.failed(one, sending.now, "cut")
        if is_known:
            self.takes -= 1
            if name not in self.known and one.envelope.control is None:
                self.taken.append(one.envelope.body)
            self.known.add(name)
        if fate == "answer lost":
            return sending.protocol.failed(one, sending.now, "cut")
        if is_known:
            return sending.acknowledge(one, (one.number, one.number))
        refuse(sending, one, self.code)


@given(
    how=st.sampled_from(ENDS),
    takes=st.integers(0, 6),
    order=st.permutations(range(6)),
    fates=st.lists(st.sampled_from(["answered", "answered", "request lost", "answer lost"]), max_size=12),
)
def test_only_a_decision_sends_twice_to_a_peer_that_forgot_the_sequence(
    how: tuple[Versions, str], takes: int, order: list[int], fates: list[str]
) -> None:
    sending, outbox, left = sent(how[0], *"123456")
    planned = list(fates)
    peer = Peer(sending, takes, how[1])
    left = [left[place] for place in order]
    for _ in range(60):
        for one in left:
            peer.answer(one, fates.pop() if fates else "answered")
        left = sending.wait(STEADY.cap)
        if sending.stopped or outbox.records.first == 6:
            break
    assert len(set(peer.taken)) == len(peer.taken), "nobody filters duplicates over two Sequences"
    if not sending.stopped:
        assert len(peer.taken) == 6
    else:
        taken = sorted(number for name, number in peer.known if name == "urn:s:a")
        is_late = taken != [*range(1, len(taken) + 1)]  # what comes in another Sequence was to come before these
        assert is_late or (sending.stopped[0].in_doubt and any("lost" in fate for fate in planned))
