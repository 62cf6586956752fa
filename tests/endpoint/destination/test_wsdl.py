"""``?wsdl``: what a destination was given, or a description generated from its handlers and policy.

Covers wire/generated_wsdl.py and wire/policy/writing.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from lxml import etree
from signers import issue
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import (
    X509,
    ConfigurationError,
    Destination,
    DestinationHTTP,
    DestinationPolicy,
    Encryption,
    Message,
    MessageContext,
    Processor,
    SamlTokenValidator,
    Source,
    SymmetricBindingValidator,
    UsernameToken,
    UsernameTokenValidator,
)
from holdfast.core.messages import CreateSequenceResponse
from holdfast.core.policy import Assurance
from holdfast.core.versions import Versions
from holdfast.endpoint.destination.wsdl import address_of
from holdfast.http.exchange import Request
from holdfast.wire.generated_wsdl import GeneratedOperation, generated_wsdl
from holdfast.wire.policy.assertions import PASSWORD, TIMESTAMP
from holdfast.wire.policy.expressions import POLICY
from holdfast.wire.policy.writing import written
from holdfast.wire.wsdl import Description

WSDL = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" name="Bücher"><documentation>ä</documentation></definitions>'
).encode()


async def get(url: str, method: str = "GET") -> tuple[int, str, bytes]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        given = answer.headers.get("Cache-Control") == "no-store"
        assert given is (answer.status == 200), "a cache would give the address to clients at others"
        return answer.status, answer.headers.get("Content-Type", ""), await answer.read()


@pytest.mark.parametrize("query", ["?wsdl", "?WSDL", "?singleWsdl", "?wsdl=", "?wsdl&x=1"])
async def test_it_is_given_out_as_it_was_given(serve: Any, tmp_path: Path, query: str) -> None:
    file = tmp_path / "service.wsdl"
    file.write_bytes(WSDL)
    for given in (file, str(file), WSDL):
        service = await serve(Destination(":memory:", wsdl=given))
        assert await get(service.url + query) == (200, "text/xml; charset=utf-8", WSDL)
        assert await get(service.url + query, "HEAD") == (200, "text/xml; charset=utf-8", b"")


async def test_faults_are_given_out_with_their_actions(serve: Any) -> None:
    """WCF's clients take the fault of a WSDL that states no action for the fault of all services, without values."""
    given = b"""<d:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:d="http://schemas.xmlsoap.org/wsdl/"
            xmlns:wsaw="http://www.w3.org/2006/05/addressing/wsdl">
          <d:portType name="P">
            <d:operation name="Do"><d:input/><d:output/>
              <d:fault name="Bad"/><d:fault name="Worse" wsaw:Action="urn:own"/>
            </d:operation>
            <d:operation name="Do"><d:input/><d:output/></d:operation>
          </d:portType>
          <d:portType><d:operation name="Do"><d:input/><d:output/><d:fault name="Nameless"/></d:operation></d:portType>
        </d:definitions>"""
    service = await serve(Destination(":memory:", wsdl=given))
    _, _, data = await get(f"{service.url}?wsdl")
    faults = etree.fromstring(data).iter("{http://schemas.xmlsoap.org/wsdl/}fault")
    metadata, draft = "{http://www.w3.org/2007/05/addressing/metadata}", "{http://www.w3.org/2006/05/addressing/wsdl}"
    assert [dict(fault.attrib) for fault in faults] == [
        {"name": "Bad", f"{metadata}Action": "urn:t:P:Do:Fault:Bad", f"{draft}Action": "urn:t:P:Do:Fault:Bad"},
        {"name": "Worse", f"{draft}Action": "urn:own"},
        {"name": "Nameless", f"{metadata}Action": "//Do/Fault/Nameless", f"{draft}Action": "//Do/Fault/Nameless"},
    ]


def described(app: Destination) -> None:
    """Handlers whose annotations say which operations are one-way."""

    @app.on("urn:orders/Submit")
    def submit(message: Message) -> None:
        pass

    @app.on("urn:orders/Price", reply_action="urn:orders/PriceReply")
    def price(message: Message) -> str:
        return "<price>7</price>"

    @app.on("urn:stock/Price")
    def other(message: Message) -> str:
        return "<price>8</price>"

    @app.on()
    def rest(message: Message) -> None:
        pass


