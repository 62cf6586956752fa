"""Every header and parameter of MIME packages with each malformed value: refused, and nothing else is harmed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
from hostile_values import VALUES, names_read
from tapped import Tap, assert_no_error_of_ours, assert_refused_or_answered

from holdfast import Attachment
from holdfast.testing import pair

INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo@test"/>'
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "no end": lambda body: body[: body.rindex(b"--", 0, -6)],
    "cut off": lambda body: body[: len(body) // 2],
    "line feeds only": lambda body: body.replace(b"\r\n", b"\n"),
    "no blank line": lambda body: body.replace(b"\r\n\r\n", b"\r\n", 1),
    "no parts": lambda body: body[body.rindex(b"\r\n--") + 2 :],
    "empty": lambda body: b"",
    "the root twice": lambda body: body[: body.index(b"\r\n--", 10)] + body,
    "10,000 parts": lambda body: (body[: body.index(b"\r\n--", 10)] + b"\r\n") * 10_000 + body,
    "a long header": lambda body: body.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"x" * 200_000 + b"\r\n\r\n", 1),
}
"""What may be wrong with a whole package."""


def packages(media: str, body: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Return what is different, the Content-Type and the body of hostile copies of a package."""
    for parameter in re.findall(r'([\w-]+)="', media):
        for value in VALUES:
            written = value.replace('"', "").encode("ascii", "replace").decode()[:5000]
            if written.isprintable():
                yield (
                    f"{parameter}: {value[:40]!r}",
                    re.sub(rf'{parameter}="[^"]*"', f'{parameter}="{written}"', media),
                    body,
                )
        yield f"no {parameter}", re.sub(rf'; *{parameter}="[^"]*"', "", media), body
        yield f"two of {parameter}", f'{media}; {parameter}="x"', body
    for header in sorted(set(re.findall(rb"\r\n([\w-]+): ", body))):
        line = re.compile(rb"\r\n" + header + rb": [^\r]*")
        for value in [*VALUES, "a\r\nContent-ID: <b>", "7bit", "quoted-printable", "base64", "x-zip", "text/plain"]:
            for count in (1, 0):  # in the first part, and in all of them
                made = b"\r\n" + header + b": " + value.encode("utf-8", "surrogatepass")
                yield f"{header!r}: {value[:40]!r}", media, line.sub(lambda _, made=made: made, body, count)  # type: ignore[misc]
        yield f"no {header!r}", media, line.sub(b"", body)
        yield f"two of {header!r}", media, line.sub(lambda found: found[0] * 2, body)
    for value in VALUES:
        yield f"href: {value[:40]!r}", media, body.replace(b"cid:photo@test", value.encode("utf-8", "surrogatepass"))
    for what, change in BROKEN.items():
        yield what, media, change(body)


@pytest.mark.parametrize("part", range(8))
async def test_a_hostile_package_is_refused_and_harms_nothing(part: int, caplog: pytest.LogCaptureFixture) -> None:
    tap = Tap([])
    async with pair(tap.app) as source:
        photo = Attachment(bytes(range(256)), "image/png", "photo@test")
        await source.request(f"<n><photo>{INCLUDE}</photo></n>", action="urn:ask", attachments=[photo])
        (one,) = [request for request in tap.requests if b"cid:photo@test" in request.body]
        media = one.headers[b"content-type"].decode()
        for told, changed, body in itertools.islice(packages(media, one.body), part, None, 8):
            headers = {**one.headers, b"content-type": changed.encode()}
            assert_refused_or_answered(await tap.post(one, body, headers), told)
        await source.request("<n>2</n>", action="urn:ask")
    assert len(tap.got) == 2, "each once"
    assert_no_error_of_ours(caplog)


async def test_the_packages_have_every_name_that_the_decoder_of_parts_reads() -> None:
    tap = Tap([])
    async with pair(tap.app) as source:
        photo = Attachment(b"1", "image/png", "photo@test")
        await source.request(f"<n>{INCLUDE}</n>", action="urn:ask", attachments=[photo])
    (one,) = [request for request in tap.requests if b"cid:photo@test" in request.body]
    written = (one.headers[b"content-type"] + one.body).lower().decode("latin-1")
    assert {name for name in names_read("wire/attachments") if name.lower() not in written} == set()
