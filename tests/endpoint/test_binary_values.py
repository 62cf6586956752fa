"""Binary values of operations: bytes on both sides, whether they travel in MTOM or in base64."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
import zeep
from file_service import LARGE, SMALL, Files, wsdl

from holdfast import Attachment, EnvelopeError, PeerFault, RetransmissionPolicy, Source, SourceHTTP, SourcePolicy
from holdfast.endpoint.envelopes.attachments import LEAST_VALUE, extract_values, inlined_body
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents
from holdfast.wsdl.words import in_words
from holdfast.zeep import AsyncTransport, Transport

FILES = [{"name": "a", "content": LARGE}, {"name": "b", "content": SMALL}, {"name": "c", "content": LARGE}]
PARTS = [("value1@holdfast", LARGE), ("value2@holdfast", LARGE)]
SETTINGS = [(True, None, True), (False, None, False), (False, True, True), (True, False, False)]
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))
settings = pytest.mark.parametrize(("demands_mtom", "mtom", "is_mtom"), SETTINGS)


@settings
async def test_a_call_sends_binary_values_as_the_policy_or_the_setting_says(
    serve: Any, demands_mtom: bool, mtom: bool | None, is_mtom: bool
) -> None:
    files = Files(demands_mtom=demands_mtom)
    url = (await serve(files.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", http=SourceHTTP(mtom=mtom)) as source:
        assert await source.call("Store", file=FILES) == FILES[2]
        sent = await source.call("Log", content=LARGE)
        await sent.acknowledged(60)
        await files.app.handled()
    assert (files.stored, files.logged) == ([FILES], [LARGE])
    assert files.attached == ([PARTS, PARTS[:1]] if is_mtom else [[], []])


@pytest.mark.parametrize(
    ("sends", "returns", "demands_mtom", "is_mtom"),
    [
        (True, None, False, True),
        (False, None, False, False),
        (False, None, True, True),
        (False, True, False, True),
        (True, False, True, False),
    ],
)
async def test_a_reply_has_attachments_as_request_policy_or_setting_say(
    serve: Any, sends: bool, returns: bool | None, demands_mtom: bool, is_mtom: bool
) -> None:
    files = Files(demands_mtom=demands_mtom, mtom=returns)
    url = (await serve(files.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        given = "<Store xmlns='urn:files'><file><name>a</name><content>%s</content></file></Store>"
        include = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@test"/>'
        body = given % (include if sends else "AAEC" * 1000)
        attachments = [Attachment(b"\0\1\2" * 1000, content_id="a@test")] if sends else []
        reply = await source.request(body, action="urn:files/Store", attachments=attachments)
        assert [one.read() for one in reply.attachments] == ([b"\0\1\2" * 1000] if is_mtom else [])
        assert b"AAEC" * 1000 in inlined_body(reply.body_bytes, reply.attachments)
    assert files.stored == [[{"name": "a", "content": b"\0\1\2" * 1000}]]


async def test_other_attachments_go_with_a_call_and_come_with_its_reply(serve: Any) -> None:
    files = Files(demands_mtom=False, extra=True)
    url = (await serve(files.app)).url
    scan = Attachment(b"scan", "image/png", "scan@test")

    def program() -> list[bytes]:
        with Transport(":memory:") as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            with transport.call(attachments=[scan]) as call:
                assert client.service.Store(file=FILES).content == LARGE
            assert call.reply is not None
            return [one.read() for one in call.reply.attachments]

    assert await asyncio.to_thread(program) == [b"more"]
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert await source.call("Store", file=FILES, _attachments=[scan]) == FILES[2]
        with pytest.raises(EnvelopeError, match="same Content-ID"):
            await source.call("Store", file=FILES, _attachments=[scan, scan])
    assert files.attached == [[("scan@test", b"scan")]] * 2


@settings
async def test_a_zeep_client_sends_and_reads_binary_values_in_mtom(
    serve: Any, tmp_path: Path, demands_mtom: bool, mtom: bool | None, is_mtom: bool
) -> None:
    files = Files(demands_mtom=demands_mtom)
    url = (await serve(files.app)).url

    def program() -> None:
        with Transport(tmp_path / "outbox", http=SourceHTTP(mtom=mtom)) as transport:
            client = zeep.Client(f"{url}?wsdl", transport=transport)
            assert client.service.Store(file=FILES).content == LARGE
            assert client.service.Log(content=LARGE) is None
            transport.source.flush(60)

    await asyncio.to_thread(program)
    await files.app.handled()
    assert (files.stored, files.logged) == ([FILES], [LARGE])
    assert files.attached == ([PARTS, PARTS[:1]] if is_mtom else [[], []])


@pytest.mark.parametrize("operation", ["Log", "Store"])  # a coroutine, and a function
@pytest.mark.parametrize("field", ["name", "content"])
async def test_values_of_attachments_are_refused_beyond_the_limit(
    serve: Any, operation: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files()
    url = (await serve(files.app)).url
    huge = Attachment(bytes(13_000_000), content_id="a@test")
    include = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@test"/>'
    body = f"<{operation} xmlns='urn:files'><file><{field}>{include}</{field}></file></{operation}>"
    monkeypatch.setattr(Attachment, "read", None)  # nothing reads it
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        if operation == "Store":
            with pytest.raises(
                PeerFault, match=r"17,333,\d+ bytes .* limit is 16,777,216 \(max_bytes\).*@app\.on"
            ) as said:
                await source.request(body, action="urn:files/Store", attachments=[huge])
            assert said.value.code.endswith(("Sender", "Client"))
        else:
            sent = await source.send(body, action="urn:files/Log", attachments=[huge])
            await sent.acknowledged(60)
            await files.app.handled()
    assert (files.stored, files.logged, files.attached) == ([], [], [])


async def test_a_caller_gets_values_of_any_size(serve: Any) -> None:
    large = bytes(13_000_000)
    url = (await serve(Files(mtom=True, most=1 << 25).app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert (await source.call("Store", file=[{"name": "a", "content": large}]))["content"] == large


async def test_a_message_as_large_as_the_limit_becomes_values(serve: Any) -> None:
    files = Files()
    url = (await serve(files.app)).url
    large = [{"name": "a", "content": bytes(1_500_000)}]
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert await source.call("Store", file=large) == large[0]
        await (await source.call("Log", content=large[0]["content"])).acknowledged(60)
        await files.app.handled()
    assert (files.stored, files.logged) == ([large], [large[0]["content"]])


async def test_an_asynchronous_zeep_client_does_too(serve: Any) -> None:
    files = Files()
    url = (await serve(files.app)).url
    transport = AsyncTransport(":memory:")
    client = await asyncio.to_thread(zeep.AsyncClient, f"{url}?wsdl", transport=transport)
    async with transport:
        assert (await client.service.Store(file=FILES)).content == LARGE
        await client.service.Log(content=LARGE)
        await transport.source.flush(60)
    assert files.attached == [PARTS, PARTS[:1]]


async def test_values_arrive_once_and_byte_for_byte_through_a_bad_network(serve: Any, tmp_path: Path) -> None:
    files = Files(store=tmp_path / "inbox")
    url = (await serve(files.app)).url
    contents = [bytes([number]) * (LEAST_VALUE + number) for number in range(8)]
    async with LossyProxy(url, Faults(lose_request=0.2, lose_response=0.2), seed=4) as proxy:
        made = await Source.from_wsdl(f"{url}?wsdl", tmp_path / "outbox", to=proxy.url, policy=QUICK)
        async with made as source:
            for content in contents:
                await source.call("Log", content=content)
            await source.flush(60)
    await files.app.handled()
    assert files.logged == contents


# --- the conversion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [LARGE, [LARGE], {"a": [{"b": LARGE}]}, (b"x", bytearray(LARGE), "text", 1, None)],
    ids=["a value", "a list", "a structure", "a tuple"],
)
def test_large_bytes_leave_the_body_wherever_they_are_in_the_values(values: Any) -> None:
    plain = inline("<a>%s</a>", LARGE)
    body, (part,) = extract_values(plain, values)
    assert b"Include" in body
    assert (part.content_id, part.read()) == ("value1@holdfast", LARGE)
    assert inlined_body(body, [part]) == plain


def test_small_values_and_other_text_stay_in_the_body() -> None:
    least = b"x" * LEAST_VALUE
    for values in (least[:-1], ["text"], None, {"a": LARGE[1:]}):
        assert extract_values(inline("<a>%s</a>", LARGE), values) == (inline("<a>%s</a>", LARGE), [])
    assert [one.read() for one in extract_values(inline("<a>%s</a>", least), least)[1]] == [least]


def inline(text: str, content: bytes) -> bytes:

    return (text % base64.b64encode(content).decode()).encode()


@pytest.mark.parametrize("demands_mtom", [True, False])
def test_the_description_of_a_wsdl_says_whether_it_demands_mtom(tmp_path: Path, demands_mtom: bool) -> None:
    (tmp_path / "a.wsdl").write_bytes(wsdl(demands_mtom=demands_mtom))
    told = in_words(Contract(Documents(tmp_path / "a.wsdl", lambda url: b"")))
    assert ("Requires MTOM" in told) == demands_mtom
