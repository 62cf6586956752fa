"""The WSDLs of the services behind a broker, served with its address and policy.

Covers endpoint/destination/forwarded_services.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import zeep
from broker_cluster import Brokers
from crew import Crew
from lxml import etree
from order_service import WSDL, Orders, in_one_document
from waiting import until

from holdfast import ConfigurationError, Source, UsernameToken
from holdfast.broker.config import RouteConfig
from holdfast.broker.config_file import parse_config
from holdfast.broker.routing import Router
from holdfast.endpoint.destination import forwarded_services
from holdfast.endpoint.destination.forwarded_services import FETCH_SECONDS, ForwardedServices, ServiceWSDL
from holdfast.endpoint.destination.wsdl import address_of
from holdfast.exceptions import ConfigurationMistakes
from holdfast.http.exchange import Request
from holdfast.http.outcome import TransportError
from holdfast.testing.ports import free_ports
from holdfast.wire.policy.expressions import POLICY
from holdfast.wire.wsdl import WSDL as WSDL_NAMESPACE
from holdfast.wire.wsdl import Description
from holdfast.wsdl.documents import XML_NAMESPACE
from holdfast.zeep import Transport

SERVED = Path(__file__).parents[1] / "data" / "wsdl" / "served"
LINE = {"item": "nail", "quantity": 3}
CONFIG = """
store = "broker"
partitions = 2
listen.port = 0
admin.port = 0
[queues.orders]
[queues.bills]
{more}
[forwarders.next]
queue = "orders"
to = "{to}"
wsdl = "{wsdl}"
"""


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        answer = await client.get(url)
    assert (answer.headers.get("Cache-Control") == "no-store") is (b"http://" in answer.content), "its host, for others"
    return answer


async def described(url: str) -> Description:
    """Read a WSDL without its schemas."""
    made = Description()
    answer = await get(url)
    assert answer.status_code == 200, answer.text
    made.add(answer.content, url)
    return made


async def call_by_name(url: str) -> None:
    """Call operations of the service by the WSDL at a URL."""
    async with await Source.from_wsdl(url, ":memory:") as source:
        assert source.to == url.partition("?")[0]
        answer = await source.call("SubmitOrder", customer="Åsa", lines=[LINE], wanted=None)
        assert answer == {"number": 1, "total": Decimal("12.50")}
        await (await source.call("CancelOrder", number=7)).acknowledged(60)


async def test_clients_call_a_service_by_the_wsdl_that_its_broker_serves(start: Any, run_service: Any) -> None:
    orders = Orders()
    service = await run_service(orders.app)
    broker = await start(CONFIG.format(to=service.url, wsdl=WSDL, more=""))
    url = f"{broker.service.url}orders?wsdl"
    await call_by_name(url)
    await until(lambda: orders.cancelled == [7])

    def call_with_zeep() -> Any:
        with Transport(store=":memory:") as transport:
            return zeep.Client(url, transport=transport).service.Price("nail", "USD")

    assert await asyncio.to_thread(call_with_zeep) == Decimal("1.40")


async def test_behind_a_gateway_each_service_has_its_public_url(start: Any, tmp_path: Path) -> None:
    """The gateway sends https://api.example/soap/orders to /orders of the broker, and may say anything in headers."""
    routes = """
[[routes]]
to = "https://api.example/soap/orders"
queues = "orders"
[[routes]]
to = "https://api.example/soap/bills"
queues = "bills"
[forwarders.other]
queue = "bills"
to = "http://127.0.0.1:9/"
wsdl = "{wsdl}"
""".replace("{wsdl}", str(WSDL))
    text = CONFIG.format(to="http://127.0.0.1:9/", wsdl=WSDL, more=routes)
    listening = "listen.port = 0\nlisten.public_url = '{}'"
    broker = await start(text.replace("listen.port = 0", listening.replace("{}", "https://api.example/soap{path}")))

    async def ask(path: str) -> list[str]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{broker.service.url}{path}", headers={"X-Forwarded-Host": "proxy.example"})
        root = etree.fromstring(answer.content)
        assert b"127.0.0.1" not in answer.content and b"proxy.example" not in answer.content
        return [str(one) for one in root.xpath("//@location | //@schemaLocation")]

    for path, name in (("orders", "next"), ("bills", "other")):
        address = f"https://api.example/soap/{path}"
        assert set(await ask(f"{path}?wsdl")) == {address, f"{address}?xsd={name}/1"}
    assert set(await ask("elsewhere?wsdl")) == {"https://api.example/soap/elsewhere"}, "a generated one"
    moved = "https://new.example/orders"
    (tmp_path / "broker.toml").write_text(text.replace("listen.port = 0", listening.replace("{}", moved)))
    assert broker.reload() == ["listen.public_url"]
    assert set(await ask("any?wsdl")) == {moved}


