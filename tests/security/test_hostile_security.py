"""Every element and attribute of secured messages, with malformed values.

The messages are those of our own source, in each kind of security. A destination refuses each hostile copy with a
fault or an HTTP answer, and still accepts what is right; a source treats a hostile answer as lost. The first tests fail
if the code reads a name that none of these messages has.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_values import VALUES, Change, Place, changes, names_in, names_read, places_in
from saml import AUDIENCE, ISSUER, key_info, key_value, signed, unsigned
from signers import authority, issue
from tapped import Tap, assert_no_error_of_ours, assert_refused_or_answered

from holdfast import (
    X509,
    Encryption,
    EndorsedSymmetricBinding,
    EndorsingCertificates,
    Processor,
    SamlToken,
    SamlTokenValidator,
    SecureConversation,
    SymmetricBinding,
    SymmetricBindingValidator,
    UsernameToken,
    UsernameTokenValidator,
)
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.http.exchange import Request
from holdfast.http.outcome import Response
from holdfast.testing import pair
from holdfast.wire import decode

ALICE, SHOP, IDP = issue("CN=alice,O=Example", authority()), issue("CN=shop,O=Example", authority()), issue("CN=idp")
USERS = {"alice": "secret"}
HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
CUSTOMER = b'<c:Customer xmlns:c="urn:shop">alice</c:Customer>'
ELSEWHERE = {
    "EncryptedAssertion": "only other stacks write it: test_signed_assertions.py",
    "FailedAuthentication": "the code of a fault",
    "InvalidSecurity": "the code of a fault",
    "InResponseTo": "always refused: test_saml_token.py",
    "Instance": "of a renewed token: test_sessions.py",
    "MGF": "only other stacks write it: test_encryption.py",
    "TransformationParameters": "only other stacks write it: test_signed_assertions.py",
}
"""Names that the messages here do not have, and what tries them."""
MOST, NIGHTLY_MOST = 25, 100
"""Hostile copies of each message: every so many-th one."""

Both = tuple[Processor, Processor]
"""The processors of the source and of the destination."""


def x509(directory: Path, **options: Any) -> tuple[X509, X509]:
    trusted = [authority().files(directory).certificate]
    return (
        X509(*ALICE.files(directory), trusted=[SHOP.files(directory).certificate], **options),
        X509(*SHOP.files(directory), trusted=[*trusted, ALICE.files(directory).certificate], **options),
    )


def symmetric(directory: Path, client: Callable[[Path], Processor], **options: Any) -> Both:
    files = SHOP.files(directory)
    users = options.pop("users", None) or UsernameTokenValidator(USERS)
    return client(files.certificate), SymmetricBindingValidator(*files, users=users, **options)


def saml(directory: Path, version: str) -> Both:
    def assertion() -> bytes:
        made = unsigned(version, time.time(), data=f'Recipient="{AUDIENCE}"' if version == "2.0" else "")
        made = made.replace("<a:NameID>", '<a:NameID Format="urn:f">')
        return signed(made.replace("<a:NameIdentifier>", '<a:NameIdentifier Format="urn:f" NameQualifier="q">'), IDP)

    checks = SamlTokenValidator({ISSUER: IDP.files(directory).certificate}, audience=AUDIENCE)
    return SamlToken(assertion), checks


def signed_assertion(directory: Path, version: str, key: str) -> Both:
    """Alice signs, and an assertion confirms her key."""

    def assertion() -> bytes:
        return signed(unsigned(version, time.time(), method="holder-of-key", key=key), IDP)

    ours, theirs = x509(directory)
    checks = SamlTokenValidator({ISSUER: IDP.files(directory).certificate}, audience=AUDIENCE)
    return ours.with_saml(SamlToken(assertion)), theirs.with_saml(checks)


KINDS: dict[str, Callable[[Path], Both]] = {
    "a password": lambda _: (UsernameToken("alice", "secret"), UsernameTokenValidator(USERS)),
    "a digest": lambda _: (UsernameToken("alice", "secret", digest=True), UsernameTokenValidator(USERS)),
    "a conversation": lambda _: (SecureConversation("alice", "secret"), UsernameTokenValidator(USERS)),
    "a conversation of 2005": lambda _: (
        SecureConversation("alice", "secret", version="2005/02"),
        UsernameTokenValidator(USERS),
    ),
    **{
        f"a certificate by its {reference}": lambda directory, reference=reference: x509(directory, reference=reference)  # type: ignore[misc]
        for reference in ("token", "subject-key-identifier", "issuer-serial", "thumbprint")
    },
    "encryption": lambda directory: x509(directory, encrypt=Encryption(signature=True, headers=["{urn:shop}Customer"])),
    "encryption before the signature": lambda directory: x509(
        directory, reference="issuer-serial", encrypt=Encryption(before_signing=True, cipher="aes128-gcm")
    ),
    "a symmetric key": lambda directory: symmetric(directory, lambda file: SymmetricBinding("alice", "secret", file)),
    "derived keys": lambda directory: symmetric(
        directory, lambda file: SymmetricBinding("alice", "secret", file, derived_keys=True)
    ),
    "a conversation with a certificate": lambda directory: symmetric(
        directory, lambda file: SecureConversation("alice", "secret", certificate=file), conversation=True
    ),
    "an endorsing certificate": lambda directory: symmetric(
        directory,
        lambda file: EndorsedSymmetricBinding(*ALICE.files(directory), file),
        users=EndorsingCertificates(authority().files(directory).certificate),
    ),
    "SAML 2.0": lambda directory: saml(directory, "2.0"),
    "SAML 1.1": lambda directory: saml(directory, "1.1"),
    "SAML 2.0 and a certificate": lambda directory: signed_assertion(directory, "2.0", key_info(ALICE)),
    "SAML 1.1 and a key": lambda directory: signed_assertion(directory, "1.1", key_value(ALICE)),
}


def envelopes(tap: Tap) -> dict[str, Request]:
    """The requests by what they are: each kind once."""
    found: dict[str, Request] = {}
    for request in tap.requests:
        found.setdefault(re.sub(rb"[^<]*<|>[^<]*", b" ", request.body).decode()[:2000], request)
    return found


def some(data: bytes, places: list[Place], most: int, start: int) -> Iterator[Change]:
    """Return about ``most`` hostile copies of a message, which are spread evenly."""
    return changes(data, places, step=max(1, len(places) * len(VALUES) // most), start=start)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_request_is_refused_and_harms_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    await try_requests(kind, tmp_path, caplog, MOST)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
async def test_every_hostile_request_is_refused_and_harms_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await try_requests(kind, tmp_path, caplog, NIGHTLY_MOST)


async def try_requests(kind: str, directory: Path, caplog: pytest.LogCaptureFixture, most: int) -> None:
    ours, theirs = KINDS[kind](directory)
    tap = Tap([theirs])
    count = 0
    async with pair(tap.app, processors=[ours], policy=HASTY) as source:
        await source.request("<n>1</n>", action="urn:ask", headers=CUSTOMER)
        await source.send("<n>2</n>", action="urn:tell", headers=CUSTOMER)
        for number, one in enumerate(list(envelopes(tap).values())):
            places = places_in(one.body, "Security") + places_in(one.body, "RequestSecurityToken")
            for told, copy in some(one.body, places, most, number * 11):
                count += 1
                assert_refused_or_answered(await tap.post(one, copy), told)
        await source.request("<n>3</n>", action="urn:ask")
    assert count > 10
    assert sorted(set(tap.got)) == ["1", "2", "3"]
    assert len(tap.got) == 3, "each once"
    assert_no_error_of_ours(caplog)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_answer_counts_as_lost(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await try_answers(kind, tmp_path, caplog, 40)


def is_too_large(data: bytes) -> bool:
    """Whether a message exceeds a limit: then the source reports that the reply is too large."""
    try:
        decode(data)
    except LimitExceeded:
        return True
    except EnvelopeError:
        return False
    return False


async def try_answers(kind: str, directory: Path, caplog: pytest.LogCaptureFixture, most: int) -> None:
    ours, theirs = KINDS[kind](directory)
    tap = Tap([theirs])
    turns = itertools.count(1)

    def change(response: Response) -> Response:
        turn = next(turns)
        if turn % 4 == 0 or b"Security" not in response.body:
            return response
        copies = some(response.body, places_in(response.body, "Security"), most, turn * 7)
        every = [copy for _, copy in copies if not is_too_large(copy)]
        return Response(response.status, response.headers, every[turn % len(every)]) if every else response

    tap.change = change
    async with pair(tap.app, processors=[ours], policy=HASTY) as source:
        for number in range(4):
            reply = await source.request(f"<n>{number}</n>", action="urn:ask")
            assert reply.body.tag == "taken"
    assert tap.got == ["0", "1", "2", "3"]
    assert_no_error_of_ours(caplog)


async def test_the_messages_have_every_name_that_the_security_reads(tmp_path: Path) -> None:
    found = set[str]()
    for make in KINDS.values():
        ours, theirs = make(tmp_path)
        tap = Tap([theirs])
        async with pair(tap.app, processors=[ours], policy=HASTY) as source:
            await source.request("<n>1</n>", action="urn:ask", headers=CUSTOMER)
            await source.end()
        for data in [one.body for one in (*tap.requests, *tap.answers) if one.body]:
            found |= names_in(data)
    assert names_read("security") - found == set(ELSEWHERE)
