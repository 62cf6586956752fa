"""Whose a request is."""

from __future__ import annotations

import pytest

from holdfast.core.origin import PROVEN, owner_of, whole_party
from holdfast.endpoint.sending.parties import party_of
from holdfast.http.exchange import Request
from holdfast.http.tls import PeerCertificate


def request(peer: str | None, certificate: PeerCertificate | None = None) -> Request:
    return Request("POST", "/", {b"x-forwarded-for": b"203.0.113.9"}, b"", peer, certificate is not None, certificate)


@pytest.mark.parametrize(
    ("peer", "party"),
    [
        ("192.0.2.7:4711", "address 192.0.2.7"),
        ("[::ffff:192.0.2.7]:4711", "address 192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:4711", "address 2001:db8:1:2::/64"),
        ("[2001:db8:1:2::1]:80", "address 2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:80", "address fe80::/64"),
        ("[::1]:80", "address ::/64"),
        ("testclient:50000", "address testclient"),
        (":0", ""),
        (None, ""),
    ],
)
def test_a_peer_without_certificate_is_its_address_and_ports_make_no_other_of_it(peer: str, party: str) -> None:
    assert party_of(request(peer)) == party


def test_a_user_is_another_party_in_each_of_its_security_sessions() -> None:
    certificate = PeerCertificate("ab" * 32, "CN=client", "CN=ca")
    parties = set()
    for owner in (None, certificate):
        for session in ("", "urn:uuid:1", "urn:uuid:2"):
            one = request("192.0.2.7:1", owner)
            one.user, one.session = "alice", session
            parties.add(party_of(one))
            assert party_of(one).startswith(PROVEN)
            assert whole_party(party_of(one)).endswith("user alice")
    assert len(parties) == 6
    assert len({whole_party(one) for one in parties}) == 2


def test_two_issuers_may_give_two_parties_one_name() -> None:
    """Each has its own Sequences, its own mailbox and its own share of what is limited."""
    parties = []
    for issuer in ("urn:holdfast:x509:1", "urn:holdfast:x509:2", "urn:holdfast:saml:1", ""):
        one = request("192.0.2.7:1")
        one.user, one.session = "alice", issuer
        parties.append(party_of(one))
    for told in (parties, list(map(whole_party, parties)), list(map(owner_of, parties))):
        assert len(set(told)) == 4
        assert all(one.startswith(PROVEN) for one in told)


def test_a_peer_with_a_certificate_is_its_owner_wherever_it_is() -> None:
    one = PeerCertificate("ab" * 32, "CN=client,O=Partner", "CN=ca")
    renewed = PeerCertificate("cd" * 32, "CN=client,O=Partner", "CN=ca")
    other = PeerCertificate("ef" * 32, "CN=client,O=Partner", "CN=another ca")
    nameless = [PeerCertificate(digit * 64) for digit in "12"]
    assert party_of(request("192.0.2.7:1", one)) == party_of(request("[2001:db8::1]:2", renewed))
    assert len({party_of(request("192.0.2.7:1", each)) for each in (one, other, *nameless)}) == 4