async def test_a_service_may_be_down_while_its_wsdl_is_read_from_a_file(start: Any) -> None:
    (port,) = free_ports(1)
    broker = await start(CONFIG.format(to=f"http://127.0.0.1:{port}/", wsdl=WSDL, more=""))
    async with await Source.from_wsdl(f"{broker.service.url}?wsdl", ":memory:") as source:
        await (await source.call("CancelOrder", number=7)).acknowledged(60)


async def test_the_policy_is_the_one_of_the_broker_and_nothing_is_left_of_the_service(start: Any) -> None:
    """The files are WSDLs of CXF and Metro with other policies, in WS-Policy 1.2 and 1.5."""
    files = sorted(SERVED.iterdir())
    forwarder = "[forwarders.{}]\nqueue = 'orders'\nto = 'http://service.example/'\nwsdl = '{}'\n"
    more = "".join(forwarder.format(one.stem, one) for one in files)
    broker = await start(CONFIG.format(to="http://service.example/", wsdl=WSDL, more=more))
    url = broker.service.url
    expected = (await described(f"{url}?wsdl=next")).port()
    for name in (one.stem for one in files):
        for version in ("1.5", "1.2"):
            served = f"{url}?wsdl={name}&policy={version}"
            port = (await described(served)).port()
            assert (port.address, port.is_reliable, port.needs, port.settings) == (url, True, (), expected.settings)
            text = (await get(served)).text
            root = etree.fromstring(text.encode())
            (policy,) = (one for one in root.iter("{*}Policy") if one.getparent().tag.endswith("}binding"))
            assert policy.tag == f"{{{POLICY[version == '1.2']}}}Policy"
            assert all(policy in (one, *one.iterancestors()) for one in root.iter("{*}Policy", "{*}PolicyReference"))
            assert not [one for one in root.iter("*") if any(name.endswith("}PolicyURIs") for name in one.attrib)]
            assert not [one for one in root.iter("*") if "securitypolicy" in one.tag or "metro" in one.tag]
            assert "://127.0.0.1" not in text.replace(url, "")


