"""What a configuration permits, but hardly anyone wants: policies that match nothing, forwarders with one address."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.config import BrokerConfig, ForwarderConfig, PolicyConfig, RouteConfig, actions_of, resolved_policy
from holdfast.broker.config_warnings import forwarders_of_policies, shared_addresses, unused_policies
from holdfast.broker.forwarders import Forwarders

QUEUES = ("a", "b")
ACTIONS = ("urn:a/1", "urn:a/*", "urn:b", "*")
ADDRESSES = ("http://a.example/x", "http://b.example/")
PATTERNS = (
    "*", "a.example", "c.example", "http://b.example/*", "name:a1", "name:a*", "name:c", "action:urn:a/*",
    "action:urn:a/1", "action:urn:*", "action:urn:c",
)  # fmt: skip

routes = st.builds(
    RouteConfig,
    st.lists(st.sampled_from(QUEUES), min_size=1, unique=True).map(tuple),
    action=st.lists(st.sampled_from(ACTIONS), max_size=2).map(tuple),
)
forwarders = st.lists(
    st.builds(
        ForwarderConfig, st.sampled_from(("a1", "a2", "b1")), st.sampled_from(QUEUES), st.sampled_from(ADDRESSES)
    ),
    unique_by=lambda one: one.name,
)


@given(st.lists(routes, max_size=3), forwarders, st.sampled_from((None, *QUEUES)), st.sampled_from(PATTERNS))
def test_a_policy_is_unused_exactly_if_it_changes_nothing_for_any_address(
    routed: list[RouteConfig], sending: list[ForwarderConfig], default: str | None, pattern: str
) -> None:
    policies = (PolicyConfig(pattern, {"refusals": 7}),)
    config = BrokerConfig(routes=tuple(routed), forwarders=tuple(sending), default_queue=default, policies=policies)
    changed = [
        one.name
        for one in sending
        if resolved_policy(policies, one.to, {}, one.name, actions_of(one.queue, routed, default)).refusals == 7
    ]
    assert forwarders_of_policies(config) == {pattern: changed}
    of_replies = any(
        resolved_policy(policies, address).refusals == 7 for address in (*ADDRESSES, "http://c.example/", "")
    )
    assert list(unused_policies(config)) == ([] if changed or of_replies else [pattern])


@given(forwarders)
def test_an_address_is_shared_if_the_order_in_the_file_decides_where_rows_go(
    sending: list[ForwarderConfig],
) -> None:
    found = shared_addresses(BrokerConfig(forwarders=tuple(sending)))
    first, last = (Forwarders(several).addresses() for several in (sending, sending[::-1]))
    assert set(found) == {to for to in ADDRESSES if first.get(to) != last.get(to)}
    by_name = {one.name: one for one in sending}
    for to, names in found.items():
        assert names == [one.name for one in sending if one.to == to]
        assert first[to] == by_name[names[0]].queue
