"""Whose an envelope is: by a search in its bytes, and exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    EndpointReference,
    Envelope,
    Fault,
    MakeConnection,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import ALL_VERSIONS, SOAP, Versions
from holdfast.endpoint.envelopes.head_spool import HeadSpool
from holdfast.endpoint.worker import MOST, Worker, worker_of
from holdfast.endpoint.workers.sequence_owner import (
    Named,
    Said,
    decode_request,
    decode_said,
    encode_request,
    encode_said,
    owner_of,
    worker_in,
    worker_of_address,
)
from holdfast.http.exchange import Request
from holdfast.http.tls import PeerCertificate
from holdfast.wire import DEFAULT, encode

OURS = [Worker(number, 8).new_identifier() for number in range(8)]


@given(number=st.integers(0, MOST - 1))
def test_an_identifier_says_which_worker_made_it_and_is_new_each_time(number: int) -> None:
    worker = Worker(number, MOST)
    one, other = worker.new_identifier(), worker.new_identifier()
    assert one != other
    assert worker_of(one) == worker_of(other) == number


@pytest.mark.parametrize("identifier", ["", "urn:a", "urn:uuid:9f3c77e0-a1b2-4005-8000-0123456789ab"])
def test_an_identifier_that_no_worker_made_says_nothing(identifier: str) -> None:
    assert worker_of(identifier) is None
    assert worker_of(OURS[1] + "x") is None


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
@pytest.mark.parametrize("number", [0, 5])
def test_the_sequence_header_is_found_in_what_every_version_writes(versions: Versions, number: int) -> None:
    envelope = Envelope(
        versions.soap,
        versions.addressing,
        versions.rm,
        action="urn:CreateSequence:Sequence",
        to="http://a/",
        sequence=Sequence(OURS[number], 3),
        ack_requested=(AckRequested(OURS[7]),),
        acknowledgements=(SequenceAcknowledgement(OURS[6], ((1, 2),)),),
        body=b"<a/>",
    )
    assert worker_in(encode(envelope)) == number
    assert owner_of(envelope, 8).worker == number


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Sequence",
        b"<Sequence",
        b"<Sequence><Identifier>",
        b"<Sequence><Identifier></Identifier>",
        b"<x:SequenceAcknowledgement><x:Identifier>urn:a</x:Identifier>",
        b"<Sequence><Identifier>" + b"a" * 300 + b"</Identifier>",
        b" " * 20_000 + b"<Sequence><Identifier>urn:a</Identifier>",
        b"Sequence " * 5_000 + b"<Sequence><Identifier>urn:a</Identifier>",
        "<Sequence><Identifier>urn:a</Identifier>".encode("utf-16"),
    ],
)
def test_what_is_not_found_is_left_to_who_decodes_it(data: bytes) -> None:
    assert worker_in(data) is None


def test_a_sequence_without_a_number_is_of_the_server_that_was_one_process() -> None:
    assert worker_in(b"<Sequence a='b'>\n <w:Identifier c='d'> urn:a </w:Identifier>") == 0


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_post_to_an_address_with_a_secret_belongs_to_the_secrets_worker(number: int) -> None:
    secret = OURS[number].rpartition(":")[2]
    assert worker_of_address(f"/replies?holdfast={secret}") == number
    assert worker_of_address(f"/?a=b&holdfast={secret}") == number


@pytest.mark.parametrize(
    ("target", "worker"),
    [("/", None), ("/?holdfast=", None), ("/?xholdfast=1", None), ("/?holdfast=4", 0), ("/?holdfast=%00", 0)],
)
def test_an_address_without_a_workers_secret_dates_from_a_single_process(target: str, worker: int | None) -> None:
    assert worker_of_address(target) == worker


@given(st.binary(max_size=400))
def test_the_search_bears_any_bytes(data: bytes) -> None:
    worker_in(data)
    worker_in(b"<Sequence><Identifier>" + data + b"</Identifier>")


def envelope(**fields: object) -> Envelope:
    return Envelope(SOAP.V1_2, **fields)  # type: ignore[arg-type]


def test_what_names_no_sequence_of_ours_is_somebodys_by_what_it_is_about() -> None:
    assert owner_of(envelope(body=b"<a/>"), 8).worker is None
    assert owner_of(envelope(fault=Fault("Sender", ""), relates_to=OURS[5]), 8).worker == 5
    stranger = owner_of(envelope(acknowledgements=(SequenceAcknowledgement("urn:theirs"),), relates_to="urn:x"), 8)
    assert (stranger.worker, stranger.identifiers) == (None, ("urn:theirs",))


@pytest.mark.parametrize(
    "fields",
    [
        {"control": Acknowledge(), "acknowledgements": (SequenceAcknowledgement(OURS[3]),)},
        {"control": CloseSequenceResponse(OURS[3])},
        {"control": TerminateSequenceResponse(OURS[3])},
        {"fault": Fault("UnknownSequence", "", is_rm=True, identifier=OURS[3])},
    ],
    ids=["an acknowledgement", "CloseSequenceResponse", "TerminateSequenceResponse", "a fault"],
)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_a_number_in_an_identifier_of_the_peers_server_names_no_worker_here(
    versions: Versions, fields: dict[str, object]
) -> None:
    def said(**more: object) -> Named:
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, **fields | more)  # type: ignore[arg-type]
        return owner_of(envelope, 8)

    # Before there was CreateSequence, the source made the Identifier: here it acknowledges one of this server.
    is_number_ours = "acknowledgements" in fields and not versions.rm.can.creates
    assert said() == Named(3 if is_number_ours else None, (OURS[3],))
    assert said(ack_requested=(AckRequested(OURS[6]),)).worker == 6
    assert said(relates_to=OURS[5]).worker == (3 if is_number_ours else 5)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "fields",
    [
        {"control": CloseSequence(OURS[3])},
        {"control": TerminateSequence(OURS[3])},
        {"control": MakeConnection(identifier=OURS[3])},
        {"control": Acknowledge(), "ack_requested": (AckRequested(OURS[3]),)},
        {"control": Acknowledge(), "acknowledgements": (SequenceAcknowledgement(OURS[3]),)},
        {"control": CloseSequenceResponse(OURS[3])},
        {"control": TerminateSequenceResponse(OURS[3])},
        {"fault": Fault("UnknownSequence", "", is_rm=True, identifier=OURS[3])},
    ],
    ids=lambda fields: type(next(iter(fields.values()))).__name__ + "".join(fields),
)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
@pytest.mark.parametrize("relates_to", [None, OURS[5]], ids=["alone", "related"])
def test_no_number_in_an_identifier_decides_without_a_worker_that_knows_it(
    versions: Versions, fields: dict[str, object], relates_to: str | None
) -> None:
    """The one exception is the Sequence header, whose Identifier this server made in every version with an answer."""
    said = Envelope(versions.soap, versions.addressing, versions.rm, relates_to=relates_to, **fields)  # type: ignore[arg-type]
    named = owner_of(said, 8)
    assert named.identifiers == (OURS[3],)
    assert named.is_sought(lambda _: False)
    assert not named.is_sought(lambda identifier: identifier == OURS[3])


@pytest.mark.every(5)
@pytest.mark.parametrize("beside", ["acknowledgements", "ack_requested"])
@pytest.mark.parametrize(
    "about",
    [
        *({"control": kind(OURS[3])} for kind in (CloseSequence, CloseSequenceResponse)),
        *({"control": kind(OURS[3])} for kind in (TerminateSequence, TerminateSequenceResponse)),
        {"fault": Fault("UnknownSequence", "", is_rm=True, identifier=OURS[3])},
    ],
    ids=lambda fields: type(next(iter(fields.values()))).__name__,
)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_what_is_acknowledged_beside_an_end_does_not_keep_it_from_its_owner(
    versions: Versions, about: dict[str, object], beside: str
) -> None:
    other = SequenceAcknowledgement(OURS[5], ((1, 2),)) if beside == "acknowledgements" else AckRequested(OURS[5])
    said = Envelope(versions.soap, versions.addressing, versions.rm, **about, **{beside: (other,)})  # type: ignore[arg-type]
    assert owner_of(said, 8).is_sought(lambda identifier: identifier == OURS[5])
    assert not owner_of(said, 8).is_sought(lambda identifier: identifier == OURS[3])


@given(
    message_id=st.text(min_size=1), other=st.none() | st.text(), offered=st.text(min_size=1), count=st.integers(1, 8)
)
def test_every_create_sequence_with_one_offer_is_the_same_workers(
    message_id: str, other: str | None, offered: str, count: int
) -> None:
    create = CreateSequence(ANONYMOUS_EPR, offer=Offer(offered))
    owners = {owner_of(envelope(control=create, message_id=one), count) for one in (message_id, other)}
    assert len(owners) == 1
    assert owners.pop().worker is not None


@given(message_id=st.text(min_size=1), count=st.integers(1, 8))
def test_a_create_sequence_is_the_same_workers_each_time(message_id: str, count: int) -> None:
    create = envelope(control=CreateSequence(ANONYMOUS_EPR), message_id=message_id)
    owner = owner_of(create, count).worker
    assert owner is not None
    assert 0 <= owner < count
    assert owner_of(create, count).worker == owner
    assert (owner_of(create, count).is_replaceable, owner_of(create, count).offer) == (True, "")
    offering = envelope(control=CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:offered")), message_id=message_id)
    assert (owner_of(offering, count).is_replaceable, owner_of(offering, count).offer) == (True, "urn:offered")
    polling = EndpointReference(f"{MC_ANONYMOUS}1")  # its polls would not find another worker
    offering = envelope(control=CreateSequence(polling, offer=Offer("urn:offered")), message_id=message_id)
    assert (owner_of(offering, count).is_replaceable, owner_of(offering, count).offer) == (False, "urn:offered")


def test_a_request_is_passed_on_with_all_that_is_known_of_it() -> None:
    certificate = PeerCertificate("ab", "CN=ü", "CN=x", "01", ("DNS:a",))
    headers = {b"host": b"a", b"x-odd": b"\xff\x00"}
    request = Request("POST", "/a?b=%20", headers, b"\x00body", "[::1]:5", True, certificate)
    assert decode_request(encode_request(request)) == request
    plain = Request("POST", "/", {}, b"", None, False)
    assert decode_request(encode_request(plain)) == plain
    plain.spool = HeadSpool(DEFAULT, b"<s:Envelope", 20_000_000)
    decoded = decode_request(encode_request(plain))
    assert isinstance(decoded.spool, HeadSpool) and decoded.body == b""
    assert (decoded.spool.head, decoded.spool.size) == (b"<s:Envelope", 20_000_000)


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_what_is_said_beside_a_message_is_handed_on_as_it_came(versions: Versions) -> None:
    acknowledgement = SequenceAcknowledgement("urn:a", ((1, 2), (4, 4)), (), final=True, buffer_remaining=3)
    said = Said((versions.soap, versions.addressing, versions.rm), (acknowledgement,), (AckRequested("urn:b"),))
    envelope = decode_said(encode_said(said)).envelope()
    assert envelope.versions == versions
    assert envelope.versions.rm.can is versions.rm.can
    assert (envelope.acknowledgements, envelope.ack_requested) == (said.acknowledgements, said.requested)


@pytest.mark.parametrize("count", [2, 5])
def test_a_poll_goes_to_the_worker_that_has_every_sequence_of_its_client(count: int) -> None:
    versions = Versions()
    owners = set()
    for number in range(20):
        address = f"{MC_ANONYMOUS}{number}"
        poll = Envelope(versions.soap, versions.addressing, versions.rm, control=MakeConnection(address))
        created = {
            owner_of(
                Envelope(
                    versions.soap,
                    versions.addressing,
                    versions.rm,
                    message_id=f"urn:{attempt}",
                    control=CreateSequence(EndpointReference(address)),
                ),
                count,
            ).worker
            for attempt in range(5)
        }
        assert created == {owner_of(poll, count).worker}
        owners |= created
    assert owners == set(range(count))
    poll.control = MakeConnection(identifier=OURS[1])
    assert owner_of(poll, count).worker == 1
    poll.control = MakeConnection(identifier="urn:offered")
    assert owner_of(poll, count).identifiers == ("urn:offered",)
    poll.control = MakeConnection()
    assert owner_of(poll, count).worker is None
