"""What a client asks an issuer for, as WCF asks, and what it takes from the answer."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from lxml import etree

from holdfast.security.conversation.contexts import SecurityContext
from holdfast.security.conversation.token_requests import Granted, read_granted, write_request
from holdfast.security.conversation.trust import FORMS, Form, Kind, TokenRequest, p_sha1, write_issued
from holdfast.security.header import Invalid

RECORDED = Path(__file__).parents[2] / "data" / "vectors" / "wcf-secured"
ENTROPY, THEIRS, NOW = bytes(range(32)), bytes(range(32, 64)), 1_800_000_000.0
each_form = pytest.mark.parametrize("form", FORMS, ids=["2005/02", "1.3"])


def parts(element: etree._Element) -> list[tuple[str, str]]:
    """Names and texts; those of the secret and of the token differ each time."""
    found = []
    for one in element.iter():
        local = etree.QName(one).localname
        text = "" if local == "BinarySecret" else (one.text or "").strip()
        found.append((str(one.tag), text))
    return found


@pytest.mark.parametrize("case", ["client-rm10-oneway", "client-ws2007-twoway"])
@pytest.mark.parametrize(("kind", "message"), [("Issue", "001"), ("Cancel", "008")])
def test_a_request_has_the_parts_of_wcfs(case: str, kind: Kind, message: str) -> None:
    envelope = etree.fromstring((RECORDED / case / f"{message}-req.xml").read_bytes())
    body = envelope.find("{*}Body")
    assert body is not None
    form = FORMS["ws2007" in case]
    assert parts(etree.fromstring(write_request(form, kind, "urn:token", ENTROPY))) == parts(body[0])


@pytest.mark.parametrize(
    "case", ["client-rm10-oneway", "client-rm11-twoway", "client-ws2007-twoway", "pair-no-rm-context-token"]
)
def test_the_recorded_answers_grant_the_keys_that_wcf_signs_with(case: str) -> None:
    """That these are the keys, the signatures of the recordings show: see ``test_sessions``."""
    asked, answered = (etree.fromstring((RECORDED / case / f"001-{leg}.xml").read_bytes()) for leg in ("req", "res"))
    secret, theirs = (base64.b64decode(one.findtext(".//{*}BinarySecret") or "") for one in (asked, answered))
    body = answered.find("{*}Body")
    assert body is not None
    granted = read_granted(etree.tostring(body[0]), FORMS["ws2007" in case], secret)
    assert granted.key == p_sha1(secret, theirs, 32)
    assert granted.identifier == answered.findtext(".//{*}Identifier")
    assert granted.life > 0 and granted.instance == ""


def issued(form: Form, instance: str = "") -> str:
    asked = TokenRequest(form, "Issue", "", ENTROPY, 256)
    context = SecurityContext("urn:token", instance, "alice", p_sha1(ENTROPY, THEIRS, 32), NOW + 54_000)
    return write_issued(asked, context, THEIRS, NOW)


@each_form
@pytest.mark.parametrize("instance", ["", "urn:second"])
def test_the_answers_of_a_destination_grant_its_key(form: Form, instance: str) -> None:
    granted = read_granted(issued(form, instance).encode(), form, ENTROPY)
    assert granted == Granted("urn:token", instance, p_sha1(ENTROPY, THEIRS, 32), 54_000)


@each_form
def test_an_issuer_may_give_the_key_itself(form: Form) -> None:
    computed = f"<t:ComputedKey>{form.trust}/CK/PSHA1</t:ComputedKey>"
    given = f"<t:BinarySecret>{base64.b64encode(THEIRS).decode()}</t:BinarySecret>"
    answer = issued(form).replace(computed, given)
    assert read_granted(answer.encode(), form, ENTROPY).key == THEIRS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CK/PSHA1", "CK/HASH"),
        ("<t:KeySize>256", "<t:KeySize>128"),
        ("<t:KeySize>", "<t:KeySize>256</t:KeySize><t:KeySize>"),
        ("<c:Identifier>urn:token", "<c:Identifier>"),
        ("<c:Identifier>urn:token", "<c:Identifier>" + "x" * 2000),
        ("SecurityContextToken", "SecurityToken"),
        (base64.b64encode(THEIRS).decode(), "****"),
        (base64.b64encode(THEIRS).decode(), "AAAA"),
        ("<wsu:Expires>2027", "<wsu:Expires>2020"),
        ("<wsu:Expires>2027", "<wsu:Expires>soon"),
        ("RequestSecurityTokenResponse ", "RequestSecurityTokenAnswer "),
        ("</t:RequestSecurityTokenResponse>", ""),
        ("<t:RequestedProofToken>", "<t:RequestedProof>"),
        ("t:Entropy>", "t:Other>"),
    ],
)
def test_an_answer_that_grants_no_key_is_refused(old: str, new: str) -> None:
    answer = issued(FORMS[0])
    assert old in answer
    with pytest.raises(Invalid):
        read_granted(answer.replace(old, new).encode(), FORMS[0], ENTROPY)


def test_an_answer_in_the_other_version_is_refused() -> None:
    with pytest.raises(Invalid):
        read_granted(issued(FORMS[0]).encode(), FORMS[1], ENTROPY)
