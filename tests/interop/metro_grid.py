"""What the tests with Metro vary: versions, operations and networks."""

from __future__ import annotations

import pytest
from java_contract import BAD, CLEAN

import holdfast

VERSIONS = [holdfast.Versions(rm, "2005/08", soap) for rm in ("1.0", "1.1") for soap in ("1.1", "1.2")]
every_version = pytest.mark.parametrize(
    "versions", VERSIONS, ids=[f"rm{v.rm.value}-soap{v.soap.value}" for v in VERSIONS]
)
every_operation = pytest.mark.parametrize("operation", ["notify", "echo"])
every_network = pytest.mark.parametrize("faults", [CLEAN, BAD], ids=["clean", "bad"])
