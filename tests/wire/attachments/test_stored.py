"""Packages in the store read and write like those in memory, whatever the pieces.

Covers wire/attachments/stored.py and wire/attachments/packing.py.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.records import ContentWriter
from holdfast.exceptions import EnvelopeError, LimitExceeded, StoreDamaged, StoreError
from holdfast.store.contents import DirectoryContents
from holdfast.wire import DEFAULT, ArrivingPackage, MissingPart, pack, receive_package
from holdfast.wire.attachments.package import decode_package
from holdfast.wire.attachments.stored import PIECE, StoredPackage, open_decoded, open_part

SOAP = "http://www.w3.org/2003/05/soap-envelope"
INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@b"/>'
ENVELOPE = f'<s:Envelope xmlns:s="{SOAP}"><s:Body><a>{INCLUDE}</a></s:Body></s:Envelope>'.encode()
MEDIA = 'multipart/related; type="application/xop+xml"; boundary=b; start="<r>"; start-info="application/soap+xml"'
DATA = bytes(range(256)) * 4_000


def multipart(*parts: tuple[str, bytes]) -> bytes:
    heads = [("Content-Type: application/xop+xml\r\nContent-ID: <r>", ENVELOPE), *parts]
    return b"".join(b"--b\r\n%b\r\n\r\n%b\r\n" % (head.encode(), content) for head, content in heads) + b"--b--\r\n"


@pytest.fixture
def writer(tmp_path: Path) -> ContentWriter:
    return DirectoryContents(tmp_path).create()


def arrived(writer: ContentWriter, body: bytes, step: int, media: str = MEDIA, limits=DEFAULT):
    package = ArrivingPackage(media, writer, limits)
    for start in range(0, len(body), step):
        package.write(body[start : start + step])
    return package.receive()


@pytest.mark.parametrize("step", [997, 65_536, 10**7])
def test_a_package_in_pieces_is_the_one_in_memory_and_leaves_byte_for_byte(writer, step):
    body = multipart(("Content-Type: image/png\r\nContent-ID: <a@b>", DATA))
    expected, expected_root = receive_package(MEDIA, body, DEFAULT)
    envelope, root = arrived(writer, body, step)
    assert (root, envelope.body) == (expected_root, expected.body)
    (part,) = decode_package(envelope.attachments).parts
    with open_part(part, writer.hold) as file:
        assert (part.size, file.read()) == (len(DATA), DATA)
        assert (file.seek(-3, 2), file.read()) == (len(DATA) - 3, DATA[-3:])
    told, packed = pack(envelope, root)
    assert isinstance(packed, StoredPackage)
    sent = b"".join(packed)
    assert len(sent) == packed.size and max(map(len, packed)) < 300_000
    again, _ = receive_package(told, sent, DEFAULT)
    (whole,) = decode_package(again.attachments).parts
    assert (whole.headers, whole.content) == (part.headers, DATA)


@pytest.mark.parametrize("encoding", ["base64", "quoted-printable"])
def test_an_encoded_part_is_decoded_piece_by_piece(writer, encoding):
    lines = b64encode(DATA)
    content = b"\r\n".join(lines[at : at + 76] for at in range(0, len(lines), 76))
    expected = DATA
    if encoding != "base64":
        content, expected = b"a=3Db\r\n" * 100_000, b"a=b\r\n" * 100_000
    head = f"Content-ID: <a@b>\r\nContent-Transfer-Encoding: {encoding}"
    envelope, _ = arrived(writer, multipart((head, content)), 100_000)
    (part,) = decode_package(envelope.attachments).parts
    with open_decoded(part, writer.hold) as file:
        assert file.read() == expected


def test_a_quoted_printable_part_without_lines_does_not_fill_the_memory(writer):
    head = "Content-ID: <a@b>\r\nContent-Transfer-Encoding: quoted-printable"
    envelope, _ = arrived(writer, multipart((head, b"a" * 3 * PIECE)), 100_000)
    (part,) = decode_package(envelope.attachments).parts
    with pytest.raises(EnvelopeError, match="a line of a quoted-printable"):
        open_decoded(part, writer.hold)


def test_what_is_wrong_is_said_as_for_a_package_in_memory(writer, tmp_path):
    part = ("Content-ID: <a@b>", DATA)
    with pytest.raises(EnvelopeError, match="before the last boundary"):
        arrived(writer, multipart(part)[:-20], 70_000)
    others = DirectoryContents(tmp_path)
    with pytest.raises(MissingPart) as missing:
        arrived(others.create(), multipart(), 50)
    assert missing.value.envelope is not None and missing.value.soap == "1.2"
    with pytest.raises(EnvelopeError, match="has no boundary"):
        arrived(others.create(), multipart(part), 70_000, "multipart/related")
    few = replace(DEFAULT, max_parts=1)
    with pytest.raises(LimitExceeded, match="more than 1 MIME parts"):
        arrived(others.create(), multipart(part), 70_000, limits=few)
    small = replace(DEFAULT, max_bytes=100)
    with pytest.raises(LimitExceeded, match="more than 100 bytes"):
        arrived(others.create(), multipart(part), 70_000, limits=small)


def test_a_bare_envelope_in_the_type_of_a_package_is_read_and_bounded(writer, tmp_path):
    """As Apache CXF repeats messages."""
    with pytest.raises(MissingPart):
        arrived(writer, ENVELOPE, 64)
    plain = ENVELOPE.replace(INCLUDE.encode(), b"")
    envelope, root = arrived(DirectoryContents(tmp_path).create(), plain, 64)
    assert (envelope.attachments, root) == (b"", plain)
    with pytest.raises(LimitExceeded, match="more than 90 bytes"):
        arrived(DirectoryContents(tmp_path).create(), plain, 64, limits=replace(DEFAULT, max_bytes=90))


@pytest.mark.parametrize("left", [0, 3, 900_000])
def test_a_content_that_is_cut_off_is_damage_and_not_a_shorter_part(writer, tmp_path, left):
    envelope, root = arrived(writer, multipart(("Content-ID: <a@b>", DATA)), 70_000)
    (part,) = decode_package(envelope.attachments).parts
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:left])
    with open_part(part, writer.hold) as opened, pytest.raises(StoreDamaged, match="cut off"):
        opened.read()
    _, packed = pack(envelope, root)
    with pytest.raises(StoreDamaged, match="cut off"):
        list(packed)


def test_only_the_process_that_has_the_store_can_send_the_parts(writer):
    envelope, root = arrived(writer, multipart(("Content-ID: <a@b>", DATA)), 70_000)
    envelope.attachments = bytes(envelope.attachments)
    with pytest.raises(StoreError, match="in the store that has it"):
        pack(envelope, root)
