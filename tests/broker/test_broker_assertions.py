"""SAML assertions on both legs of a broker. Covers the assertions of broker/message_security.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saml import AUDIENCE, ISSUER, key_info, signed, unsigned
from signers import Issued, authority, issue
from waiting import until

import holdfast
from holdfast.broker.config_file import read_config
from holdfast.broker.config_warnings import expired_assertions
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationMistakes

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
IDP, OTHER = issue("CN=idp,O=Example"), issue("CN=other,O=Example")
BASE = """
store = "store"
[listen]
host = "127.0.0.1"
port = 0
[admin]
port = 0
[queues.orders]
[queues.other]
[policies."*"]
refusals = 1
patience = "0s"
sending.retransmission = { initial = "200ms", floor = "50ms", cap = "300ms" }
"""
ROUTES = """
[[routes]]
user = "alice"
queues = "orders"
[[routes]]
queues = "other"
"""
Start = Callable[[str], Any]


def assertion(subject: str = "alice", by: Issued = IDP, **changed: Any) -> bytes:
    return signed(unsigned("2.0", time.time(), subject=subject, **changed), by, changed.get("name", "_a1"))


def listener(directory: Path, by: Issued = IDP) -> str:
    certificates = by.files(directory).certificate
    return f'[security.assertions]\nissuers = {{ "{ISSUER}" = "{certificates}" }}\naudience = "{AUDIENCE}"\n'


def forwarder(to: str) -> str:
    return f'[forwarders.shop]\nqueue = "orders"\nto = "{to}"\nsecurity = {{ assertion = "ours.xml" }}\n'


def source(url: str, data: bytes | None) -> holdfast.Source:
    processors = [] if data is None else [holdfast.SamlToken(lambda: data)]
    return holdfast.Source(url, ":memory:", processors=processors, policy=HASTY)


async def test_each_leg_has_its_own_assertion(start: Start, run_service: Any, tmp_path: Path) -> None:
    got: list[holdfast.Message] = []
    checks = holdfast.SamlTokenValidator({ISSUER: IDP.files(tmp_path).certificate}, audience=AUDIENCE)
    app = holdfast.Destination(":memory:", processors=[checks])
    app.on()(got.append)
    service = await run_service(app)
    (tmp_path / "ours.xml").write_bytes(assertion("broker"))
    broker = await start(BASE + listener(tmp_path) + ROUTES + forwarder(service.url))
    async with source(broker.service.url, assertion("bob")) as bob:
        await (await bob.send("<n>bob</n>", action="urn:note")).acknowledged(60)
    async with source(broker.service.url, assertion("alice")) as alice:
        await (await alice.send("<n>alice</n>", action="urn:note")).acknowledged(60)
    await until(lambda: len(got) == 1)
    assert (got[0].user, got[0].body.text) == ("broker", "alice")
    for wrong in (None, assertion(by=OTHER)):
        async with source(broker.service.url, wrong) as stranger:
            with pytest.raises(holdfast.PeerFault, match=r"InvalidSecurity|FailedAuthentication"):
                await (await stranger.send("<n/>", action="urn:note")).acknowledged(60)


def signature(table: str, own: Issued, trusted: Issued, directory: Path) -> str:
    files, peer = own.files(directory), trusted.files(directory).certificate
    return f'[{table}]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\ntrusted = "{peer}"\n'


async def test_each_leg_signs_its_own_assertion(start: Start, run_service: Any, tmp_path: Path) -> None:
    clinic, stranger = issue("CN=clinic,O=Example", authority()), issue("CN=stranger,O=Example", authority())
    own, shop = issue("CN=broker,O=Example"), issue("CN=shop,O=Example")
    got: list[holdfast.Message] = []
    checks = holdfast.SamlTokenValidator({ISSUER: IDP.files(tmp_path).certificate}, audience=AUDIENCE)
    x509 = holdfast.X509(*shop.files(tmp_path), trusted=own.files(tmp_path).certificate)
    app = holdfast.Destination(":memory:", processors=[x509.with_saml(checks)])
    app.on()(got.append)
    service = await run_service(app)
    (tmp_path / "ours.xml").write_bytes(assertion("broker", method="holder-of-key", key=key_info(own)))
    both = listener(tmp_path) + signature("security.signature", own, authority(), tmp_path)
    leg = forwarder(service.url).replace('security = { assertion = "ours.xml" }', 'security.assertion = "ours.xml"')
    leg += signature("forwarders.shop.security.signature", own, shop, tmp_path) + 'reference = "assertion"\n'
    broker = await start(BASE + both + ROUTES + leg)
    of_clinic = assertion(method="holder-of-key", key=key_info(clinic))

    def signing(one: Issued, data: bytes | None) -> holdfast.Source:
        x509 = holdfast.X509(*one.files(tmp_path), trusted=own.files(tmp_path).certificate)
        processors = [x509 if data is None else x509.with_saml(holdfast.SamlToken(lambda: data))]
        return holdfast.Source(broker.service.url, ":memory:", processors=processors, policy=HASTY)

    async with signing(clinic, of_clinic) as alice:
        await (await alice.send("<n>alice</n>", action="urn:note")).acknowledged(60)
    await until(lambda: len(got) == 1)
    assert (got[0].user, got[0].body.text) == ("broker", "alice")
    for wrong in (signing(stranger, of_clinic), signing(clinic, None), source(broker.service.url, of_clinic)):
        async with wrong as refused:
            with pytest.raises(holdfast.PeerFault, match="InvalidSecurity"):
                await (await refused.send("<n/>", action="urn:note")).acknowledged(60)
    (tmp_path / "broker.toml").write_text(BASE + both.replace(AUDIENCE, "urn:else") + ROUTES + leg)
    assert broker.reload() == ["security.assertions.audience"]
    async with signing(clinic, of_clinic) as refused:
        with pytest.raises(holdfast.PeerFault, match="InvalidSecurity"):
            await (await refused.send("<n/>", action="urn:note")).acknowledged(60)


@pytest.mark.parametrize("table", ["security.signature", "forwarders.shop.security.signature"])
def test_a_key_is_named_by_an_assertion_only_if_one_is_sent_or_demanded(tmp_path: Path, table: str) -> None:
    own, shop = issue("CN=broker,O=Example"), issue("CN=shop,O=Example")
    leg = '[forwarders.shop]\nqueue = "orders"\nto = "http://shop/"\n' if "forwarders" in table else ""
    text = BASE + leg + signature(table, own, shop, tmp_path) + 'reference = "assertion"\n'
    (tmp_path / "broker.toml").write_text(text)
    with pytest.raises(holdfast.ConfigurationError, match="is sent or demanded"):
        read_config(tmp_path / "broker.toml")


async def test_a_broker_demands_messages_that_are_signed_with_the_key_of_an_assertion(
    start: Start, tmp_path: Path
) -> None:
    own, clinic = issue("CN=broker,O=Example"), issue("CN=clinic,O=Example", authority())
    held = signature("security.signature", own, authority(), tmp_path) + 'reference = "assertion"\n'
    (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path) + held)
    with pytest.raises(holdfast.ConfigurationError, match="confirms the key of its sender"):
        read_config(tmp_path / "broker.toml")
    demanded = listener(tmp_path) + 'confirmations = ["holder-of-key"]\n'
    broker = await start(BASE + demanded + held)
    x509 = holdfast.X509(*clinic.files(tmp_path), trusted=own.files(tmp_path).certificate, reference="assertion")
    x509.with_saml(holdfast.SamlToken(lambda: assertion(method="holder-of-key", key=key_info(clinic))))
    url = f"{broker.service.url}?wsdl"
    async with await holdfast.Source.from_wsdl(url, ":memory:", processors=[x509], policy=HASTY) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)


async def test_issuers_change_with_a_reload(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE + listener(tmp_path))
    (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path, OTHER))
    assert broker.reload() == ["security.assertions.issuers"]
    async with source(broker.service.url, assertion(by=OTHER)) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)


@pytest.mark.parametrize("content", ["", "<a/>", "geheim", "<Assertion", "\x00", unsigned("2.0", 0.0)[:-9], "<!--x-->"])
def test_a_file_without_an_assertion_is_refused_when_it_is_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "ours.xml").write_text(content)
    (tmp_path / "broker.toml").write_text(BASE + forwarder("http://shop/"))
    with pytest.raises(ConfigurationMistakes) as refused:
        read_config(tmp_path / "broker.toml")
    (mistake,) = refused.value.mistakes
    assert mistake.key == "forwarders.shop.security.assertion"
    assert f"{tmp_path / 'ours.xml'} contains no usable SAML assertion" in mistake.what
    assert "as its issuer signed it" in mistake.remedy and "geheim" not in str(refused.value)


async def test_a_broker_starts_with_an_expired_assertion(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ours.xml").write_bytes(assertion(until=1.0))
    broker = await start(BASE + forwarder("http://shop/"))
    assert expired_assertions(broker.config) == [str(tmp_path / "ours.xml")]
    (tmp_path / "ours.xml").unlink()  # another program is replacing it
    assert expired_assertions(broker.config) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('users = "users"\n', "not several of them"),
        ('assertions.attesters = "x.pem"\n', "may vouch"),
        ('assertions.confirmations = "sender"\n', "bearer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, more: str, why: str) -> None:
    (tmp_path / "users").write_text("alice:secret\n")
    IDP.files(tmp_path).certificate.rename(tmp_path / "x.pem")
    table = f'[security]\n{more}assertions.issuers = {{ a = "x.pem" }}\nassertions.audience = "b"\n'
    file = tmp_path / "broker.toml"
    file.write_text(BASE + table)
    with pytest.raises(holdfast.ConfigurationError, match=why):
        read_config(file)
