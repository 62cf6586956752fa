"""The Destination on real sockets: what it answers to a peer that says exactly what it is told to.

Covers endpoint/destination/asgi_application.py, endpoint/destination/http_settings.py, endpoint/destination/queues.py,
endpoint/destination/reception.py, endpoint/destination/running_destination.py and
endpoint/destination/unanswered_exchanges.py.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from waiting import until

from holdfast import ConfigurationError, Destination, DestinationHTTP, DestinationPolicy, Versions
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    LastMessage,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.records import Batch
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, TRIED_VERSIONS, Addressing
from holdfast.exceptions import StoreFailed
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.outcome import Response
from holdfast.store import MemoryStore, open_store
from holdfast.wire import Limits, content_type, control_action, decode, encode, http_headers

ACTION = "urn:test:submit"
EVERY_VERSION = pytest.mark.parametrize("versions", TRIED_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
RM_1_1 = [versions for versions in ALL_VERSIONS if versions.rm is RM.V1_1]


def collecting(store: Any = ":memory:", **options: Any) -> tuple[Destination, list[tuple[int, bytes]]]:
    app = Destination(store, **options)
    got: list[tuple[int, bytes]] = []

    @app.on(ACTION)
    async def submit(message: Any) -> None:
        got.append((message.message_number, message.body_bytes))

    return app, got


# --- the usual walk ---------------------------------------------------------------------------------------------------


@EVERY_VERSION
async def test_a_sequence_is_created_filled_and_ended_in_the_versions_of_its_peer(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    created = await one.create()
    assert created.status == 200
    assert isinstance(created.envelope.control, CreateSequenceResponse)
    for number in (1, 2, 3):
        answer = await one.message(number, b"<n>%d</n>" % number)
        assert answer.ranges == ((1, number),)
        assert answer.envelope.versions == versions
    await until(lambda: len(got) == 3)
    assert got == [(1, b"<n>1</n>"), (2, b"<n>2</n>"), (3, b"<n>3</n>")]
    if versions.rm is RM.V1_0:
        assert (await one.message(4, b"", control=LastMessage(), action="")).ranges == ((1, 4),)
        ended = await one.say(control=TerminateSequence(one.identifier))
        assert (ended.status, ended.body) == (202, b"")
    else:
        closed = await one.say(control=CloseSequence(one.identifier, 3), message_id=one.new_id())
        assert isinstance(closed.envelope.control, CloseSequenceResponse)
        assert closed.envelope.acknowledgements[0].final
        ended = await one.say(control=TerminateSequence(one.identifier, 3), message_id=one.new_id())
        assert isinstance(ended.envelope.control, TerminateSequenceResponse)
    assert app.running.accepted == 3


@EVERY_VERSION
async def test_a_repeated_message_is_acknowledged_again_and_delivered_once(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    for _ in range(3):
        assert (await one.message(1)).ranges == ((1, 1),)
    assert (await one.message(2)).ranges == ((1, 2),)
    await until(lambda: len(got) == 2)
    assert [number for number, _ in got] == [1, 2]
    assert app.incidents["message.duplicate_dropped"] == 2


async def test_early_messages_are_acknowledged_with_their_gap_and_delivered_in_order(serve: Any, peer: Any) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url)
    await one.create()
    assert (await one.message(3)).ranges == ((3, 3),)
    assert (await one.message(2)).ranges == ((2, 3),)
    assert got == []
    assert (await one.message(1)).ranges == ((1, 3),)
    await until(lambda: len(got) == 3)
    assert [number for number, _ in got] == [1, 2, 3]


@EVERY_VERSION
async def test_a_request_is_answered_with_its_reply_and_its_acknowledgement(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app = Destination(":memory:")
    app.on("urn:price")(lambda message: f"<price>{message.body.text}</price>")
    one = peer((await serve(app)).url, versions)
    await one.create(offer="urn:offered:1")
    first = await one.request(1, b"<a>7</a>", "urn:price")
    assert first.envelope.body == b"<price>7</price>"
    assert first.ranges == ((1, 1),)
    assert first.envelope.sequence == Sequence("urn:offered:1", 1)
    assert first.envelope.action == "urn:priceResponse"
    again = await one.request(1, b"<a>7</a>", "urn:price", message_id=first.envelope.relates_to)
    assert (again.envelope.body, again.envelope.sequence) == (first.envelope.body, first.envelope.sequence)


def answers_nothing(message: Any) -> None:
    """A handler of an operation that returns nothing."""


def answers_none(message: Any) -> str | None:
    """A handler of requests that has nothing to say this time."""
    return None


@EVERY_VERSION
@pytest.mark.parametrize("handler", [answers_nothing, answers_none])
async def test_a_request_to_a_void_operation_is_answered_with_an_empty_element(
    serve: Any, peer: Any, handler: Any, versions: Versions
) -> None:
    app = Destination(":memory:")
    app.on(ACTION)(handler)
    one = peer((await serve(app)).url, versions)
    await one.create(offer="urn:offered:1")
    answer = await one.request(1, b"<o:Cancel xmlns:o='urn:o'/>", ACTION)
    assert answer.envelope.body == b'<CancelResponse xmlns="urn:o"/>'
    assert answer.envelope.action == f"{ACTION}Response"
    assert answer.ranges == ((1, 1),)


async def test_a_repeated_create_sequence_gives_the_same_sequence(serve: Any, peer: Any) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url)
    await one.create(message_id="urn:same", offer="urn:offer")
    first = one.identifier
    await one.create(message_id="urn:same", offer="urn:offer")
    assert one.identifier == first
    await one.create(message_id="urn:other", offer="urn:offer:2")
    assert one.identifier != first


async def test_sequences_survive_a_restart_of_the_destination(serve: Any, peer: Any, tmp_path: Path) -> None:
    app, got = collecting(tmp_path / "inbox")
    service = await serve(app)
    one = peer(service.url)
    await one.create()
    await one.message(1)
    await one.message(3)
    await service.close()

    app, got_later = collecting(tmp_path / "inbox")
    one.url = (await serve(app)).url
    assert (await one.message(1)).ranges == ((1, 1), (3, 3))
    assert (await one.message(2)).ranges == ((1, 3),)
    await until(lambda: len(got) + len(got_later) == 3)
    assert [number for number, _ in got + got_later] == [1, 2, 3]


async def test_a_repeated_request_gets_the_same_answer_after_a_restart_as_before_it(
    serve: Any, peer: Any, tmp_path: Path
) -> None:
    def priced() -> Destination:
        app = Destination(tmp_path / "inbox")
        app.on("urn:price")(lambda message: f"<price>{message.body.text}</price>")
        return app

    async def say_again() -> list[tuple[int, bytes]]:
        answers = [
            await one.request(number, b"<a>7</a>", "urn:price", message_id=f"urn:m{number}") for number in (1, 2)
        ]
        return [(answer.status, answer.envelope.body if answer.body else b"") for answer in answers]

    app = priced()
    service = await serve(app)
    one = peer(service.url)
    await one.create(offer="urn:offered:1")
    assert await say_again() == [(200, b"<price>7</price>")] * 2
    heard = SequenceAcknowledgement("urn:offered:1", ((1, 1),))
    await one.say(control=Acknowledge(), acknowledgements=(heard,))
    await app.running.engine.settled()  # it counts once it is durable
    expected = [(202, b""), (200, b"<price>7</price>")]
    assert await say_again() == expected
    await service.close()
    one.url = (await serve(priced())).url
    assert await say_again() == expected


async def test_an_accepted_request_gets_its_reply_though_an_operator_closed_its_sequence(serve: Any, peer: Any) -> None:
    app = Destination(":memory:")
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.on("urn:price")
    async def price(message: Any) -> str:
        began.set()
        await may_end.wait()
        return "<price>7</price>"

    one = peer((await serve(app)).url)
    await one.create(offer="urn:offered:1")
    waiting = asyncio.ensure_future(one.request(1, b"<a/>", "urn:price"))
    await began.wait()
    assert app.end_sequence(one.identifier)
    await app.running.engine.settled()
    may_end.set()
    answer = await waiting
    assert (answer.envelope.body, answer.ranges) == (b"<price>7</price>", ((1, 1),))
    assert answer.envelope.acknowledgements[0].final
    refused = await one.request(2, b"<a/>", "urn:price")
    assert refused.envelope.fault.code == "SequenceClosed"


# --- refusals ---------------------------------------------------------------------------------------------------------


@EVERY_VERSION
async def test_a_message_of_an_unknown_sequence_is_answered_with_unknown_sequence(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    answer = await one.message(1, identifier="urn:nowhere")
    assert (answer.status, answer.fault) == (500, "UnknownSequence")
    assert answer.envelope.fault.is_rm
    assert answer.envelope.fault.identifier == "urn:nowhere"
    assert answer.envelope.versions == versions
    assert got == []


@EVERY_VERSION
async def test_an_action_without_a_handler_is_refused_and_not_acknowledged(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    answer = await one.message(1, action="urn:test:unheard-of")
    assert answer.fault == "ActionNotSupported"
    assert answer.envelope.fault.is_addressing
    assert answer.envelope.acknowledgements == ()
    assert (await one.message(2)).ranges == ((2, 2),)
    assert app.running.accepted == 0


@pytest.mark.parametrize("takes", ["one action", "any action", "no handler"])
@EVERY_VERSION
async def test_a_message_without_an_action_is_refused_and_not_acknowledged(
    serve: Any, peer: Any, versions: Versions, takes: str
) -> None:
    app = Destination(":memory:")
    if takes != "no handler":

        @app.on(ACTION if takes == "one action" else "")
        async def anything(message: Any) -> None:
            raise AssertionError(message)

    one = peer((await serve(app)).url, versions)
    await one.create()
    answer = await one.message(1, action="")
    assert answer.fault.startswith("Message")
    assert answer.fault.endswith("HeaderRequired")
    assert answer.envelope.fault.is_addressing
    assert answer.envelope.acknowledgements == ()
    assert app.running.accepted == 0


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize("addressing", [Addressing.V2004_08, Addressing.V2005_08])
async def test_a_malformed_addressing_header_is_answered_with_its_subcode(
    serve: Any, peer: Any, soap: SOAP, addressing: Addressing
) -> None:
    versions = Versions(RM.V1_0, addressing, soap)
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    reply_to = EndpointReference("urn:reply")
    envelope = Envelope(soap, addressing, RM.V1_0, ACTION, one.url, reply_to=reply_to, body=b"<a/>")
    envelope.sequence = Sequence(one.identifier, 1)
    data = encode(envelope)
    action = f'<wsa:Action s:mustUnderstand="1">{ACTION}</wsa:Action>'.encode()
    address = b"<wsa:Address>urn:reply</wsa:Address>"
    answers = [
        (await one.post(data.replace(old, new), http_headers(soap, ACTION))).envelope.fault
        for old, new in ((action, action * 2), (address, b""), (address, address * 2))
    ]
    is_old = addressing is Addressing.V2004_08
    names = ["InvalidCardinality", "MissingAddressInEPR", "InvalidEPR"]
    assert [fault.code for fault in answers] == (["InvalidMessageInformationHeader"] * 3 if is_old else names)
    assert all(fault.is_addressing for fault in answers)
    problems = [b"wsa:Action", b"wsa:ReplyTo", b"wsa:ReplyTo"]
    assert all(is_old or problem in fault.detail for problem, fault in zip(problems, answers, strict=True))
    assert got == []


@pytest.mark.parametrize("versions", RM_1_1, ids=lambda v: v.soap)
async def test_another_action_in_the_http_headers_is_an_action_mismatch(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, ACTION, one.url, body=b"<a/>")
    envelope.sequence = Sequence(one.identifier, 1)
    answer = await one.post(encode(envelope), http_headers(versions.soap, "urn:test:other"))
    assert answer.fault == "ActionMismatch"
    assert answer.envelope.acknowledgements == ()
    assert (await one.message(1)).ranges == ((1, 1),)
    await until(lambda: len(got) == 1)


@EVERY_VERSION
async def test_a_body_that_contradicts_its_action_is_refused(serve: Any, peer: Any, versions: Versions) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    terminate = control_action(versions.rm, TerminateSequence(one.identifier))
    answers = [
        await one.message(1, action=terminate),
        await one.say(control=TerminateSequence(one.identifier), action=ACTION),
        await one.say(control=CreateSequence(ANONYMOUS_EPR), action=terminate, message_id=one.new_id()),
    ]
    for answer in answers:
        assert answer.fault.startswith("Invalid")
        assert "Action" in answer.envelope.fault.reason
    assert (await one.message(1)).ranges == ((1, 1),)
    assert len(app.running.engine.protocol.inbound.destinations) == 1


@pytest.mark.parametrize("versions", [v for v in ALL_VERSIONS if v.addressing is Addressing.V2004_08], ids=str)
async def test_every_answer_in_2004_08_has_the_to_which_that_version_demands(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url, versions)
    answers = [await one.create(), await one.message(1), await one.message(3, identifier="urn:unknown")]
    assert [answer.envelope.to for answer in answers] == [
        "http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous"
    ] * 3


@EVERY_VERSION
async def test_a_message_without_reliable_messaging_is_told_how_to_enable_it(
    serve: Any, peer: Any, versions: Versions
) -> None:
    """WS-RM 4.8; WS-Addressing 2004/08 with RM 1.0 has no such fault, and another code says it."""
    app, got = collecting()
    one = peer((await serve(app)).url, versions)
    answer = await one.say(action=ACTION, body=b"<a/>", rm=None)
    assert answer.fault == ("WSRMRequired" if versions.addressing is Addressing.V2005_08 else "ActionNotSupported")
    assert "Enable one at the sender. WCF: WSHttpBinding" in answer.envelope.fault.reason
    assert got == []


@pytest.mark.parametrize("where", ["acks_to", "reply_to"])
@EVERY_VERSION
async def test_an_address_that_is_not_allowed_refuses_the_sequence_and_says_why(
    serve: Any, peer: Any, versions: Versions, where: str
) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url, versions)
    answer = await one.create(**{where: "http://127.0.0.1:9/victim"})
    assert answer.fault == "CreateSequenceRefused"
    assert "http://127.0.0.1:9/victim" in answer.envelope.fault.reason
    assert "allow-list" in answer.envelope.fault.reason
    assert app.running.engine.protocol.inbound.destinations == {}


async def test_a_reply_address_that_is_not_allowed_refuses_the_message(serve: Any, peer: Any) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url)
    await one.create()
    answer = await one.request(1, reply_to=EndpointReference("http://127.0.0.1:9/victim"))
    assert answer.fault == "OnlyAnonymousAddressSupported"
    assert got == []


async def test_a_makeconnection_address_needs_an_identifier_and_no_place_on_the_allow_list(
    serve: Any, peer: Any
) -> None:
    address = "http://docs.oasis-open.org/ws-rx/wsmc/200702/anonymous?id="
    polling = peer((await serve(Destination(":memory:"))).url)
    assert (await polling.create(acks_to=f"{address}1", reply_to=f"{address}1")).envelope.fault is None
    app = Destination(":memory:", http=DestinationHTTP(allow_addresses=("http://docs.oasis-open.org/",)))
    source = peer((await serve(app)).url)
    for asked in ({"acks_to": address}, {"reply_to": address}):
        answer = await source.create(**asked)
        assert answer.fault == "CreateSequenceRefused"
        assert "A client that polls with WS-MakeConnection names" in answer.envelope.fault.reason
    await source.create()
    answer = await source.message(1, message_id="urn:m", reply_to=EndpointReference(address))
    assert answer.fault == "OnlyAnonymousAddressSupported"
    assert "allow-list" not in answer.envelope.fault.reason


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("http://partner.example/rm", True),
        ("http://partner.example/rm/acks?x=1", True),
        ("http://PARTNER.example:8080/rm", True),
        ("http://partner.example/rmother", False),
        ("http://partner.example/rm/../admin", False),
        ("http://partner.example.evil/rm", False),
        ("http://partner.example@evil/rm", False),
        ("http://partner.example:80@evil/rm", False),
        ("https://partner.example/rm", False),
        ("http://partner.example:nonsense/rm", False),
        ("https://other.example:8443/deep/down", True),
        ("https://other.example:8444/", False),
    ],
)
async def test_the_allow_list_compares_host_port_and_path_not_text(
    serve: Any, peer: Any, address: str, is_allowed: bool
) -> None:
    app = Destination(
        ":memory:",
        http=DestinationHTTP(allow_addresses=("http://partner.example/rm/", "https://other.example:8443")),
    )
    one = peer((await serve(app)).url)
    answer = await one.create(acks_to=address)
    assert isinstance(answer.envelope.control, CreateSequenceResponse) == is_allowed


async def test_one_sequence_too_many_is_refused_until_another_ends(serve: Any, peer: Any) -> None:
    app, _ = collecting(policy=DestinationPolicy(max_sequences=2))
    one = peer((await serve(app)).url)
    await one.create()
    await one.create()
    answer = await one.create()
    assert answer.fault == "CreateSequenceRefused"
    assert "2 open Sequences" in answer.envelope.fault.reason
    await one.say(control=TerminateSequence(one.identifier), message_id=one.new_id())
    assert isinstance((await one.create()).envelope.control, CreateSequenceResponse)


async def test_one_peer_has_its_share_of_sequences_however_many_connections_it_makes(
    serve: Any, peer: Any, tmp_path: Path
) -> None:
    policy = DestinationPolicy(max_party_sequences=3)
    for _ in range(2):  # and however often the destination is started
        app, _ = collecting(tmp_path / "inbox", policy=policy)
        service = await serve(app)
        answers = [await peer(service.url).create() for _ in range(4)]
        assert answers[-1].fault == "CreateSequenceRefused"
        assert "the limit for one peer" in answers[-1].envelope.fault.reason
        assert len(app.running.engine.protocol.inbound.destinations) == 3
        await service.close()


async def test_clients_that_share_one_message_id_get_a_sequence_each(serve: Any, peer: Any) -> None:
    app, got = collecting()
    url = (await serve(app)).url
    clients = [peer(url) for _ in range(3)]
    for client in clients:
        await client.create(message_id="urn:uuid:always-the-same")
        assert (await client.message(1)).ranges == ((1, 1),)
    assert len({client.identifier for client in clients}) == 3
    await until(lambda: len(got) == 3)


@EVERY_VERSION
async def test_a_number_above_the_limit_is_a_rollover(serve: Any, peer: Any, versions: Versions) -> None:
    app, _ = collecting(policy=DestinationPolicy(max_message_number=2))
    one = peer((await serve(app)).url, versions)
    await one.create()
    await one.message(1)
    assert (await one.message(3)).fault == "MessageNumberRollover"


@pytest.mark.parametrize("versions", RM_1_1)
async def test_a_closed_sequence_takes_nothing_new_and_says_what_it_has(
    serve: Any, peer: Any, versions: Versions
) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url, versions)
    await one.create()
    await one.message(1)
    await one.say(control=CloseSequence(one.identifier, 1), message_id=one.new_id())
    answer = await one.message(2)
    assert answer.fault == "SequenceClosed"
    assert answer.ranges == ((1, 1),)


async def test_ack_requested_is_answered_with_what_is_there(serve: Any, peer: Any) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url)
    await one.create()
    await one.message(2)
    asking = {"control": RequestAcknowledgement(), "message_id": one.new_id()}
    answer = await one.say(ack_requested=(AckRequested(one.identifier),), **asking)
    assert isinstance(answer.envelope.control, Acknowledge)
    assert answer.ranges == ((2, 2),)
    assert (await one.say(ack_requested=(AckRequested("urn:nowhere"),), **asking)).fault == "UnknownSequence"


# --- what is no acceptable envelope -----------------------------------------------------------------------------------

SOAP_11 = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP_12 = "http://www.w3.org/2003/05/soap-envelope"


@pytest.mark.parametrize("soap", list(SOAP), ids=str)
@pytest.mark.parametrize(
    "body",
    [
        b"<not-closed",
        b"",
        b"<!DOCTYPE e [<!ENTITY x 'y'>]><s:Envelope xmlns:s='%s'><s:Body/></s:Envelope>",
        b"<s:Envelope xmlns:s='%s'><s:Body/><s:Body/></s:Envelope>",
    ],
    ids=["malformed", "empty", "DTD", "two bodies"],
)
async def test_what_is_no_soap_message_is_the_senders_fault_in_the_soap_it_declared(
    serve: Any, peer: Any, soap: SOAP, body: bytes
) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url)
    namespace, code, status = (SOAP_11, b"Client", 500) if soap is SOAP.V1_1 else (SOAP_12, b"Sender", 400)
    answer = await one.post(body.replace(b"%s", namespace.encode()), {"Content-Type": content_type(soap)})
    assert (answer.status, answer.envelope.soap) == (status, soap)
    assert b":" + code + b"<" in answer.body
    assert app.incidents["envelope.refused"] == 1
    assert got == []


@pytest.mark.parametrize("soap", list(SOAP), ids=str)
async def test_an_envelope_of_another_namespace_is_a_version_mismatch(serve: Any, peer: Any, soap: SOAP) -> None:
    app, _ = collecting()
    one = peer((await serve(app)).url)
    data = b"<s:Envelope xmlns:s='http://example.com/soap/9'><s:Body/></s:Envelope>"
    answer = await one.post(data, {"Content-Type": content_type(soap)})
    assert (answer.status, answer.fault) == (500, "VersionMismatch")


@pytest.mark.parametrize("soap", list(SOAP), ids=str)
async def test_a_header_that_must_be_understood_and_is_not_is_refused(serve: Any, peer: Any, soap: SOAP) -> None:
    app, got = collecting()
    one = peer((await serve(app)).url, Versions(soap=soap.value))
    await one.create()
    namespace = SOAP_11 if soap is SOAP.V1_1 else SOAP_12
    headers = [f"<x:transaction xmlns:x='urn:x' xmlns:s='{namespace}' s:mustUnderstand='1'/>".encode()]
    headers.append(headers[0].replace(b"xmlns:x='urn:x' ", b"").replace(b"x:", b""))
    for header, name in zip(headers, (b'qname="h:transaction" xmlns:h="urn:x"', b'qname="transaction"'), strict=True):
        answer = await one.message(1, headers=(header,))
        assert answer.fault == "MustUnderstand"
        # SOAP 1.2 part 1, 5.4.8: a NotUnderstood block for each.
        assert (b"<s:NotUnderstood " + name + b"/>" in answer.body) is (soap is SOAP.V1_2)
    assert got == []


async def test_an_envelope_beyond_its_limits_is_refused_before_anything_is_done(serve: Any, peer: Any) -> None:
    app, got = collecting(http=DestinationHTTP(envelopes=Limits(max_bytes=3000, max_headers=20)))
    one = peer((await serve(app)).url)
    await one.create()
    assert (await one.message(1, b"<a>" + b"x" * 3000 + b"</a>")).status == 400
    assert (await one.message(1, headers=tuple(b"<h xmlns='urn:h'/>" for _ in range(30)))).status == 400
    assert (await one.message(1)).ranges == ((1, 1),)
    await until(lambda: len(got) == 1)


async def test_nobody_waits_while_a_large_body_is_read_and_it_is_handled_whole(serve: Any, peer: Any) -> None:
    app, got = collecting()
    url = (await serve(app)).url
    large, small = peer(url), peer(url)
    await large.create()
    await small.create()
    body = b"<a>" + b"<b>text</b>" * 1_200_000 + b"</a>"
    sending = asyncio.ensure_future(large.message(1, body=body))
    await until(lambda: app.running.is_committing)  # its bytes are here, and it is being read
    assert (await small.message(1)).ranges == ((1, 1),)
    assert (await sending).ranges == ((1, 1),)
    await until(lambda: len(got) == 2)
    assert max(len(kept) for _, kept in got) == len(body)


async def test_what_is_being_read_when_the_destination_is_closed_is_stored_first(tmp_path: Path) -> None:
    app, _ = collecting(tmp_path / "inbox")
    await app.start()
    versions = TRIED_VERSIONS[0]

    def said(**fields: Any) -> DirectExchange:
        made = Envelope(versions.soap, versions.addressing, versions.rm, to="http://d/")
        for name, value in fields.items():
            setattr(made, name, value)
        headers = {b"content-type": b"application/soap+xml"}
        asked = DirectExchange(Request("POST", "/", headers, encode(made), None, False))
        app.handle(asked)
        return asked

    create = said(control=CreateSequence(ANONYMOUS_EPR), message_id="urn:c")
    identifier = decode((await create.response).body).control.identifier  # type: ignore[union-attr]
    large = said(sequence=Sequence(identifier, 1), action=ACTION, body=b"<a>" + b"<b>1</b>" * 500_000 + b"</a>")
    assert not large.response.done()
    await app.close()
    assert decode(large.response.result().body).acknowledgements[0].ranges == ((1, 1),)


async def test_a_body_above_ten_megabytes_of_text_is_read_as_an_element(serve: Any, peer: Any) -> None:
    app = Destination(":memory:")
    lengths: list[int] = []

    @app.on(ACTION)
    def take(message: Any) -> None:
        lengths.append(len(message.body.text))

    one = peer((await serve(app)).url)
    await one.create()
    assert (await one.message(1, body=b"<a>" + b"x" * 12_000_000 + b"</a>")).ranges == ((1, 1),)
    await until(lambda: lengths)
    assert lengths == [12_000_000]


async def test_a_body_beyond_the_listeners_limit_is_refused_and_ends_nothing(serve: Any, peer: Any) -> None:
    app, _ = collecting()
    one = peer((await serve(app, limits=HTTPLimits(max_body=2000))).url)
    await one.create()
    assert (await one.message(1, b"<a>" + b"x" * 3000 + b"</a>")).status == 413
    assert (await one.message(1)).ranges == ((1, 1),)


async def test_only_post_is_taken(serve: Any) -> None:
    app, _ = collecting()
    async with httpx.AsyncClient() as client:
        answer = await client.get((await serve(app)).url)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


# --- the store fails --------------------------------------------------------------------------------------------------


class FailingStore(MemoryStore):
    """Fails every commit once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = threading.Event()

    def commit(self, batch: Batch) -> None:
        if self.fails.is_set():
            raise StoreFailed("no space left on device")
        super().commit(batch)