async def test_the_policy_demands_what_the_listener_demands(start: Any, run_service: Any, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("alice:secret\n")
    orders = Orders()
    service = await run_service(orders.app)
    text = CONFIG.format(to=service.url, wsdl=WSDL, more="[security]\nusers = 'users.txt'\n")
    broker = await start(text)
    url = f"{broker.service.url}?wsdl"
    with pytest.raises(ConfigurationError, match="a user name and password in each message"):
        await Source.from_wsdl(url, ":memory:")
    async with await Source.from_wsdl(url, ":memory:", processors=[UsernameToken("alice", "secret")]) as source:
        assert await source.call("Price", item="nail") == Decimal("1.25")
    (tmp_path / "broker.toml").write_text(text.replace("[security]\nusers = 'users.txt'\n", ""))
    broker.reload()
    async with await Source.from_wsdl(url, ":memory:") as source:
        assert source.to == broker.service.url


async def test_a_demand_for_mtom_stays_because_the_broker_forwards_bodies_as_they_are(
    start: Any, tmp_path: Path
) -> None:
    mtom = '<m:MTOM xmlns:m="http://www.w3.org/2007/08/soap12-mtom-policy"/>'
    policy = f'<p:Policy xmlns:p="{POLICY[0]}">{mtom}</p:Policy><soap:binding '
    given = in_one_document().decode().replace("<soap:binding ", policy)
    (tmp_path / "mtom.wsdl").write_text(given)
    broker = await start(CONFIG.format(to="http://service.example/", wsdl="mtom.wsdl", more=""))
    for version in ("1.5", "1.2"):
        assert (await described(f"{broker.service.url}?wsdl&policy={version}")).port().is_mtom
    (tmp_path / "mtom.wsdl").write_text(given.replace("soap12-mtom-policy'", "").replace(mtom, ""))
    broker.reload()
    assert not (await described(f"{broker.service.url}?wsdl")).port().is_mtom


IMPORTING = """<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:t="urn:orders"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" targetNamespace="urn:orders">
  <import namespace="urn:orders" location="parts/abstract%20part.wsdl"/>
  <service name="S"><port name="P" binding="t:{binding}"><soap:address location="http://service.internal/"/></port>
    <port name="Q" binding="t:{binding}"><soap:address location="jms://service.internal/"/></port>
  </service></definitions>"""


async def test_imported_documents_are_served_with_the_broker_s_address(
    start: Any, run_service: Any, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    abstract = etree.fromstring(WSDL.read_bytes())
    (service,) = abstract.findall("{*}service")
    binding = service[0].get("binding").rpartition(":")[2]
    abstract.remove(service)
    (tmp_path / "parts" / "abstract part.wsdl").write_bytes(etree.tostring(abstract))
    (tmp_path / "parts" / "orders.xsd").write_bytes((WSDL.parent / "orders.xsd").read_bytes())
    (tmp_path / "service.wsdl").write_text(IMPORTING.format(binding=binding))
    orders = Orders()
    upstream = await run_service(orders.app)
    broker = await start(CONFIG.format(to=upstream.url, wsdl="service.wsdl", more=""))
    url = f"{broker.service.url}orders"
    main = await get(f"{url}?wsdl")
    assert "service.internal" not in main.text and f"{url}?wsdl=next/1" in main.text
    assert f"{url}?xsd=next/2" in (await get(f"{url}?wsdl=next/1")).text
    await call_by_name(f"{url}?wsdl")
    for no_document in (
        "?wsdl=next/4",
        "?wsdl=next/-1",
        "?wsdl=next/9999999999999",
        "?xsd=next/x",
        "?wsdl=next/²",
        "?wsdl=other",
        "?xsd=orders.xsd",
        "?xsd=",
    ):
        assert (await get(f"{url}{no_document}")).status_code == (200 if no_document == "?xsd=" else 404)


@pytest.mark.parametrize("location", ["xml.xsd", "/schemas/xml.xsd", "http://www.w3.org/2001/xml.xsd"])
async def test_the_schema_of_the_xml_namespace_is_served_too(start: Any, tmp_path: Path, location: str) -> None:
    given = in_one_document()
    at = given.index(b">", given.index(b"<xs:schema")) + 1
    imported = f'<xs:import namespace="{XML_NAMESPACE}" schemaLocation="{location}"/>'.encode()
    (tmp_path / "service.wsdl").write_bytes(given[:at] + imported + given[at:])
    broker = await start(CONFIG.format(to="http://service.example/", wsdl="service.wsdl", more=""))
    root = etree.fromstring((await get(f"{broker.service.url}orders?wsdl")).content)
    (element,) = (one for one in root.iter("{*}import") if one.get("namespace") == XML_NAMESPACE)
    schema = etree.fromstring((await get(element.get("schemaLocation", ""))).content)
    assert schema.get("targetNamespace") == XML_NAMESPACE
    assert {"lang", "space", "base", "id"} <= {one.get("name") for one in schema}


ROUTES = """
[[routes]]
to = "*/orders"
queues = "orders"
[[routes]]
to = "*/both"
queues = ["orders", "bills"]
[[routes]]
to = "*/bills"
action = "urn:orders*"
header = { name = "Tenant" }
queues = "bills"
[forwarders.second]
queue = "bills"
to = "http://bills.example/"
wsdl = "WSDL"
"""


async def test_each_address_has_the_wsdl_of_the_service_that_its_messages_reach(start: Any) -> None:
    more = ROUTES.replace("WSDL", str(WSDL))
    broker = await start(CONFIG.format(to="http://service.example/", wsdl=SERVED / "sign.wsdl", more=more))
    url = broker.service.url
    assert "urn:live:seq/put" in (await described(f"{url}orders?wsdl")).operations()
    assert "urn:orders/CancelOrder" in (await described(f"{url}bills?wsdl")).operations()
    assert not (await described(f"{url}elsewhere?wsdl")).operations()
    assert (await get(f"{url}elsewhere?wsdl=next")).status_code == 404
    several = await get(f"{url}both?wsdl")
    assert several.status_code == 404
    urls = [one for one in several.text.split() if one.startswith("http")]
    assert urls == [f"{url}both?wsdl=second", f"{url}both?wsdl=next"]
    assert "urn:orders/CancelOrder" in (await described(urls[0])).operations()
    assert (await get(f"{url}orders?wsdl=second")).status_code == 404
    hidden = await get(f"{url}orders?wsdl=second/0")
    assert hidden.status_code == 404


async def test_a_wsdl_at_a_url_is_fetched_when_it_is_needed_and_kept(
    start: Any, run_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_services, "MOST_AWAY_SECONDS", 0)
    (port,) = free_ports(1)
    at = f"http://127.0.0.1:{port}/"
    broker = await start(CONFIG.format(to=at, wsdl=f"{at}?wsdl", more=""))
    url = f"{broker.service.url}orders?wsdl"
    away = await get(url)
    assert away.status_code == 503 and int(away.headers["retry-after"]) > 0
    assert at not in away.text
    orders = Orders()
    service = await run_service(orders.app, port)
    assert {one.status_code for one in await asyncio.gather(*(get(url) for _ in range(5)))} == {200}
    await call_by_name(url)
    await service.close(0.5)
    assert (await get(url)).status_code == 200


class Asking:
    """A client that asks for a WSDL, without a server."""

    def __init__(self, services: ForwardedServices, target: str, host: str = "broker") -> None:
        self.request = Request("GET", target, {b"host": host.encode()}, b"", None, False)
        self.answers: list[int] = []
        self.content = b""
        otherwise = lambda exchange: exchange.respond(404, b"")  # noqa: E731
        services.give(self, address_of(self.request), otherwise)  # type: ignore[arg-type]

    def respond(self, status: int, content: bytes, *_: Any) -> None:
        self.answers.append(status)
        self.content = content

    async def answered(self) -> int:
        await until(lambda: bool(self.answers))
        (status,) = self.answers
        return status


class Upstream:
    """Returns a WSDL, or raises an error, when it is let."""

    def __init__(self, result: bytes | BaseException, *, is_slow: bool = False) -> None:
        self.result, self.fetched, self.seconds = result, 0, list[float]()
        self.goes_on = threading.Event()
        if not is_slow:
            self.goes_on.set()

    def __call__(self, seconds: float) -> Callable[[str], bytes]:
        self.seconds.append(seconds)
        return self.fetch

    def fetch(self, _url: str) -> bytes:
        self.fetched += 1
        assert self.goes_on.wait(60)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


AWAY = TransportError("it is away", connected=False)
TO = [RouteConfig(queues=(name,), to=(f"*/{name}",)) for name in ("a", "b")]


def behind(clock: Callable[[], float] = time.monotonic, **upstreams: Upstream) -> ForwardedServices:
    """Each service is behind the address that ends with its name."""
    made = ForwardedServices(lambda _address, _version: "", Router(TO, {}, None, 1), clock)
    for name, upstream in upstreams.items():
        made.add(name, name, ServiceWSDL(f"http://{name}.example/?wsdl"), upstream)
    return made


@pytest.mark.parametrize(
    "failure",
    [AWAY, ValueError("unexpected"), RecursionError(), b"<a", b"<a xmlns='{x}y'/>", b"<html>"],
    ids=lambda one: f"{one!r:.30}",
)
async def test_whatever_keeps_a_wsdl_from_being_fetched_each_client_is_answered(
    failure: bytes | BaseException,
) -> None:
    now = 0.0
    upstream = Upstream(failure)
    services = behind(lambda: now, a=upstream)
    asking = [Asking(services, "/a?wsdl") for _ in range(3)]
    assert [await one.answered() for one in asking] == [503] * 3
    assert upstream.fetched == 1
    upstream.result = in_one_document()
    assert await Asking(services, "/a?wsdl").answered() == 503  # it is not asked again at once
    assert upstream.fetched == 1
    now = 5.0
    assert await Asking(services, "/a?wsdl").answered() == 200


async def test_the_pause_after_failures_grows_to_a_minute() -> None:
    now = 0.0
    upstream = Upstream(AWAY)
    services = behind(lambda: now, a=upstream)
    times = []
    while now < 400:
        before = upstream.fetched
        assert await Asking(services, "/a?wsdl").answered() == 503
        times += [now] if upstream.fetched > before else []
        now += 5
    assert times == [0, 5, 15, 35, 75, 135, 195, 255, 315, 375]


async def test_an_error_while_one_client_is_answered_strands_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    services = behind(a=Upstream(in_one_document()))
    monkeypatch.setattr(ServiceWSDL, "write", lambda *_: 1 / 0)
    asking = [Asking(services, f"/a?wsdl{more}") for more in ("", "=a/2", "=a/0", "=b")]
    assert [await one.answered() for one in asking] == [500, 404, 500, 404]
    monkeypatch.undo()
    assert await Asking(services, "/a?wsdl").answered() == 200


async def test_a_service_that_is_slow_delays_no_other() -> None:
    slow, fast = Upstream(in_one_document(), is_slow=True), Upstream(in_one_document())
    services = behind(a=slow, b=fast)
    waiting = Asking(services, "/a?wsdl")
    await until(lambda: slow.fetched == 1)
    assert await Asking(services, "/b?wsdl").answered() == 200
    assert await Asking(services, "/elsewhere?wsdl").answered() == 404
    assert not waiting.answers
    slow.goes_on.set()
    assert await waiting.answered() == 200


async def test_clients_that_wait_for_a_wsdl_are_answered_at_a_reload_and_at_the_stop(start: Any) -> None:
    asked: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0) as silent:
        at = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
        broker = await start(CONFIG.format(to="http://service.example/", wsdl=at, more=""))
        for count, end in ((1, broker.reload), (2, None)):
            waiting = asyncio.create_task(get(f"{broker.service.url}?wsdl"))
            await until(lambda count=count: len(asked) == count)
            if end is None:
                await broker.service.close(60)
            else:
                end()
            assert (await waiting).status_code == 503
            assert not asked[-1].transport.is_closing()  # the answer did not wait for the service
        for one in asked:
            one.close()


async def test_all_documents_of_a_wsdl_are_fetched_within_one_deadline() -> None:
    now = 0.0

    class Endless(Upstream):
        """Its WSDL imports a document, which imports another one, and so on. Each takes three seconds."""

        def fetch(self, _url: str) -> bytes:
            nonlocal now
            now += 3
            return f'<definitions xmlns="{WSDL_NAMESPACE}"><import location="{now}.wsdl"/></definitions>'.encode()

    endless = Endless(b"")
    assert await Asking(behind(lambda: now, a=endless), "/a?wsdl").answered() == 503
    assert endless.seconds == [FETCH_SECONDS, FETCH_SECONDS - 3, FETCH_SECONDS - 6, FETCH_SECONDS - 9]


async def test_a_document_is_written_once_for_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], ServiceWSDL.write
    monkeypatch.setattr(ServiceWSDL, "write", lambda *given: written.append(given[1]) or write(*given))
    asked, reachable = [], Router.reachable
    monkeypatch.setattr(Router, "reachable", lambda *given: asked.append(given[1]) or reachable(*given))
    services = behind(a=Upstream(in_one_document()))
    for number in range(100):
        asking = Asking(services, f"/{number}/a?wsdl", f'h{number}&"<')
        assert await asking.answered() == 200
        description = Description()
        description.add(asking.content, "here")
        assert description.port().address == f'http://h{number}&"</{number}/a'
    assert written == [0]
    assert len(asked) - asked.count(None) == len(set(asked)) - 1


