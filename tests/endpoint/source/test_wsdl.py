"""A source made from a WSDL, fetched over a real socket or read from files, with the documents it imports.

Covers http/outcome.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Destination, Source, SourceHTTP, UsernameToken, UsernameTokenValidator
from holdfast.core.policy import Assurance, Delivery, SourcePolicy
from holdfast.core.versions import Versions
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import TransportError
from holdfast.http.server import refusals
from holdfast.http.server.server import HTTPServer

ACTION = "urn:test:submit"
MAIN = """<wsdl:definitions targetNamespace="urn:main" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/" xmlns:b="urn:b"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/">
  <wsdl:import namespace="urn:b" location="{imported}"/>
  <wsdl:service name="S"><wsdl:port name="P" binding="b:B"><soap:address location="{url}"/></wsdl:port></wsdl:service>
</wsdl:definitions>"""
BINDING = """<wsdl:definitions targetNamespace="urn:b" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/" xmlns:b="urn:b"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:wsp="http://www.w3.org/ns/ws-policy">
  <wsdl:import namespace="urn:main" location="{main}"/>
  <wsdl:portType name="T"><wsdl:operation name="o"><wsdl:input message="b:i"/>{output}</wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="b:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsp:Policy><r:RMAssertion xmlns:r="http://docs.oasis-open.org/ws-rx/wsrmp/200702"><wsp:Policy>
      <r:DeliveryAssurance><wsp:Policy><r:AtLeastOnce/></wsp:Policy></r:DeliveryAssurance></wsp:Policy>
      <n:InactivityTimeout Milliseconds="60000" xmlns:n="http://schemas.microsoft.com/ws-rx/wsrmp/200702"/>
    </r:RMAssertion></wsp:Policy>
  </wsdl:binding>
