"""SequencePolicies for one Sequence, and for sets of Sequences by destination, action and name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ConfigurationError, Destination, Policy, RetransmissionPolicy, Source, SourcePolicy
from holdfast.core.policy import Assurance
from holdfast.endpoint.sending.policies import SequencePolicies, to_policies

URL = "https://partner.example/orders"
DOCUMENT = """<?xml version="1.0"?>
<wsp:Policy xmlns:wsp="http://schemas.xmlsoap.org/ws/2004/09/policy"
    xmlns:r="http://schemas.xmlsoap.org/ws/2005/02/rm/policy">
  <r:RMAssertion>
    <r:InactivityTimeout Milliseconds="60000"/>
    <r:BaseRetransmissionInterval Milliseconds="3000"/>
    <r:ExponentialBackoff/>
    <r:AcknowledgementInterval Milliseconds="1000"/>
  </r:RMAssertion>
</wsp:Policy>"""


def windows(policies: list[Policy], *sequences: tuple[str, str]) -> list[int]:
    """The windows of the Sequences to those addresses with those keys."""
    found = to_policies(policies)
    return [found.of(to, key).window for to, key in sequences]


def test_a_policy_is_for_all_sequences_or_for_some_by_destination_or_name() -> None:
    policies = [
        Policy({"window": 1}),
        Policy({"window": 2}, to="https://partner.example/*"),
        Policy({"window": 3}, name="bulk-*"),
        Policy({"window": 4}, to=URL, name="bulk-7"),
    ]
    sequences = [("http://x/", ""), (URL, ""), ("http://x/", "bulk-1"), (URL, "bulk-1"), (URL, "bulk-7")]
    assert windows(policies, *sequences) == [1, 2, 3, 3, 4]
    assert windows([Policy({"window": 5}, name="one")], (URL, "one"), (URL, "one more")) == [5, 32]


def test_a_policy_changes_only_what_it_sets() -> None:
    usual = SourcePolicy(window=7, retransmission=RetransmissionPolicy(cap=60.0))
    given = [
        Policy({"retransmission": {"initial": 9.0}}),
        Policy({"assurance": "at-least-once", "window": 8}, name="a"),
    ]
    found = SequencePolicies(usual, given)
    assert found.of(URL, "") == SourcePolicy(window=7, retransmission=RetransmissionPolicy(initial=9.0, cap=60.0))
    assert found.of(URL, "a").assurance == Assurance.parse("at-least-once")
    assert found.of(URL, "a").retransmission.initial == 9.0


def test_messages_with_certain_actions_get_a_sequence_of_their_own() -> None:
    found = to_policies(
        [Policy({"window": 1}, action="urn:urgent*"), Policy({"window": 2}, action="urn:bulk", name="bulk")]
    )
    assert [found.key_of(action) for action in ("urn:urgent/now", "urn:bulk", "urn:bulky")] == [
        "urn:urgent*",
        "bulk",
        "",
    ]
    assert [found.of(URL, key).window for key in ("urn:urgent*", "bulk", "", "other")] == [1, 2, 32, 32]


def test_a_policy_may_be_a_ws_policy_document(tmp_path: Path) -> None:
    (tmp_path / "slow.xml").write_text(DOCUMENT)
    found = to_policies([Policy(tmp_path / "slow.xml"), Policy({"window": 3})]).of(URL, "")
    times = found.retransmission
    assert (times.initial, times.floor, times.steady, found.keep_alive, found.window) == (3.0, 3.0, 1, 30.0, 3)


@pytest.mark.parametrize(
    "demand",
    [
        '<m:MCSupported xmlns:m="http://docs.oasis-open.org/ws-rx/wsmc/200702"/>',
        '<s:TransportBinding xmlns:s="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"/>',
        '<s:SupportingTokens xmlns:s="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"><wsp:Policy>'
        "<s:UsernameToken/></wsp:Policy></s:SupportingTokens>",
    ],
)
def test_a_document_that_demands_more_than_settings_is_refused(tmp_path: Path, demand: str) -> None:
    (tmp_path / "more.xml").write_text(DOCUMENT.replace("</wsp:Policy>", f"{demand}</wsp:Policy>"))
    with pytest.raises(ConfigurationError, match=r"demands more than settings of Sequences: \w+ \(.*line 10 of"):
        to_policies([Policy(tmp_path / "more.xml")])


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot read the policy"),
        ("<wsp:Policy", "is not well-formed XML"),
        ("<Policy/>", "is not a Policy of WS-Policy"),
        (
            DOCUMENT.replace('"3000"', '"soon"'),
            r"BaseRetransmissionInterval, line 6 of .*slow\.xml, needs Milliseconds",
        ),
        (DOCUMENT.replace("r:Exp", "r:Unheard"), r"requires UnheardonentialBackoff .* line 7 of"),
    ],
)
def test_a_document_that_is_no_policy_is_refused(tmp_path: Path, content: str | None, wrong: str) -> None:
    if content is not None:
        (tmp_path / "slow.xml").write_text(content)
    with pytest.raises(ConfigurationError, match=wrong):
        Policy(tmp_path / "slow.xml")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Policy({"windows": 3}), "SourcePolicy has no setting 'windows'\n  Did you mean 'window'"),
        (lambda: Policy({"retransmission": {"first": 3}}), "RetransmissionPolicy has no setting 'first'"),
        (lambda: Policy({"window": 0}), "SourcePolicy.window cannot be 0"),
        (lambda: Policy({"assurance": "sometimes"}), "is not a delivery assurance"),
        (lambda: Policy({}, to="*.example"), "is not a pattern"),
        (lambda: Policy({}, action="urn:a", name="a*"), "cannot have the name"),
        (lambda: Source(URL, policy=Policy({})), "policy cannot be Policy"),
        (lambda: Source(URL, policy=[{"window": 3}]), "is not a Policy"),
        (lambda: Source(URL, policy=7), "policy cannot be 7"),
    ],
)
def test_a_mistake_in_a_policy_is_told_when_it_is_made(wrong: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        wrong()
    assert told in str(caught.value)


async def test_each_sequence_of_a_source_has_its_policy_which_may_change(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:")
    got: list[str] = []
    app.on()(lambda message: got.append(message.action))
    url = (await serve(app)).url
    given = [Policy({"window": 5}), Policy({"window": 1}, action="urn:urgent"), Policy({"window": 9}, name="bulk")]
    async with Source(url, tmp_path / "outbox", policy=given) as source:
        outboxes = source._running.engine.protocol.outbound.outboxes
        for action, key in (("urn:a", ""), ("urn:urgent", ""), ("urn:urgent", "bulk"), ("urn:a", "bulk")):
            await (await source.send("<n/>", action=action, sequence_key=key)).acknowledged(60)
        assert {key: one.policy.window for key, one in outboxes.items()} == {"": 5, "urn:urgent": 1, "bulk": 9}
        assert {key: one.records.end for key, one in outboxes.items()} == {"": 1, "urn:urgent": 1, "bulk": 2}
        source.use([Policy({"window": 3}, name="bulk")])
        assert {key: one.policy.window for key, one in outboxes.items()} == {"": 32, "urn:urgent": 32, "bulk": 3}
        await (await source.send("<n/>", action="urn:a", sequence_key="later")).acknowledged(60)
        with pytest.raises(ConfigurationError):
            source.use([Policy({"window": 3}), "no policy"])  # type: ignore[list-item]
        assert outboxes["bulk"].policy.window == 3
    async with Source(url, tmp_path / "outbox", policy=given) as source:
        assert source._running.engine.protocol.outbound.outboxes["bulk"].policy.window == 9, "it is not stored"
        assert source.policy.window == 5
    assert sorted(got) == ["urn:a", "urn:a", "urn:a", "urn:urgent", "urn:urgent"]


async def test_policies_that_contradict_each_other_change_nothing(serve: Any) -> None:
    fast, slow = Policy({"retransmission": {"cap": 1.0}}), Policy({"retransmission": {"floor": 2.0}}, name="slow")
    async with Source((await serve(Destination(":memory:"))).url, ":memory:", policy=[fast, slow]) as source:
        await source.send("<n/>", action="urn:a")
        with pytest.raises(ConfigurationError, match="above cap=1"):
            await source.send("<n/>", action="urn:a", sequence_key="slow")
        assert source.progress.stored == 1
        with pytest.raises(ConfigurationError, match="above cap=1"):
            source.use([fast, Policy({"retransmission": {"floor": 2.0}})])
        assert source.policy.retransmission.floor == 0.5
        await source.flush(60)


def test_the_blocking_source_takes_policies_too(tmp_path: Path) -> None:
    with holdfast.sync.Source("http://127.0.0.1:9/", tmp_path / "outbox", policy=[Policy({"window": 5})]) as source:
        assert source.policy.window == 5
        source.use(SourcePolicy(window=6))
        assert source.policy.window == 6


async def test_policies_change_what_a_wsdl_states(tmp_path: Path) -> None:
    wsdl = Path(__file__).parents[3] / "examples" / "orders.wsdl"
    timers = '<n:InactivityTimeout xmlns:n="http://schemas.microsoft.com/ws-rx/wsrmp/200702" Milliseconds="60000"/>'
    text = wsdl.read_text().replace("</wsrmp:RMAssertion>", f"{timers}</wsrmp:RMAssertion>")
    (tmp_path / "orders.wsdl").write_text(text)
    source = await Source.from_wsdl(tmp_path / "orders.wsdl", ":memory:", policy=[Policy({"window": 2})])
    assert (source.policy.keep_alive, source.policy.window) == (30.0, 2)
    source.use([Policy({"window": 4})])
    assert (source.policy.keep_alive, source.policy.window) == (30.0, 4)
