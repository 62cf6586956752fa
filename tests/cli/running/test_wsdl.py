"""``holdfast wsdl`` in words and as a typed module, and ``holdfast send --operation``.

Covers cli/running/operation_values.py, wsdl/shapes.py, wsdl/stubs.py and wsdl/words.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from header_service import SESSION, USAGE, header_wsdl, in_attachments
from hypothesis import given
from hypothesis import strategies as st
from one_operation import one_operation
from order_service import WSDL, Orders
from signers import issue

import holdfast
from holdfast import Destination, SoapHeaders, SymmetricBindingValidator, UsernameTokenValidator, WithHeaders
from holdfast.cli.running.operation_values import OperationValues
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents


@contextmanager
def served_in_thread(app: Destination) -> Iterator[str]:
    """Serve a destination from a thread, and give its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
    asyncio.run_coroutine_threadsafe(served.start(), loop).result(60)
    yield served.url
    asyncio.run_coroutine_threadsafe(served.close(1.0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def orders() -> Iterator[tuple[Orders, str]]:
    """The service of orders, served from a thread, and its URL."""
    service = Orders()
    with served_in_thread(service.app) as url:
        yield service, url


def test_a_wsdl_is_shown_in_words(run: Any, orders: tuple[Orders, str]) -> None:
    result = run("wsdl", f"{orders[1]}?wsdl")
    assert result.code == 0, result.err
    assert f"Port OrdersPort: {orders[1]}" in result.out
    assert "Reliable messaging is required: WS-ReliableMessaging 1.1" in result.out
    assert "SubmitOrder(customer: string, lines: list of Line, wanted: date, optional) -> Receipt" in result.out
    assert 'Price(item: string, currency: "EUR" or "USD", optional) -> decimal' in result.out
    assert "CancelOrder(number: int), one-way" in result.out
    assert "fault OrderRefused(item: string, limit: int)" in result.out
    assert "Line: item: string, quantity: positiveInteger" in result.out


def test_a_wsdl_is_shown_as_json(run: Any) -> None:
    told = json.loads(run("wsdl", str(WSDL), "--json").out)
    assert [one["name"] for one in told["operations"]] == ["SubmitOrder", "Price", "CancelOrder"]
    assert told["types"]["Receipt"] == "number: int, total: decimal"


DEMANDS = """<wsrmp:RMAssertion wsp:Optional="true"><wsp:Policy><wsrmp:DeliveryAssurance><wsp:Policy>
      <wsrmp:AtLeastOnce/></wsp:Policy></wsrmp:DeliveryAssurance></wsp:Policy></wsrmp:RMAssertion>
      <m:RetransmissionConfig xmlns:m="http://java.sun.com/xml/ns/metro/ws-rx/wsrmp/200702">
      <m:Interval Milliseconds="3000"/><m:Algorithm>Exponential</m:Algorithm></m:RetransmissionConfig>
      <sp:SupportingTokens xmlns:sp="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"><wsp:Policy>
      <sp:UsernameToken/></wsp:Policy></sp:SupportingTokens>"""


def test_a_policy_is_shown_in_words(run: Any, tmp_path: Path) -> None:
    text = WSDL.read_text().replace("<wsrmp:RMAssertion><wsp:Policy/></wsrmp:RMAssertion>", DEMANDS)
    (tmp_path / "orders.wsdl").write_text(text)
    (tmp_path / "orders.xsd").write_text((WSDL.parent / "orders.xsd").read_text())
    shown = run("wsdl", "orders.wsdl").out
    assert "Reliable messaging is possible, not required: WS-ReliableMessaging 1.1" in shown
    assert "Delivery assurance: at-least-once" in shown
    assert "retransmits after 3 seconds, and doubles that time with each retransmission" in shown
    assert "Requires a user name and password in each message: UsernameToken, line" in shown


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ["a user name and password in each message"]),
        ({"conversation": True}, ["a secure conversation with a user name"]),
    ],
)
def test_a_symmetric_binding_is_shown_once_and_in_its_own_words(
    run: Any, tmp_path: Path, options: dict[str, Any], shown: list[str]
) -> None:
    """Its signatures and encrypted parts need no certificate of the source, and no https."""
    users = UsernameTokenValidator({"alice": "secret"})
    policy = SymmetricBindingValidator(*issue("CN=shop").files(tmp_path), users=users, **options).policy(is_https=False)
    binding = "<wsrmp:RMAssertion><wsp:Policy/></wsrmp:RMAssertion>"
    (tmp_path / "orders.wsdl").write_text(WSDL.read_text().replace(binding, binding + policy))
    (tmp_path / "orders.xsd").write_text((WSDL.parent / "orders.xsd").read_text())
    found = re.findall("Requires (.*): ", run("wsdl", "orders.wsdl").out)
    key, suite = "messages signed and encrypted with a symmetric key", "signatures over SHA-256 digests"
    assert sorted(found) == sorted([key, suite, *shown])