async def test_without_one_its_policy_and_actions_are_described(serve: Any) -> None:
    policy = DestinationPolicy(inactivity_timeout=90.0, acknowledgement_interval=0.05)
    app = Destination(":memory:", assurance="at-least-once in-order", policy=policy)
    described(app)
    service = await serve(app)
    source = await Source.from_wsdl(f"{service.url}?wsdl", ":memory:")
    assert source.to == service.url
    assert source.policy.assurance == Assurance.parse("at-least-once in-order")
    assert (source.policy.keep_alive, source.policy.retransmission.floor) == (45.0, 0.5)
    async with source:
        assert (await source.request("<ask/>", action="urn:orders/Price", timeout=60)).body.text == "7"
        assert source.sequences()[0]["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.2"
    description = Description()
    description.add((await get(f"{service.url}?wsdl"))[2], "here")
    assert description.operations() == {
        "urn:orders/Submit": "",
        "urn:orders/Price": "urn:orders/PriceReply",
        "urn:stock/Price": "urn:stock/PriceResponse",
    }
    port = description.port()
    assert port.versions == {
        Versions("1.0", "2004/08", "1.2"),
        Versions("1.0", "2005/08", "1.2"),
        Versions("1.1", "2005/08", "1.2"),
    }
    assert (await get(f"{service.url}?xsd=xsd0"))[0] == 404


@pytest.mark.parametrize("kind", ["open", "user names", "signatures", "symmetric", "assertions"])
async def test_the_policy_says_the_same_in_the_version_of_older_programs(serve: Any, tmp_path: Path, kind: str) -> None:
    shop, alice = issue("CN=shop,O=Example").files(tmp_path), issue("CN=alice,O=Example").files(tmp_path)
    users = UsernameTokenValidator({"alice": "secret"})
    processors: dict[str, list[Processor]] = {
        "open": [],
        "user names": [users],
        "signatures": [X509(*shop, trusted=alice.certificate, encrypt=Encryption())],
        "symmetric": [SymmetricBindingValidator(*shop, users=users)],
        "assertions": [SamlTokenValidator({"issuer": alice.certificate}, audience=None)],
    }
    app = Destination(":memory:", processors=processors[kind])
    app.on("urn:test:submit")(lambda message: "<done/>")
    url = (await serve(app)).url
    found = []
    for query, namespace, other in (("", *POLICY), ("&policy=1.5", *POLICY), ("&policy=1.2", *POLICY[::-1])):
        status, _, data = await get(f"{url}?wsdl{query}")
        assert status == 200
        assert namespace.encode() in data and other.encode() not in data
        assert (b"<wsam:Addressing " in data) == (namespace == POLICY[0])
        description = Description()
        description.add(data, "here")
        port = description.port()
        found.append((port.versions, port.settings, {need.ability for need in port.needs}, description.operations()))
    assert found[0] == found[1] == found[2]
    status, _, refused = await get(f"{url}?wsdl&policy=2.0")
    assert (status, b"1.5 and 1.2" in refused) == (404, True)


VALIDATOR = UsernameTokenValidator({"alice": "secret"})
"""It accepts passwords in plain text and digests."""


@pytest.mark.parametrize(
    ("validator", "accepted", "refused"),
    [
        (VALIDATOR, [UsernameToken("alice", "secret"), UsernameToken("alice", "secret", digest=True)], []),
        (
            UsernameTokenValidator({"alice": "secret"}, require_digest=True),
            [UsernameToken("alice", "secret", digest=True)],
            [UsernameToken("alice", "secret")],
        ),
        (
            UsernameTokenValidator(authenticate=lambda user, password: password == "secret"),
            [UsernameToken("alice", "secret")],
            [UsernameToken("alice", "secret", digest=True)],
        ),
    ],
)
async def test_a_demand_for_user_names_is_published(
    serve: Any, validator: UsernameTokenValidator, accepted: list[UsernameToken], refused: list[UsernameToken]
) -> None:
    app = Destination(":memory:", processors=[validator])
    described(app)
    url = f"{(await serve(app)).url}?wsdl"
    for token in accepted:
        async with await Source.from_wsdl(url, ":memory:", processors=[token]) as source:
            await (await source.send("<order/>", action="urn:orders/Submit")).acknowledged(60)
    for processors in ([], *([token] for token in refused)):
        with pytest.raises(ConfigurationError, match=r"the port DestinationPort requires .*a user name and"):
            await Source.from_wsdl(url, ":memory:", processors=processors)


@pytest.mark.parametrize(
    ("published_by", "processors", "told"),
    [
        ([VALIDATOR], [], ["UsernameToken (a user name and password in each message)"]),
        ([VALIDATOR], [VALIDATOR], []),
        ([], [], []),
    ],
)
async def test_a_demand_of_its_own_wsdl_that_nothing_checks_is_logged(
    serve: Any,
    caplog: pytest.LogCaptureFixture,
    published_by: list[UsernameTokenValidator],
    processors: list[UsernameTokenValidator],
    told: list[str],
) -> None:
    publisher = Destination(":memory:", processors=published_by)
    described(publisher)
    service = await serve(publisher)
    async with httpx.AsyncClient() as client:
        published = (await client.get(f"{service.url}?wsdl")).content
    app = Destination(":memory:", wsdl=published, processors=processors)
    app.on()(lambda message: None)
    await serve(app)
    lines = [line for line in caplog.messages if "wsdl.demands_unchecked" in line]
    assert len(lines) == len(told)
    assert all(one in line for one, line in zip(told, lines, strict=True))


async def test_a_demand_for_signatures_is_published(serve: Any, tmp_path: Path) -> None:
    shop, alice = issue("CN=shop,O=Example").files(tmp_path), issue("CN=alice,O=Example").files(tmp_path)
    app = Destination(":memory:", processors=[X509(*shop, trusted=alice.certificate)])
    described(app)
    url = f"{(await serve(app)).url}?wsdl"
    signer = X509(*alice, trusted=shop.certificate)
    async with await Source.from_wsdl(url, ":memory:", processors=[signer]) as source:
        await (await source.send("<order/>", action="urn:orders/Submit")).acknowledged(60)
    for processors in ([], [UsernameToken("alice", "secret")]):
        with pytest.raises(ConfigurationError, match=r"AsymmetricBinding, SignedParts \(messages signed by a"):
            await Source.from_wsdl(url, ":memory:", processors=processors)
    old = X509(*alice, trusted=shop.certificate, suite="Basic256", reference="thumbprint")
    with pytest.raises(ConfigurationError, match=r"X509Token \(the certificate in .*Basic256Sha256 \(signatures over"):
        await Source.from_wsdl(url, ":memory:", processors=[old])


@pytest.mark.parametrize(
    "encrypt",
    [
        Encryption(),
        Encryption(headers=["{urn:shop}Customer"], signature=True, cipher="aes128-cbc"),
        Encryption(before_signing=True, cipher="aes256-gcm"),
    ],
    ids=["the Body", "more", "signed last"],
)
async def test_a_demand_for_encryption_is_published(serve: Any, tmp_path: Path, encrypt: Encryption) -> None:
    shop, alice = issue("CN=shop,O=Example").files(tmp_path), issue("CN=alice,O=Example").files(tmp_path)
    app = Destination(":memory:", processors=[X509(*shop, trusted=alice.certificate, encrypt=encrypt)])
    described(app)
    url = f"{(await serve(app)).url}?wsdl"
    signer = X509(*alice, trusted=shop.certificate, encrypt=encrypt)
    async with await Source.from_wsdl(url, ":memory:", processors=[signer]) as source:
        await (await source.send("<order/>", action="urn:orders/Submit")).acknowledged(60)
    plain = X509(*alice, trusted=shop.certificate)
    with pytest.raises(ConfigurationError, match=r"EncryptedParts \(messages encrypted for a certificate\)"):
        await Source.from_wsdl(url, ":memory:", processors=[plain])


def test_over_https_the_demand_for_user_names_is_that_of_the_transport_binding() -> None:
    validator = UsernameTokenValidator({"alice": "secret"}, require_timestamp=True)
    policy = written(DestinationPolicy(), [validator.policy(is_https=True)])
    description = Description()
    description.add(generated_wsdl("https://host/", [GeneratedOperation("urn:a&b")], policy), "here")
    assert description.port(None, {PASSWORD, TIMESTAMP}).is_reliable
    assert description.operations() == {"urn:a&b": ""}
    with pytest.raises(ConfigurationError, match="IncludeTimestamp"):
        description.port(None, {PASSWORD})
    with pytest.raises(ConfigurationError, match=r"TransportBinding \(https\).* SignedSupportingTokens"):
        description.port(None, {PASSWORD, TIMESTAMP}, "http://host/")


@pytest.mark.parametrize("policy", ["http://www.w3.org/ns/ws-policy", "http://schemas.xmlsoap.org/ws/2004/09/policy"])
async def test_the_policy_of_rm_1_1_says_that_clients_may_poll(serve: Any, policy: str) -> None:
    rm, mc = "http://docs.oasis-open.org/ws-rx/wsrmp/200702", "http://docs.oasis-open.org/ws-rx/wsmc/200702"
    given = (
        f'<definitions xmlns="http://schemas.xmlsoap.org/wsdl/"><p:Policy xmlns:p="{policy}"><r:RMAssertion '
        f'xmlns:r="{rm}"/></p:Policy><p:Policy xmlns:p="{policy}"><r:RMAssertion xmlns:r="{rm}"/>'
        f'<MCSupported xmlns="{mc}"/></p:Policy></definitions>'
    )
    service = await serve(Destination(":memory:", wsdl=given.encode()))
    root = etree.fromstring((await get(service.url + "?wsdl"))[2])
    added, stated = root.iter(f"{{{mc}}}MCSupported")
    assert added.getprevious().tag == f"{{{rm}}}RMAssertion"
    assert added.get(f"{{{policy}}}Optional") == "true"
    assert not stated.attrib


async def test_a_generated_policy_says_that_clients_of_rm_1_1_may_poll(serve: Any) -> None:
    root = etree.fromstring((await get((await serve(Destination(":memory:"))).url + "?wsdl"))[2])
    alternatives = list(root.iter("{http://www.w3.org/ns/ws-policy}All"))
    assert len(alternatives) == 3
    for one in alternatives:
        is_1_1 = one.find("{http://docs.oasis-open.org/ws-rx/wsrmp/200702}RMAssertion") is not None
        assert (one.find("{http://docs.oasis-open.org/ws-rx/wsmc/200702}MCSupported") is not None) == is_1_1


@pytest.mark.parametrize(("path", "method"), [("", "GET"), ("?x=wsdl", "GET"), ("?wsdl", "DELETE"), ("?wsdl", "PUT")])
async def test_anything_else_is_405_still(serve: Any, path: str, method: str) -> None:
    service = await serve(Destination(":memory:", wsdl=WSDL))
    assert (await get(service.url + path, method))[0] == 405


async def test_it_is_given_out_under_asgi_too() -> None:
    app = Destination(":memory:", wsdl=WSDL)
    async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as peer:
        answer = await peer.get("/?wsdl")
    assert (answer.status_code, answer.content) == (200, WSDL)


@pytest.mark.parametrize("given", [b"<a/>", b"no XML", "nothing.wsdl", 7])
def test_what_is_no_wsdl_is_refused_when_it_is_given(given: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Destination(":memory:", wsdl=given)
    assert refused.value.remedy


PARTS = {
    "service.wsdl": """<wsdl:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:a="http://www.w3.org/2005/08/addressing">
  <wsdl:import namespace="urn:b" location="http://old/Orders.svc?wsdl=wsdl0"/>
  <wsdl:types><xsd:schema xmlns:xsd="http://www.w3.org/2001/XMLSchema">
    <xsd:import schemaLocation="http://old/Orders.svc?xsd=xsd0" namespace="urn:s"/>
    <xsd:import schemaLocation="types/more%20types.xsd" namespace="urn:m"/>
    <xsd:import schemaLocation="http://elsewhere/known.xsd" namespace="urn:k"/>
  </xsd:schema></wsdl:types>
  <wsdl:service name="S"><wsdl:port name="P" binding="t:B"><soap:address location="http://old/Orders.svc"/>
    <a:EndpointReference><a:Address>http://old/Orders.svc</a:Address></a:EndpointReference></wsdl:port>
    <wsdl:port name="T" binding="t:C"><soap:address location="net.tcp://old/Orders.svc"/></wsdl:port></wsdl:service>
</wsdl:definitions>""",
    "wsdl0.wsdl": """<wsdl:definitions targetNamespace="urn:b" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/">
  <wsdl:import namespace="urn:t" location="service.wsdl"/>
</wsdl:definitions>""",
    "xsd0.xsd": '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"/>',
    "types/more types.xsd": """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:include schemaLocation="../xsd0.xsd"/></xs:schema>""",
}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for name, text in PARTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "service.wsdl"


async def test_a_wsdl_in_parts_is_given_out_with_the_address_in_use(serve: Any, parts: Path) -> None:
    url = (await serve(Destination(":memory:", wsdl=parts))).url
    asked = f"{url}Orders.svc"
    status, media, main = await get(f"{asked}?wsdl")
    assert (status, media) == (200, "text/xml; charset=utf-8")
    root = etree.fromstring(main)
    assert root.xpath("//@location") == [f"{asked}?wsdl=wsdl0.wsdl", asked, "net.tcp://old/Orders.svc"]
    assert root.findtext(".//{*}Address") == asked
    locations = root.xpath("//@schemaLocation")
    assert locations == [f"{asked}?xsd=xsd0.xsd", f"{asked}?xsd=types/more%20types.xsd", "http://elsewhere/known.xsd"]
    assert (await get(locations[0]))[2] == PARTS["xsd0.xsd"].encode()
    nested = etree.fromstring((await get(locations[1]))[2])
    assert nested.xpath("//@schemaLocation") == [f"{asked}?xsd=xsd0.xsd"]
    back = etree.fromstring((await get(f"{asked}?wsdl=wsdl0.wsdl"))[2]).xpath("//@location")
    assert back == [f"{asked}?wsdl=service.wsdl"]


@pytest.mark.parametrize("query", ["?xsd=../service.wsdl", "?xsd", "?xsd=", "?wsdl=/etc/passwd", "?xsd=types"])
async def test_only_what_it_imports_is_given_out(serve: Any, parts: Path, query: str) -> None:
    (parts.parent / "secret.xsd").write_text("<secret/>")
    service = await serve(Destination(":memory:", wsdl=parts))
    for one in (query, "?xsd=secret.xsd", "?xsd=secret"):
        status, _, text = await get(service.url + one)
        assert (status, b"imports no such document" in text) == (404, True)


@pytest.mark.parametrize(
    "forwarded",
    [
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "partner.example", "Host": "inner:8170"},
        {"X-Forwarded-Proto": "https, http", "X-Forwarded-Host": "partner.example, middle", "Host": "inner:8170"},
    ],
    ids=["the host is the client's", "the host is rewritten", "two proxies"],
)
async def test_behind_a_proxy_and_below_a_mount_the_address_is_the_clients(
    parts: Path, forwarded: dict[str, str]
) -> None:
    app = Destination(":memory:", wsdl=parts)
    outer = Starlette(routes=[Mount("/shop", app)])
    transport = httpx.ASGITransport(outer)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://partner.example") as peer:
        answer = await peer.get("/shop/Orders.svc?wsdl", headers=forwarded)
    address = etree.fromstring(answer.content).findtext(".//{*}Address")
    assert address == "https://partner.example/shop/Orders.svc"
    assert b"inner" not in answer.content and b"https://partner.example/shop/Orders.svc?xsd=" in answer.content


@pytest.mark.parametrize("name", ["partner.example", "203.0.113.7", "[2001:db8::1]"])
@pytest.mark.parametrize("port", ["", ":8443"])
def test_the_address_keeps_the_port_that_only_one_header_has(name: str, port: str) -> None:
    public = f"{name}{port}"
    ways = [
        {"host": public},
        {"host": public, "x-forwarded-host": name},  # nginx: Host $http_host, X-Forwarded-Host $host
        {"host": public, "x-forwarded-host": name.upper()},
        {"host": public, "x-forwarded-host": public},
        {"host": name, "x-forwarded-host": public},
        {"host": "inner:8170", "x-forwarded-host": public},
        {"host": "inner", "x-forwarded-host": public},
    ]
    for headers in ways:
        given = {key.encode(): value.encode() for key, value in headers.items()}
        assert address_of(Request("GET", "/?wsdl", given, b"", None, False)).lower() == f"http://{public}/", headers


FORWARDED = {"Host": "inner:8170", "X-Forwarded-Host": "proxy.example:99", "X-Forwarded-Proto": "http"}


@pytest.mark.parametrize("headers", [{}, FORWARDED], ids=["no proxy tells", "proxies tell otherwise"])
@pytest.mark.parametrize(
    ("public_url", "expected"),
    [
        ("https://api.example:8443/partner/orders", "https://api.example:8443/partner/orders"),
        ("https://api.example", "https://api.example"),
        ("https://api.example/soap{path}", "https://api.example/soap/shop/Orders.svc"),
        ("https://api.example{path}", "https://api.example/shop/Orders.svc"),
    ],
)
async def test_the_public_url_wins_over_all_headers(
    parts: Path, headers: dict[str, str], public_url: str, expected: str
) -> None:
    """In every document, and in the policy, which demands https."""
    http = DestinationHTTP(public_url=public_url)
    given = Destination(":memory:", wsdl=parts, http=http)
    generated = Destination(":memory:", http=http, processors=[UsernameTokenValidator({"alice": "secret"})])
    outer = Starlette(routes=[Mount("/shop", given)]), Starlette(routes=[Mount("/shop", generated)])
    texts: list[bytes] = []
    for app, host in zip((given, generated), outer, strict=True):
        transport = httpx.ASGITransport(host)
        async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://direct") as peer:
            for query in ("wsdl", "wsdl=wsdl0.wsdl", "xsd=types/more%20types.xsd") if app is given else ("wsdl",):
                answer = await peer.get(f"/shop/Orders.svc?{query}", headers=headers)
                assert answer.status_code == 200
                texts.append(answer.content)
    main, part, schema, own = map(etree.fromstring, texts)
    assert main.xpath("//@location") == [f"{expected}?wsdl=wsdl0.wsdl", expected, "net.tcp://old/Orders.svc"]
    assert main.findtext(".//{*}Address") == expected
    locations = [f"{expected}?xsd=xsd0.xsd", f"{expected}?xsd=types/more%20types.xsd", "http://elsewhere/known.xsd"]
    assert main.xpath("//@schemaLocation") == locations
    assert part.xpath("//@location") == [f"{expected}?wsdl=service.wsdl"]
    assert schema.xpath("//@schemaLocation") == [f"{expected}?xsd=xsd0.xsd"]
    assert set(own.xpath("//*[local-name() = 'address']/@location")) == {expected}
    assert b"TransportBinding" in texts[-1], "clients come by https"
    told = b"".join(texts)
    assert not [one for one in (b"inner", b"proxy.example", b"direct") if one in told]


@pytest.mark.parametrize("versions", [Versions(), Versions("1.0", "2004/08", "1.1")], ids=str)
async def test_an_accepted_offer_names_the_address_that_the_client_wrote(serve: Any, versions: Versions) -> None:
    """Behind a proxy, that is the public one, and WCF accepts no other, so it is returned as it is."""
    seen: list[str] = []

    class Look(Processor):
        def outbound(self, context: MessageContext) -> None:
            control = context.envelope.control
            if isinstance(control, CreateSequenceResponse) and control.accept_acks_to is not None:
                seen.append(control.accept_acks_to.address)

        def inbound(self, context: MessageContext) -> None:
            if context.role == "destination":
                context.envelope.to = "https://api.example/orders"  # as a client behind the proxy writes it

    http = DestinationHTTP(public_url="https://api.example/orders")
    app = Destination(":memory:", http=http, processors=[Look()])
    app.on("urn:o", reply_action="urn:p")(lambda _: "<a/>")
    url = (await serve(app)).url
    async with Source(url, ":memory:", versions=versions, offer=True) as source:
        await (await source.send("<o/>", action="urn:o")).acknowledged(60)
    assert seen == ["https://api.example/orders"]


async def test_a_source_is_made_from_the_wsdl_that_a_destination_gives_out(serve: Any, parts: Path) -> None:
    binding = """<wsdl:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/">
  <wsdl:portType name="T"><wsdl:operation name="o"><wsdl:input message="t:i"/></wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="t:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/></wsdl:binding>
</wsdl:definitions>"""
    (parts.parent / "wsdl0.wsdl").write_text(binding)
    app = Destination(":memory:", wsdl=parts)
    got: list[str] = []
    app.on("urn:o")(lambda message: got.append(message.body.text))
    url = f"{(await serve(app)).url}Orders.svc"
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert source.to == url
        await (await source.send("<o>1</o>", action="urn:o")).acknowledged(60)
        await app.handled()
    assert got == ["1"]


@pytest.mark.parametrize("part", ["wsdl0.wsdl", "types/more types.xsd"])
def test_a_part_that_is_missing_is_named(parts: Path, part: str) -> None:
    (parts.parent / part).unlink()
    if part == "wsdl0.wsdl":
        Destination(":memory:", wsdl=parts)  # an absolute location stays as it is
        parts.write_text(PARTS["service.wsdl"].replace("http://old/Orders.svc?wsdl", "?wsdl"))
    with pytest.raises(ConfigurationError, match="but the file") as refused:
        Destination(":memory:", wsdl=parts)
    assert part.rpartition("/")[2] in str(refused.value) and "Save that document there" in refused.value.remedy
