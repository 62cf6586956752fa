"""The files of recorders: what is in them is what was on the wire; what cannot be read says why, and costs little."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from holdfast.pipeline.reassembly import captures
from holdfast.pipeline.reassembly.captures import pieces
from holdfast.pipeline.reassembly.rows import Reader

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
EMPTY: bytes = b""


def envelope(number: int) -> bytes:
    """A message of one Sequence, as a stack writes it."""
    return (
        f'<s:Envelope xmlns:s="{SOAP}" xmlns:a="http://www.w3.org/2005/08/addressing"><s:Header>'
        '<r:Sequence s:mustUnderstand="1" xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702">'
        f"<r:Identifier>urn:uuid:1</r:Identifier><r:MessageNumber>{number}</r:MessageNumber></r:Sequence>"
        "<a:Action>urn:order</a:Action><a:To>urn:shop</a:To></s:Header>"
        f'<s:Body><order xmlns="urn:shop">{number}</order></s:Body></s:Envelope>'
    ).encode()


def http(body: bytes, *fields: bytes, start: bytes = b"POST /orders HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: shop", *fields]) + b"\r\n\r\n" + body


def svclog(*records: tuple[str, bytes]) -> bytes:
    """WCF's message log: events one after another, without a root; other events between them."""
    other = b'<E2ETraceEvent xmlns="http://schemas.microsoft.com/2004/06/E2ETraceEvent"><System/></E2ETraceEvent>'
    event = (
        b'<E2ETraceEvent xmlns="http://schemas.microsoft.com/2004/06/E2ETraceEvent"><System '
        b'xmlns="http://schemas.microsoft.com/2004/06/windows/eventlog/system"><EventID>0</EventID>'
        b'<TimeCreated SystemTime="2026-01-02T03:04:05.5000000Z" /><Computer>SHOP</Computer></System><ApplicationData>'
        b'<TraceData><DataItem><MessageLogTraceRecord Time="2026-01-02T04:04:05.5000000+01:00" Source="%b" '
        b'Type="System.ServiceModel.Channels.BufferedMessage" '
        b'xmlns="http://schemas.microsoft.com/2004/06/ServiceModel/Management/MessageTrace">%b'
        b"</MessageLogTraceRecord></DataItem></TraceData></ApplicationData></E2ETraceEvent>"
    )
    return b"".join(other + event % (source.encode(), content) for source, content in records)


HEADERS = b"<HttpRequest><Method>POST</Method><WebHeaders><Expect>100-continue</Expect></WebHeaders></HttpRequest>"


def har(*bodies: tuple[bytes | None, bytes | None], base64: bool = False) -> bytes:
    def body(content: bytes | None) -> dict[str, Any]:
        if content is None:
            return {"mimeType": "text/xml", "size": 0}
        if base64:
            return {"mimeType": "text/xml", "text": b64encode(content).decode(), "encoding": "base64"}
        return {"mimeType": "text/xml; charset=utf-8", "text": content.decode()}

    entries = []
    for asked, answered in bodies:
        request: dict[str, Any] = {"method": "POST", "url": "http://shop/", "headers": []}
        if asked is not None:
            request["postData"] = body(asked)
        response = {"status": 200, "headers": [], "content": body(answered)}
        times = {"startedDateTime": "2026-01-02T03:04:05.500Z", "time": 12.5}
        entries.append({**times, "request": request, "response": response, "cache": {}, "timings": {}})
    return json.dumps({"log": {"version": "1.2", "creator": {"name": "x"}, "entries": entries}}).encode()


