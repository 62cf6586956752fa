"""Keep-alive: sources that are never silent for long while they run, and are forgotten soon after they are gone."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    AckRequested,
    CreateSequence,
    EndpointReference,
    Envelope,
    IncompleteSequenceBehavior,
    Offer,
)
from holdfast.core.origin import Origin
from holdfast.core.protocol_messages.wcf_keep_alive import is_kept_alive
from holdfast.core.versions import ALL_VERSIONS, RM, Addressing, Versions

FIRST_GAP = IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP
ELSEWHERE = EndpointReference("http://client/")
EVERY_VERSION = pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)


def offer_of_wcf(versions: Versions) -> Offer:
    return Offer("urn:offered", ANONYMOUS_EPR, None, FIRST_GAP) if versions.rm is RM.V1_1 else Offer("urn:offered")


def asked(versions: Versions, *, is_named: bool = False, **other: Any) -> bool:
    """Whether a two-way WCF client's CreateSequence counts, if one part of it is another."""
    reply_to = ANONYMOUS_EPR if versions.addressing is not Addressing.V2005_08 else None
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, reply_to=other.pop("reply_to", reply_to))
    create = CreateSequence(**{"acks_to": ANONYMOUS_EPR, "offer": offer_of_wcf(versions), **other})
    return is_kept_alive(envelope, create, Origin(is_named=is_named))


@EVERY_VERSION
def test_a_two_way_client_of_wcf_keeps_its_sequence_alive(versions: Versions) -> None:
    assert asked(versions)


@EVERY_VERSION
def test_who_differs_from_it_in_any_part_may_come_back_after_a_night(versions: Versions) -> None:
    assert not asked(versions, offer=None)
    assert not asked(versions, acks_to=ELSEWHERE)
    assert not asked(versions, expires=60.0)
    assert not asked(versions, offer=Offer("urn:offered", ANONYMOUS_EPR, 60.0, FIRST_GAP))
    assert not asked(versions, reply_to=ELSEWHERE)
    if versions.rm is RM.V1_1:
        assert not asked(versions, offer=Offer("urn:offered", ANONYMOUS_EPR))
        assert not asked(versions, offer=Offer("urn:offered", ELSEWHERE, None, FIRST_GAP))
    assert not asked(versions, is_named=True), "as Holdfast and CXF, which name themselves in User-Agent"
    if versions.addressing is Addressing.V2005_08:
        assert not asked(versions, reply_to=ANONYMOUS_EPR), "as CXF and Metro"


def test_a_killed_client_expires_at_the_keep_alive_timeout_also_after_a_restart() -> None:
    endpoint = Endpoint()
    assert endpoint.policy.keep_alive_timeout == 1800
    gone = endpoint.create(offer=offer_of_wcf(endpoint.versions))
    durable = endpoint.create("urn:other", offer=Offer("urn:another", ANONYMOUS_EPR))
    endpoint.request(gone, 1)
    endpoint.reply(1)
    endpoint = endpoint.restart()
    endpoint.pass_time(1799)
    destinations = endpoint.protocol.inbound.destinations
    assert not destinations[gone].is_over
    endpoint.pass_time(2)
    assert destinations[gone].is_over and not destinations[durable].is_over
    assert [one.detail for one in endpoint.incidents if one.name == "sequence.terminated"] == [{"why": "time is up"}]
    endpoint.pass_time(3600)
    assert list(destinations) == [durable]
    assert endpoint.protocol.outbound.outboxes.keys() == {"urn:another"}


def test_a_client_that_asks_for_acknowledgements_keeps_its_sequence() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=offer_of_wcf(endpoint.versions))
    for _ in range(10):
        endpoint.pass_time(900)
        endpoint.ask(ack_requested=(AckRequested(identifier),))
    assert not endpoint.protocol.inbound.destinations[identifier].is_over


@pytest.mark.parametrize(("usual", "kept", "ends"), [(None, 60.0, 60.0), (30.0, 60.0, 30.0), (90.0, None, 90.0)])
def test_the_shorter_of_both_timeouts_counts(usual: float | None, kept: float | None, ends: float) -> None:
    endpoint = Endpoint(inactivity_timeout=usual, keep_alive_timeout=kept)
    identifier = endpoint.create(offer=offer_of_wcf(endpoint.versions))
    assert endpoint.protocol.inbound.destinations[identifier].deadline() == ends
