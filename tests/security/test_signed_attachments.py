"""Signed and encrypted messages in MTOM: the signature is over the base64, as if the message had no attachments.

A proxy moves base64 of messages and answers into attachments. What leaves has it in the body.
``tests/interop/test_cxf_attachments.py`` has CXF.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from file_service import LARGE, SMALL, Files
from oasis_wire import content_of
from signers import issue

import holdfast
from holdfast.core.messages import Envelope
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes import attachments, envelopes
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import LimitExceeded
from holdfast.testing import pair
from holdfast.testing.proxy import Faults, LossyProxy, Relayed, _Plan
from holdfast.wire import decode, encode
from holdfast.wire.attachments.references import XOP_NS
from holdfast.wire.limits import DEFAULT, Limits

OURS, SHOP = issue("CN=holdfast,O=Example"), issue("CN=shop,O=Example")
DATA = bytes(7 * index % 256 for index in range(300))
BODY = rb"<(?:\w+:)?data(?: [^>]*)?>([^<]{100,})<"
VALUE = rb"SignatureValue>([^<]+)<"
QUICK = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))
CIPHER = rb"CipherValue>([^<]{450,})<"


class Packing(LossyProxy):
    """Sends messages on in MTOM.

    Args:
        target: Where to.
        places: What it moves into attachments.
        change: What it does with an attachment.
    """

    def __init__(self, target: str, places: tuple[bytes, ...], change: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(target)
        self._places = places
        self._change = change
        self.moved = 0

    async def _carry(self, request: bytes, plan: _Plan) -> Relayed:
        relayed = await super()._carry(self._packed(request), plan)
        return dataclasses.replace(relayed, response=relayed.response and self._packed(relayed.response))

    def _packed(self, message: bytes) -> bytes:
        envelope, parts = content_of(message), list[bytes]()
        if b"Envelope" not in envelope:
            return message

        def moved(found: re.Match[bytes]) -> bytes:
            parts.append(self._change(base64.b64decode(found[1])))
            include = b'<x:Include xmlns:x="%b" href="cid:%d@proxy"/>' % (XOP_NS.encode(), len(parts))
            return found[0].replace(found[1], include)

        for place in self._places:
            envelope = re.sub(place, moved, envelope)
        self.moved += len(parts)
        content = b"".join(
            b"--b\r\nContent-Type: %b\r\nContent-Transfer-Encoding: binary\r\nContent-ID: <%d@proxy>\r\n\r\n%b\r\n"
            % (b"application/octet-stream" if number else b"application/xop+xml", number, part)
            for number, part in enumerate([envelope, *parts])
        )
        head, _, _ = message.partition(b"\r\n\r\n")
        kept = [one for one in head.split(b"\r\n") if not re.match(rb"content-|transfer-", one, re.IGNORECASE)]
        media = b'multipart/related; type="application/xop+xml"; boundary=b; start="<0@proxy>"; start-info="text/xml"'
        content += b"--b--\r\n"
        told = [*kept, b"Content-Type: " + media, b"Content-Length: %d" % len(content)]
        return b"\r\n".join(told) + b"\r\n\r\n" + content


def processor(directory: Path, kind: str, *, ours: bool) -> holdfast.Processor:
    own, other = (OURS, SHOP) if ours else (SHOP, OURS)
    files, trusted = own.files(directory), other.files(directory).certificate
    if kind == "symmetric":
        users = holdfast.UsernameTokenValidator({"alice": "secret"})
        if ours:
            return holdfast.SymmetricBinding("alice", "secret", trusted)
        return holdfast.SymmetricBindingValidator(*files, users=users)
    if kind == "conversation":
        users = holdfast.UsernameTokenValidator({"alice": "secret"})
        if ours:
            return holdfast.SecureConversation("alice", "secret", certificate=trusted)
        return holdfast.SymmetricBindingValidator(*files, users=users, conversation=True)
    encrypt = holdfast.Encryption() if kind == "encrypted" else None
    return holdfast.X509(*files, trusted=trusted, encrypt=encrypt)


@contextlib.asynccontextmanager
async def running_destination(app: holdfast.Destination) -> AsyncIterator[str]:
    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        yield service.url
    finally:
        await service.close(0.0)


async def call(
    directory: Path, kind: str, places: tuple[bytes, ...], data: bytes = DATA, store: str = ":memory:", **options: Any
) -> Any:
    """Call a service through the proxy, and return what its handler got, the reply and the proxy."""
    got: list[holdfast.Message] = []
    service = holdfast.Destination(store, processors=[processor(directory, kind, ours=False)])

    async def handle(message: holdfast.Message) -> bytes:
        got.append(message)
        return message.body_bytes

    service.on("urn:shop/order")(handle)
    processors, versions = [processor(directory, kind, ours=True)], holdfast.Versions("1.1", "2005/08", "1.1")
    async with (
        running_destination(service) as url,
        Packing(url, places, **options) as proxy,
        holdfast.Source(proxy.url, ":memory:", processors=processors, versions=versions) as source,
    ):
        body = f"<order xmlns='urn:shop'><data>{base64.b64encode(data).decode()}</data></order>"
        reply = await source.request(body, action="urn:shop/order", timeout=240)
        return got, reply, proxy


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("signed", (BODY,)),
        ("signed", (BODY, VALUE)),
        ("encrypted", (VALUE, CIPHER)),
        ("symmetric", (CIPHER,)),
        ("conversation", (CIPHER,)),
    ],
    ids=["signed", "signed as WSS4J does", "encrypted", "symmetric", "conversation"],
)
async def test_a_signature_is_over_the_base64_of_attachments(
    tmp_path: Path, kind: str, places: tuple[bytes, ...]
) -> None:
    (message,), reply, proxy = await call(tmp_path, kind, places)
    assert proxy.moved >= 2, "of the request and of the reply"
    for one in (message, reply):
        assert one.attachments == ()
        assert base64.b64decode(one.body[0].text) == DATA


@pytest.mark.nightly
async def test_the_values_of_a_large_message_are_in_its_body(tmp_path: Path) -> None:
    """Its attachments are in the store before its signature is checked."""
    data, store = DATA * 4000, str(tmp_path / "inbox")
    (message,), reply, _ = await call(tmp_path, "signed", (BODY,), data, store)
    assert message.attachments == reply.attachments == ()
    assert base64.b64decode(message.body[0].text) == base64.b64decode(reply.body[0].text) == data


@pytest.mark.parametrize("kind", ["signed"])
async def test_a_changed_attachment_reaches_no_handler(tmp_path: Path, kind: str) -> None:
    with pytest.raises(holdfast.PeerFault, match=r"InvalidSecurity|FailedAuthentication"):
        await call(tmp_path, kind, (BODY,), change=lambda data: data[:-1] + b"!")


def test_the_log_names_soap_with_attachments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the signature is over them, as WSS4J's is on request (SwA Profile 1.1): nothing of them is read."""
    made = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://shop/", body=b"<n/>")
    made.message_id = "urn:m:1"
    outbound = holdfast.MessageContext(made, "outbound", "source", {}, is_answer=False, to="http://shop/")
    sender = processor(tmp_path, "signed", ours=True)
    sender.outbound(outbound)
    data = sender.encoded(outbound, encode(made))
    context = holdfast.MessageContext(decode(data), "inbound", "destination", {}, is_answer=False, data=data)
    context.envelope.attachments = b"any"
    with pytest.raises(holdfast.ProcessingError):
        processor(tmp_path, "signed", ours=False).inbound(context)
    assert "SOAP with Attachments), which are not supported in signed messages" in caplog.text


