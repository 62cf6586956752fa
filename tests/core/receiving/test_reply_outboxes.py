"""Which outbox takes a reply: the offered Sequence, that of an address, or one for the answers to requests."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint
from sending import Sending

from holdfast.core.events import BackChannel, Respond
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Offer,
    Sequence,
)
from holdfast.core.protocol_settings import MessageRules
from holdfast.core.records import Record
from holdfast.core.versions import Versions

HERE = EndpointReference("http://s/decoupled")
EITHER = pytest.mark.parametrize("rm", ["1.0", "1.1"])


def requester(
    rm: str, where: EndpointReference = ANONYMOUS_EPR, offer: Offer | None = None, **policy: Any
) -> tuple[Endpoint, str]:
    endpoint = Endpoint(rm, allows=lambda _: True, **policy)
    answer = endpoint.ask(
        control=CreateSequence(where, offer=offer), message_id="urn:create", to="http://d/", reply_to=where
    )
    if answer is None:
        answer = endpoint.transmitted.pop().envelope
    assert isinstance(answer.control, CreateSequenceResponse), answer
    return endpoint, answer.control.identifier


def outbox_keys(endpoint: Endpoint) -> list[str]:
    return list(endpoint.protocol.outbound.outboxes)


@EITHER
def test_replies_go_in_the_offered_sequence_to_the_address_of_its_acknowledgements(rm: str) -> None:
    endpoint, identifier = requester(rm, HERE, Offer("urn:o"))
    destination = endpoint.protocol.inbound.destinations[identifier]
    outboxes = endpoint.protocol.replies.outboxes
    outbox = outboxes.outbox_of(destination)
    assert outbox is not None and (outbox.key, outbox.to, outbox.answers) == ("urn:o", HERE.address, identifier)
    assert outboxes.have_address(destination)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    (record,) = endpoint.records()
    assert outboxes.outbox_for(destination, record, HERE.address, endpoint.now) is outbox


@EITHER
def test_replies_of_sequences_without_an_offer_share_the_outbox_of_their_address(rm: str) -> None:
    endpoint, identifier = requester(rm, HERE)
    destination = endpoint.protocol.inbound.destinations[identifier]
    outboxes = endpoint.protocol.replies.outboxes
    assert outboxes.outbox_of(destination) is None and not outboxes.have_address(destination)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    (record,) = endpoint.records()
    outbox = outboxes.outbox_for(destination, record, HERE.address, endpoint.now)
    assert (outbox.key, outbox.to, outbox.answers) == (f"to/{HERE.address}", HERE.address, None)


@EITHER
def test_replies_that_go_in_answers_have_an_outbox_of_their_sequence(rm: str) -> None:
    endpoint, identifier = requester(rm)
    endpoint.request(identifier, 1)
    endpoint.reply(1)
    destination = endpoint.protocol.inbound.destinations[identifier]
    outbox = endpoint.protocol.replies.outboxes.outbox_of(destination)
    assert outbox is not None and (outbox.key, outbox.to) == (f"plain/{identifier}", None)
    assert outbox.source is not None and outbox.source.polled


@EITHER
def test_after_a_restart_each_outbox_has_its_sequence_again_and_others_end(rm: str) -> None:
    endpoint, identifier = requester(rm, offer=Offer("urn:o"))
    endpoint.request(identifier, 1)
    endpoint.reply(1)
    again = endpoint.restart()
    assert again.protocol.outbound.outboxes["urn:o"].answers == identifier
    del again.protocol.inbound.destinations[identifier]
    (alone,) = again.protocol.replies.outboxes.match()
    assert alone.key == "urn:o"
    again.protocol.replies.outboxes.recover(again.now, is_server=False)
    assert outbox_keys(again) == []


def test_a_fault_that_would_wait_for_a_poll_counts_as_a_reply() -> None:
    polled = EndpointReference(f"{MC_ANONYMOUS}1")
    endpoint, identifier = requester("1.1", max_open_requests=1)
    destination = endpoint.protocol.inbound.destinations[identifier]
    envelope = endpoint.envelope(reply_to=ANONYMOUS_EPR, fault_to=polled)
    outboxes = endpoint.protocol.replies.outboxes
    assert outboxes.have_room(destination, envelope)
    outbox = endpoint.protocol.outbound.open(f"to/{polled.address}", polled.address, [(destination.versions, False)])
    outbox.submit(Record("", 0, "urn:fault", b"<f/>", 0.0))
    endpoint.settle()
    assert not outboxes.have_room(destination, envelope)


@pytest.mark.parametrize("is_replied", [True, False])
def test_with_an_offered_sequence_the_replies_to_its_callbacks_are_forgotten(is_replied: bool) -> None:
    sending = Sending(rules=MessageRules())
    sending.choices = [(Versions("1.1"), True)]
    outbox = sending.open()
    sending.submit(outbox, "1")
    (create,) = sending.take()
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    offered = create.envelope.control.offer.identifier
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    versions = Versions("1.1")
    callback = Envelope(versions.soap, versions.addressing, versions.rm, "urn:call", message_id="urn:c")
    callback.body, callback.sequence, callback.reply_to = b"<c/>", Sequence(offered, 1), ANONYMOUS_EPR
    sending.protocol.receive(callback, BackChannel(object()), sending.now)
    sending.settle()
    ((_, request),) = sending.store.read("replies", 0, 0, 1)
    if is_replied:
        sending.protocol.replies.reply(request, Record("", 0, "urn:reply", b"<r/>", sending.now), sending.now)
        sending.settle()
        assert f"plain/{offered}" in sending.protocol.outbound.outboxes
    outbox.drop(sending.now)
    sending.settle()
    assert list(sending.protocol.outbound.outboxes) == [outbox.key]
    answers = [one for one in sending.told if isinstance(one, Respond)]
    assert len(answers) == 1, "the exchange of the callback is answered"
