"""Headers with mustUnderstand through a broker: an intermediary passes on what is for the ultimate receiver, and
refuses what is for it and what it does not know (SOAP 1.2 part 1, 2.7; SOAP 1.1, 4.2.2)."""

from __future__ import annotations

import pytest
from waiting import until

import holdfast
from holdfast.broker.config import ForwarderConfig
from holdfast.wire.names import SOAP_NS

TENANT = "{urn:tenant}Tenant"
PASSED = [holdfast.Versions(rm, soap=soap) for rm in ("1.0", "1.1") for soap in ("1.1", "1.2")]
NEXT = {
    "1.1": "a:actor='http://schemas.xmlsoap.org/soap/actor/next'",
    "1.2": "a:role='http://www.w3.org/2003/05/soap-envelope/role/next'",
}


class Adds(holdfast.Processor):
    """Adds a header that must be understood to each message of an application."""

    def __init__(self, value: str, role: str = "") -> None:
        self._value, self._role = value, role

    def outbound(self, context: holdfast.MessageContext) -> None:
        if context.is_application:
            namespace = SOAP_NS[context.envelope.soap]
            block = f"<t:Tenant xmlns:t='urn:tenant' xmlns:a='{namespace}' {self._role}>{self._value}</t:Tenant>"
            context.add_header(block, must_understand=True)


class Understands(Adds):
    """Understands such a header, and keeps what it says."""

    understands = (TENANT,)

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.seen: list[str] = []

    def inbound(self, context: holdfast.MessageContext) -> None:
        header = context.header(TENANT)
        if header is not None:
            self.seen.append(header.text)


def service_of(*processors: holdfast.Processor) -> holdfast.Destination:
    app = holdfast.Destination(":memory:", processors=processors)

    @app.on("urn:ask")
    def answer(message: holdfast.Message) -> str:
        return "<answer/>"

    @app.on("urn:tell")
    def keep(message: holdfast.Message) -> None:
        pass

    return app


@pytest.mark.parametrize("versions", PASSED, ids=str)
async def test_headers_for_the_ultimate_receiver_reach_the_service_and_the_requester(versions, run_broker, run_service):
    there, here = Understands("service"), Understands("client")
    service = await run_service(service_of(there))
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url),))
    async with holdfast.Source(broker.service.url, ":memory:", versions=versions, processors=[here]) as source:
        reply = await source.request("<ask/>", action="urn:ask", timeout=240)
        await source.send("<tell/>", action="urn:tell")
        await source.flush(60)
    assert reply.body_bytes == b"<answer/>"
    await until(lambda: there.seen == ["client", "client"])
    assert here.seen == ["service"]


@pytest.mark.parametrize("versions", PASSED, ids=str)
async def test_a_service_that_does_not_understand_it_says_so_to_the_requester(versions, run_broker, run_service):
    service = await run_service(service_of())
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url),))
    async with holdfast.Source(broker.service.url, ":memory:", versions=versions, processors=[Adds("x")]) as source:
        with pytest.raises(holdfast.HoldfastError, match=r"understand the mandatory header \{urn:tenant\}Tenant"):
            await source.request("<ask/>", action="urn:ask", timeout=240)


@pytest.mark.parametrize("versions", PASSED, ids=str)
@pytest.mark.parametrize("forwards", [True, False], ids=["for every node", "nobody sends it on"])
async def test_a_header_that_the_broker_is_to_understand_is_refused(forwards, versions, run_broker, run_service):
    service = await run_service(service_of(Understands("service")))
    forwarders = (ForwarderConfig("next", "inbox", service.url),) if forwards else ()
    broker = await run_broker(forwarders=forwarders)
    adds = Adds("x", NEXT[versions.soap.value] if forwards else "")
    async with holdfast.Source(broker.service.url, ":memory:", versions=versions, processors=[adds]) as source:
        with pytest.raises(holdfast.PeerFault, match="MustUnderstand"):
            await (await source.send("<tell/>", action="urn:tell")).acknowledged(60)
