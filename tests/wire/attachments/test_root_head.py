"""The first bytes of the envelope, in every form of a message with attachments and in pieces of every size.

Covers wire/attachments/root_head.py.
"""

from __future__ import annotations

from base64 import encodebytes
from quopri import encodestring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire import Limits, RootHead

BOUNDARY = "a=_b"
MEDIA = f'multipart/related; boundary="{BOUNDARY}"; type="text/xml"'
ENCODED = {
    "": lambda data: data,
    "Binary": lambda data: data,
    "base64": encodebytes,
    "BASE64": lambda data: encodebytes(data).replace(b"\n", b"\r\n"),
    "quoted-printable": lambda data: encodestring(data, quotetabs=True),
}
# Neither ends in white space, which quoted-printable may lose, nor begins like an envelope or a boundary.
CONTENT = st.binary(min_size=1, max_size=3000).map(lambda data: b"x" + data.replace(b"-", b"") + b"x")


@given(st.data(), st.sampled_from(sorted(ENCODED)), st.integers(0, 3), st.booleans(), st.integers(1, 700))
def test_the_first_bytes_of_the_root_part_are_found_wherever_it_is(
    data: st.DataObject, encoding: str, before: int, is_named: bool, size: int
) -> None:
    root = data.draw(CONTENT)
    contents = [data.draw(CONTENT) for _ in range(before)]
    preamble = data.draw(st.sampled_from([b"", b"\r\n", b"preamble\r\n\r\n\r\n"]))
    if before and not is_named:
        root, contents = contents[0], [*contents[1:], root]
        before = 0
    written = preamble
    for number, content in enumerate([*contents[:before], root, *contents[before:]]):
        headers = f"Content-ID: <{number}>"
        if number == before:
            content = ENCODED[encoding](content)
            headers += f"\r\nContent-Transfer-Encoding: {encoding}" * bool(encoding)
        written += f"--{BOUNDARY}\r\n{headers}\r\n\r\n".encode() + content + b"\r\n"
    written += f"--{BOUNDARY}--".encode()
    limits = Limits(max_header_bytes=1000, max_parts=1)
    pieces, whole = (RootHead(MEDIA + f'; start="<{before}>"' * is_named, limits) for _ in range(2))
    for at in range(0, len(written), size):
        pieces.add(written[at : at + size])
    whole.add_all(written)
    if "quoted" in encoding:
        root = root.replace(b"\r\n", b"\n")
    found = pieces.content().replace(b"\r\n", b"\n") if "quoted" in encoding else pieces.content()
    assert whole.content() == pieces.content()
    assert root.startswith(found) and len(found) >= min(1000 - 80, len(root))


def test_an_envelope_that_cxf_repeats_without_its_parts_is_found() -> None:
    head = RootHead(MEDIA, Limits(max_header_bytes=10))
    head.add(b"")
    head.add_all(b"\n<a>" + b"x" * 100_000)
    assert (head.content(), head.is_complete) == (b"\n<a>xxxxxx", True)


@pytest.mark.parametrize(
    ("media", "content"),
    [
        ("multipart/related", b"--a\r\n\r\n<a/>\r\n--a--"),
        ("multipart/related; boundary=b; boundary=b", b"--b\r\n\r\n<a/>\r\n--b--"),
        ("multipart/related; boundary=b", b"--b\r\n\r\n<a/>\r\n--b more--"),
        ("multipart/related; boundary=b", b"--b\r\nno header\r\n\r\n<a/>\r\n--b--"),
        ("multipart/related; boundary=b", b"--b\r\nA: " + b"x" * 20_000 + b"\r\n\r\n<a/>\r\n--b--"),
        ("multipart/related; boundary=b; start=other", b"--b\r\n\r\n<a/>\r\n--b--"),
        ("multipart/related; boundary=b", b"--b\r\nContent-Transfer-Encoding: x\r\n\r\n<a/>\r\n--b--"),
        ("multipart/related; boundary=b", b"--b\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--b--"),
        ("multipart/related; boundary=b", b""),
    ],
)
def test_what_has_no_root_part_has_no_envelope(media: str, content: bytes) -> None:
    head = RootHead(media, Limits())
    head.add_all(content)
    assert head.content() == b""


def test_many_parts_before_the_root_need_no_memory() -> None:
    head = RootHead(MEDIA + "; start=root", Limits())
    for _ in range(100):
        head.add(f"--{BOUNDARY}\r\n\r\n\r\n".encode() * 1000)
    assert not head.is_complete and len(head._splitter._parts) == 0  # type: ignore[union-attr]
    head.add(f"--{BOUNDARY}\r\nContent-ID: <root>\r\n\r\n<a".encode())
    assert head.content() == b"<a"
