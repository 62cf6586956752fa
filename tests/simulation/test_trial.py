from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.exceptions import ConfigurationError
from holdfast.simulation.trial import Link, Trial, run

links = st.builds(
    Link,
    loss=st.floats(0, 0.6),
    delay=st.floats(0, 1),
    spread=st.floats(0, 3),
    capacity=st.sampled_from((5.0, 100.0, 10_000.0)),
    line=st.integers(1, 64),
    sync=st.floats(0, 0.1),
)
policies = st.builds(
    SourcePolicy,
    retransmission=st.builds(
        RetransmissionPolicy, initial=st.floats(0.05, 5), floor=st.floats(0.01, 1), cap=st.floats(1, 30)
    ),
    window=st.integers(4, 64),
)
trials = st.builds(
    Trial,
    link=links,
    source=policies,
    messages=st.integers(1, 300),
    interval=st.sampled_from((0.0, 0.0, 0.01, 3.0)),
    versions=st.sampled_from(ALL_VERSIONS),
)


@given(trials, st.integers(0, 2**40))
@settings(max_examples=examples(60), deadline=None)
def test_every_message_is_delivered_once_whatever_the_network_and_the_policy(trial: Trial, seed: int):
    outcome = run(trial, seed)
    assert outcome.is_complete
    assert len(outcome.latencies) == trial.messages
    assert outcome.transmissions >= trial.messages
    assert outcome.requests > outcome.transmissions  # CreateSequence at least
    assert min(outcome.latencies) >= trial.link.delay
    assert outcome.seconds >= (trial.messages - 1) * trial.interval


@pytest.mark.every(3)
@pytest.mark.parametrize("versions", [one for one in ALL_VERSIONS if one.rm.can.creates], ids=str)
def test_no_lost_request_of_a_sequence_stalls_it(versions: Versions) -> None:
    """The simulated exchange stays open for a minute, as it does where a connection hangs."""
    policy = RetransmissionPolicy()
    trials = [run(Trial(Link(loss=0.05, delay=0.02), versions=versions), seed) for seed in range(50)]
    assert all(one.is_complete for one in trials)
    assert max(max(one.latencies) for one in trials) < policy.steady * policy.initial * (1 + policy.jitter)


@given(trials, st.integers(0, 100))
@settings(max_examples=examples(15), deadline=None)
def test_a_trial_and_a_seed_have_one_outcome(trial: Trial, seed: int):
    assert run(trial, seed) == run(trial, seed)


def test_what_is_not_lost_is_sent_once():
    outcome = run(Trial(messages=100), 0)
    assert (outcome.transmissions, outcome.dropped) == (100, 0)


def test_another_seed_loses_other_messages():
    trial = Trial(Link(loss=0.3), messages=20)
    assert len({run(trial, seed).seconds for seed in range(20)}) == 20


def test_what_finds_the_line_full_is_lost_and_sent_again():
    trial = Trial(Link(capacity=10, line=2), SourcePolicy(window=32, initial_window=32), messages=32)
    outcome = run(trial, 0)
    assert outcome.dropped > 0
    assert outcome.is_complete
    assert run(replace(trial, link=replace(trial.link, line=64)), 0).dropped == 0


def test_no_more_get_through_than_the_capacity_says():
    outcome = run(Trial(Link(delay=0, capacity=50), SourcePolicy(window=64, initial_window=64), messages=100), 0)
    assert outcome.seconds >= 100 / 50


@pytest.mark.parametrize("wrong", [{"loss": 1.0}, {"loss": -0.1}, {"capacity": 0.0}, {"line": 0}, {"delay": -1.0}])
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, float]):
    with pytest.raises(ConfigurationError):
        Link(**wrong)


@pytest.mark.parametrize("delay", [0.02, 0.2])
def test_the_default_policy_is_about_as_quick_as_a_steady_one_where_a_fifth_is_lost(delay: float) -> None:
    """A timeout that doubles after the first loss halves the rate; one that doubles after three delays the unlucky."""

    def tried(policy: RetransmissionPolicy) -> tuple[float, float, float, float]:
        one = Trial(Link(0.2, delay), SourcePolicy(policy))
        outcomes = [run(one, seed) for seed in range(50)]
        latencies = sorted(latency for outcome in outcomes for latency in outcome.latencies)
        sent = sum(outcome.transmissions for outcome in outcomes)
        rate = len(latencies) / sum(outcome.seconds for outcome in outcomes)
        return rate, latencies[int(0.99 * len(latencies))], latencies[-1], sent / len(latencies)

    usual, steady = tried(RetransmissionPolicy()), tried(RetransmissionPolicy(initial=1.0, floor=1.0, cap=1.0))
    assert usual[0] > 0.8 * steady[0]
    assert usual[1] < 1.25 * steady[1]
    assert usual[2] < 2 * steady[2]
    assert usual[3] < 1.05 * steady[3]


DROPS_EARLY = DestinationPolicy(buffer_bytes=1)
"""In order, and nothing fits into its buffer: what overtakes another message is dropped, as WCF does by default."""
NO_PAUSE = Link(delay=0.0003, spread=0.2, capacity=5000.0, sync=0.0002)


def compared(link: Link, destination: DestinationPolicy | None, messages: int, seed: int) -> tuple[float, int]:
    """How much faster the default window is than a window of one, and how many messages it sends again."""
    one = run(Trial(link, SourcePolicy(window=1, initial_window=1), destination, messages), seed)
    usual = run(Trial(link, SourcePolicy(), destination, messages), seed)
    assert one.is_complete and usual.is_complete
    return one.seconds / usual.seconds, usual.transmissions - messages


@pytest.mark.parametrize("pause", [0.0, 0.004, 0.04])
def test_where_early_messages_drop_it_is_never_slower_than_a_window_of_one(pause: float):
    link = replace(NO_PAUSE, delay=pause / 2, spread=1.0) if pause else NO_PAUSE
    for seed in range(2):
        gain, repeats = compared(link, DROPS_EARLY, 400, seed)
        assert gain >= 0.95
        assert repeats <= 20


def test_a_window_stays_open_where_nothing_overtakes():
    gain, repeats = compared(Link(delay=0.02, spread=0.01, capacity=5000.0), DROPS_EARLY, 400, 0)
    assert gain > 15
    assert repeats == 0


@pytest.mark.parametrize("pause", [0.004, 0.04])
def test_a_destination_that_takes_early_messages_gets_a_whole_window_once(pause: float):
    gain, repeats = compared(Link(delay=pause / 2, spread=1.0, capacity=5000.0, sync=0.0002), None, 400, 0)
    assert gain > 12
    assert repeats == 0


def test_where_a_destination_that_drops_early_messages_loses_some_the_gain_stays():
    gain, _ = compared(Link(loss=0.1, delay=0.01, capacity=5000.0), DROPS_EARLY, 200, 0)
    assert gain >= 0.95
