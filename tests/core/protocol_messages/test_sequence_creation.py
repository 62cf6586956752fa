"""SequenceCreation: who gets a Sequence and who is refused, what a repeat gets, and what is granted (section 3.4)."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint, code

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    NONE,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Offer,
    TerminateSequence,
)
from holdfast.core.origin import Origin, in_session


def test_a_repeated_create_sequence_gives_the_same_sequence_also_after_a_crash() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create("urn:c")
    assert endpoint.create("urn:c") == identifier
    assert endpoint.restart().create("urn:c") == identifier
    assert endpoint.create("urn:another") != identifier


def test_an_offered_identifier_in_use_or_used_before_is_refused() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create("urn:c", offer=Offer("urn:o"))
    refused = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o")), message_id="urn:c2")
    assert code(refused) == "CreateSequenceRefused"
    endpoint.ask(control=TerminateSequence(identifier), message_id="urn:t")
    late = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o")), message_id="urn:c")
    assert code(late) == "CreateSequenceRefused"


@pytest.mark.parametrize(
    ("asked", "longest", "granted"),
    [(None, None, None), (60.0, None, 60.0), (60.0, 30.0, 30.0), (10.0, 30.0, 10.0), (None, 30.0, 30.0)],
)
def test_expires_is_shortened_and_never_lengthened(
    asked: float | None, longest: float | None, granted: float | None
) -> None:
    endpoint = Endpoint(max_expires=longest)
    answer = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR, asked), message_id="urn:c")
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
    assert answer.control.expires == granted


def ask_for(endpoint: Endpoint, party: str, message_id: str = "", **fields: Any) -> Envelope:
    exchange = object()
    create = CreateSequence(fields.pop("acks_to", ANONYMOUS_EPR), **fields)
    asked = endpoint.envelope(control=create, message_id=message_id)
    endpoint.protocol.receive(asked, exchange, endpoint.now, origin=Origin(party=party))
    endpoint.settle()
    answer = endpoint.answers[exchange]
    assert answer is not None
    return answer


def granted(answer: Envelope) -> str:
    assert isinstance(answer.control, CreateSequenceResponse), answer
    return answer.control.identifier


def test_the_security_sessions_of_a_party_share_its_quota() -> None:
    endpoint = Endpoint(max_sequences=5, max_party_sequences=2)
    for name in ("urn:uuid:1", "urn:uuid:2"):
        granted(ask_for(endpoint, in_session(name, "user alice")))
    for one in (endpoint, endpoint.restart()):
        assert ask_for(one, in_session("urn:uuid:3", "user alice")).fault is not None
        assert ask_for(one, "user alice").fault is not None
    granted(ask_for(endpoint, in_session("urn:uuid:4", "user bob")))


def test_no_party_has_more_open_sequences_than_its_share_also_after_a_restart() -> None:
    endpoint = Endpoint(max_sequences=5, max_party_sequences=2)
    first = granted(ask_for(endpoint, "a"))
    granted(ask_for(endpoint, "a"))
    for one in (endpoint, endpoint.restart()):
        refused = ask_for(one, "a").fault
        assert refused is not None
        assert (refused.code, refused.sender) == ("CreateSequenceRefused", False)
        assert "2 open Sequences here" in refused.reason
    granted(ask_for(endpoint, "b"))
    # Those that nobody is known for count in all, and for nobody.
    granted(ask_for(endpoint, ""))
    again = granted(ask_for(endpoint, ""))
    assert "5 open Sequences" in ask_for(endpoint, "c").fault.reason  # type: ignore[union-attr]
    endpoint.ask(control=TerminateSequence(again))
    endpoint.ask(control=TerminateSequence(first))
    granted(ask_for(endpoint, "a"))


@pytest.mark.parametrize("other", ["a party", "an AcksTo", "an Offer", "no MessageID", "a use of the first"])
def test_two_clients_with_one_message_id_get_two_sequences(other: str) -> None:
    endpoint = Endpoint(allows=lambda _address: True)
    first = granted(ask_for(endpoint, "a", "urn:same" if other != "no MessageID" else ""))
    if other == "a party":
        second = ask_for(endpoint, "b", "urn:same")
    elif other == "an AcksTo":
        second = ask_for(endpoint, "a", "urn:same", acks_to=EndpointReference("http://b/"))
    elif other == "an Offer":
        second = ask_for(endpoint, "a", "urn:same", offer=Offer("urn:o", ANONYMOUS_EPR))
        assert granted(ask_for(endpoint, "b", "urn:same", offer=Offer("urn:p", ANONYMOUS_EPR))) not in (
            first,
            granted(second),
        )
    elif other == "no MessageID":
        second = ask_for(endpoint, "a", "")
        assert second.relates_to is None
    else:
        endpoint.send(first, 1)
        second = ask_for(endpoint, "a", "urn:same")
    assert granted(second) != first


@pytest.mark.parametrize("offered", [False, True])
def test_who_asks_again_gets_its_own_sequence_whoever_else_has_the_same_message_id(offered: bool) -> None:
    endpoint = Endpoint(allows=lambda _address: True)

    def ask(one: Endpoint, party: str, name: str) -> str:
        offer = Offer(f"urn:offer:{name}", ANONYMOUS_EPR) if offered else None
        return granted(ask_for(one, party, "urn:same", offer=offer))

    first, second = ask(endpoint, "a", "a"), ask(endpoint, "b", "b")
    assert first != second
    for one in (endpoint, endpoint.restart()):
        assert [ask(one, "a", "a"), ask(one, "b", "b")] == [first, second]
        if offered:  # which nobody else would make: its network may have changed meanwhile
            assert ask(one, "c", "a") == first


def test_more_sequences_than_the_limit_are_refused_for_now() -> None:
    endpoint = Endpoint(max_sequences=1)
    identifier = endpoint.create("urn:1")
    refused = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR), message_id="urn:2")
    assert refused is not None and refused.fault is not None
    assert (refused.fault.code, refused.fault.sender) == ("CreateSequenceRefused", False)
    endpoint.ask(control=TerminateSequence(identifier), message_id="urn:t")
    endpoint.create("urn:3")


def test_an_address_that_is_not_allowed_is_refused() -> None:
    endpoint = Endpoint()
    create = CreateSequence(EndpointReference("http://elsewhere/"))
    assert code(endpoint.ask(control=create, message_id="urn:c")) == "CreateSequenceRefused"


def test_an_offer_with_the_endpoint_none_is_refused() -> None:
    offer = Offer("urn:o", EndpointReference(NONE))
    answer = Endpoint().ask(control=CreateSequence(ANONYMOUS_EPR, offer=offer), message_id="urn:c")
    assert code(answer) == "CreateSequenceRefused"
    assert answer is not None and answer.fault is not None
    assert "Endpoint" in answer.fault.reason


def test_accept_acks_to_is_the_address_the_request_was_sent_to() -> None:
    endpoint = Endpoint()
    create = CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o"))
    answer = endpoint.ask(control=create, message_id="urn:c", to="http://D:80/x")
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
    assert answer.control.accept_acks_to == EndpointReference("http://D:80/x")
