"""What a user is told when sending has stopped: what was said of which message, what is safe, what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.events import Stopped
from holdfast.core.faults import REFUSES_CREDENTIALS
from holdfast.core.sending.outboxes.lifecycle import OutboxLifecycle
from holdfast.core.sending.reasons import NOT_ACCEPTED, NOT_POLLED, UNSENDABLE
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.sending.stopped import TO_CREDENTIALS, stop_error, stored_error, unstored_error
from holdfast.exceptions import (
    FREE_SPACE,
    CreateSequenceRefused,
    DeliveryError,
    HoldfastError,
    NotAcknowledged,
    PeerFault,
    SequenceClosed,
    SequenceLost,
    StoreFailed,
)
from holdfast.store import MemoryStore

SAFE = "2 unacknowledged messages are safe in out."
HOW = "source.resume(), or: holdfast send --resume --store out"

DISCARD = "Or discard the message: holdfast outbox discard out MESSAGE. To list them: holdfast outbox list out"


def told(code: str, reason: str = "no", store: str = "out", waiting: int = 2, **more: object) -> HoldfastError:
    stopped = Stopped("", code, reason, **{"first": 1, "last": 0, **more})  # type: ignore[arg-type]
    return stop_error(stopped, "http://d/", waiting, store, "; cannot connect")


@pytest.mark.parametrize(
    ("error", "kind", "message", "remedy"),
    [
        (
            told("CreateSequenceRefused", "too many"),
            CreateSequenceRefused,
            'the destination http://d/ refused the Sequence: CreateSequenceRefused\n  its reason: "too many"',
            f"{SAFE} Fix the cause that it names, then: {HOW}",
        ),
        (
            told("UnknownSequence", first=3, last=7),
            SequenceLost,
            'the destination http://d/ answered the request with UnknownSequence: "no"',
            f"{SAFE} Another owner's Sequence is unknown there, too: this source is another owner if it has a new user "
            "name, or a new certificate that the destination trusts itself and not by its issuer. "
            f"Some of them may have arrived. To send them again in a new Sequence: {HOW}",
        ),
        (
            told("SequenceTerminated", first=3, last=7),
            SequenceLost,
            'the destination http://d/ answered the request with SequenceTerminated: "no"',
            f"{SAFE} Some of them may have arrived. To send them again in a new Sequence: {HOW}",
        ),
        (
            told("SequenceClosed"),
            SequenceClosed,
            'the destination http://d/ answered the request with SequenceClosed: "no"',
            f"{SAFE} To continue: {HOW}",
        ),
        (
            told("given up"),
            NotAcknowledged,
            "the destination http://d/ did not answer; cannot connect",
            f"{SAFE} To retry: {HOW}",
        ),
        (
            told("Sender", refused=("urn:s", 7)),
            PeerFault,
            'the destination http://d/ answered message 7 of the Sequence urn:s with Sender: "no"',
            f"{SAFE} Fix the cause, then: {HOW}\n  {DISCARD}",
        ),
        (
            told("MustUnderstand", "Action"),
            PeerFault,
            'the destination http://d/ answered the request with MustUnderstand: "Action"',
            f"{SAFE} It granted no Sequence. Check that reliable messaging is enabled at that endpoint (WCF: "
            f"reliableSession; CXF: the reliableMessaging feature), or fix the cause that the fault names, then: {HOW}",
        ),
        (
            told("answers not accepted", "none of 10 answers to CreateSequence is accepted: no signature"),
            DeliveryError,
            "the destination http://d/ grants no Sequence in an answer that can be accepted\n  "
            "none of 10 answers to CreateSequence is accepted: no signature",
            f"{SAFE} Read the destination's log for the reason of its fault: it may not accept your certificate or "
            f"your password. Or correct what this source demands of answers. Then: {HOW}",
        ),
        (
            told("HTTP 418", "no SOAP message"),
            PeerFault,
            "the destination http://d/ answered with HTTP 418 and no SOAP message",
            f"{SAFE} Fix the cause, then: {HOW}",
        ),
    ],
)
def test_each_stop_is_told_by_its_own_error(error: HoldfastError, kind: type, message: str, remedy: str) -> None:
    assert type(error) is kind
    assert (error.message, error.remedy) == (message, remedy)


def test_what_is_in_memory_is_not_called_safe_and_no_command_is_named_for_it() -> None:
    error = told("HTTP 418", store=":memory:", waiting=1)
    expected = "1 unacknowledged message is in memory only, and lost when this process ends. Fix the cause, then: "
    assert error.remedy == f"{expected}source.resume()"


@pytest.mark.parametrize(("status", "hint"), [(401, "Authorization"), (403, "Authorization"), (404, "another store")])
def test_what_http_says_in_the_destinations_place_has_a_remedy_of_its_own(status: int, hint: str) -> None:
    assert hint in told(f"HTTP {status}").remedy


def test_http_credentials_that_were_refused_are_told_from_none() -> None:
    none, given = (
        stop_error(Stopped("", "HTTP 401", reason, 1, 0), "http://d/", 1, "out", "").remedy
        for reason in ("no SOAP message", f"no SOAP message {TO_CREDENTIALS}")
    )
    assert "requires authentication" in none and "refused the credentials" in given


CODES = [
    *("Sender", "HTTP 401", "HTTP 404", "CreateSequenceRefused", "UnknownSequence", "SequenceClosed", "given up"),
    *(UNSENDABLE, NOT_POLLED, NOT_ACCEPTED, *sorted(REFUSES_CREDENTIALS)),
]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "more", [{}, {"refused": ("urn:s", 7)}, {"first": 3, "last": 7, "in_doubt": "3-3 5-6"}, {"first": 3, "last": 7}]
)
def test_after_a_restart_the_same_reason_and_remedy_are_told(code: str, more: dict[str, Any]) -> None:
    stopped = Stopped("a", code, "no room", **{"first": 1, "last": 0, **more})
    lifecycle, restored = OutboxLifecycle("a"), OutboxLifecycle("a")
    in_doubt = stopped.in_doubt if stopped.first <= stopped.last else None
    lifecycle.stop(code, stopped.reason, stopped.refused, in_doubt)
    restored.restore(json.loads(json.dumps(lifecycle.to_state())))
    again, before = (stop_error(one, "http://d/", 2, "out", "") for one in (restored.as_stopped, stopped))
    assert (type(again), again.message, again.remedy) == (type(before), before.message, before.remedy)
    restored.resume()
    assert restored.to_state() == OutboxLifecycle("a").to_state()


@pytest.mark.parametrize("code", CODES)
def test_whoever_is_refused_a_message_learns_that_it_can_be_discarded(code: str) -> None:
    assert DISCARD in told(code, refused=("urn:s", 7)).remedy
    assert "discard" not in told(code, refused=("urn:s", 7), store=":memory:").remedy


def test_a_store_is_named_as_a_shell_reads_it() -> None:
    store = "postgresql://orders@db/shop?space=a&connect_timeout=3"
    assert f"--store '{store}'" in told("Sender", store=store, refused=("urn:s", 7)).remedy
    assert f"discard '{store}'" in told("Sender", store=store, refused=("urn:s", 7)).remedy


def test_a_store_that_failed_has_one_remedy_its_own() -> None:
    """Only the store knows what helps; another remedy would contradict it."""
    own = StoreFailed("The directory was deleted.", remedy="Restore the directory.")
    engine = Engine(MemoryStore(), lambda _effect: None, lambda _failure: None)
    engine.failure = own
    with pytest.raises(StoreFailed) as raised:
        engine.check()
    for one in (stored_error(own, "outbox", 2), unstored_error(own, "outbox"), engine.health(), raised.value):
        assert str(one).count("Restore the directory.") == 1
        assert "Free space" not in str(one) and ".." not in str(one)
    assert FREE_SPACE in str(stored_error(OSError("No space left on device"), "outbox", 2))
