"""A Timestamp alone in the Security header, at both ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import served_destination

from holdfast import Destination, Message, PeerFault, Source, Timestamp
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.security.freshness import Freshness
from holdfast.security.header import write_timestamp
from holdfast.security.names import WSSE, WSU
from holdfast.wire.generated_wsdl import GeneratedOperation, generated_wsdl
from holdfast.wire.policy.writing import written
from holdfast.wire.wsdl import Description

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
NOW = 1_800_000_000.0
RM = "http://docs.oasis-open.org/ws-rx/wsrm/200702"


class Served(served_destination.Served):
    """A destination that demands a Timestamp, with a clock that stands."""

    def __init__(self, **options: float) -> None:
        super().__init__(Destination(":memory:", processors=[Timestamp(clock=lambda: NOW, **options)]))

    def take(self, message: Message) -> str:
        super().take(message)
        return "<taken/>"


def create(content: str | None) -> str:
    """A CreateSequence with this content of its Security header; None: without a header."""
    security = "" if content is None else f'<o:Security xmlns:o="{WSSE}" xmlns:wsu="{WSU}">{content}</o:Security>'
    anonymous = "<a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"
    return (
        '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
        f'xmlns:r="{RM}"><s:Header><a:Action>{RM}/CreateSequence</a:Action><a:MessageID>urn:m:1</a:MessageID>'
        f"<a:To>http://shop/</a:To>{security}</s:Header><s:Body><r:CreateSequence><r:AcksTo>{anonymous}</r:AcksTo>"
        "</r:CreateSequence></s:Body></s:Envelope>"
    )


async def test_both_ends_write_and_check_timestamps(tmp_path: Path) -> None:
    async with Served() as served:
        stamp = Timestamp(clock=lambda: NOW)
        async with Source(served.url, tmp_path / "out", processors=[stamp]) as source:
            reply = await source.request("<ask/>", action="urn:ask", timeout=240)
            assert reply.body_bytes == b"<taken/>"
            await source.flush(timeout=240)
        assert [message.header_bytes for message in served.got] == [b""], "no Security header is stored"


@pytest.mark.parametrize(
    ("content", "is_accepted"),
    [
        (write_timestamp(NOW, 300.0), True),
        (write_timestamp(NOW - 350.0, 300.0), True),
        (write_timestamp(NOW - 370.0, 300.0), False),
        (write_timestamp(NOW + 50.0, 300.0), True),
        (write_timestamp(NOW + 70.0, 300.0), False),
        (write_timestamp(NOW, 300.0) * 2, False),
        ("", False),
        (None, False),
    ],
)
async def test_a_request_without_a_fresh_timestamp_is_refused(content: str | None, is_accepted: bool) -> None:
    async with Served(freshness=Freshness(life=300.0, skew=60.0)) as served:
        answer = await served.post(create(content))
        assert (answer.status_code == 200) is is_accepted
        assert bool(served.sequences) is is_accepted
        assert (b"Timestamp>" in answer.content) is is_accepted
        assert (b"InvalidSecurity" in answer.content) is not is_accepted


async def test_a_source_with_a_wrong_clock_stops_with_the_reason(tmp_path: Path) -> None:
    async with Served() as served:
        late = Timestamp(clock=lambda: NOW - 3600.0)
        async with Source(served.url, tmp_path / "out", processors=[late]) as source:
            sent = await source.send("<note/>", action="urn:note")
            with pytest.raises(PeerFault, match="Security header"):
                await sent.acknowledged(timeout=240)


async def test_an_old_answer_does_not_count(tmp_path: Path) -> None:
    class Suspicious(served_destination.Doubting, Timestamp):
        pass

    async with Served() as served:
        stamp = Suspicious(clock=lambda: NOW)
        async with Source(served.url, tmp_path / "out", processors=[stamp], policy=HASTY) as source:
            await (await source.send("<note/>", action="urn:note")).acknowledged(timeout=240)
        await served.app.handled()
        assert stamp.left < 0
        assert len(served.got) == 1


def test_the_generated_policy_demands_a_timestamp_over_https_and_from_wsdl_names_it() -> None:
    stamp = Timestamp()
    assert stamp.policy(is_https=False) == ""
    policy = written(DestinationPolicy(), [stamp.policy(is_https=True)])
    description = Description()
    description.add(generated_wsdl("https://host/", [GeneratedOperation("urn:a")], policy), "here")
    assert description.port(None, set(stamp.abilities)).is_reliable
    with pytest.raises(ConfigurationError, match=r"processors=\[holdfast\.Timestamp\(\)\]"):
        description.port(None, set())