def mistakes(more: str, base: Path) -> list[str]:
    text = '[queues.orders]\n[forwarders.next]\nqueue = "orders"\nto = "http://service.example/"\n' + more
    with pytest.raises(ConfigurationMistakes) as caught:
        parse_config(text.encode(), "broker.toml", base)
    return [str(one) for one in caught.value.mistakes]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "service.wsdl cannot be read: No such file or directory. Check the path."),
        ("<a/>", "its root is a"),
        ("<a", "is not a WSDL or XML schema"),
        ("<!DOCTYPE html><html/>", "is an HTML page"),
        ('<description xmlns="http://www.w3.org/ns/wsdl"/>', "it is WSDL 2.0"),
        (IMPORTING.format(binding="B"), "service.wsdl. Check the path."),
        ('<definitions xmlns="http://schemas.xmlsoap.org/wsdl/"/>', "has no port for SOAP over HTTP"),
    ],
)
def test_a_mistake_in_a_wsdl_is_told_with_the_line_of_the_file(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "service.wsdl").write_text(content)
    (found,) = mistakes('wsdl = "service.wsdl"\n', tmp_path)
    assert found.startswith("broker.toml:5: forwarders.next.wsdl: ")
    assert told in found


@pytest.mark.parametrize(
    "value", ['"ftp://service.example/a.wsdl"', '"http://alice:secret@service.example/?wsdl"', "7", '""']
)
def test_a_wrong_place_of_a_wsdl_is_told_with_its_line(tmp_path: Path, value: str) -> None:
    (found,) = mistakes(f"wsdl = {value}\n", tmp_path)
    assert found.startswith("broker.toml:5: forwarders.next.wsdl: ")
    assert "secret" not in found


