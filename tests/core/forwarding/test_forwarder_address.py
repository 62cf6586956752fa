"""A forwarder with an address: replies and acknowledgements come there, and nothing else says that none will come."""

from __future__ import annotations

import pytest

from holdfast.core.messages import Acknowledge, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.origin import Origin
from holdfast.core.policy import ForwardingPolicy
from tests.support.chain import BROKER, SERVICE, Chain

NO_REPLY = "fault NoReply: The service received the request and sent no reply."


def requests_to_the_service(chain: Chain) -> list[Envelope]:
    return [sent for _, to, sent in chain.journeys if to == SERVICE and sent.sequence is not None]


def test_a_forwarder_with_an_address_names_it_with_its_secret_and_replies_go_there() -> None:
    chain = Chain(address="http://broker/")
    chain.ask("one")
    chain.go(until=lambda: bool(chain.replies))
    source = chain.forwarder.source
    assert source is not None and source.secret
    address = f"{BROKER}?holdfast={source.secret}"
    (request,) = requests_to_the_service(chain)
    assert request.reply_to is not None and request.reply_to.address == address
    replies = [sent for _, to, sent in chain.journeys if to == address and sent.relates_to == request.message_id]
    assert [sent.body for sent in replies] == [b"re one"]


def test_a_request_whose_reply_is_posted_outlives_its_acknowledgement() -> None:
    chain = Chain(address=BROKER)
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(60.0)
    source = chain.forwarder.source
    assert source is not None and len(source.waiting.unreplied) == 1 and len(requests_to_the_service(chain)) > 2
    assert chain.replies == [] and not [one for one in chain.broker.incidents if one.level == "warning"]
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert chain.replies == [("urn:m:one", "re one")] and len(chain.handled) == 1


def acknowledge_at_the_address(chain: Chain, last: int) -> None:
    """The service acknowledges requests before it answers them, as CXF does."""
    source = chain.forwarder.source
    assert source is not None and source.identifier is not None
    envelope = Envelope(chain.versions.soap, chain.versions.addressing, chain.versions.rm, control=Acknowledge())
    envelope.acknowledgements = (SequenceAcknowledgement(source.identifier, ((1, last),)),)
    chain.broker.protocol.receive(envelope, None, chain.now, origin=Origin(secret=source.secret))
    chain.broker.settle()


@pytest.mark.parametrize("offers", [True, False])
def test_a_request_unanswered_after_the_patience_is_a_fault_for_its_requester(
    offers: bool,
) -> None:
    chain = Chain(address=BROKER, policy=ForwardingPolicy(patience=100.0), forwarder_offers=offers)
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(0.5)
    acknowledge_at_the_address(chain, 1)
    chain.go(55.0)
    chain.ask("two")
    chain.go(5.0)
    acknowledge_at_the_address(chain, 2)
    chain.go(38.0)
    assert chain.replies == []
    chain.go(30.0)
    assert chain.replies == [("urn:m:one", NO_REPLY)], "a request that only waits for its reply keeps none from going"
    chain.go(60.0)
    assert chain.replies == [("urn:m:one", NO_REPLY), ("urn:m:two", NO_REPLY)]
    assert chain.forwarder.records.is_empty and chain.outbox.records.is_empty
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert len(chain.replies) == 2, "the late reply answers nothing any more"
    assert sorted(record.body for record in chain.broker.kept) == [b"one", b"two"], "and is no message for a reader"


@pytest.mark.parametrize("secret", ["", "guess"])
def test_posted_answers_without_the_secret_of_the_address_do_not_count(secret: str) -> None:
    chain = Chain(address=BROKER)
    chain.ask("zero")
    chain.go()
    chain.service.is_up = False
    chain.ask("one")
    chain.ask("two", wants_reply=False)
    chain.go(5.0)
    source = chain.forwarder.source
    assert source is not None and source.identifier is not None and set(source.flight) == {2, 3}
    forged = Envelope(chain.versions.soap, chain.versions.addressing, chain.versions.rm, control=Acknowledge())
    forged.acknowledgements = (SequenceAcknowledgement(source.identifier, ((1, 3),)),)
    chain.broker.protocol.receive(forged, None, chain.now, origin=Origin(secret=secret))
    reply = Envelope(
        chain.versions.soap, chain.versions.addressing, chain.versions.rm, relates_to=source.waiting.unreplied[2]
    )
    reply.action, reply.body = "urn:reply", b"forged"
    chain.broker.protocol.receive(reply, None, chain.now, origin=Origin(secret=secret))
    chain.broker.settle()
    assert set(source.flight) == {2, 3} and chain.replies == [("urn:m:zero", "re zero")]
    ignored = [one for one in chain.broker.incidents if one.name == "statement.unauthorized"]
    assert len(ignored) == 1


@pytest.mark.parametrize("case", ["forged", "acknowledged", "refused"])
def test_a_posted_fault_counts_only_for_unacknowledged_requests_of_its_peer(
    case: str,
) -> None:
    chain = Chain(address=BROKER)
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(0.5)
    if case == "acknowledged":
        acknowledge_at_the_address(chain, 1)
    source = chain.forwarder.source
    assert source is not None
    fault = Envelope(
        chain.versions.soap, chain.versions.addressing, chain.versions.rm, relates_to=source.waiting.unreplied[1]
    )
    fault.fault = Fault("Poison", "it cannot be read")
    secret = "guess" if case == "forged" else source.secret
    chain.broker.protocol.receive(fault, None, chain.now, origin=Origin(secret=secret))
    chain.broker.settle()
    assert bool(chain.forwarder.refusals) is (case == "refused")


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_reply_after_the_patience_counts_unless_its_request_was_acknowledged(is_acknowledged: bool) -> None:
    # It acknowledges its request, too.
    chain = Chain(address=BROKER, policy=ForwardingPolicy(patience=100.0))
    chain.ask("zero")
    chain.go()
    chain.service.is_up = False
    chain.ask("one")
    chain.go(200.0)
    assert not chain.forwarder.records.is_empty
    chain.service.is_up = True
    if is_acknowledged:
        acknowledge_at_the_address(chain, 2)
    chain.go(90.0)
    assert chain.replies == [("urn:m:zero", "re zero"), ("urn:m:one", "re one")]


@pytest.mark.parametrize("after", ["", "http://elsewhere/"])
def test_a_sequence_keeps_its_address_and_secret_over_restart_and_reconfiguration(after: str) -> None:
    chain = Chain(address=BROKER)
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(5.0)
    before = requests_to_the_service(chain)[-1].reply_to
    chain.address = after
    chain.broker.kill()
    chain.go(20.0)
    assert requests_to_the_service(chain)[-1].reply_to == before
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert chain.replies == [("urn:m:one", "re one")]


def test_a_sequence_begun_without_an_address_keeps_replies_in_its_answers() -> None:
    chain = Chain()
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(5.0)
    chain.address = BROKER
    chain.broker.kill()
    chain.go(20.0)
    reply_to = requests_to_the_service(chain)[-1].reply_to
    assert reply_to is not None and reply_to.is_anonymous
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert chain.replies == [("urn:m:one", "re one")]