async def test_when_the_store_fails_nothing_is_acknowledged_and_everything_answered_503(serve: Any, peer: Any) -> None:
    store = FailingStore()
    app, got = collecting(store)
    service = await serve(app)
    one, other = peer(service.url), peer(service.url)
    await one.create()
    await one.message(1)
    await until(lambda: len(got) == 1)
    told = asyncio.Event()
    app.settings.on_store_failed = lambda _error: told.set()
    store.fails.set()
    caught = asyncio.ensure_future(one.message(2))
    await until(lambda: app.running.engine.failure is not None)
    answer = await other.message(3, identifier=one.identifier)
    assert answer.status == 503
    assert (await caught).status == 503
    assert [number for number, _ in got] == [1]
    assert told.is_set()


async def test_a_process_whose_store_fails_leaves_what_others_relay_to_the_present_owner(serve: Any, peer: Any) -> None:
    store = FailingStore()
    app, got = collecting(store)
    service = await serve(app)
    one = peer(service.url)
    await one.create()
    await one.message(1)
    await until(lambda: len(got) == 1)
    relayed: list[asyncio.Future[Response]] = []
    handle = app.running.reception.handle

    def relay(exchange: Exchange, is_elsewhere: Any = None) -> None:
        """Bring each request as another worker would, and answer as it would at its end."""
        asked = DirectExchange(exchange.request)
        asked.is_passed_on = asked.is_relayed = True
        relayed.append(asked.response)
        handle(asked)
        asked.response.add_done_callback(lambda done: exchange.respond(503))

    app.running.reception.handle = relay  # type: ignore[method-assign]
    store.fails.set()
    caught = asyncio.ensure_future(one.message(2))  # it waits for its commit, which fails
    await until(lambda: app.running.engine.failure is not None)
    await one.message(3)
    await caught
    assert [(await answer).status for answer in relayed] == [421, 421]