def test_a_wsdl_of_which_no_operation_is_routed_to_the_service_is_a_mistake(tmp_path: Path) -> None:
    routes = '[[routes]]\naction = "urn:oders/*"\nqueues = "orders"\n'
    (found,) = mistakes(f'wsdl = "{WSDL}"\n{routes}', tmp_path)
    assert found.startswith("broker.toml:5: forwarders.next.wsdl: no route sends an operation of this WSDL")
    assert "urn:orders/CancelOrder" in found


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
async def test_each_worker_serves_the_wsdl(run_service: Any, tmp_path: Path) -> None:
    orders = Orders()
    service = await run_service(orders.app)
    config = CONFIG.format(to=service.url, wsdl=WSDL, more="[admin]\nenabled = false")
    crew = Crew(tmp_path, "--workers", "2", broker=config.replace("admin.port = 0\n", ""))
    try:
        url = f"{await asyncio.to_thread(crew.url)}orders?wsdl"
        found = {(await get(url)).content for _ in range(10)}
        assert len(found) == 1
        await call_by_name(url)
    finally:
        crew.clean()


@pytest.fixture
def service() -> str:
    return ""


@pytest.fixture
def more() -> str:
    """Further lines of the file of a cluster's nodes."""
    return f"[queues.orders]\n[forwarders.next]\nqueue = 'orders'\nto = 'http://service.example/'\nwsdl = '{WSDL}'\n"


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
async def test_each_node_of_a_cluster_serves_the_wsdl(idle: Brokers) -> None:
    await idle.start("a", "b")
    for name in "ab":
        async with await Source.from_wsdl(f"{idle.urls[name]}orders?wsdl", ":memory:") as source:
            await (await source.call("CancelOrder", number=7)).acknowledged(60)
