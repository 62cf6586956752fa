"""Creations: a repeat of a CreateSequence finds what the first one made, and nothing else does."""

from __future__ import annotations

from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, EndpointReference, Offer
from holdfast.core.policy import DestinationPolicy
from holdfast.core.receiving.creation_repeats import Creations, is_repeatable
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.states.inbound import DestinationState
from holdfast.core.versions import Versions

CREATE = CreateSequence(ANONYMOUS_EPR)


def made(
    identifier: str, message_id: str | None = "urn:m", party: str = "", offered: str | None = None
) -> RMDestination:
    destination = RMDestination(identifier, Versions(), ANONYMOUS_EPR, DestinationPolicy(), 0.0)
    destination.create_message_id = message_id
    destination.party = party
    destination.offered = offered
    return destination


def test_an_equal_request_finds_the_sequence_that_it_created() -> None:
    creations, one = Creations(), made("urn:1", party="a")
    creations.add(one)
    assert creations.find(CREATE, "urn:m", "a") is one
    assert creations.find(CREATE, "urn:other", "a") is None
    assert creations.find(CREATE, "urn:m", "b") is None
    assert creations.find(CREATE, None, "a") is None
    assert creations.find(CreateSequence(EndpointReference("http://a/")), "urn:m", "a") is None
    assert creations.find(CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o")), "urn:m", "a") is None


def test_with_an_offer_it_is_the_same_from_anywhere() -> None:
    creations, one = Creations(), made("urn:1", party="a", offered="urn:o")
    creations.add(one)
    assert creations.find(CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o")), "urn:m", "b") is one


def test_who_was_not_known_then_finds_it_by_its_name_of_now() -> None:
    creations, one = Creations(), made("urn:1")
    creations.add(one)
    assert creations.find(CREATE, "urn:m", "a") is one


def test_of_two_made_alike_the_newer_one_counts_also_once_the_older_is_forgotten() -> None:
    creations, one, other = Creations(), made("urn:1"), made("urn:2")
    creations.add(one)
    creations.add(other)
    creations.forget(one)
    assert creations.find(CREATE, "urn:m", "") is other
    creations.forget(other)
    assert creations.find(CREATE, "urn:m", "") is None


def test_a_peer_that_uses_its_sequence_needs_no_repeat_of_the_grant() -> None:
    used, offered, over = made("urn:1"), made("urn:2", offered="urn:o"), made("urn:3")
    for destination in (used, offered):
        assert is_repeatable(destination)
        destination.accepted.add(1)
    assert not is_repeatable(used)
    assert is_repeatable(offered)
    over.state = DestinationState.TERMINATED
    assert not is_repeatable(over)
    creations = Creations()
    creations.add(used)
    assert creations.find(CREATE, "urn:m", "") is None