# --- out --------------------------------------------------------------------------------------------------------------

INCLUDE = f"<x:Include xmlns:x='{XOP_NS}' href='cid:data@holdfast'/>"
PART = re.compile(rb"\r\nContent-ID: ", re.IGNORECASE)


def attached(data: bytes = DATA) -> dict[str, Any]:
    given = holdfast.Attachment(data, "image/png", "data@holdfast")
    return {"body": f"<order xmlns='urn:shop'><data>{INCLUDE}</data></order>", "attachments": [given]}


def multiparts(messages: list[bytes | None]) -> list[bytes]:
    return [one for one in messages if one is not None and b"multipart/related" in one.partition(b"\r\n\r\n")[0]]


async def exchanged(directory: Path, kind: str, data: bytes, store: Any = ":memory:", **faults: float) -> list[Relayed]:
    """Send a message in MTOM whose reply is in MTOM, and one of another kind; return what was on the wire."""
    got: list[holdfast.Message] = []
    service = holdfast.Destination(store, processors=[processor(directory, kind, ours=False)])

    async def handle(message: holdfast.Message) -> Any:
        got.append(message)
        return holdfast.WithAttachments(**attached(data))

    service.on("urn:shop/order")(handle)
    seen: list[Relayed] = []
    async with (
        running_destination(service) as url,
        LossyProxy(url, Faults(**faults), seed=4, on_relayed=seen.append) as proxy,
        holdfast.Source(
            proxy.url, ":memory:", processors=[processor(directory, kind, ours=True)], policy=QUICK
        ) as source,
    ):
        reply = await source.request(**attached(data), action="urn:shop/order", timeout=240)
        await source.request("<order/>", action="urn:shop/order", timeout=240)
    assert [one.attachments for one in got] == [(), ()]
    for one in (got[0], reply):
        assert base64.b64decode(one.body[0].text) == data
    return seen


