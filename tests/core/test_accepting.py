"""Accepting: application messages that are taken and kept, taken and dropped, or refused."""

from __future__ import annotations

from asked import Endpoint, code, ranges

from holdfast.core.policy import Assurance


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