def saz(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def tnet(value: Any) -> bytes:
    """As mitmproxy writes it."""

    def framed(raw: bytes, kind: bytes) -> bytes:
        return b"%d:%b%b" % (len(raw), raw, kind)

    match value:
        case None:
            return b"0:~"
        case bool():
            return framed(b"true" if value else b"false", b"!")
        case int():
            return framed(b"%d" % value, b"#")
        case float():
            return framed(repr(value).encode(), b"^")
        case str():
            return framed(value.encode(), b";")
        case bytes():
            return framed(value, b",")
        case dict():
            return framed(b"".join(tnet(one) for pair in value.items() for one in pair), b"}")
        case _:
            return framed(b"".join(map(tnet, value)), b"]")


def flow(asked: bytes | None, answered: bytes | None = b"", *fields: tuple[bytes, bytes]) -> bytes:
    def message(content: bytes | None) -> dict[str, Any]:
        return {
            "headers": [(b"Transfer-Encoding", b"chunked"), *fields],
            "content": content,
            "trailers": None,
            "timestamp_start": 1767323045.5,
        }

    return tnet(
        {
            "type": "http",
            "version": 18,
            "websocket": None,
            "response": None if answered is None else message(answered),
            "request": {"path": b"/", "port": 80, **message(asked)},
        }
    )


E = [envelope(number) for number in range(4)]
TIME = 1767323045_500000
CHUNKED = b"Transfer-Encoding: chunked"

READ: dict[str, tuple[bytes, list[bytes]]] = {
    "envelopes one after another": (
        E[1] + b"\n" + b'<?xml version="1.0"?>\n' + E[2] + E[3],
        [E[1], b'<?xml version="1.0"?>\n' + E[2], E[3]],
    ),
    "an envelope in an envelope": (
        E[1].replace(b"<order", E[2] + b"<order") + E[3],
        [E[1].replace(b"<order", E[2] + b"<order"), E[3]],
    ),
    "chunks that the recorder took apart": (
        http(E[1], CHUNKED) + http(E[2], CHUNKED) + b"\r\n" + http(E[3], CHUNKED),
        E[1:],
    ),
    "chunks that are chunks": (
        http(b"%x\r\n%b\r\n0\r\n\r\n" % (len(E[1]), E[1]), CHUNKED) + http(E[2], CHUNKED),
        E[1:3],
    ),
    "a length that the recorder set": (
        http(E[1], CHUNKED, b"Content-Length: %d" % len(E[1])) + http(E[2], CHUNKED),
        E[1:3],
    ),
    "gzip that the recorder unpacked": (
        http(E[1], b"Content-Encoding: gzip", b"Content-Length: 9") + http(E[2], b"Content-Encoding: br", CHUNKED),
        E[1:3],
    ),
    "gzip whose chunks the recorder took apart": (
        http(gzip.compress(E[1]), b"Content-Encoding: gzip", CHUNKED) + b"\n" + http(E[2], CHUNKED),
        E[1:3],
    ),
    "deflate": (
        http(zlib.compress(E[1]), b"Content-Encoding: deflate", b"Content-Length: %d" % len(zlib.compress(E[1]))),
        E[1:2],
    ),
    "deflate without a head": (
        http(
            zlib.compress(E[1])[2:-4],
            b"Content-Encoding: deflate",
            b"Content-Length: %d" % len(zlib.compress(E[1])[2:-4]),
        ),
        E[1:2],
    ),
    "svclog": (
        svclog(
            ("ServiceLevelSendRequest", E[1]),
            ("TransportSend", HEADERS + E[1]),
            ("TransportReceive", b"<HttpResponse><StatusCode>Accepted</StatusCode></HttpResponse>"),
            ("TransportReceive", E[2]),
        ),
        [E[1], EMPTY, E[2]],
    ),
    "svclog at the service level": (svclog(("ServiceLevelReceiveRequest", E[1])), E[1:2]),
    "svclog in UTF-16": (svclog(("TransportSend", E[1])).decode().encode("utf-16"), E[1:2]),
    "HAR": (har((E[1], None), (E[2], E[3])), [E[1], EMPTY, E[2], E[3]]),
    "HAR in base64 with a byte order mark": (b"\xef\xbb\xbf" + har((E[1], E[2]), base64=True), E[1:3]),
    "HAR whose text says that it was in another encoding": (
        har((b"<?xml version='1.0' encoding='iso-8859-1'?>" + "<a>ü</a>".encode(), None)),
        ["<a>ü</a>".encode(), EMPTY],
    ),
    "SAZ": (
        saz(
            {
                "raw/10_c.txt": http(E[3], CHUNKED),
                "raw/2_c.txt": http(E[1], b"Content-Length: %d" % len(E[1])),
                "raw/2_s.txt": http(E[2], CHUNKED, start=b"HTTP/1.1 200 OK"),
                "raw/2_m.xml": b'<Session><SessionTimers ClientDoneRequest="2026-01-02T03:04:05.5000000Z" '
                b'ServerDoneResponse="2026-01-02T03:04:05.5000000Z" /></Session>',
            }
        ),
        E[1:],
    ),
    "mitmproxy": (flow(E[1]) + flow(gzip.compress(E[2]), None, (b"content-encoding", b"gzip")), [E[1], EMPTY, E[2]]),
    "mitmproxy in gzip": (gzip.compress(flow(E[1], E[2])), E[1:3]),
}


@pytest.mark.parametrize("kind", READ)
def test_what_a_recorder_wrote_is_read(kind: str) -> None:
    data, contents = READ[kind]
    found = [*pieces(data)]
    assert [(piece.problem, piece.content) for piece in found] == [("", content) for content in contents]
    assert [piece.at for piece in found] == sorted({piece.at for piece in found})


@pytest.mark.parametrize("kind", ["svclog", "HAR", "SAZ", "mitmproxy"])
def test_a_recorder_says_when_a_message_was_captured(kind: str) -> None:
    first = next(iter(pieces(READ[kind][0])))
    assert first.captured_at == TIME


RECORDED = Path(__file__).parents[2] / "data" / "recorders"


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.gz")), ids=lambda file: file.name)
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_file_that_a_real_recorder_wrote_is_read_whole(file: Path, is_packed: bool) -> None:
    data = file.read_bytes() if is_packed else gzip.decompress(file.read_bytes())
    actions = [str(etree.fromstring(piece.content).findtext(".//{*}Action")) for piece in pieces(data)]
    asked = ("CreateSequence", "CloseSequence", "TerminateSequence")
    answered = ("SequenceAcknowledgement", *(f"{one}Response" for one in asked))
    told = Counter(one.rpartition("/")[2] for one in actions)
    assert told == Counter({"Submit": 2, "SequenceAcknowledgement": 2}) | Counter((*asked, *answered))
    reader = Reader()
    reader.read(data, file.name, 0, None)
    assert reader.unplaced == []
    assert [(number, body.decode()) for _, _, number, *_, body, _, _, _, _, _ in reader.messages] == [
        (number, f"<order xmlns='urn:example:orders' id='{number}'><customer>Åsa</customer></order>")
        for number in (1, 2)
    ]
    assert len({message[0] for message in reader.messages}) == 1
    times = [piece.captured_at for piece in pieces(data)]
    day = datetime(2026, 11, 24, tzinfo=UTC).timestamp() * 1e6
    assert all(time is not None and day < time < day + 86_400e6 for time in times)


def test_a_sequence_recorded_by_several_recorders_is_put_together() -> None:
    reader = Reader()
    for number, data in enumerate((svclog(("TransportSend", E[1])), har((E[2], None)), flow(E[3], None))):
        reader.read(data, f"file {number}", 0, None)
    assert sorted(message[2] for message in reader.messages) == [1, 2, 3]
    assert {why for why, *_ in reader.unplaced} == {"empty"}


REFUSED = {
    "pcap": (b"\xd4\xc3\xb2\xa1" + bytes(40), "tcpflow -r"),
    "pcapng": (b"\x0a\x0d\x0d\x0a\x1c\0\0\0M<+\x1a" + bytes(40), "tshark -r"),
    "an access log": (
        b'10.0.0.1 - - [10/Oct/2026:13:55:36 -0700] "POST /orders HTTP/1.1" 202 0 "-" "Axis2"\n' * 3,
        "an access log contains no messages.",
    ),
    "another zip": (saz({"a.txt": b"x"}), "not from Fiddler"),
    "a zip that is cut off": (saz({"raw/1_c.txt": E[1]})[:-30], "damaged"),
    "other JSON with a log": (b'{"log": 1}', "not an HTTP archive"),
    "a HAR that nests": (b'{"log": ' + b'{"entries":[' * 100_000, "not an HTTP archive"),
    "a HAR whose base64 is none": (har((E[1], None), base64=True).replace(b'"text": "P', b'"text": "!'), "not base64"),
    "a flow that is cut off": (flow(E[1])[:-9], "cut off"),
    "a flow of no type": (flow(E[1])[:-1] + b"x", "damaged"),
    "a body that was streamed": (flow(None, None), "did not record the body"),
    "a body that WCF streamed": (
        svclog(
            ("TransportSend", f'<s:Envelope xmlns:s="{SOAP}"><s:Body>... stream ...</s:Body></s:Envelope>'.encode())
        ),
        "did not log the Body",
    ),
    "no envelope in WCF's log": (svclog(("Malformed", b"<x/>")), "not an envelope"),
    "WCF's log, cut off": (svclog(("TransportSend", E[1]))[:-120], "cut off"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_read_says_why(kind: str) -> None:
    data, problem = REFUSED[kind]
    found = [piece for piece in pieces(data) if piece.problem]
    assert len(found) == 1
    assert problem in found[0].problem


def test_values_that_nest_too_deep_end_the_file() -> None:
    value: Any = []
    for _ in range(100):
        value = [value]
    (piece,) = pieces(tnet({"type": "http", "request": value}))
    assert "nested too deep" in piece.problem


def test_a_small_archive_does_not_unpack_to_one_that_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one member, nor all together."""
    monkeypatch.setattr(captures, "MAX_INFLATED", 1 << 20)
    for count, size in ((1, 1 << 22), (9, 1 << 18)):
        found = [*pieces(saz({f"raw/{one}_c.txt": http(bytes(size), CHUNKED) for one in range(count)}))]
        assert found[-1].problem == "unpacked, this archive has more than 1048576 bytes"
        assert len(found) < 5
    (piece,) = pieces(gzip.compress(saz({"raw/1_c.txt": bytes(1 << 22)}) + bytes(1 << 21)))
    assert "more than 1048576 bytes" in piece.problem


def test_an_archive_with_a_password_is_reported() -> None:
    data = bytearray(saz({"raw/1_c.txt": http(E[1], CHUNKED)}))
    for signature, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = data.rfind(signature)
        data[place + at] |= 1
    (piece,) = pieces(bytes(data))
    assert "without a password" in piece.problem


shreds = st.sampled_from(
    [
        E[1],
        E[1][:40],
        b"</s:Envelope>",
        http(E[2], CHUNKED),
        http(b"<a", CHUNKED),
        svclog(("TransportSend", E[1])),
        b"<MessageLogTraceRecord x>",
        b"</MessageLogTraceRecord>",
        har((E[1], None)),
        flow(E[1]),
        b"9:4:type;}",
        b"\n",
    ]
)


@given(st.lists(shreds | st.binary(max_size=9), max_size=20).map(b"".join))
def test_a_hostile_file_never_fails(data: bytes) -> None:
    found = [*pieces(data)]
    assert [piece.at for piece in found] == sorted(piece.at for piece in found)


@pytest.mark.parametrize(
    "shred",
    [
        b"<Envelope>",
        b"<Envelope></Envelope>",
        http(b"<Envelope>", CHUNKED),
        http(b"<Envelope></Envelope>", CHUNKED),
        b"<MessageLogTraceRecord x>",
        b"<MessageLogTraceRecord x><Envelope>",
        b"<MessageLogTraceRecord x><Envelope></MessageLogTraceRecord>",
        b"1:a;",
    ],
)
def test_a_hostile_file_is_read_once(shred: bytes) -> None:
    """A file that is read several times for each of its messages would take hours."""
    head = {b"<M": svclog(), b"1:": b"999999:4:type;"}.get(shred[:2], b"")
    data = head + shred * (500_000 // len(shred))
    assert [*pieces(data)]
