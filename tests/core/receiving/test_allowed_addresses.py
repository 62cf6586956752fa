"""Where a peer may ask us to send to."""

from __future__ import annotations

import pytest

from holdfast.core.messages import ANONYMOUS_EPR, NONE, EndpointReference
from holdfast.core.receiving.allowed_addresses import Addresses

EVERYWHERE = Addresses(lambda _address: True)
NOWHERE = Addresses(lambda _address: False)
MAKE_CONNECTION = "http://docs.oasis-open.org/ws-rx/wsmc/200702/anonymous?id=550e8400-e29b-11d4-a716-446655440000"


def test_the_anonymous_address_and_none_need_no_permission() -> None:
    for reference in (ANONYMOUS_EPR, EndpointReference(NONE)):
        assert NOWHERE.may_send_to(reference)
    assert NOWHERE.refusal(ANONYMOUS_EPR, None, EndpointReference(NONE)) == ""


def test_the_address_of_a_client_that_polls_needs_no_permission() -> None:
    reference = EndpointReference(MAKE_CONNECTION)
    assert NOWHERE.may_send_to(reference)
    assert NOWHERE.refusal(reference) == ""


def test_the_refusal_of_an_address_says_that_it_can_be_allowed() -> None:
    reference = EndpointReference("http://partner.example/rm")
    assert not NOWHERE.may_send_to(reference)
    assert "http://partner.example/rm: the address is not on its allow-list" in NOWHERE.refusal(None, reference)
    assert EVERYWHERE.refusal(reference) == ""


@pytest.mark.parametrize(
    "address",
    [
        MAKE_CONNECTION.partition("?")[0],
        MAKE_CONNECTION.partition("=")[0] + "=",
        MAKE_CONNECTION.upper(),
        MAKE_CONNECTION.replace("http:", "https:"),
        MAKE_CONNECTION.replace(".org/", ".org:80/"),
        MAKE_CONNECTION.replace(".org/", ".org./"),
        "http://docs.oasis-open.org/ws-rx/wsrm/200702/anonymous?id=1",
    ],
)
def test_an_address_like_makeconnections_is_never_sent_to_and_never_advised(address: str) -> None:
    reference = EndpointReference(address)
    assert not EVERYWHERE.may_send_to(reference)
    reason = EVERYWHERE.refusal(reference)
    assert "A client that polls with WS-MakeConnection names" in reason
    assert "allow-list" not in reason and "allowed" not in reason
