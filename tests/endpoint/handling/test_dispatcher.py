"""How handlers are called: in order, concurrently, again after a failure, at most once, and never lost in a stop.

Covers endpoint/envelopes/fault_replies.py and endpoint/failures.py.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from to_asgi import ToASGI
from waiting import until

from holdfast import (
    ApplicationFault,
    Attachment,
    ConfigurationError,
    Destination,
    HandlingPolicy,
    Message,
    PeerFault,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    WithAttachments,
)
from holdfast.cluster.trust import Trust
from holdfast.core.faults import addressing_fault, not_understood
from holdfast.core.messages import Envelope, Fault
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.records import Record
from holdfast.core.versions import SOAP, Addressing
from holdfast.endpoint.envelopes.fault_replies import passed_on
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.worker import Worker
from holdfast.exceptions import StoreLocked
from holdfast.http.client.client import HTTPClient
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.testing.ports import free_ports
from holdfast.wire import decode, encode
from holdfast.wire.names import SOAP_NS, WSA_NS

ACTION = "urn:test:submit"
QUICK = HandlingPolicy(attempts=3, backoff=0.01, backoff_cap=0.02)
WSA = WSA_NS[Addressing.V2005_08].encode()
QUICK_SOURCE = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3))


async def send(url: str, *numbers: int, action: str = ACTION, key: str = "") -> None:
    async with Source(url, ":memory:") as source:
        sent = [await source.send(f"<n>{number}</n>", action=action, sequence_key=key) for number in numbers]
        for one in sent:
            await one.acknowledged(60)


def dead_letters(app: Destination) -> list[Record]:
    return [record for _, record in app.running.store.read(DEAD_LETTERS, 0, 0, 100)]


async def test_a_plain_handler_runs_in_a_thread_and_may_return_an_awaitable(serve: Any) -> None:
    app = Destination(":memory:")
    seen: list[str] = []

    async def later(name: str) -> None:
        seen.append(name)

    @app.on(ACTION)
    def submit(message: Message) -> Any:
        return later(threading.current_thread().name)

    await send((await serve(app)).url, 1)
    await until(lambda: seen)
    assert seen != [threading.main_thread().name]


async def test_plain_handlers_run_up_to_the_concurrency_and_delay_nobody_else(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(concurrency=32), partitions=1, assurance="exactly-once")
    together = threading.Barrier(33)
    go_on = threading.Event()
    names: list[str] = []

    @app.on(ACTION)
    def submit(message: Message) -> None:
        names.append(threading.current_thread().name)
        together.wait(60)
        go_on.wait(60)

    service = await serve(app)
    await send(service.url, *range(40))
    try:
        await asyncio.to_thread(together.wait, 60)  # 32 of them are in their handlers, and it
        assert len(set(names)) == 32
        assert all(name.startswith("holdfast-handler") for name in names)
        assert app.running.dispatcher is not None
        assert app.running.dispatcher.handling.succeeded == 0
        # What reads the store for others uses the loop's executor, which has fewer threads than handlers run.
        async with HTTPClient() as http:
            url = f"{service.admin_url}/queues/inbox/0/records?from=0&to=1"
            assert (await http.fetch("GET", url, b"", {})).status == 200
    finally:
        together.abort()
        go_on.set()
    await until(lambda: app.running.dispatcher is not None and not app.running.dispatcher.is_busy)


async def test_there_are_no_more_threads_than_asked_for_and_they_end_with_the_destination(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(concurrency=3), assurance="exactly-once")
    seen: list[threading.Thread] = []

    @app.on(ACTION)
    def submit(message: Message) -> None:
        seen.append(threading.current_thread())

    service = await serve(app)
    await send(service.url, *range(20))
    await until(lambda: len(seen) == 20)
    assert len(set(seen)) <= 3
    await service.close()
    for thread in set(seen):
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()


async def test_the_handler_without_an_action_takes_every_other_one(serve: Any) -> None:
    app = Destination(":memory:")
    seen: list[tuple[str, str]] = []
    app.on(ACTION)(lambda message: seen.append(("submit", message.action)))
    app.on()(lambda message: seen.append(("other", message.action)))
    url = (await serve(app)).url
    await send(url, 1)
    await send(url, 1, action="urn:else")
    await until(lambda: len(seen) == 2)
    assert seen == [("submit", ACTION), ("other", "urn:else")]


async def test_a_handler_that_raises_is_called_again_and_the_order_is_kept(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    calls: list[tuple[str, int]] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        calls.append((message.body.text, message.attempt))
        if message.body.text == "1" and message.attempt < 3:
            raise RuntimeError("not yet")

    await send((await serve(app)).url, 0, 1, 2)
    await until(lambda: len(calls) == 5)
    assert calls == [("0", 1), ("1", 1), ("1", 2), ("1", 3), ("2", 1)]
    assert app.running.dispatcher is not None
    assert (app.running.dispatcher.handling.failed, app.running.dispatcher.handling.dead) == (2, 0)


async def test_too_many_failures_make_a_dead_letter_with_the_traceback(serve: Any, tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox", handling=QUICK)
    handled: list[str] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        if message.body.text == "1":
            raise LookupError("no such <order> & no customer")
        handled.append(message.body.text)

    service = await serve(app)
    await send(service.url, 0, 1, 2)
    await until(lambda: handled == ["0", "2"])
    assert app.running.dispatcher is not None
    assert (app.running.dispatcher.handling.failed, app.running.dispatcher.handling.dead) == (3, 1)
    await service.close()

    store = RocksDBStore(tmp_path / "inbox", read_only=True)
    ((_, letter),) = store.read(DEAD_LETTERS, 0, 0, 10)
    store.close()
    assert (letter.body, letter.message_number, letter.action) == (b"<n>1</n>", 2, ACTION)
    (failure,) = Message.from_record(letter).headers
    assert failure.tag == "{urn:holdfast}failure"
    assert "Traceback" in failure.text
    assert "LookupError: no such <order> & no customer" in failure.text


async def test_a_request_that_is_set_aside_is_answered_with_a_fault(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)

    @app.on(ACTION)
    async def submit(message: Message) -> str:
        raise RuntimeError("secret inside")

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="set aside") as caught:
            await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert "secret" not in str(caught.value), "a stranger is not shown our tracebacks"
    assert len(dead_letters(app)) == 1


async def test_an_application_fault_is_final_and_no_dead_letter(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    calls: list[int] = []

    @app.on(ACTION)
    def submit(message: Message) -> str:
        calls.append(message.attempt)
        raise ApplicationFault("unknown carrier")

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="unknown carrier") as caught:
            await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert caught.value.code == "Sender"
    assert calls == [1]
    assert dead_letters(app) == []


async def test_a_fault_that_no_requester_gets_is_a_dead_letter_with_its_reason(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    calls: list[int] = []

    @app.on(ACTION)
    async def cancel(message: Message) -> None:
        calls.append(message.attempt)
        raise ApplicationFault("unknown carrier")

    async with Source((await serve(app)).url, ":memory:") as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
        await until(lambda: dead_letters(app))
    (letter,) = dead_letters(app)
    assert "unknown carrier" in str(letter)
    assert calls == [1], "a fault is final"


async def test_a_value_returned_for_a_one_way_message_is_reported_once(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = Destination(":memory:", handling=QUICK)
    app.on(ACTION)(lambda message: "<price>7</price>")
    app.on()(lambda message: "<price>7</price>")
    async with Source((await serve(app)).url, ":memory:") as source:
        for action in (ACTION, ACTION, "urn:1", "urn:2", "urn:3"):
            await source.send("<n>1</n>", action=action)
        await source.flush(60)
        await app.running.dispatcher.done()
    told = [one for one in caplog.messages if "reply.not_requested" in one]
    assert len(told) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=repr)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_handler_that_asks_the_process_to_end_does_not_end_it(error: BaseException, is_async: bool) -> None:
    """In ``asyncio.run``, as a program has it: there, no signal raises KeyboardInterrupt in a handler."""

    async def run() -> None:
        app = Destination(":memory:", handling=QUICK)

        async def later(message: Message) -> None:
            raise error

        def at_once(message: Message) -> None:
            raise error

        app.on(ACTION)(later if is_async else at_once)
        app.on("urn:other")(lambda message: "<done/>")
        service = Service(app, Listeners(port=0))
        await service.start()
        try:
            async with Source(service.url, ":memory:") as source:
                with pytest.raises(PeerFault, match="set aside"):
                    await source.request("<n>1</n>", action=ACTION, timeout=60)
                assert (await source.request("<n>1</n>", action="urn:other", timeout=60)).body_bytes == b"<done/>"
        finally:
            await service.close(0.5)

    asyncio.run(run())


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_a_service_s_own_code_and_detail_go_to_a_requester_of_either_soap_version(soap: str) -> None:
    fault = Fault("OutOfStock", "sold out", code_namespace="urn:c", detail=b"<left xmlns='urn:c'>0</left>")
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True, soap=soap)
    reply = passed_on(record, fault, Addressing.V2005_08)
    assert reply is not None
    with pytest.raises(PeerFault, match="sold out") as caught:
        Message.from_record(reply).raise_for_fault()
    detail = etree.fromstring(caught.value.detail)
    assert (caught.value.code, detail.tag, detail.text) == ("OutOfStock", "{urn:c}left", "0")


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("addressing", list(Addressing), ids=str)
def test_a_fault_of_our_own_about_a_request_has_the_code_of_its_specification(
    soap: str, addressing: Addressing
) -> None:
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True, soap=soap)
    envelope = SOAP_NS[SOAP(soap)]
    for fault, namespace, action in (
        (addressing_fault("ActionNotSupported", "no"), WSA_NS[addressing], f"{WSA_NS[addressing]}/fault"),
        (not_understood(("{urn:x}h",)), envelope, f"{WSA_NS[Addressing.V2005_08]}/soap/fault"),
    ):
        reply = passed_on(record, fault, addressing)
        assert reply is not None and reply.action == action
        root = etree.fromstring(reply.body)
        # SOAP 1.2 part 1, 5.4.6: a code of SOAP's own is the Value itself
        path = "faultcode" if soap == "1.1" else ".//{*}Value" if namespace == envelope else ".//{*}Subcode/{*}Value"
        value = root.find(path)
        assert value is not None and value.text is not None
        prefix, _, local = value.text.partition(":")
        assert (value.nsmap[prefix], local) == (namespace, fault.code)
        # SOAP 1.2 part 1, 5.4.8
        named = etree.fromstring(b"<headers>%b</headers>" % reply.headers).findall("{*}NotUnderstood")
        assert [one.get("qname") for one in named] == ["h:h"] * len(fault.not_understood if soap == "1.2" else ())
        assert all(one.nsmap["h"] == "urn:x" for one in named)


def passed_through(
    fault: bytes, soap: SOAP, requester: SOAP, action: str = f"{WSA_NS[Addressing.V2005_08]}/soap/fault"
) -> Envelope:
    """What a requester reads of a fault that a service writes in its SOAP version and a broker passes on."""
    came = decode(encode(Envelope(soap, Addressing.V2005_08, action=action, body=fault)))
    assert came.fault is not None
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True, soap=requester.value)
    reply = passed_on(record, came.fault, Addressing.V2004_08)
    assert reply is not None
    return decode(encode(Envelope(requester, Addressing.V2004_08, action=reply.action, body=reply.body)))


def fault_with(soap: SOAP, detail: bytes, code: bytes = b"c:OutOfStock") -> bytes:
    """A fault as some service writes it."""
    namespace = SOAP_NS[soap].encode()
    if soap is SOAP.V1_1:
        said = b"<faultcode>%b</faultcode><faultstring>sold out</faultstring><detail>%b</detail>" % (code, detail)
    else:
        said = b"<s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>%b</s:Value></s:Subcode></s:Code>" % code
        said += b"<s:Reason><s:Text xml:lang='en'>sold out</s:Text></s:Reason><s:Detail>%b</s:Detail>" % detail
    return b"<s:Fault xmlns:s='%b' xmlns:c='urn:c'>%b</s:Fault>" % (namespace, said)


DETAILS = {
    "one element": (b"<c:left>0</c:left>", [("{urn:c}left", "0")], None),
    "two elements": (b"<c:left>0</c:left><due>5</due>", [("{urn:c}left", "0"), ("due", "5")], None),
    "text": (b"none &lt; left", [], "none < left"),
    "nothing": (b"", [], None),
}


@pytest.mark.parametrize(("soap", "requester"), [(SOAP.V1_1, SOAP.V1_2), (SOAP.V1_2, SOAP.V1_1)], ids=str)
@pytest.mark.parametrize("kind", DETAILS)
def test_a_services_detail_goes_whole_to_a_requester_of_the_other_soap_version(
    kind: str, soap: SOAP, requester: SOAP
) -> None:
    detail, elements, text = DETAILS[kind]
    read = passed_through(fault_with(soap, detail), soap, requester)
    assert read.fault is not None
    assert (read.fault.code, read.fault.code_namespace, read.fault.reason) == ("OutOfStock", "urn:c", "sold out")
    written = etree.fromstring(b"<detail>%b</detail>" % read.fault.detail)
    assert ([(child.tag, child.text) for child in written], written.text) == (elements, text)
    assert len(etree.fromstring(read.body).findall(".//{*}detail")) <= 1


@pytest.mark.parametrize("requester", list(SOAP), ids=str)
@pytest.mark.parametrize("addressing", list(Addressing), ids=str)
def test_the_detail_of_an_addressing_fault_is_where_the_requester_looks_for_it(
    requester: SOAP, addressing: Addressing
) -> None:
    fault = addressing_fault("InvalidAddressingHeader", "no")
    fault.detail = b"<iri xmlns='urn:c'>urn:x</iri>"
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True, soap=requester.value)
    reply = passed_on(record, fault, addressing)
    assert reply is not None
    # SOAP binding of WS-Addressing 2005/08, section 6.2
    is_in_header = requester is SOAP.V1_1 and addressing is Addressing.V2005_08
    assert (b"urn:x" in reply.headers, b"urn:x" in reply.body) == (is_in_header, not is_in_header)
    written = Envelope(requester, addressing, action=reply.action, body=reply.body)
    written.headers = [reply.headers] if reply.headers else []
    read = decode(encode(written)).fault
    assert read is not None and etree.fromstring(read.detail).text == "urn:x"


@pytest.mark.parametrize("soap", list(SOAP), ids=str)
@pytest.mark.parametrize("kind", DETAILS)
def test_a_caller_reads_the_whole_detail_of_a_fault(kind: str, soap: SOAP) -> None:
    detail, elements, text = DETAILS[kind]
    with pytest.raises(PeerFault, match="sold out") as caught:
        Message.from_record(Record("", 0, "urn:f", fault_with(soap, detail), 0.0, soap=soap.value)).raise_for_fault()
    written = etree.fromstring(b"<detail>%b</detail>" % caught.value.detail)
    assert ([(child.tag, child.text) for child in written], written.text) == (elements, text)


def test_a_forwarded_fault_omits_a_detail_that_no_receiver_would_accept() -> None:
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True)
    for detail in (b"<a>" * 61 + b"</a>" * 61, b"<a/></Detail><Detail>", b"<?pi?>", b"<!DOCTYPE a><a/>", b"\xff"):
        reply = passed_on(record, Fault("Sender", "no", detail=detail), Addressing.V2005_08)
        assert reply is not None and b"Detail" not in reply.body and b"no</" in reply.body


@pytest.mark.parametrize(("soap", "requester"), [(SOAP.V1_1, SOAP.V1_2), (SOAP.V1_2, SOAP.V1_1)], ids=str)
def test_a_fault_keeps_its_contracts_action_but_no_other_versions_default(soap: SOAP, requester: SOAP) -> None:
    fault = fault_with(soap, b"<c:left>0</c:left>")
    own = "http://tempuri.org/IOrders/CancelProblemFault"
    assert passed_through(fault, soap, requester, own).action == own
    default = f"{WSA_NS[Addressing.V2004_08]}/fault"
    assert passed_through(fault, soap, requester).action == default
    unsupported = fault_with(soap, b"", b"a:ActionNotSupported").replace(b"urn:c'", b"urn:c' xmlns:a='%b'" % WSA)
    assert passed_through(unsupported, soap, requester, own).action == default, "WS-Addressing says which"


@pytest.mark.parametrize("namespace", ["urn:c", "no uri", "urn:}c"])
@pytest.mark.parametrize("code", ["out of stock", "1st", "a:b", ""])
def test_a_services_code_that_is_no_name_is_passed_on_as_a_plain_fault(code: str, namespace: str) -> None:
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True)
    reply = passed_on(record, Fault(code, "sold out", code_namespace=namespace, detail=b"<a/>"), Addressing.V2005_08)
    assert reply is not None
    with pytest.raises(PeerFault, match="sold out") as caught:
        Message.from_record(reply).raise_for_fault()
    assert (caught.value.code, etree.fromstring(caught.value.detail).tag) == ("Sender", "a")


@pytest.mark.parametrize("required", ["MessageAddressingHeaderRequired", "MessageInformationHeaderRequired"])
@pytest.mark.parametrize("addressing", list(Addressing), ids=str)
def test_a_code_of_ws_addressing_has_the_name_of_the_requesters_version(required: str, addressing: Addressing) -> None:
    record = Record("urn:s", 1, "urn:a", b"<a/>", 0.0, wants_reply=True)
    reply = passed_on(record, addressing_fault(required, "no"), addressing)
    assert reply is not None
    with pytest.raises(PeerFault) as caught:
        Message.from_record(reply).raise_for_fault()
    is_old = addressing is not Addressing.V2005_08
    assert caught.value.code == ("MessageInformationHeaderRequired" if is_old else "MessageAddressingHeaderRequired")


async def test_a_request_whose_handler_returns_nothing_is_answered_with_an_empty_element(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    handled: list[bytes] = []

    @app.on(ACTION)
    async def cancel(message: Message) -> None:
        handled.append(message.body_bytes)

    async with Source((await serve(app)).url, ":memory:") as source:
        reply = await source.request('<o:Cancel xmlns:o="urn:o"><id>7</id></o:Cancel>', action=ACTION, timeout=60)
        assert (reply.action, reply.body.tag, len(reply.body)) == (f"{ACTION}Response", "{urn:o}CancelResponse", 0)
        reply = await source.request("<Cancel/>", action=ACTION, timeout=60)
        assert reply.body.tag == "CancelResponse"
    assert len(handled) == 2


@pytest.mark.parametrize("answer", ["", b"", WithAttachments("", [Attachment(b"scan")]), None], ids=repr)
async def test_every_request_is_answered_also_with_an_empty_body(serve: Any, tmp_path: Path, answer: Any) -> None:
    """Also None to a request with an empty body, which has no element to name the response after."""
    app = Destination(tmp_path / "inbox", handling=QUICK)
    app.on(ACTION)(lambda message: answer)
    async with Source((await serve(app)).url, tmp_path / "outbox") as source:
        for body in ("", "<Cancel/>") if answer is not None else ("",):
            reply = await source.request(body, action=ACTION, timeout=60)
            assert (reply.action, reply.body_bytes) == (f"{ACTION}Response", b"")
            assert [one.read() for one in reply.attachments] == ([b"scan"] if answer and answer.attachments else [])


async def test_a_fault_of_a_handler_that_returns_nothing_reaches_the_requester(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)

    @app.on(ACTION)
    def cancel(message: Message) -> None:
        raise ApplicationFault("too late", code="{urn:o}TooLate", action="urn:o/TooLateFault")

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="too late") as caught:
            await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert caught.value.code == "TooLate"


async def test_replies_have_the_action_that_the_contract_declares(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    app.on(ACTION, reply_action="urn:o/PriceAnswer")(lambda message: "<price>7</price>")
    async with Source((await serve(app)).url, ":memory:") as source:
        reply = await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert reply.action == "urn:o/PriceAnswer"
    with pytest.raises(ConfigurationError, match="reply_action needs an action"):
        app.on(reply_action="urn:o/PriceAnswer")


async def test_a_handler_whose_result_cannot_be_sent_is_not_called_again(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    calls: list[int] = []

    @app.on(ACTION)
    def price(message: Message) -> str:
        calls.append(message.attempt)
        return "no element"

    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="set aside"):
            await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert calls == [1]
    assert len(dead_letters(app)) == 1


async def test_a_reply_that_is_no_xml_is_the_handlers_failure(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    app.on(ACTION)(lambda message: "no element")
    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="set aside"):
            await source.request("<n>1</n>", action=ACTION, timeout=60)
    assert b"not one well-formed XML element" in dead_letters(app)[0].headers


async def test_at_most_once_never_calls_a_handler_twice(serve: Any) -> None:
    app = Destination(":memory:", assurance="at-most-once in-order", handling=QUICK)
    calls: list[str] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        calls.append(message.body.text)
        if message.body.text == "0":
            raise RuntimeError("once is all there is")

    await send((await serve(app)).url, 0, 1)
    await until(lambda: len(calls) == 2)
    assert calls == ["0", "1"]
    assert app.running.dispatcher is not None
    assert (app.running.dispatcher.handling.failed, app.running.dispatcher.handling.dead) == (1, 0)


async def test_at_most_once_answers_requests_too(serve: Any) -> None:
    app = Destination(":memory:", assurance="at-most-once")
    app.on(ACTION)(lambda message: f"<price>{message.body.text}</price>")
    async with Source((await serve(app)).url, ":memory:") as source:
        reply = await source.request("<n>3</n>", action=ACTION, timeout=60)
    assert reply.body.text == "3"


async def test_sequences_do_not_wait_for_each_other_but_each_keeps_its_order(serve: Any) -> None:
    app = Destination(":memory:", partitions=1)
    gate = asyncio.Event()
    seen: list[str] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        if message.body.text == "0":
            await gate.wait()
        seen.append(message.body.text)

    url = (await serve(app)).url
    await send(url, 0, 1, 2, key="slow")
    await send(url, 10, 11, key="quick")
    await until(lambda: len(seen) == 2)
    assert seen == ["10", "11"]
    gate.set()
    await until(lambda: len(seen) == 5)
    assert seen[2:] == ["0", "1", "2"]


async def test_without_order_a_sequence_is_handled_concurrently_up_to_the_limit(serve: Any) -> None:
    app = Destination(":memory:", assurance="exactly-once", handling=HandlingPolicy(concurrency=3))
    gate = asyncio.Event()
    running: set[str] = set()
    most = 0

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        nonlocal most
        running.add(message.body.text)
        most = max(most, len(running))
        await gate.wait()
        running.discard(message.body.text)

    await send((await serve(app)).url, *range(10))
    await until(lambda: len(running) == 3)
    gate.set()
    await until(lambda: app.running.dispatcher is not None and app.running.dispatcher.handling.succeeded == 10)
    assert most == 3


async def test_more_than_can_be_looked_ahead_is_handled_all_the_same(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(ahead=4))
    seen: list[int] = []
    gate = asyncio.Event()

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        await gate.wait()
        seen.append(int(message.body.text))

    await send((await serve(app)).url, *range(50))
    gate.set()
    await until(lambda: len(seen) == 50)
    assert seen == list(range(50))


async def test_a_stop_lets_running_handlers_finish_and_the_next_start_goes_on_behind_them(
    serve: Any, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    def make() -> Destination:
        app = Destination(tmp_path / "inbox")

        @app.on(ACTION)
        async def submit(message: Message) -> None:
            if not seen:
                seen.append(f"{message.body.text} begun")
                await gate.wait()
            seen.append(message.body.text)

        return app

    service = await serve(app := make())
    await send(service.url, 0, 1, 2)
    await until(lambda: seen == ["0 begun"])
    closing = asyncio.ensure_future(service.close(60))
    await until(lambda: app.running.dispatcher is not None and app.running.dispatcher._stopping)
    gate.set()
    await closing
    assert seen == ["0 begun", "0"]
    await serve(make())
    await until(lambda: len(seen) == 4)
    assert seen == ["0 begun", "0", "1", "2"]


async def test_a_handler_that_does_not_finish_in_time_is_called_again_by_the_next_start(
    serve: Any, tmp_path: Path
) -> None:
    never = asyncio.Event()
    seen: list[str] = []
    app = Destination(tmp_path / "inbox")

    @app.on(ACTION)
    async def hang(message: Message) -> None:
        seen.append("begun")
        await never.wait()

    service = await serve(app)
    await send(service.url, 0)
    await until(lambda: seen)
    await service.close(0.01)
    again = Destination(tmp_path / "inbox")
    again.on(ACTION)(lambda message: seen.append("done"))
    await serve(again)
    await until(lambda: seen == ["begun", "done"])


async def test_at_most_once_keeps_the_order_of_a_sequence(serve: Any) -> None:
    app = Destination(":memory:", assurance="at-most-once in-order")
    gate = asyncio.Event()
    seen: list[str] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        seen.append(f"{message.body.text} begun")
        await gate.wait()
        seen.append(message.body.text)

    await send((await serve(app)).url, 0, 1)
    await until(lambda: seen == ["0 begun"])
    gate.set()
    await until(lambda: len(seen) == 4)
    assert seen == ["0 begun", "0", "1 begun", "1"]


async def test_at_most_once_an_interrupted_request_is_not_repeated(serve: Any, tmp_path: Path) -> None:
    never = asyncio.Event()
    calls: list[str] = []

    def make() -> Destination:
        app = Destination(tmp_path / "inbox", assurance="at-most-once in-order")

        @app.on(ACTION)
        async def submit(message: Message) -> str:
            calls.append(message.body.text)
            if len(calls) == 1:
                await never.wait()
            return "<done/>"

        return app

    (port,) = free_ports(1)
    service = await serve(make(), port=port)
    async with Source(service.url, ":memory:", policy=QUICK_SOURCE) as source:
        lost = asyncio.ensure_future(source.request("<n>0</n>", action=ACTION, timeout=None))
        await until(lambda: calls == ["0"])
        await service.close(0.01)
        await serve(make(), port=port)
        assert (await source.request("<n>1</n>", action=ACTION, timeout=60)).body.tag == "done"
        with pytest.raises(PeerFault, match="set aside"):
            await lost
        await source.flush(60)
    assert calls == ["0", "1"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [("hello", "the handler returned an invalid reply: the body is not one"), (7, "text, bytes or an lxml element")],
)
async def test_a_reply_that_is_no_element_is_the_handlers_failure_and_says_so(
    serve: Any, answer: Any, why: str
) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))
    app.on("urn:test:ask")(lambda message: answer)
    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="set aside"):
            await source.request("<n>1</n>", action="urn:test:ask", timeout=60)
    (letter,) = dead_letters(app)
    assert why in letter.headers.decode()


async def test_a_fault_with_a_detail_that_is_no_element_is_the_handlers_failure(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        raise ApplicationFault("no", detail=b"no element")

    await send((await serve(app)).url, 1, 2)
    await until(lambda: len(dead_letters(app)) == 2)


async def test_a_handler_whose_own_task_was_cancelled_is_called_again_and_holds_up_nothing(serve: Any) -> None:
    app = Destination(":memory:", handling=QUICK)
    calls: list[tuple[str, int]] = []

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        calls.append((message.body.text, message.attempt))
        if message.attempt == 1 and message.body.text == "1":
            task = asyncio.ensure_future(asyncio.sleep(3600))
            task.cancel()
            await task

    await send((await serve(app)).url, 1, 2)
    await until(lambda: len(calls) == 3)
    assert calls == [("1", 1), ("1", 2), ("2", 1)]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")

    __repr__ = __str__


class Unusual(BaseException):
    """Not an Exception, as the error of ``pytest.fail()`` is not."""


def unfit() -> list[Any]:
    """Errors that handlers raise and that are hard to write down."""
    return [
        RuntimeError("half a character: \udc80"),
        RuntimeError("no XML: \0 \x1b[2J \ufffe"),
        RuntimeError("</failure><evil/>" + "long " * 100_000 + "the end"),
        Unspeakable(),
        StopIteration(7),
        SystemExit("enough"),
        GeneratorExit("a generator was closed"),
        Unusual("neither caught by `except Exception`"),
        BaseExceptionGroup("two", [Unusual("a"), ValueError("b")]),
        ExceptionGroup("two", [KeyError("a"), ValueError("b")]),
    ]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", unfit(), ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_readable_dead_letter(serve: Any, kind: str, error: BaseException) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=2, backoff=0.01))
    handled: list[str] = []

    def plain(message: Message) -> None:
        if message.body.text == "1":
            raise error
        handled.append(message.body.text)

    async def asynchronous(message: Message) -> None:
        plain(message)

    app.on(ACTION)(plain if kind == "plain" else asynchronous)
    await send((await serve(app)).url, 1, 2)
    await asyncio.wait_for(app.handled(), 60)
    assert handled == ["2"]
    (letter,) = dead_letters(app)
    (failure,) = Message.from_record(letter).headers
    assert failure.tag == "{urn:holdfast}failure"
    assert type(error).__name__ in failure.text
    assert len(failure.text) < 70_000
    assert "long" not in failure.text or failure.text.rstrip().endswith("the end")


# --- in a cluster -----------------------------------------------------------------------------------------------------


Distrusted = tuple[Destination, list[bytes], Trust]


@pytest.fixture
async def distrusted(tmp_path: Path) -> AsyncIterator[Distrusted]:
    """A worker that got two messages, and may not act from when it has called the handler of the first one; the bodies
    that it has handled, and until when it may act."""
    app, seen = Destination(tmp_path, handling=HandlingPolicy(concurrency=1)), list[bytes]()
    trust, goes_on = Trust(1), asyncio.Event()
    trust.set(0, math.inf)

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        seen.append(message.body)
        await goes_on.wait()

    service = Service(app, Listeners(port=0))
    app.settings.worker = Worker(0, 1, trust=trust.of(0))
    await service.start()
    await send(service.url, 1, 2)
    trust.set(0, 0.0)
    goes_on.set()
    dispatcher = app.running.dispatcher
    assert dispatcher is not None
    await until(lambda: dispatcher._put_off or len(seen) > 1)
    yield app, seen, trust
    await service.close()


async def test_a_handler_is_called_only_while_this_process_may_act(distrusted: Distrusted) -> None:
    """Otherwise another node may have the partition, and call its own handler."""
    app, seen, trust = distrusted
    handling = app.running.engine.protocol.handling
    assert len(seen) == 1 and handling is not None and handling.unhandled == 1
    trust.set(0, math.inf)
    await until(lambda: len(seen) == 2)


async def test_a_stop_does_not_wait_for_handlers_that_may_not_be_called(distrusted: Distrusted) -> None:
    app, seen, _ = distrusted
    dispatcher = app.running.dispatcher
    assert dispatcher is not None
    begun = asyncio.get_running_loop().time()
    await dispatcher.stop(3600.0)
    assert len(seen) == 1 and asyncio.get_running_loop().time() < begun + 1800


def _opens(path: Path) -> bool:
    try:
        RocksDBStore(path).close()
    except StoreLocked:
        return False
    return True


@pytest.mark.parametrize("is_left", [False, True])
async def test_the_store_stays_locked_while_an_abandoned_handler_runs(is_left: bool, tmp_path: Path) -> None:
    """Another process could otherwise handle the same message at the same time. ``is_left``: the loop of the
    destination ended without a close."""
    app, began, goes_on = Destination(tmp_path / "inbox"), threading.Event(), threading.Event()

    @app.on(ACTION)
    def submit(message: Message) -> None:
        began.set()
        goes_on.wait()

    async def serve() -> None:
        service = Service(app, Listeners(port=0))
        await service.start()
        await send(service.url, 1)
        await asyncio.to_thread(began.wait)
        if not is_left:
            await service.close(0.0)

    try:
        if is_left:
            await asyncio.to_thread(lambda: asyncio.run(serve()))
        else:
            await serve()
            with pytest.raises(StoreLocked, match="1 abandoned handler"):
                await app.start()
        with pytest.raises(StoreLocked):
            await (Destination(tmp_path / "inbox").start() if not is_left else app.start())
    finally:
        goes_on.set()
    await until(partial(_opens, tmp_path / "inbox"))


async def test_requests_and_handlers_share_the_seconds_of_a_stop(tmp_path: Path) -> None:
    app, began, ended = Destination(":memory:"), asyncio.Event(), asyncio.Event()

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await app.start()
    source = Source("http://here/", ":memory:", http=SourceHTTP(transport=ToASGI(app)))
    await source.open()
    await source.send("<a/>", action=ACTION)
    await began.wait()
    await source.close(0)
    app.running.announce_stop(0.0)  # the requests had them all
    await app.close(36_000)
    assert ended.is_set()


async def test_no_handler_starts_in_the_second_half_of_a_stop(tmp_path: Path) -> None:
    """Otherwise it would be abandoned a moment later, although it is quick."""
    app = Destination(":memory:", handling=HandlingPolicy(concurrency=1), assurance="exactly-once")
    seen, goes_on = list[bytes](), asyncio.Event()

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        seen.append(message.body_bytes)
        await goes_on.wait()

    await app.start()
    source = Source("http://here/", ":memory:", http=SourceHTTP(transport=ToASGI(app)))
    await source.open()
    for number in range(3):
        await (await source.send(f"<n>{number}</n>", action=ACTION)).acknowledged(60)
    await source.close(0)
    app.running.announce_stop(0.0)
    handling = app.running.engine.protocol.handling
    await until(lambda: handling is not None and handling._is_stopped)
    goes_on.set()
    await app.close(36_000)
    assert len(seen) == 1
