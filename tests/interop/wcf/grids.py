"""What the tests with scripted peers go through: versions and contracts."""

from __future__ import annotations

import pytest
from wcf.wire import COMBINATIONS, Profile

RM10 = Profile("1.0", "2005/08", "1.2")
RM11 = Profile("1.1", "2005/08", "1.2")

every_combination = pytest.mark.parametrize("profile", COMBINATIONS, ids=str)
# What is lost and sent again is the same whatever SOAP and WS-Addressing are: sessions without loss have all of these.
each_version = pytest.mark.parametrize(
    "profile",
    [pytest.param(one, marks=[] if one in (RM10, RM11) else pytest.mark.nightly) for one in COMBINATIONS],
    ids=str,
)
every_contract = pytest.mark.parametrize("contract", ["oneway", "twoway", "mixed"])