def test_a_port_that_cannot_be_used_is_shown_with_the_reason(run: Any, tmp_path: Path) -> None:
    demand = '<sp:SignedElements xmlns:sp="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"/>'
    (tmp_path / "orders.wsdl").write_text(WSDL.read_text().replace("<wsrmp:RMA", f"{demand}<wsrmp:RMA"))
    (tmp_path / "orders.xsd").write_text((WSDL.parent / "orders.xsd").read_text())
    result = run("wsdl", "orders.wsdl")
    assert result.code == 0, result.err
    assert "not usable" in result.out
    assert "Holdfast does not support" in result.out


@pytest.mark.parametrize("name", ["nowhere.wsdl", "http://127.0.0.1:9/?wsdl"])
def test_a_wsdl_that_cannot_be_loaded_is_a_sentence(run: Any, name: str) -> None:
    result = run("wsdl", name)
    assert result.code == 1
    assert name.partition("?")[0] in result.err
    assert "Traceback" not in result.err


@pytest.mark.nightly
def test_a_type_checker_accepts_a_typed_module_and_finds_wrong_calls_of_it(run: Any, tmp_path: Path) -> None:
    assert run("wsdl", str(WSDL), "--stubs", "orders_client.py").code == 0
    (tmp_path / "header.wsdl").write_bytes(header_wsdl())
    assert run("wsdl", "header.wsdl", "--stubs", "header_client.py").code == 0
    (tmp_path / "program.py").write_text(PROGRAM)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-color-output",
            f"--cache-dir={tmp_path / 'cache'}",
            "program.py",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line}
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert {int(line.split(":")[1]) for line in errors if line.startswith("program.py")} == wrong, checked.stdout
    assert all(line.startswith("program.py") for line in errors), checked.stdout