# --- configuration and hosting ----------------------------------------------------------------------------------------


async def test_two_handlers_of_one_action_are_refused() -> None:
    app, _ = collecting()
    with pytest.raises(ConfigurationError, match="two handlers"):
        app.on(ACTION)(lambda message: None)


async def test_another_number_of_partitions_than_the_store_has_is_refused(serve: Any, tmp_path: Path) -> None:
    service = await serve(Destination(tmp_path / "inbox", partitions=2))
    await service.close()
    with pytest.raises(ConfigurationError, match="2 partitions, not 3"):
        await Destination(tmp_path / "inbox", partitions=3).start()
    await serve(Destination(tmp_path / "inbox", partitions=2))


@pytest.mark.parametrize("arguments", [{"partitions": 0}, {"handling": 0}, {"assurance": "twice"}])
def test_what_cannot_be_is_refused_at_once(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        Destination(":memory:", **arguments)


@EVERY_VERSION
async def test_it_can_be_mounted_in_starlette(versions: Versions, tmp_path: Path) -> None:
    app, got = collecting(tmp_path / "inbox")
    host = Starlette(routes=[Mount("/rm", app)], lifespan=app.lifespan)
    transport = httpx.ASGITransport(host)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://host") as client:

        async def say(envelope: Envelope) -> Envelope:
            headers = http_headers(envelope.soap, envelope.action)
            answer = await client.post("/rm/", content=encode(envelope), headers=headers)
            return decode(answer.content)

        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to="http://host/rm/")
        envelope.message_id = "urn:1"
        envelope.control = CreateSequence(EndpointReference("anonymous"))
        created = (await say(envelope)).control
        assert isinstance(created, CreateSequenceResponse)
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, ACTION, "http://host/rm/", body=b"<a/>")
        envelope.sequence = Sequence(created.identifier, 1)
        assert (await say(envelope)).acknowledgements[0].ranges == ((1, 1),)
        await until(lambda: got == [(1, b"<a/>")])
    reopened, _ = collecting(tmp_path / "inbox")
    await reopened.start()  # the host's lifespan closed the store
    await reopened.close()


async def test_a_request_after_the_close_gets_503_and_the_store_stays_closed(tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"<x/>", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"", "scheme": "http"}
    await app.start()
    await app.close()
    await app(scope, receive, send)
    assert sent[0]["status"] == 503
    open_store(tmp_path / "inbox").close()
