"""The times of a lease, and what must hold between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.exceptions import ConfigurationError


@given(st.floats(1, 120))
def test_a_node_renews_often_and_stops_before_its_lease_ends(lease: float) -> None:
    policy = LeasePolicy(lease)
    assert 3 * policy.renewal < policy.trust < policy.silence < policy.lease
    assert policy.poll <= policy.renewal
    assert lease / 12 <= policy.hold <= policy.keep < policy.trust
    assert policy.hold == min(0.5, policy.keep) or lease > 6


@pytest.mark.parametrize("lease", [0.5, 121.0, 0.0, -1.0, float("nan"), float("inf"), "6", None, True])
def test_a_lease_out_of_bounds_is_refused(lease: object) -> None:
    with pytest.raises(ConfigurationError, match=r"LeasePolicy\.lease cannot be .*\n.* at least 1 and at most 120"):
        LeasePolicy(lease)  # type: ignore[arg-type]