@pytest.mark.parametrize("kind", ["signed", "encrypted", "symmetric", "conversation"])
async def test_a_message_in_mtom_leaves_as_a_package_of_its_signed_envelope(tmp_path: Path, kind: str) -> None:
    seen = await exchanged(tmp_path, kind, DATA)
    requests, replies = multiparts([one.request for one in seen]), multiparts([one.response for one in seen])
    assert (len(requests), len(replies)) == (1, 2), "nothing else is a package"
    for one in requests + replies:
        assert b'type="application/xop+xml"' in one
        assert len(PART.findall(one)) == 1, "the root"
        assert (b"SignatureValue" in one) or kind != "signed"
        assert base64.b64encode(DATA)[:99] in one or kind != "signed"


async def test_signed_attachments_are_retransmitted(tmp_path: Path) -> None:
    await exchanged(tmp_path, "signed", DATA, lose_request=0.4, lose_response=0.3)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["signed", "symmetric"])
async def test_a_large_attachment_leaves_the_store_for_the_body(tmp_path: Path, kind: str) -> None:
    await exchanged(tmp_path, kind, DATA * 4000, str(tmp_path / "inbox"))


async def test_a_store_that_does_not_give_an_attachment_now_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, read = [OSError("the disk is away")] * 6, attachments.open_decoded

    def open_decoded(*given: Any) -> Any:
        if left:
            raise left.pop()
        return read(*given)

    monkeypatch.setattr(attachments, "open_decoded", open_decoded)
    await exchanged(tmp_path, "signed", DATA)
    assert not left


@pytest.mark.parametrize("kind", ["signed", "symmetric"])
async def test_attachments_that_exceed_the_limit_of_a_body_are_refused_and_become_a_fault(
    tmp_path: Path, kind: str
) -> None:
    data = bytes(DEFAULT.max_bytes * 3 // 4)
    service = holdfast.Destination(processors=[processor(tmp_path, kind, ours=False)])
    service.on("urn:shop/order")(lambda _: holdfast.WithAttachments(**attached(data)))
    async with pair(service, processors=[processor(tmp_path, kind, ours=True)]) as source:
        for ask in (source.send, source.request):
            with pytest.raises(LimitExceeded, match=r"parts in base64, has .* bytes"):
                await ask(**attached(data), action="urn:shop/order")
        assert source.next_offset() == 0
        with pytest.raises(holdfast.PeerFault, match="set aside"):
            await source.request("<order/>", action="urn:shop/order")
    assert service.incidents["dead_letter.added"] == 1


@pytest.mark.parametrize("kind", ["signed", "encrypted", "symmetric", "conversation"])
async def test_a_message_is_too_large_if_it_is_so_when_it_is_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    few = Limits(max_bytes=1 << 20)
    monkeypatch.setattr(envelopes, "most_bytes_of", lambda _limits: few.max_bytes)  # 16 MiB take a minute
    size = few.max_bytes - few.max_header_bytes - len("<r></r>")
    size -= 0 if kind == "signed" else size // 4
    http = holdfast.DestinationHTTP(envelopes=few)
    service = holdfast.Destination(processors=[processor(tmp_path, kind, ours=False)], http=http)

    @service.on("urn:shop/order")
    def order(message: holdfast.Message) -> str:
        return f"<r>{'x' * int(message.body.text)}</r>"

    async with pair(service, processors=[processor(tmp_path, kind, ours=True)]) as source:
        fits = await source.request(f"<n>{size - 100}</n>", action="urn:shop/order", timeout=240)
        assert len(fits.body.text) == size - 100
        with pytest.raises(holdfast.PeerFault, match="set aside"):
            await source.request(f"<n>{size + 100}</n>", action="urn:shop/order", timeout=240)
        with pytest.raises(LimitExceeded, match=r"parts in base64, has .* bytes"):
            await source.send(f"<r>{'x' * (size + 100)}</r>", action="urn:shop/order")
        assert source.next_offset() == 2
    with pytest.raises(holdfast.DeliveryError, match="cannot be sent"):
        async with pair(service, processors=[processor(tmp_path, kind, ours=True)]) as source:
            # Written again to be signed, each of these characters has four bytes.
            await source.send(f"<r>{'>' * (few.max_bytes // 4)}</r>", action="urn:shop/order")


@pytest.mark.parametrize("kind", ["signed", "encrypted"])
async def test_a_service_whose_wsdl_demands_mtom_is_called_with_signed_messages(tmp_path: Path, kind: str) -> None:
    files = Files(processors=[processor(tmp_path, kind, ours=False)])
    given = [{"name": "a", "content": LARGE}, {"name": "b", "content": SMALL}, {"name": "c", "content": LARGE}]
    async with running_destination(files.app) as url:
        processors = [processor(tmp_path, kind, ours=True)]
        async with await holdfast.Source.from_wsdl(f"{url}?wsdl", ":memory:", processors=processors) as source:
            assert await source.call("Store", file=given) == given[2]
            await (await source.call("Log", content=LARGE)).acknowledged(240)
            await files.app.handled()
    assert (files.stored, files.logged, files.attached) == ([given], [LARGE], [[], []])