def test_a_typed_module_calls_the_service(run: Any, orders: tuple[Orders, str], tmp_path: Path) -> None:
    result = run("wsdl", f"{orders[1]}?wsdl", "--stubs", "orders_client.py")
    assert (result.code, result.err) == (0, "3 operations written to orders_client.py\n")
    spec = importlib.util.spec_from_file_location("orders_client", tmp_path / "orders_client.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with holdfast.sync.Source.from_wsdl(f"{orders[1]}?wsdl", ":memory:") as source:
        client = module.BlockingOrders(source)
        assert client.SubmitOrder(customer="a", lines=[{"item": "nail", "quantity": 2}])["number"] == 1
        client.CancelOrder(number=1).acknowledged(60)


def test_a_typed_module_replaces_only_one_like_it(run: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import this\n")
    result = run("wsdl", str(WSDL), "--stubs", "mine.py")
    assert (result.code, mine.read_text()) == (1, "import this\n")
    assert "mine.py exists" in result.err
    mine.write_text("")
    for _ in range(2):
        assert run("wsdl", str(WSDL), "--stubs", "mine.py").code == 0
    assert "class Orders" in mine.read_text()


@pytest.mark.nightly
def test_a_type_checker_accepts_a_typed_module_with_names_of_python_or_of_its_own(run: Any, tmp_path: Path) -> None:
    names = ["self", "class", "a-b", "_x", "value", "operation", "In", "list", "str", "int", "dict", "datetime", "cast"]
    names += ["Any", "Decimal", "Literal", "TypedDict", "NotRequired", "holdfast", "collections", "_source", "None"]
    fields = "".join(f'<xs:element name="{name}" type="xs:dateTime" minOccurs="0" maxOccurs="2"/>' for name in names)
    types = "".join(
        f'<xs:complexType name="{name}"><xs:sequence>{fields}</xs:sequence></xs:complexType>' for name in names
    )
    inner = "".join(f'<xs:element name="{name}" type="v:{name}" minOccurs="0" maxOccurs="2"/>' for name in names)
    schema = f'<xs:element name="In"><xs:complexType><xs:sequence>{inner}</xs:sequence></xs:complexType></xs:element>'
    text = one_operation(types + schema)
    operations = re.findall(r"<wsdl:operation.*?</wsdl:operation>", text, re.DOTALL)
    for one in operations:
        text = text.replace(one, "".join(one.replace('"Do"', f'"{name}"').replace("/Do", f"/{name}") for name in names))
    (tmp_path / "odd.wsdl").write_text(text)
    assert run("wsdl", "odd.wsdl", "--stubs", "odd.py").code == 0
    mypy = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", "odd.py"]
    checked = subprocess.run(mypy, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_an_operation_that_is_not_usable_is_shown_with_the_reason(run: Any, tmp_path: Path) -> None:
    (tmp_path / "orders.xsd").write_bytes((WSDL.parent / "orders.xsd").read_bytes())
    text = WSDL.read_text().replace(
        '<wsdl:part name="parameters" element="o:CancelOrder"', '<wsdl:part name="p" element="o:No"'
    )
    assert text != WSDL.read_text()
    (tmp_path / "orders.wsdl").write_text(text)
    result = run("wsdl", "orders.wsdl")
    assert (result.code, result.err) == (0, "")
    assert "CancelOrder: not usable, because the element o:No of the message" in result.out
    assert list(json.loads(run("wsdl", "orders.wsdl", "--json").out)["unusable"]) == ["CancelOrder"]
    told = run("wsdl", "orders.wsdl", "--stubs", "a.py").err
    assert told.startswith("2 operations written to a.py\nCancelOrder is not usable, because")


PROGRAM = """
import datetime
from decimal import Decimal

import holdfast
from header_client import DoReplyHeaders, T
from orders_client import BlockingOrders, Line, Orders


async def main(source: holdfast.Source) -> None:
    orders = Orders(source)
    lines: list[Line] = [{"item": "nail", "quantity": 3}]
    receipt = await orders.SubmitOrder(customer="a", lines=lines, wanted=datetime.date(2026, 1, 2))
    total: Decimal = receipt["total"]
    sent = await orders.CancelOrder(number=receipt["number"])
    await sent.acknowledged(60)
    await orders.Price(item="nail", currency="EUR", _headers=b"", _attachments=[holdfast.Attachment(b"a")])
    await orders.Price(item="nail", currency="GBP")  # wrong: not one of the schema's
    await orders.SubmitOrder(customer="a")  # wrong: no lines
    number: str = receipt["number"]  # wrong: an int


async def with_headers(source: holdfast.Source) -> None:
    told: DoReplyHeaders = {}
    await T(source).Do(number=1, _headers={"Session": {"key": "a"}, "Trace": None}, _reply_headers=told)
    await T(source).Do(number=1, _headers=b"<a/>")
    await T(source).Note(number=1)
    await T(source).Do(number=1)  # wrong: the header Session is required
    await T(source).Do(number=1, _headers={"Session": {"kee": "a"}})  # wrong
    await T(source).Do(number=1, _headers={"Sesion": {"key": "a"}})  # wrong


def blocking(source: holdfast.sync.Source) -> Decimal:
    return BlockingOrders(source).Price(item="nail")
"""


def test_names_that_python_does_not_allow_are_changed_and_cannot_inject_code(run: Any, tmp_path: Path) -> None:
    text = WSDL.read_text().replace("Submits an order and returns its receipt.", '"""; import os #\\')
    (tmp_path / "orders.wsdl").write_text(text.replace('operation name="CancelOrder"', 'operation name="class"'))
    schema = (WSDL.parent / "orders.xsd").read_text()
    schema = schema.replace('name="item"', 'name="from"').replace('name="limit"', 'name="a-b"')
    schema = schema.replace('value="USD"', """value="&quot;]; import os #" """)
    (tmp_path / "orders.xsd").write_text(schema)
    assert run("wsdl", "orders.wsdl", "--stubs", "client.py").code == 0
    written = (tmp_path / "client.py").read_text()
    code = compile(written, "client.py", "exec")
    assert "os" not in code.co_names
    assert "def class_(self" in written
    assert '{"from": from_}' in written


# --- send -------------------------------------------------------------------------------------------------------------

ORDER = {"customer": "a", "lines": [{"item": "nail", "quantity": 3}], "wanted": "2026-01-02"}


def test_values_in_a_file_are_sent_and_the_reply_is_json(run: Any, orders: tuple[Orders, str], tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    result = run("send", "--wsdl", f"{orders[1]}?wsdl", "--operation", "SubmitOrder", "--json", "order.json")
    assert result.code == 0, result.err
    reply, counts = map(json.loads, result.out.splitlines())
    assert reply == {"number": 1, "total": "12.50"}
    assert (counts["stored"], counts["acknowledged"]) == (1, 1)
    assert orders[0].submitted[0]["customer"] == "a"


def test_each_line_of_json_is_a_call(run: Any, orders: tuple[Orders, str], tmp_path: Path) -> None:
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"number": {n}}}\n' for n in range(5)))
    wsdl = ("--wsdl", f"{orders[1]}?wsdl", "--operation", "CancelOrder")
    result = run("send", *wsdl, "--jsonl", "--json", "numbers.jsonl")
    assert result.code == 0, result.err
    assert json.loads(result.out)["acknowledged"] == 5


def test_headers_in_json_are_those_of_the_message_and_of_the_reply(run: Any, tmp_path: Path) -> None:
    app, seen = Destination(":memory:", wsdl=header_wsdl()), []

    @app.operation("Do")
    def do(number: int, headers: SoapHeaders) -> Any:
        seen.append(headers["Session"])
        return WithHeaders(number, {"Usage": USAGE})

    (tmp_path / "a.json").write_text('{"number": 3, "@headers": {"Session": {"key": "Åsa", "hop": [1.50], "of": 7}}}')
    (tmp_path / "b.json").write_text('{"number": 3}')
    with served_in_thread(app) as url:
        send = ("send", "--wsdl", f"{url}?wsdl", "--operation", "Do")
        result, refused = run(*send, "a.json"), run(*send, "b.json")
    assert json.loads(result.out) == {"_value_1": 3, "@headers": {"Usage": {"left": "2.5"}}}, result.err
    assert (seen, refused.code) == ([SESSION], 1)
    assert "requires the header Session" in refused.err and "@headers" in refused.err


def test_binary_values_of_a_reply_are_printed_though_they_are_attachments(run: Any, tmp_path: Path) -> None:
    app = Destination(":memory:", wsdl=header_wsdl())
    app.on("urn:h/Do")(lambda message: in_attachments(1234, 5678))
    (tmp_path / "a.json").write_text('{"number": 3, "@headers": {"Session": {"key": "a"}}}')
    with served_in_thread(app) as url:
        result = run("send", "--wsdl", f"{url}?wsdl", "--operation", "Do", "a.json")
    assert json.loads(result.out) == {"_value_1": 1234, "@headers": {"Usage": {"left": "5678"}}}, result.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no", "is not JSON"),
        ("[1]", "not an object but list"),
        ('{"customer": "a", "lines": [{"item": "nail", "quantity": -1}]}', "'quantity': '-1'"),
        ('{"custmer": "a"}', "custmer"),
    ],
)
def test_values_that_do_not_fit_are_named_and_not_sent(
    run: Any, orders: tuple[Orders, str], tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "order.json").write_text(text)
    result = run("send", "--wsdl", f"{orders[1]}?wsdl", "--operation", "SubmitOrder", "order.json")
    assert result.code == 1
    assert "order.json" in result.err and says in result.err
    assert re.search(r"[.?] Neither this message nor any after it is stored\.", result.err)
    assert "customer" in result.err
    assert orders[0].submitted == []


