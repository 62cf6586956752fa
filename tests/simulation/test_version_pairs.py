"""A broker between peers of any two versions, one-way and two-way, on a bad network, whoever of the three crashes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.core.versions import ALL_VERSIONS, EARLY_VERSIONS, RM, SOAP, Versions
from holdfast.simulation.nodes.network import NetworkFaults
from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator

BAD = NetworkFaults(lose_request=0.2, lose_response=0.2, duplicate=0.2, delay=0.3, silent=0.5)


def world(requester: Versions, service: Versions, requests: float, seed: int) -> Options:
    """A world with a broker whose source and service speak these versions."""
    chance = random.Random(seed)
    drawn = replace(Options.draw(chance), partitions=1 + seed % 2)
    options = next(found for _ in range(1000) if (found := drawn.with_broker(chance)).broker is not None)
    return replace(
        options,
        versions=requester,
        broker=service,
        offer=seed % 2 == 0,
        broker_offers=seed % 3 == 0,
        requests=requests,
        listener=seed % 5 == 0,
        messages=8,
        network=BAD,
        crash_source=0.02,
        crash_broker=0.05,
        crash_destination=0.02,
    )


def run(pairs: Iterator[tuple[Versions, Versions]], *requests: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed, (requester, service) in enumerate(pairs):
        options = world(requester, service, requests[seed % len(requests)], seed)
        counts.update(Simulator(seed, options).run().counts)
    return counts


def pairs_of_early_versions() -> Iterator[tuple[Versions, Versions]]:
    """Each pair of a WS-RM with a WS-Addressing of which one is early; the versions of SOAP alternate."""
    kinds = sorted({(one.rm, one.addressing) for one in ALL_VERSIONS})
    early = {(one.rm, one.addressing) for one in EARLY_VERSIONS}
    pairs = [(a, b) for a in kinds for b in kinds if a in early or b in early]
    for number, (requester, service) in enumerate(pairs):
        soaps = (SOAP.V1_1, SOAP.V1_2) if number % 2 else (SOAP.V1_2, SOAP.V1_1)
        yield Versions(*requester, soaps[0]), Versions(*service, soaps[number % 3 == 0])


def test_a_broker_bridges_early_and_later_versions_both_ways() -> None:
    counts = run(pairs_of_early_versions(), 0.0, 1.0)
    assert counts["crashes"] > 30 and counts["exchanges lost"] > 150 and counts["message.duplicate_dropped"] > 30
    assert counts["sequence.created"] > 50


@pytest.mark.nightly
@pytest.mark.parametrize("requests", [0.0, 0.5, 1.0], ids=["one-way", "both", "two-way"])
@pytest.mark.parametrize("requester", ALL_VERSIONS, ids=lambda one: one.in_words)
def test_a_broker_bridges_any_version_to_any_other(requester: Versions, requests: float) -> None:
    counts = run(((requester, service) for service in ALL_VERSIONS for _ in range(3)), requests)
    assert counts["crashes"] > 30 and counts["exchanges lost"] > 150


@pytest.mark.parametrize("rm", [RM.V2003_03, RM.V2004_03])
def test_everything_arrives_in_early_versions_whoever_crashes(rm: RM) -> None:
    counts: Counter[str] = Counter()
    versions = [one for one in EARLY_VERSIONS if one.rm is rm]
    for seed in range(12):
        drawn = Options.draw(random.Random(seed)).in_early_version(versions[seed % len(versions)])
        crashes = {"crash_source": 0.02, "crash_destination": 0.03}
        counts.update(Simulator(seed, replace(drawn, network=BAD, **crashes)).run().counts)
    assert counts["crashes"] > 8 and counts["exchanges lost"] > 30 and counts["sequence.created"] > 12