</wsdl:definitions>"""
OUTPUT = '<wsdl:output message="b:o"/>'


@contextlib.asynccontextmanager
async def documents(found: dict[str, str], asked: list[tuple[str, bytes]]) -> AsyncIterator[str]:
    """A web server with those documents by target; notes what was asked for, with which Authorization."""

    def answer(exchange: Exchange) -> None:
        request = exchange.request
        asked.append((request.target, request.headers.get(b"authorization", b"")))
        text = found.get(request.target)
        exchange.respond(200 if text is not None else 404, (text or "no").encode(), b"text/xml")

    server = HTTPServer()
    await server.start(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def test_a_source_from_a_wsdl_in_parts_speaks_what_its_policy_says(serve: Any, tmp_path: Path) -> None:
    got: list[str] = []
    app = Destination(":memory:")
    app.on(ACTION)(lambda message: got.append(message.body.text))
    url = (await serve(app)).url
    main, binding = MAIN.format(imported="?wsdl=wsdl0", url=url), BINDING.format(main="/orders?wsdl", output="")
    asked: list[tuple[str, bytes]] = []
    async with documents({"/orders?wsdl": main, "/orders?wsdl=wsdl0": binding}, asked) as host:
        headers = {"Authorization": "Bearer t"}
        made = await Source.from_wsdl(f"{host}/orders?wsdl", tmp_path / "outbox", http=SourceHTTP(headers=headers))
    assert asked == [("/orders?wsdl", b"Bearer t"), ("/orders?wsdl=wsdl0", b"Bearer t")], "each once"
    assert made.to == url
    assert made.policy.assurance == Assurance(Delivery.AT_LEAST_ONCE, in_order=False)
    assert made.policy.keep_alive == 30.0, "half of the time after which the service ends an idle Sequence"
    async with made as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
        (shown,) = source.sequences()
        assert shown["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.1"
    assert got == ["1"]
    (inbound,) = app.running.engine.protocol.inbound.destinations.values()
    assert inbound.offered is None, "no operation replies, so no Sequence for replies is offered"


async def test_a_replying_operation_offers_a_sequence_and_arguments_precede_the_wsdl(
    serve: Any, tmp_path: Path
) -> None:
    app = Destination(":memory:")
    app.on(ACTION)(lambda message: "<done/>")
    url = (await serve(app)).url
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="parts/b.wsdl", url="http://elsewhere.invalid/"))
    (tmp_path / "parts" / "b.wsdl").write_text(BINDING.format(main="../parts/../main.wsdl", output=OUTPUT))
    policy = SourcePolicy(keep_alive=7.0)
    async with await Source.from_wsdl(
        tmp_path / "main.wsdl", ":memory:", to=url, versions=Versions("1.0"), policy=policy, assurance="exactly-once"
    ) as source:
        reply = await source.request("<n>1</n>", action=ACTION, timeout=60)
        assert reply.body.tag == "done"
        assert source.sequences()[0]["versions"] == "RM 1.0, WSA 2005/08, SOAP 1.2"
        assert (source.policy.keep_alive, source.policy.assurance.in_order) == (7.0, False)
    (inbound,) = app.running.engine.protocol.inbound.destinations.values()
    assert inbound.offered is not None


async def test_a_wsdl_out_of_reach_does_not_keep_back_what_is_stored(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:")
    got: list[str] = []
    app.on(ACTION)(lambda message: got.append(message.body.text))
    url = (await serve(app)).url
    async with documents({}, []) as host:
        with pytest.raises(TransportError, match=r"responded with 404 and no document\n.*end with \?wsdl"):
            await Source.from_wsdl(f"{host}/x", tmp_path / "outbox")
        assert not (tmp_path / "outbox").exists()
        async with Source(url, tmp_path / "outbox", versions=Versions()) as source:
            await source.send("<n>1</n>", action=ACTION)
        async with await Source.from_wsdl(f"{host}/x", tmp_path / "outbox") as source:
            assert source.to == url
            await source.send("<n>2</n>", action=ACTION)
            await source.flush(20)
    assert got == ["1", "2"]


@pytest.mark.parametrize(
    ("status", "content", "media", "told", "asks_for_wsdl"),
    [
        (400, refusals.NEEDS_TLS.text, b"text/plain", "400: this port speaks https: change http to https", False),
        (
            400,
            "<p>The HTTP request was sent to HTTPS port",
            b"text/html",
            "400: this port speaks https",
            False,
        ),
        (404, "No such\x1b[31m service\nsecond line", b"text/plain", r"404: No such\[31m service\n", True),
        (403, "x" * 5000, b"text/plain", "403: x{200}\n", False),
        (404, "<html/>", b"text/html", "404 and no document\n", True),
    ],
)
async def test_an_answer_without_a_wsdl_is_told_in_its_own_words(
    status: int, content: str, media: bytes, told: str, asks_for_wsdl: bool
) -> None:
    server = HTTPServer()
    await server.start(lambda exchange: exchange.respond(status, content.encode(), media), "127.0.0.1", 0)
    with pytest.raises(TransportError, match=f"responded with {told}") as raised:
        await Source.from_wsdl(f"http://127.0.0.1:{server.port}/", ":memory:")
    await server.close()
    assert ("?wsdl" in raised.value.remedy) == asks_for_wsdl


async def test_imports_lead_nowhere_else(tmp_path: Path) -> None:
    asked: list[tuple[str, bytes]] = []
    async with documents({"/b": BINDING.format(main="/", output="")}, asked) as other:
        found = {"/": MAIN.format(imported=f"{other}/b", url="http://x/")}
        for number in range(110):
            found[f"/{number}"] = BINDING.format(main=f"/{number + 1}", output="")
        async with documents(found, []) as host:
            with pytest.raises(ConfigurationError, match="is in another place, so it is not loaded") as caught:
                await Source.from_wsdl(f"{host}/")
            assert f"{host}/?singleWsdl" in caught.value.remedy
            with pytest.raises(ConfigurationError, match="more than 100 documents"):
                await Source.from_wsdl(f"{host}/0")
        (tmp_path / "main.wsdl").write_text(MAIN.format(imported=f"{other}/b", url="http://x/"))
        with pytest.raises(ConfigurationError, match="is in another place, so it is not loaded"):
            await Source.from_wsdl(tmp_path / "main.wsdl")
    assert asked == []
    with pytest.raises(ConfigurationError, match=r"nowhere\.wsdl cannot be read"):
        await Source.from_wsdl(tmp_path / "nowhere.wsdl")


USER_NAME = """<sp:SupportingTokens xmlns:sp="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"><wsp:Policy>
      <sp:UsernameToken><wsp:Policy>{password}</wsp:Policy></sp:UsernameToken></wsp:Policy></sp:SupportingTokens>"""
BACKOFF = """<m:RetransmissionConfig xmlns:m="http://java.sun.com/xml/ns/metro/ws-rx/wsrmp/200702">
      <m:Interval Milliseconds="3000"/><m:Algorithm>Exponential</m:Algorithm></m:RetransmissionConfig>"""


async def test_a_demand_for_a_user_name_is_met_by_a_source_that_has_one(serve: Any, tmp_path: Path) -> None:
    got: list[str] = []
    app = Destination(":memory:", processors=[UsernameTokenValidator({"alice": "secret"})])
    app.on(ACTION)(lambda message: got.append(message.user))
    url = (await serve(app)).url
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="b.wsdl", url=url))
    for password, is_digest in (("", False), ("<sp:HashPassword/>", True)):
        demands = USER_NAME.format(password=password) + "</wsp:Policy>\n  </wsdl:binding>"
        binding = BINDING.format(main="main.wsdl", output="").replace("</wsp:Policy>\n  </wsdl:binding>", demands)
        (tmp_path / "b.wsdl").write_text(binding)
        wrong = UsernameToken("alice", "secret", digest=not is_digest)
        for processors in ((), [wrong]):
            with pytest.raises(ConfigurationError, match=r"a user name and .*, line 10 of .*b\.wsdl") as caught:
                await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:", processors=processors)
            said = "Remove digest=True from" if processors and not is_digest else "processors=[holdfast.UsernameToken("
            assert said in caught.value.remedy
        right = (UsernameToken("alice", "secret", digest=one) for one in (is_digest,))
        async with await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:", processors=right) as source:
            await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    assert got == ["alice", "alice"]


async def test_the_timers_of_the_policy_are_those_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="b.wsdl", url="http://host/"))
    binding = BINDING.format(main="main.wsdl", output="").replace("<r:RMAssertion", f"{BACKOFF}<r:RMAssertion", 1)
    (tmp_path / "b.wsdl").write_text(binding)
    found = (await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:")).policy.retransmission
    assert (found.initial, found.floor, found.steady) == (3.0, 3.0, 1)


ORDERS = Path(__file__).parents[3] / "examples" / "orders.wsdl"


async def test_a_source_with_a_store_in_memory_cannot_wait_for_its_wsdl() -> None:
    with pytest.raises(TransportError) as caught:
        await Source.from_wsdl("http://127.0.0.1:9/?wsdl", ":memory:")
    assert "Source.from_wsdl(file, store, to=url)" in caught.value.remedy


async def test_a_saved_wsdl_stores_calls_while_the_service_is_down(tmp_path: Path) -> None:
    async with await Source.from_wsdl(ORDERS, tmp_path / "outbox", to="http://127.0.0.1:9/") as source:
        await source.call("CancelOrder", number=1)
        assert source.progress.stored == 1


def test_the_blocking_source_reads_a_wsdl_too(tmp_path: Path) -> None:
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="b.wsdl", url="http://127.0.0.1:9/"))
    (tmp_path / "b.wsdl").write_text(BINDING.format(main="main.wsdl", output=""))
    with holdfast.sync.Source.from_wsdl(tmp_path / "main.wsdl", store=tmp_path / "outbox") as source:
        assert source.send("<n>1</n>", action=ACTION).offset == 0
        assert source.progress.stored == 1


async def test_a_wsdl_without_a_policy_of_reliable_messaging_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main, binding = MAIN.format(imported="b.wsdl", url="http://host/"), BINDING.format(main="main.wsdl", output="")
    (tmp_path / "main.wsdl").write_text(main)
    for is_reliable in (True, False):
        start, end = binding.index("<wsp:Policy>"), binding.rindex("</wsp:Policy>") + len("</wsp:Policy>")
        (tmp_path / "b.wsdl").write_text(binding if is_reliable else binding[:start] + binding[end:])
        caplog.clear()
        await Source.from_wsdl(tmp_path / "main.wsdl", tmp_path / f"outbox{is_reliable}")
        told = [line for line in caplog.messages if "wsdl.no_rm_policy" in line]
        assert len(told) == (0 if is_reliable else 1)
        assert is_reliable or "url='http://host/'" in told[0]


MC_SUPPORTED = '<mc:MCSupported xmlns:mc="http://docs.oasis-open.org/ws-rx/wsmc/200702"{}/>'


@pytest.mark.parametrize(
    ("optional", "poll", "expected"),
    [("", None, True), ("", True, True), (' wsp:Optional="true"', None, None), (' wsp:Optional="true"', True, True)],
)
async def test_a_source_polls_a_service_that_demands_it(
    tmp_path: Path, optional: str, poll: bool | None, expected: bool | None
) -> None:
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="binding.wsdl", url="http://h/"))
    demanded = f"</r:RMAssertion>{MC_SUPPORTED.format(optional)}"
    binding = BINDING.format(main="main.wsdl", output=OUTPUT).replace("</r:RMAssertion>", demanded)
    (tmp_path / "binding.wsdl").write_text(binding)
    source = await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:", http=SourceHTTP(poll=poll))
    assert source._http.poll is expected
    if not optional:
        for http in (SourceHTTP(poll=False), SourceHTTP(listen=("127.0.0.1", 0))):
            with pytest.raises(ConfigurationError, match="MCSupported") as raised:
                await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:", http=http)
            assert "the Source then polls" in raised.value.remedy


async def test_a_source_that_listens_meets_the_policy_of_a_service_with_callbacks(tmp_path: Path, serve: Any) -> None:
    """As WCF's WSDualHttpBinding: what the service has to say is posted, and its HTTP responses are empty."""
    app = Destination(":memory:", http=holdfast.DestinationHTTP(allow_addresses=["http://127.0.0.1"]))
    app.on(ACTION)(lambda message: f"<done>{message.body.text}</done>")
    url = (await serve(app)).url
    duplex = (
        '</r:RMAssertion><c:CompositeDuplex xmlns:c="http://schemas.microsoft.com/net/2006/06/duplex"/>'
        '<o:OneWay xmlns:o="http://schemas.microsoft.com/ws/2005/05/routing/policy"/>'
    )
    binding = BINDING.format(main="main.wsdl", output="").replace("</r:RMAssertion>", duplex)
    (tmp_path / "binding.wsdl").write_text(binding)
    (tmp_path / "main.wsdl").write_text(MAIN.format(imported="binding.wsdl", url=url))
    with pytest.raises(ConfigurationError, match="CompositeDuplex") as raised:
        await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:")
    assert "SourceHTTP(listen=(host, port))" in raised.value.remedy
    http = SourceHTTP(listen=("127.0.0.1", 0))
    async with await Source.from_wsdl(tmp_path / "main.wsdl", ":memory:", http=http) as source:
        reply = await source.request("<m>1</m>", action=ACTION, timeout=240)
        assert reply.body.text == "1"
        (outbox,) = app.running.engine.protocol.outbound.outboxes.values()
        assert outbox.answers is not None, "the service sends in the Sequence that the source offered"
        assert outbox.to is not None and outbox.to.startswith("http://127.0.0.1:")
