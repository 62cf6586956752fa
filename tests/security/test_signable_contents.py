"""A message that a processor cannot sign is refused before it is stored; a stored one can be signed in any envelope.

``check_signable`` and ``Processor._check_content``. Attachments are in ``test_signed_attachments.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from signers import issue

import holdfast
from holdfast.core.messages import Envelope, Sequence, SequenceAcknowledgement
from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.exceptions import EnvelopeError, PeerFault, ProcessingError
from holdfast.security import signature
from holdfast.security.certificates import Credential
from holdfast.security.signature import canonical, check_cost, check_signable
from holdfast.security.signed_message import SUITES, Signing, sign
from holdfast.testing import pair
from holdfast.wire import encode, parse_element
from holdfast.wire.text import escape

OURS, SHOP = issue("CN=holdfast,O=Example"), issue("CN=shop,O=Example")
BAD = "urn:Antwort Version 2"
UNFIT = [BAD, "http://gw/größe", "orders/v2", "#x", "http://x/50%", "http://x/{1}", "MELDUNG", "a\\b", "http://x/y#z#w"]
FIT = ["urn:orders", "http://gw/a%20b", "mailto:x", "tag:a,2026:b", "http://[::1]/?a=b&c#d", "x:"]
ACTION = "urn:shop/order"


def costly() -> str:
    """A body whose canonical form takes too many steps."""
    spaces = " ".join(f"xmlns:n{number}='urn:{number}'" for number in range(1000))
    return f"<a {spaces}>{'<b/>' * 210_000}</a>"


def signed(content: bytes, versions: Versions, headers: tuple[bytes, ...] = (), ranges: int = 1) -> bytes:
    """An envelope with a body, as it leaves: with a Sequence, acknowledgements and a signature."""
    acknowledged = [(2 * number, 2 * number) for number in range(1, ranges + 1)]
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, action=ACTION, to="http://shop/", body=content)
    envelope.message_id, envelope.headers, envelope.sequence = "urn:m", headers, Sequence("urn:s", 1)
    envelope.acknowledgements = (SequenceAcknowledgement("urn:t", acknowledged),)
    return sign(encode(envelope), versions.soap, SIGNING, time.time(), must_understand=True)


@pytest.fixture(scope="module", autouse=True)
def _keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    global SIGNING
    SIGNING = Signing(Credential(*OURS.files(tmp_path_factory.mktemp("keys"))), "token", SUITES["rsa-sha256"], 300.0)


SIGNING: Signing


def is_signable(content: bytes) -> bool:
    try:
        check_signable(content)
    except EnvelopeError:
        return False
    return True


def is_signed(content: bytes, versions: Versions) -> bool:
    try:
        signed(content, versions)
    except ProcessingError:
        return False
    return True


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
names = st.one_of(st.sampled_from(UNFIT + FIT), texts, texts.map("urn:{}".format), texts.map("http://{}".format))
places = st.sampled_from(
    ["<a xmlns='{}'/>", "<p:a xmlns:p='{}'/>", "<a><b xmlns:q='{}'>c</b></a>", "<a q:b='' xmlns:q='{}'/>"]
)


@given(names, places, st.sampled_from(ALL_VERSIONS))
@example("urn:x", "<a xmlns='{}'/>", ALL_VERSIONS[0])
def test_a_body_is_refused_exactly_if_no_envelope_with_it_can_be_signed(
    name: str, place: str, versions: Versions
) -> None:
    content = place.format(escape(name).replace("'", "&apos;")).encode()
    try:
        parse_element(content)
    except EnvelopeError:
        return  # no message has it
    assert is_signable(content) == is_signed(content, versions)


@given(st.integers(1, 200), st.integers(1, 900), st.integers(1, 12), st.integers(1, 60))
@example(1, 900, 12, 60)
def test_what_is_not_refused_takes_few_enough_steps_in_every_envelope(
    spaces: int, elements: int, attributes: int, length: int
) -> None:
    """Near the limit, which is lower here, what an envelope adds must not be what exceeds it."""
    declared = " ".join(f"xmlns:n{number}='urn:{'x' * length}{number}'" for number in range(spaces))
    attribute = " ".join(f"a{number}=''" for number in range(attributes))
    content = f"<a {declared}>{f'<b {attribute}/>' * elements}</a>".encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signature, "MOST_STEPS", 300_000)
        if is_signable(content):
            for versions in (ALL_VERSIONS[0], ALL_VERSIONS[-1]):
                data = signed(content, versions, ranges=100)
                check_cost(data, parse_element(data))  # as its receiver does


def test_what_takes_too_many_steps_is_refused_with_a_remedy() -> None:
    with pytest.raises(EnvelopeError, match="cannot be signed: its canonical form takes some") as caught:
        check_signable(costly().encode())
    assert "fewer" in caught.value.remedy


def test_the_error_names_the_namespace_that_is_no_absolute_uri() -> None:
    for name in UNFIT:
        with pytest.raises(EnvelopeError, match="no canonical form: the namespace") as caught:
            check_signable(f"<h xmlns='urn:good'/><a xmlns='urn:fine'><b xmlns:c='{name}'/></a>".encode())
        assert repr(name) in caught.value.message
        assert "urn:orders" in caught.value.remedy
    for name in FIT:
        check_signable(f"<a xmlns='{name.replace('&', '&amp;')}'/>".encode())


def test_only_the_first_namespaces_are_tried_for_the_error() -> None:
    """Each try takes a parser: whoever sends to a broker that signs could otherwise keep it busy."""
    names = [f"urn:{number}" for number in range(5_000)]
    body = "".join(f"<b xmlns:c='{name}'/>" for name in [*names[:99] * 100, "a b", *names])
    with pytest.raises(EnvelopeError, match="no canonical form: the namespace 'a b'"):
        check_signable(f"<a>{body}</a>".encode())
    with pytest.raises(EnvelopeError, match="no canonical form"):
        check_signable("".join(f"<b xmlns:c='{name}'/>" for name in [*names, "a b"]).encode())


def test_a_canonical_form_that_is_refused_for_another_reason_names_none() -> None:
    element = etree.fromstring("<a xmlns='urn:good'/>")
    with pytest.raises(Exception, match=r"no canonical form$"):
        canonical(element, ["\0"])


# --- both ends --------------------------------------------------------------------------------------------------------


def processor(directory: Path, kind: str, *, ours: bool) -> holdfast.Processor:
    own, other = (OURS, SHOP) if ours else (SHOP, OURS)
    files, trusted = own.files(directory), other.files(directory).certificate
    users = holdfast.UsernameTokenValidator({"alice": "secret"})
    if kind == "symmetric":
        if ours:
            return holdfast.SymmetricBinding("alice", "secret", trusted)
        return holdfast.SymmetricBindingValidator(*files, users=users)
    if kind == "conversation":
        if ours:
            return holdfast.SecureConversation("alice", "secret", certificate=trusted)
        return holdfast.SymmetricBindingValidator(*files, users=users, conversation=True)
    return holdfast.X509(*files, trusted=trusted, encrypt=holdfast.Encryption() if kind == "encrypted" else None)


def app_of(directory: Path, kind: str, returns: Callable[[holdfast.Message], Any]) -> holdfast.Destination:
    app = holdfast.Destination(processors=[processor(directory, kind, ours=False)])
    app.on(ACTION)(returns)
    return app


every_kind = pytest.mark.parametrize("kind", ["signed", "encrypted", "symmetric", "conversation"])
PLAIN = holdfast.Attachment(b"data")


@pytest.mark.every(3)
@every_kind
async def test_a_source_refuses_what_can_never_leave_and_sends_the_rest(tmp_path: Path, kind: str) -> None:
    got: list[str | None] = []
    bodies: list[dict[str, Any]] = [
        {"body": f"<a xmlns='{BAD}'/>"},
        {"body": "<a/>", "headers": f"<h xmlns='{BAD}'/>".encode()},
        {"body": "<a/>", "attachments": [PLAIN]},
        {"body": costly()},
    ]
    app = app_of(tmp_path, kind, lambda message: got.append(message.body.text))
    async with pair(app, processors=[processor(tmp_path, kind, ours=True)]) as source:
        for one in bodies:
            for ask in (source.send, source.request):
                with pytest.raises(EnvelopeError, match="sign") as caught:
                    await ask(**one, action=ACTION)
                assert caught.value.remedy
            with pytest.raises(EnvelopeError, match="sign"):
                source.send(**one, action=ACTION, connection=object())  # type: ignore[call-overload]
        assert source.next_offset() == 0, "nothing is stored"
        await source.send("<a>1</a>", action=ACTION)
    assert got == ["1"]


def unfit_fault(_: holdfast.Message) -> None:
    raise holdfast.ApplicationFault("no", detail=f"<d xmlns='{BAD}'/>")


REPLIES: dict[str, Callable[[holdfast.Message], Any]] = {
    "a namespace": lambda _: f"<a xmlns='{BAD}'/>",
    "a header": lambda _: holdfast.WithHeaders("<a/>", f"<h xmlns='{BAD}'/>".encode()),
    "an attachment": lambda _: holdfast.WithAttachments("<a/>", [PLAIN]),
    "a large attachment": lambda _: holdfast.WithAttachments("<a/>", [holdfast.Attachment(bytes(100_000))]),
    "a fault": unfit_fault,
    "many steps": lambda _: costly(),
}


@pytest.mark.every(5)
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
@pytest.mark.parametrize("kind", ["signed", "symmetric"])
async def test_a_reply_that_can_never_leave_becomes_a_dead_letter_and_a_fault(
    tmp_path: Path, kind: str, reply: Callable[[holdfast.Message], Any]
) -> None:
    app = app_of(tmp_path, kind, lambda message: reply(message) if message.body.text == "bad" else "<good/>")
    async with pair(app, processors=[processor(tmp_path, kind, ours=True)]) as source:
        for text in ("good", "bad", "good"):
            asked = source.request(f"<a>{text}</a>", action=ACTION, timeout=60)
            if text == "good":
                assert (await asked).body.tag == "good"
                continue
            with pytest.raises(PeerFault, match="set aside"):
                await asked
        assert app.incidents["dead_letter.added"] == 1
        assert not app.incidents["reply.replaced_by_fault"], "nothing of the kind was stored"
