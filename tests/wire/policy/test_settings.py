"""What the assertions of reliable messaging do to the settings of a source."""

from __future__ import annotations

import pytest
from lxml import etree

from holdfast.core.policy import Assurance, Delivery, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.attachment import Attachments
from holdfast.wire.policy.settings import StatedSettings, for_source, stated

RM_1_0 = "http://schemas.xmlsoap.org/ws/2005/02/rm/policy"
RM_1_1 = "http://docs.oasis-open.org/ws-rx/wsrmp/200702"
NAMESPACES = f"""xmlns:wsp="http://www.w3.org/ns/ws-policy" xmlns:r="{RM_1_1}" xmlns:r0="{RM_1_0}"
    xmlns:n="http://schemas.microsoft.com/ws-rx/wsrmp/200702" xmlns:n0="http://schemas.microsoft.com/net/2005/02/rm/policy"
    xmlns:m="http://java.sun.com/xml/ns/metro/ws-rx/wsrmp/200702"
    xmlns:s="http://sun.com/2006/03/rm" xmlns:c="http://sun.com/2006/03/rm/client" """


def read(assertions: str) -> StatedSettings:
    root = etree.fromstring(f"<root {NAMESPACES}><wsp:Policy>\n{assertions}</wsp:Policy></root>")
    (alternative,) = Attachments({root: "orders.wsdl"}).of(root)
    return stated(alternative)


def rm_1_0(inside: str) -> str:
    return f"<r0:RMAssertion>{inside}</r0:RMAssertion>"


def rm_1_1(delivery: str, beside: str = "", within: str = "") -> str:
    inner = f"<r:DeliveryAssurance><wsp:Policy>{delivery}</wsp:Policy></r:DeliveryAssurance>{within}"
    return f"<r:RMAssertion><wsp:Policy>{inner}</wsp:Policy>{beside}</r:RMAssertion>"


def test_rm_1_0_states_its_timers_and_no_assurance() -> None:
    found = read(
        rm_1_0(
            '<r0:InactivityTimeout Milliseconds="600000"/><r0:BaseRetransmissionInterval Milliseconds="3000"/>'
            '<r0:ExponentialBackoff/><r0:AcknowledgementInterval Milliseconds="200"/>'
        )
    )
    assert found == StatedSettings(None, 600.0, 3.0, True, 0.2)


@pytest.mark.parametrize(
    ("delivery", "assurance"),
    [
        ("<r:ExactlyOnce/><r:InOrder/>", Assurance(Delivery.EXACTLY_ONCE, True)),
        ("<r:AtLeastOnce/>", Assurance(Delivery.AT_LEAST_ONCE, False)),
        ("<r:AtMostOnce/>", Assurance(Delivery.AT_MOST_ONCE, False)),
        ("<r:InOrder/>", None),
        ("", None),
        # Of alternatives, the source uses the strongest.
        ("<wsp:ExactlyOne><r:AtLeastOnce/><r:ExactlyOnce/></wsp:ExactlyOne>", Assurance(Delivery.EXACTLY_ONCE, False)),
        (
            "<wsp:ExactlyOne><r:AtMostOnce/><wsp:All><r:AtLeastOnce/><r:InOrder/></wsp:All></wsp:ExactlyOne>",
            Assurance(Delivery.AT_LEAST_ONCE, True),
        ),
        ('<r:ExactlyOnce/><r:InOrder wsp:Optional="true"/>', Assurance(Delivery.EXACTLY_ONCE, True)),
        ('<r:ExactlyOnce/><r:AtLeastOnce wsp:Optional="true"/>', Assurance(Delivery.EXACTLY_ONCE, False)),
        ("<wsp:ExactlyOne><wsp:All/><r:AtLeastOnce/></wsp:ExactlyOne>", Assurance(Delivery.AT_LEAST_ONCE, False)),
    ],
)
def test_rm_1_1_states_the_assurance_of_the_destination(delivery: str, assurance: Assurance | None) -> None:
    assert read(rm_1_1(delivery)).assurance == assurance


@pytest.mark.parametrize("place", ["beside", "within"])
def test_net_states_its_timers_beside_the_nested_policy_or_within(place: str) -> None:
    timers = '<n:InactivityTimeout Milliseconds="120000"/><n:AcknowledgementInterval Milliseconds="100"/>'
    found = read(rm_1_1("<r:ExactlyOnce/>", **{place: timers}))
    assert (found.inactivity_timeout, found.acknowledgement_interval) == (120.0, 0.1)


