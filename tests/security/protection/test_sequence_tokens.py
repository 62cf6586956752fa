"""A Sequence that names the certificate which made it: written by a source, demanded by a destination (WS-RM 6.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree
from signers import authority, issue

from holdfast import X509, ConfigurationError, Destination, PeerFault, Processor, Source
from holdfast.core.messages import CreateSequence
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import Versions
from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.security.names import THUMBPRINT, WSSE, Kind
from holdfast.testing import pair

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
ALICE, SHOP = issue("CN=alice,O=Example", authority()), issue("CN=shop,O=Example", authority())
VERSIONS = [Versions("1.0", "2005/08", "1.1"), Versions("1.1", "2005/08", "1.2")]
REFERENCE = f"{{*}}Body/{{*}}CreateSequence/{{{WSSE}}}SecurityTokenReference/"


def alice(directory: Path, reference: Kind = "token") -> X509:
    trusted = SHOP.files(directory).certificate
    return X509(*ALICE.files(directory), trusted=trusted, reference=reference)


def shop(directory: Path) -> X509:
    return X509(*SHOP.files(directory), trusted=ALICE.files(directory).certificate)


class Creations(Processor):
    """Keeps each CreateSequence as it came."""

    def __init__(self) -> None:
        self.got: list[etree._Element] = []

    def inbound(self, context: MessageContext) -> None:
        if isinstance(context.envelope.control, CreateSequence):
            self.got.append(etree.fromstring(context.data))


@pytest.mark.parametrize("reference", ["token", "subject-key-identifier", "issuer-serial"])
@pytest.mark.parametrize("versions", VERSIONS, ids=str)
async def test_a_source_names_its_certificate(tmp_path: Path, versions: Versions, reference: Kind) -> None:
    creations = Creations()
    app = Destination(":memory:", processors=[creations, shop(tmp_path).bind_sequences()])
    processors = [alice(tmp_path, reference).bind_sequences()]
    async with pair(app, processors=processors, policy=HASTY, versions=versions) as source:
        assert (await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)) is None
    (created,) = creations.got
    (named,) = created.findall(f"{REFERENCE}*")
    if reference == "token":  # the next messages have another token element
        assert named.get("ValueType") == THUMBPRINT
    else:
        assert ("X509Data" in named.tag) == (reference == "issuer-serial")
    header = created.find("{*}Header/{http://docs.oasis-open.org/ws-rx/wsrm/200702}UsesSequenceSTR")
    assert (header is not None) == (versions.rm.value == "1.1")
    if header is not None:
        assert next(value for name, value in header.items() if name.endswith("mustUnderstand")) == "1"


@pytest.mark.parametrize("versions", VERSIONS, ids=str)
async def test_a_destination_may_demand_the_name(tmp_path: Path, versions: Versions) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path).bind_sequences()])
    with pytest.raises(PeerFault, match="InvalidSecurity"):
        async with pair(app, processors=[alice(tmp_path)], policy=HASTY, versions=versions) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)


async def test_a_policy_that_demands_it_is_published_and_met(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path).bind_sequences()])
    wsdl = tmp_path / "service.wsdl"
    wsdl.write_bytes(app._generated_wsdl("http://shop.example/"))
    assert b"<r:SequenceSTR/>" in wsdl.read_bytes()
    with pytest.raises(ConfigurationError, match=r"SequenceSTR \(Sequences that name a security token\)") as raised:
        await Source.from_wsdl(wsdl, ":memory:", processors=[alice(tmp_path)])
    assert "bind_sequences()" in str(raised.value)
    source = await Source.from_wsdl(wsdl, ":memory:", processors=[alice(tmp_path).bind_sequences()])
    await source.close()


def test_a_policy_demands_it_only_if_a_processor_does(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path)])
    assert b"SequenceSTR" not in app._generated_wsdl("http://shop.example/")