def test_a_declared_fault_is_told_with_its_values(run: Any, orders: tuple[Orders, str], tmp_path: Path) -> None:
    order = ORDER | {"lines": [{"item": "nail", "quantity": 101}]}
    (tmp_path / "order.json").write_text(json.dumps(order))
    result = run("send", "--wsdl", f"{orders[1]}?wsdl", "--operation", "SubmitOrder", "order.json")
    assert result.code == 1
    assert 'Too many of nail. (OrderRefused: {"item": "nail", "limit": 100})' in result.err


@given(
    st.decimals(allow_nan=False, allow_infinity=False), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
def test_numbers_in_json_arrive_without_loss_in_both_directions(amount: Decimal, count: int, share: float) -> None:
    values = _numbers()
    body, _ = values.message("a", f'{{"amount": {amount}, "count": {count}, "share": {share!r}}}'.encode())
    assert values._contract.request_values(values._operation, body) == {
        "amount": amount,
        "count": count,
        "share": share,
        "wait": None,
    }
    told = json.loads(values.reply(body, b""))
    assert values.message("a", json.dumps(told).encode()) == (body, b"")


@pytest.mark.parametrize("name", ["NaN", "INF", "-INF"])
def test_numbers_that_json_lacks_are_the_texts_of_xml(name: str) -> None:
    values = _numbers()
    body, _ = values.message("a", f'{{"amount": 1, "count": 1, "share": "{name}"}}'.encode())
    told = json.loads(values.reply(body, b""), parse_constant=pytest.fail)
    assert told["share"] == name
    assert values.message("a", json.dumps(told).encode()) == (body, b"")


@pytest.mark.parametrize(
    ("written", "text"), [("NaN", "NaN"), ("Infinity", "INF"), ("-Infinity", "-INF"), ("[1, NaN]", "NaN")]
)
def test_a_number_that_json_lacks_is_refused_in_json(written: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no number of JSON") as caught:
        _numbers().message("a", f'{{"amount": 1, "count": 1, "share": {written}}}'.encode())
    assert f'Write the text "{text}"' in str(caught.value)


@pytest.mark.parametrize("text", ["PT1.5S", "P1DT2H", "P1Y2M3D", "-PT1H", "PT0.1234567S"])
def test_a_duration_in_json_can_be_sent_again(text: str) -> None:
    values = _numbers()
    body, _ = values.message("a", f'{{"amount": 1, "wait": "{text}"}}'.encode())
    told = json.loads(values.reply(body, b""))
    assert told["wait"] == text
    assert values.message("a", json.dumps(told).encode()) == (body, b"")


@cache
def _numbers() -> OperationValues:
    fields = (("amount", "decimal"), ("count", "integer"), ("share", "double"), ("wait", "duration"))
    elements = "".join(f'<xs:element name="{name}" type="xs:{kind}" minOccurs="0"/>' for name, kind in fields)
    schema = (
        f'<xs:element name="In"><xs:complexType><xs:sequence>{elements}</xs:sequence></xs:complexType></xs:element>'
    )
    with TemporaryDirectory() as place:
        wsdl = Path(place, "numbers.wsdl")
        wsdl.write_text(one_operation(schema))
        contract = Contract(Documents(wsdl, lambda url: b""))
        contract.compile_schema()
    return OperationValues(contract, "Do", "numbers.wsdl")


def test_an_action_beside_an_operation_is_wrong_usage(run: Any, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("{}")
    result = run("send", "--wsdl", str(WSDL), "--operation", "SubmitOrder", "--action", "urn:x", "order.json")
    assert (result.code, "omit --action" in result.err) == (2, True)


def test_an_operation_without_a_wsdl_is_wrong_usage(run: Any, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("{}")
    result = run("send", "--to", "http://127.0.0.1:9/", "--operation", "SubmitOrder", "order.json")
    assert result.code == 2
    assert "--wsdl" in result.err
