"""What HTTP and TLS said of a message: there for its handler, also after a restart; bounded, and no secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigurationError, Destination, DestinationHTTP, Message, PeerCertificate, Source, SourceHTTP
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope, Sequence
from holdfast.core.versions import Versions
from holdfast.endpoint.envelopes.transport_facts import MAX_BYTES, Facts, Keeper, read_facts
from holdfast.http.exchange import Request
from holdfast.http.tls import ClientTLS, ServerTLS
from holdfast.wire import action_of, decode, encode, http_headers

ACTION = "urn:test:submit"
SECRETS = {"Authorization": "Bearer secret", "Cookie": "a=secret", "Proxy-Authorization": "Basic secret"}


def request(headers: dict[bytes, bytes], certificate: PeerCertificate | None = None) -> Request:
    return Request("POST", "/", headers, b"", None, certificate is not None, certificate)


def handled(store: Path | str, **options: Any) -> tuple[Destination, asyncio.Queue[Message]]:
    app = Destination(store, partitions=1, **options)
    seen: asyncio.Queue[Message] = asyncio.Queue()

    @app.on(ACTION)
    async def take(message: Message) -> None:
        seen.put_nowait(message)

    return app, seen


async def send(url: str, headers: dict[str, str], **http: Any) -> None:
    async with Source(url, ":memory:", http=SourceHTTP(headers=headers, **http)) as source:
        await (await source.send("<a/>", action=ACTION)).acknowledged(60)


async def test_a_handler_sees_the_headers_that_are_kept_also_after_a_restart(serve: Any, tmp_path: Path) -> None:
    keeps = DestinationHTTP(keep_http_headers=["X-Request-ID", "x-tenant"])
    service = await serve(Destination(tmp_path / "inbox", partitions=1, http=keeps))
    await send(service.url, {"X-REQUEST-ID": "r-1", "X-Other": "o"} | SECRETS)
    await service.close()
    app, seen = handled(tmp_path / "inbox")
    await serve(app)
    message = await asyncio.wait_for(seen.get(), 60)
    assert message.http_headers == {"x-request-id": "r-1"}
    assert message.peer_certificate is None


async def test_without_being_asked_nothing_is_kept(serve: Any) -> None:
    app, seen = handled(":memory:")
    service = await serve(app)
    await send(service.url, {"X-Request-ID": "r-1"})
    message = await asyncio.wait_for(seen.get(), 60)
    assert message.http_headers == {}
    ((_, record),) = app.running.store.read("inbox", 0, 0, 1)
    assert record.transport == b""


async def test_a_star_keeps_all_but_what_proves_who_somebody_is(serve: Any) -> None:
    app, seen = handled(":memory:", http=DestinationHTTP(keep_http_headers=["*", "Cookie"]))
    service = await serve(app)
    await send(service.url, {"X-Request-ID": "r-1"} | SECRETS)
    kept = (await asyncio.wait_for(seen.get(), 60)).http_headers
    assert kept["x-request-id"] == "r-1"
    assert kept["cookie"] == "a=secret"  # named
    assert not {"authorization", "proxy-authorization"} & kept.keys()


async def test_a_handler_sees_whose_certificate_it_was_also_after_a_restart(serve: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    for name, identity in (("server", "127.0.0.1"), ("client", "client@holdfast.example")):
        authority.issue_cert(identity).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ca = str(tmp_path / "ca.pem")
    context = ServerTLS(str(tmp_path / "server.pem"), client_ca=ca).context()
    service = await serve(Destination(tmp_path / "inbox", partitions=1), ssl_context=context)
    await send(service.url, {}, ssl_context=ClientTLS(ca, str(tmp_path / "client.pem")).context())
    await service.close()
    app, seen = handled(tmp_path / "inbox")
    await serve(app)
    certificate = (await asyncio.wait_for(seen.get(), 60)).peer_certificate
    assert certificate is not None
    assert certificate.names == ("email:client@holdfast.example",)
    assert len(certificate.sha256) == 64


async def test_under_asgi_both_come_from_the_scope() -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("client@holdfast.example").cert_chain_pems[0].bytes().decode()
    app, seen = handled(":memory:", http=DestinationHTTP(keep_http_headers=["x-request-id"]))
    tls = {"client_cert_chain": [certificate], "client_cert_name": "CN=client", "client_cert_error": None}

    async def behind_tls(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {"tls": tls}}, receive, send)

    versions = Versions()

    async def say(peer: httpx.AsyncClient, **fields: Any) -> Envelope:
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to="http://here/", **fields)
        headers = http_headers(envelope.soap, action_of(envelope)) | {"X-Request-ID": "r-1"}
        return decode((await peer.post("/", content=encode(envelope), headers=headers)).content)

    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(behind_tls), base_url="https://here") as peer,
    ):
        made = await say(peer, control=CreateSequence(ANONYMOUS_EPR), message_id="urn:1", reply_to=ANONYMOUS_EPR)
        assert isinstance(made.control, CreateSequenceResponse)
        await say(peer, sequence=Sequence(made.control.identifier, 1), body=b"<a/>", action=ACTION)
        message = await asyncio.wait_for(seen.get(), 60)
        assert message.http_headers == {"x-request-id": "r-1"}
        assert message.peer_certificate is not None
        assert message.peer_certificate.subject == "CN=client"
        tls["client_cert_error"] = "it has expired"
        refused = await say(peer, sequence=Sequence(made.control.identifier, 2), body=b"<a/>", action=ACTION)
        assert refused.fault is not None and refused.fault.code == "UnknownSequence", "it proves nobody's right to it"
        made = await say(peer, control=CreateSequence(ANONYMOUS_EPR), message_id="urn:2", reply_to=ANONYMOUS_EPR)
        assert isinstance(made.control, CreateSequenceResponse)
        await say(peer, sequence=Sequence(made.control.identifier, 1), body=b"<a/>", action=ACTION)
        assert (await asyncio.wait_for(seen.get(), 60)).peer_certificate is None


names = st.from_regex(rb"\A[a-z][a-z0-9-]{0,30}\Z")
values = st.binary(max_size=3000).filter(lambda value: not {0, 10, 13} & set(value))
certificates = st.none() | st.builds(
    PeerCertificate, st.text(), st.text(), st.text(), st.text(), st.lists(st.text()).map(tuple)
)


@given(st.dictionaries(names, values, max_size=20), certificates, st.booleans())
def test_what_is_kept_is_bounded_and_comes_back_as_it_was(
    headers: dict[bytes, bytes], certificate: PeerCertificate | None, everything: bool
) -> None:
    keeper = Keeper(["*"] if everything else [name.decode() for name in headers])
    data = keeper.facts_of(request(headers, certificate))
    facts = read_facts(data) if data else Facts()
    found = facts.http_headers
    assert facts.peer_certificate == certificate
    assert found.items() <= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}.items()
    assert sum(len(name) + len(value) for name, value in found.items()) <= MAX_BYTES
    total = sum(len(name) + len(value) for name, value in headers.items())
    if total <= MAX_BYTES and not {b"cookie", b"authorization"} & headers.keys():
        assert len(found) == len(headers)


@given(st.binary(max_size=100))
def test_bytes_of_another_kind_are_nothing(data: bytes) -> None:
    facts = read_facts(data)
    assert isinstance(facts.http_headers, dict)
    assert facts.peer_certificate is None or isinstance(facts.peer_certificate, PeerCertificate)


def test_facts_that_were_stored_before_users_are_read() -> None:
    certificate = PeerCertificate("CN=a", "CN=b", "1", "00", ("a",))
    stored = msgspec.msgpack.encode(({"x-a": "1"}, certificate))
    assert read_facts(stored) == Facts({"x-a": "1"}, certificate, "")


@pytest.mark.parametrize("names", ["X-Request-ID", [b"x"], ["a b"], [""], [1]])
def test_names_that_no_header_has_are_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Destination(":memory:", http=DestinationHTTP(keep_http_headers=names))
    assert refused.value.remedy
