"""Accepting: application messages that are taken and kept, taken and dropped, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint, code, ranges

from holdfast.core.messages import ANONYMOUS_EPR, NONE_EPR, Fault, Offer
from holdfast.core.policy import Assurance
from holdfast.core.records import Record


def test_a_message_without_a_sequence_is_refused_in_its_versions_own_way() -> None:
    assert code(Endpoint().ask(action="urn:a", body=b"<m/>")) == "WSRMRequired"


def test_who_takes_only_replies_acknowledges_anything_else_and_keeps_nothing_of_it() -> None:
    endpoint = Endpoint(assurance=Assurance(in_order=False))
    endpoint.protocol.accepting.takes_only_replies = True
    identifier = endpoint.create()
    assert ranges(endpoint.send(identifier, 2)) == ((2, 2),)
    assert ranges(endpoint.send(identifier, 1, relates_to="urn:never-asked")) == ((1, 2),)
    assert endpoint.records() == []
    told = [one.number for one in endpoint.incidents if one.name == "unasked message dropped"]
    assert told == [2, 1]
    again = endpoint.restart()
    assert ranges(again.send(identifier, 1)) == ((1, 2),)
    assert again.records() == []


def test_a_fault_about_a_message_is_logged_with_its_sequence_and_number() -> None:
    endpoint = Endpoint()
    endpoint.protocol.accepting._accepts = lambda action: False
    identifier = endpoint.create()
    assert code(endpoint.send(identifier, 7)) == "ActionNotSupported"
    (incident,) = [one for one in endpoint.incidents if one.name == "fault raised"]
    assert (incident.identifier, incident.number) == (identifier, 7)


def refusing(mandatory: tuple[str, ...] = ()) -> tuple[Endpoint, str, dict[str, Any]]:
    """An endpoint whose one Sequence offers another, and what a message says that it refuses."""
    endpoint = Endpoint(tell=lambda record, fault, _wsa: Record("", 0, "urn:fault", fault.code.encode(), 0.0))
    endpoint.protocol.accepting._accepts = lambda action: action != "urn:unknown"
    identifier = endpoint.create(offer=Offer("urn:offered", ANONYMOUS_EPR))
    return endpoint, identifier, {"not_understood": mandatory} if mandatory else {"action": "urn:unknown"}


REFUSED = pytest.mark.parametrize(
    ("mandatory", "said"), [((), b"ActionNotSupported"), (("{urn:x}h",), b"MustUnderstand")], ids=["action", "header"]
)


@REFUSED
def test_a_request_that_is_refused_is_acknowledged_with_the_fault_as_its_reply(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    answer = endpoint.send(identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, **wrong)
    assert answer is not None and answer.sequence is not None
    assert (answer.sequence.identifier, answer.sequence.message_number) == ("urn:offered", 1)
    assert (answer.relates_to, answer.body, ranges(answer)) == ("urn:m1", said, ((1, 1),))
    (told,) = [one for one in endpoint.incidents if one.name == "message refused"]
    assert (told.level, told.identifier, told.number) == ("warning", identifier, 1)
    assert told.detail is not None and told.detail["code"] == said.decode() and told.detail["reason"]
    again = endpoint.restart()
    repeated = again.send(identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, **wrong)
    assert repeated is not None and repeated.body == said, "the same after a crash"
    assert again.request(identifier, 2) is not None
    again.reply(2)
    assert [record.message_number for record in again.records()] == [2]


@REFUSED
def test_a_one_way_message_of_wcf_that_is_refused_is_acknowledged_with_the_fault(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    answer = endpoint.send(identifier, 1, **wrong)
    assert answer is not None and (answer.relates_to, answer.body, ranges(answer)) == (None, said, ((1, 1),))
    told_none = endpoint.send(identifier, 2, reply_to=NONE_EPR, **wrong)
    assert told_none is not None and (told_none.body, ranges(told_none)) == (b"", ((1, 2),))
    assert endpoint.records() == []


@REFUSED
def test_a_one_way_message_with_a_message_id_is_refused_outside_and_may_come_again(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    assert code(endpoint.send(identifier, 1, message_id="urn:m1", **wrong)) == said.decode()
    assert ranges(endpoint.send(identifier, 1, message_id="urn:m1")) == ((1, 1),)
    assert len(endpoint.records()) == 1


def test_a_request_beyond_a_gap_that_is_refused_has_its_fault_and_the_gap_may_close() -> None:
    endpoint, identifier, wrong = refusing()
    answer = endpoint.send(identifier, 2, message_id="urn:m2", reply_to=ANONYMOUS_EPR, **wrong)
    assert answer is not None and (answer.body, ranges(answer)) == (b"ActionNotSupported", ((2, 2),))
    assert ranges(endpoint.send(identifier, 1)) == ((1, 2),)
    assert ranges(endpoint.send(identifier, 3)) == ((1, 3),)
    assert [record.message_number for record in endpoint.records()] == [1, 3]


def test_a_message_that_no_route_takes_is_refused_in_the_same_way() -> None:
    endpoint, identifier, _ = refusing()
    answer = endpoint.send(
        identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, routed=Fault("Sender", "No route takes it.")
    )
    assert answer is not None and (answer.body, ranges(answer)) == (b"Sender", ((1, 1),))