def test_net_and_metro_state_more_in_assertions_of_their_own() -> None:
    flow = "<n0:RmFlowControl><n0:MaxReceiveBufferSize> 8 </n0:MaxReceiveBufferSize></n0:RmFlowControl>"
    assert read(rm_1_0("") + flow).buffer == 8
    metro = (
        '<m:RetransmissionConfig><m:Interval Milliseconds="2000"/><m:Algorithm>Exponential</m:Algorithm>'
        '<m:MaxRetries>3</m:MaxRetries></m:RetransmissionConfig><m:AckRequestInterval Milliseconds="400000"/>'
    )
    found = read(rm_1_1("<r:ExactlyOnce/>") + metro)
    assert (found.retransmission_interval, found.has_backoff, found.request_interval) == (2.0, True, 400.0)
    older = '<s:Ordered/><s:AllowDuplicates/><c:ResendInterval Milliseconds="5000"/>'
    found = read(rm_1_0("") + older)
    assert (found.assurance, found.retransmission_interval) == (Assurance(Delivery.AT_LEAST_ONCE, True), 5.0)


@pytest.mark.parametrize(
    ("assertions", "wrong"),
    [
        (rm_1_0("<r0:InactivityTimeout/>"), "InactivityTimeout, line 5 of orders.wsdl, needs Milliseconds"),
        (rm_1_0('<r0:InactivityTimeout Milliseconds="-1"/>'), "needs Milliseconds, a whole number, and has '-1'"),
        (rm_1_0('<r0:InactivityTimeout Milliseconds="0"/>'), "states 0 milliseconds"),
        (rm_1_0(f'<r0:InactivityTimeout Milliseconds="{"9" * 5000}"/>'), "needs Milliseconds"),
        (rm_1_0('<r0:BaseRetransmissionInterval Milliseconds="3600001"/>'), "which is more than 3600"),
        (rm_1_0('<r0:AcknowledgementInterval Milliseconds="1e3"/>'), "AcknowledgementInterval, line 5 of orders.wsdl"),
        (rm_1_1("<r:ExactlyOnce/><r:AtLeastOnce/>"), "contradicts another delivery assurance: AtLeastOnce and Exactly"),
        ("<n0:RmFlowControl><n0:MaxReceiveBufferSize/></n0:RmFlowControl>", "needs a number of messages"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_assertion_and_its_line(assertions: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(assertions)
    assert wrong in caught.value.message
    assert "line 5 of orders.wsdl" in caught.value.message


USUAL = SourcePolicy()
TIMES = RetransmissionPolicy()


def test_a_service_that_states_nothing_changes_nothing() -> None:
    assert for_source(StatedSettings(), USUAL) == USUAL


@pytest.mark.parametrize(
    ("settings", "initial", "floor", "cap", "steady"),
    [
        (StatedSettings(retransmission_interval=3.0), 3.0, 3.0, 8.0, 6),
        (StatedSettings(retransmission_interval=20.0, has_backoff=True), 20.0, 20.0, 20.0, 1),
        (StatedSettings(retransmission_interval=0.001), 0.1, 0.1, 8.0, 6),
        (StatedSettings(has_backoff=True), 1.0, 0.5, 8.0, 1),
        (StatedSettings(acknowledgement_interval=0.2), 1.0, 0.5, 8.0, 6),
        (StatedSettings(acknowledgement_interval=5.0), 5.3, 5.3, 8.0, 6),
        (StatedSettings(retransmission_interval=2.0, acknowledgement_interval=10.0), 10.3, 10.3, 10.3, 6),
    ],
)
def test_intervals_and_backoff_set_the_times_of_retransmissions(
    settings: StatedSettings, initial: float, floor: float, cap: float, steady: int
) -> None:
    found = for_source(settings, USUAL).retransmission
    assert (found.initial, found.floor, found.cap, found.steady) == (initial, floor, cap, steady)


def test_the_inactivity_timeout_keeps_sequences_and_the_buffer_limits_the_window() -> None:
    assert for_source(StatedSettings(inactivity_timeout=60.0), USUAL).keep_alive == 30.0
    assert for_source(StatedSettings(inactivity_timeout=86_400.0), USUAL).keep_alive == USUAL.keep_alive
    assert for_source(StatedSettings(inactivity_timeout=0.01), USUAL).keep_alive == 1.0, "no flood of AckRequested"
    both = for_source(StatedSettings(inactivity_timeout=60.0, request_interval=400.0), USUAL)
    assert (both.keep_alive, both.poll_interval) == (30.0, 400.0), "a Sequence must not end"
    small = for_source(StatedSettings(buffer=2), USUAL)
    assert (small.window, small.initial_window) == (2, 2)
    assert for_source(StatedSettings(assurance=Assurance(in_order=False)), USUAL).assurance == Assurance(in_order=False)
