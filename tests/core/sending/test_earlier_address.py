"""A source that is killed and listens elsewhere afterwards: its Sequences were told its earlier address.

Covers core/sending/outboxes/earlier_address.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from chain import REQUESTER, Chain, Party
from hypothesis import event, given
from hypothesis import strategies as st

from holdfast.core.events import Stopped
from holdfast.core.messages import ANONYMOUS, MC_ANONYMOUS, CloseSequenceResponse, Envelope, Fault
from holdfast.core.policy import Assurance, Delivery, SourcePolicy
from holdfast.core.sending.outboxes.earlier_address import earlier_address
from holdfast.core.versions import Versions

MOVED = "http://moved/"
LONG = 600.0


class Listener:
    """A requester at one address: it is there while its present run has that address."""

    def __init__(self, requester: Party, address: str) -> None:
        self._requester, self._address = requester, address

    @property
    def is_up(self) -> bool:
        return self._requester.is_up and self._requester.protocol.outbound.context.local == self._address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requester, name)


def moving(version: str, *to: str, offers: bool = True) -> Chain:
    """A requester and its destination; each next start of the requester has the next address, if there is one."""
    chain = Chain(versions=Versions(version), listens=(True, False), offers=offers)
    requester, parties, following = chain.requester, dict[str, Any](chain.parties), list(to or [MOVED])
    chain.parties = parties | {address: Listener(requester, address) for address in (REQUESTER, MOVED)}

    def kill() -> None:
        requester.local = following.pop(0) if following else requester.local
        Party.kill(requester)

    requester.kill = kill  # type: ignore[method-assign]
    return chain


def allow(chain: Chain, assurance: Assurance) -> None:
    chain.outbox.use(SourcePolicy(assurance=assurance, retransmission=chain.outbox.policy.retransmission))


def received(chain: Chain) -> list[str]:
    return [record.body.decode() for record in chain.broker.kept]


def stops(chain: Chain) -> list[Stopped]:
    return [effect for effect in chain.requester.told if isinstance(effect, Stopped)]


KILLS = st.integers(1, 40)


ADDRESSES = st.sampled_from([MOVED, ANONYMOUS, MC_ANONYMOUS])


@given(st.sampled_from(["1.1", "1.2"]), ADDRESSES, st.sampled_from([MOVED, REQUESTER]), KILLS, KILLS)
def test_every_one_way_message_arrives_once_and_the_source_learns_of_it(
    version: str, to: str, then: str, first: int, second: int
) -> None:
    chain = moving(version, to, then)
    chain.requester.die_at = first
    chain.ask("a", "b", "c", wants_reply=False)
    chain.go(60.0)
    if chain.requester.run == 1:  # it was not killed meanwhile: it is now
        chain.requester.kill()
    chain.requester.die_at = first + second
    chain.go(60.0)
    chain.requester.die_at = None
    chain.ask("d", "e", wants_reply=False)
    chain.go(LONG)
    assert sorted(received(chain)) == ["a", "b", "c", "d", "e"]
    assert chain.outbox.records.is_empty and not stops(chain)
    event(f"{chain.requester.run} runs")


@given(st.sampled_from(["1.0", "1.1", "1.2"]), st.booleans(), KILLS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_no_message_arrives_twice_and_no_reply_is_given_twice(
    version: str, offers: bool, kill: int, asks: list[bool]
) -> None:
    chain = moving(version, offers=offers)
    chain.requester.die_at = kill
    for body, wants_reply in zip("abc", asks, strict=True):
        chain.ask(body, wants_reply=wants_reply)
    chain.go(60.0)
    if chain.requester.run == 1:
        chain.requester.kill()
    chain.go(LONG)
    handled = sorted(chain.bodies)
    assert handled == sorted(set(handled)) and len(chain.replies) == len(set(chain.replies))
    assert chain.outbox.records.is_empty or earlier_address(chain.outbox) == REQUESTER or stops(chain)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("offers", [True, False])
def test_a_sequence_without_doubt_is_followed_by_one_with_the_present_address(version: str, offers: bool) -> None:
    chain = moving(version, offers=offers)
    chain.ask("a")
    chain.go(10.0)
    assert chain.replies and chain.outbox.records.is_empty
    chain.requester.kill()
    chain.go(10.0)
    chain.ask("b")
    chain.go(60.0)
    assert [body for _, body in chain.replies] == ["re a", "re b"]
    assert chain.outbox.source is not None and chain.outbox.source.acks_to == MOVED


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_with_at_least_once_what_is_in_doubt_is_sent_again(version: str) -> None:
    chain = moving(version)
    chain.requester.on_start = lambda: (chain._open(), allow(chain, Assurance(Delivery.AT_LEAST_ONCE, in_order=False)))
    chain.service.is_handling = False
    chain.ask("a")
    chain.go(10.0)
    chain.requester.kill()
    chain.service.is_handling = True
    chain.service.kill()
    chain.go(LONG)
    assert {body for _, body in chain.replies} == {"re a"} and chain.outbox.records.is_empty


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_request_with_a_reply_for_the_earlier_address_is_not_sent_again(version: str) -> None:
    chain = moving(version, MOVED, REQUESTER)
    chain.service.is_handling = False
    chain.ask("a")
    chain.go(10.0)
    chain.requester.kill()
    chain.go(10.0)
    assert earlier_address(chain.outbox) == REQUESTER
    chain.service.is_handling = True
    chain.service.kill()
    chain.go(LONG)
    assert chain.bodies.count("a") == 1
    chain.requester.kill()
    chain.go(LONG)
    assert [body for _, body in chain.replies] == ["re a"] and chain.bodies == ["a"]


@pytest.mark.parametrize("in_order", [False, True])
def test_a_message_before_one_that_arrived_is_sent_again_unless_order_is_promised(in_order: bool) -> None:
    chain = moving("1.1")
    assurance = Assurance(in_order=in_order)
    chain.requester.on_start = lambda: (chain._open(), allow(chain, assurance))
    allow(chain, assurance)

    def busy(envelope: Envelope) -> Envelope | None:
        if envelope.body != b"b":
            return None
        fault = Fault("Busy", "not now", sender=False)
        return Envelope(envelope.soap, envelope.addressing, envelope.rm, fault=fault, relates_to=envelope.message_id)

    chain.broker.answers = busy
    chain.ask("a", "b", "c", wants_reply=False)
    chain.go(5.0)
    chain.requester.kill()
    chain.settle(lambda: chain.requester.run == 3)
    chain.broker.answers = lambda _envelope: None
    chain.go(LONG)
    assert sorted(received(chain)) == (["a", "c"] if in_order else ["a", "b", "c"])
    assert len(stops(chain)) == in_order and chain.outbox.records.is_empty is not in_order
    if in_order:
        assert "was to follow the numbers 2" in stops(chain)[0].reason


def test_a_destination_that_closes_without_a_final_acknowledgement_leaves_doubt() -> None:
    chain = moving("1.1", ANONYMOUS)

    def forget(envelope: Envelope) -> None:
        if isinstance(envelope.control, CloseSequenceResponse):
            envelope.acknowledgements = ()

    chain.broker.write = forget
    chain.ask("a", "b", wants_reply=False)
    chain.settle(lambda: len(received(chain)) == 2)
    chain.requester.kill()
    chain.go(LONG)
    assert received(chain) == ["a", "b"]
    assert [one.in_doubt for one in stops(chain)] == ["1-2"]
