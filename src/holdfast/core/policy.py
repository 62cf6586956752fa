"""Promises and limits of each side: values only, each number with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

from holdfast.core.messages import MAX_MESSAGE_NUMBER, IncompleteSequenceBehavior
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.settings import Bytes, Seconds, SecondsOrZero, Share, Within, brief_value, check_settings


class Delivery(str, Enum):
    """The three delivery assurances (WS-RM Policy 1.2, DeliveryAssurance)."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class Assurance:
    """What the application is promised: how often a message is delivered, and whether in order."""

    delivery: Delivery = Delivery.EXACTLY_ONCE
    in_order: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def parse(cls, text: str) -> Assurance:
        """Parse words such as ``"exactly-once in-order"`` or ``"at-most-once"``.

        Raises:
            ConfigurationError: The text has another word, or names none of the three assurances.
        """
        words = str(text).lower().replace(",", " ").split()
        deliveries = [word for word in words if word != "in-order"]
        try:
            (word,) = deliveries
            return cls(Delivery(word), "in-order" in words)
        except ValueError:
            raise ConfigurationError(
                f"{brief_value(text)} is not a delivery assurance",
                remedy='Use "at-most-once", "at-least-once" or "exactly-once", with or without " in-order".',
            ) from None

    def __str__(self) -> str:
        return f"{self.delivery.value} in-order" if self.in_order else self.delivery.value


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """Limits and timers of an RM Destination's Sequences.

    Args:
        assurance: What the Application Destination is promised.
        incomplete_sequence_behavior: What happens to a Sequence that ends with a gap.
        acknowledgement_interval: Seconds that an acknowledgement to an addressable AcksTo may wait for others.
        acknowledgement_count: Number of unacknowledged messages that makes the acknowledgement due at once.
        inactivity_timeout: Seconds without a message after which the destination ends the Sequence; None never ends it.
            The default is a day: a durable source may return after a night, but a source that never ends its Sequences
            (CXF does not in 1.1) must not fill the store. The destination discards replies to an address that has
            acknowledged nothing for this time, if they have no Sequence of requests that is open. It retransmits each
            reply to an address for this time at most, unless the requester asks for it.
        keep_alive_timeout: The same for the Sequence of a two-way WCF client. Such a client keeps nothing on disk.
            While it runs, it asks for an acknowledgement after every half of its InactivityTimeout (ten minutes unless
            configured). If your clients have an InactivityTimeout above an hour, set more than half of it here. None
            uses ``inactivity_timeout``.
        max_expires: Longest lifetime of a Sequence in seconds. The destination shortens a longer or endless Expires to
            it. None grants every Expires.
        max_sequences: Number of open Sequences. The destination refuses a further CreateSequence; with 0, every one.
            A Sequence takes about 2 KB of memory. The destination also keeps a quarter of this number of ReplyTo
            addresses of requesters without an Offer, and does not accept a request with a further address yet.
            Each of several workers accepts at most 262,144 Offers, including those of Sequences that it remembers.
        max_party_sequences: Number of open Sequences of one peer. A peer is a client certificate or, without one, a
            network address (of an IPv6 address, the first 64 bits). The destination refuses the peer's next
            CreateSequence. The default is half of ``max_sequences``, so that no peer can take the room of all others.
            A peer usually has a handful, but a proxy or NAT makes many peers look like one. If all peers share an
            address, raise this to ``max_sequences``.
        max_remembered: Number of ended Sequences that the destination remembers within ``remember_terminated``. Beyond
            it, the destination forgets the oldest. The default allows thirty Sequences a second to end for ten minutes.
        buffer: Number of messages of one Sequence that the destination holds beyond a gap. It does not accept a message
            further on. .NET clients receive the number as BufferRemaining.
        buffer_bytes: Size of these messages in bytes. They are on disk and acknowledged, but in no queue that could be
            read or limited. The destination does not yet accept a message that would exceed this. The default is a
            quarter of ``max_buffer_bytes``.
        max_party_buffer_bytes: Bytes held beyond gaps in all Sequences of one peer, as ``max_party_sequences`` defines
            peers. The default is half of ``max_buffer_bytes``, so that no peer can take the room of all others.
        max_buffer_bytes: Bytes held beyond gaps in all Sequences.
        max_ranges: Number of acknowledgement ranges of one Sequence (WCF's own quota). A message that would need one
            more is not accepted yet.
        max_message_number: Highest message number. A higher one gets the fault MessageNumberRollover.
        max_open_requests: Number of requests of one Sequence with a reply that is not sent or not acknowledged. The
            destination does not accept a further request yet. If replies travel outside a Sequence, it keeps this many
            of them. Sources have some tens in flight.
        remember_terminated: Seconds for which the destination remembers an ended Sequence to answer repeats correctly.
        advertise_buffer: Whether acknowledgements carry BufferRemaining.
        reply_patience: Seconds for which the destination holds an anonymous requester's HTTP connection open for its
            reply. Then it answers 202, and the requester asks again. The default is half of WCF's send timeout of one
            minute. A request beyond a gap waits a twentieth of that, since the message that closes the gap may need the
            connection.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    assurance: Assurance = Assurance()
    incomplete_sequence_behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD
    acknowledgement_interval: SecondsOrZero = 0.2
    acknowledgement_count: int = 8
    inactivity_timeout: Seconds | None = 86_400.0
    keep_alive_timeout: Seconds | None = 1_800.0
    max_expires: Seconds | None = None
    max_sequences: Annotated[int, Within(0)] = 20_000
    max_party_sequences: int = 10_000
    max_remembered: int = 20_000
    buffer: int = 256
    buffer_bytes: Bytes = 1024 * 1024 * 1024
    max_party_buffer_bytes: Bytes = 2 * 1024 * 1024 * 1024
    max_buffer_bytes: Bytes = 4 * 1024 * 1024 * 1024
    max_ranges: int = 128
    max_message_number: Annotated[int, Within(1, MAX_MESSAGE_NUMBER)] = MAX_MESSAGE_NUMBER
    max_open_requests: int = 1_024
    remember_terminated: SecondsOrZero = 600.0
    advertise_buffer: bool = True
    reply_patience: SecondsOrZero = 30.0

    def __post_init__(self) -> None:
        check_settings(self)


def for_forwarded_replies(policy: DestinationPolicy) -> DestinationPolicy:
    """The policy of a Sequence of replies to forwarded requests.

    Each reply goes to its own requester, so none waits for another. Requests may follow after any silence, so the
    Sequence lives as long as theirs.
    """
    assurance = Assurance(Delivery.EXACTLY_ONCE, in_order=False)
    behavior = IncompleteSequenceBehavior.NO_DISCARD
    return replace(policy, assurance=assurance, incomplete_sequence_behavior=behavior, inactivity_timeout=None)


def _check_pauses(policy: PollingPolicy | CircuitPolicy, between: str) -> None:
    if policy.first > policy.cap:
        raise ConfigurationError(
            f"{type(policy).__name__}(first={policy.first:g}) is above cap={policy.cap:g}",
            remedy=f"first is the shortest pause between {between}, cap the longest. Lower first or raise cap.",
        )


@dataclass(frozen=True, slots=True)
class PollingPolicy:
    """How often a source that polls with MakeConnection asks its destination for messages.

    The source polls only while a message can come: a reply, an acknowledgement or the answer to its request, or any
    message of an open Sequence of replies. Each poll without a message makes the pause half as long again, so a reply
    waits no longer than half of the time that the service took. A new request, and a message in the answer, begin with
    the shortest pause again. If the answer says that another message waits, the next poll leaves at once.

    Args:
        first: Shortest pause in seconds.
        cap: Longest pause in seconds. With this pause, the source polls an idle Sequence of replies.
        jitter: Random share added to each pause, so that many sources do not poll in step.

    Raises:
        ConfigurationError: A number is out of its range, or two numbers contradict each other.
    """

    first: Seconds = 0.1
    cap: Seconds = 10.0
    jitter: Share = 0.25

    def __post_init__(self) -> None:
        check_settings(self)
        _check_pauses(self, "polls")


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """Limits and timers of an RM Source's Sequences.

    Args:
        retransmission: When the source retransmits a message, and when it discards one.
        assurance: What the Application Source is promised. With at-least-once, the source sends the messages of a lost
            Sequence again in a new one. With another assurance it stops if some of them may have arrived, and an
            operator decides.
        window: Number of unacknowledged messages in flight.
        window_bytes: Bytes of bodies in flight. The source holds them in memory. One message may exceed this alone.
            All Sequences to one destination share 32 MB, and all Sequences of the process 128 MB.
        initial_window: Window before the first acknowledgement. It doubles with each round trip up to ``window``.
        expires: Lifetime in seconds that the source asks for each Sequence; None asks for no end.
        keep_alive: Seconds of silence after which the source sends AckRequested to keep an idle Sequence alive. The
            default is half of the ten minutes after which WCF's server ends it.
        max_message_number: Number after which a Sequence is full and the source creates a new one.
        max_ranges: Number of ranges in an acknowledgement. The source rejects one with more as invalid.
        poll_interval: Seconds between AckRequested messages while the destination's buffer is full (WCF: 3.75 to 30).
        mark_ahead: How many numbers ahead the source saves as possibly transmitted. After a crash, up to this many more
            messages may be in doubt, and the source reads them before it sends. A lower number costs more writes.
        kept_replies: Number of replies that the program has received but not marked as done. Beyond it, the source
            treats the oldest as done, so that a program that never marks them does not fill the store.
        polling: How often the source polls with MakeConnection, if it does.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    retransmission: RetransmissionPolicy = field(default_factory=RetransmissionPolicy)
    assurance: Assurance = Assurance()
    window: int = 32
    window_bytes: Bytes = 16 * 1024 * 1024
    initial_window: int = 4
    expires: Seconds | None = None
    keep_alive: Seconds = 300.0
    max_message_number: Annotated[int, Within(1, MAX_MESSAGE_NUMBER)] = MAX_MESSAGE_NUMBER
    max_ranges: int = 128
    poll_interval: Seconds = 3.75
    mark_ahead: int = 256
    kept_replies: int = 10_000
    polling: PollingPolicy = PollingPolicy()

    def __post_init__(self) -> None:
        check_settings(self)


class OnRefused(str, Enum):
    """What the forwarder does with a message that the destination finally refused, and with those behind it."""

    WAIT = "wait"
    DEAD_LETTER = "dead-letter"


class OnExpired(str, Enum):
    """What the forwarder does with a message that expired before it was sent."""

    DEAD_LETTER = "dead-letter"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class CircuitPolicy:
    """When forwarders pause sending to an address that does not answer, and how often they probe it.

    Args:
        failures: Number of consecutive attempts without an answer that opens the circuit: no connection, no HTTP
            response in time, or an HTTP error without a fault. A Retry-After header opens it at once.
        silence: Seconds since the last answer that must also have passed. Many messages are in flight at a time, and a
            network that loses some of them does not mean that the destination is away.
        first: Seconds until the first probe.
        cap: Longest pause between probes in seconds; the pause doubles up to this. A refused connection costs nothing,
            so there the pause doubles only up to four seconds.
        jitter: Random share added to each pause.

    Raises:
        ConfigurationError: A number is out of its range, or two numbers contradict each other.
    """

    failures: int = 5
    silence: SecondsOrZero = 1.0
    first: Seconds = 1.0
    cap: Seconds = 60.0
    jitter: Share = 0.25

    def __post_init__(self) -> None:
        check_settings(self)
        _check_pauses(self, "probes")


@dataclass(frozen=True, slots=True)
class ForwardingPolicy:
    """Limits and timers of a forwarder: those of its Sequences, and when it stops trying a message.

    A destination refuses a message if it answers with a fault outside the Sequence. The forwarder retransmits a refused
    one-way message until the destination has refused it ``refusals`` times, and for ``patience`` seconds. It returns a
    refused request to its requester at once, with the fault; the requester may ask again. Only if an earlier
    transmission of the request may still arrive does the forwarder treat it like a one-way message. If the destination
    refuses CreateSequence, the forwarder tries every version, with and without an Offer, for the same time. Then it
    stops until an operator decides.

    Args:
        sending: Limits and timers of the Sequences; None uses those of all other Sequences of the broker.
        refusals: Number of refusals after which a message is finally refused.
        patience: Seconds since the first refusal after which a message is finally refused. The default is ten minutes,
            since a service without its database answers everything with faults. If replies go to an address, this is
            also the time, at least 60 seconds, in which the destination must reply to an acknowledged request. After it
            the requester receives a fault.
        on_refused: What happens to a finally refused one-way message. "dead-letter" moves it to the dead letters with
            the destination's fault and continues. "wait" stops the forwarder until an operator decides. None waits if
            the assurance is in order, and otherwise moves it. A refused request always becomes a dead letter.
        circuit: When the forwarder pauses sending to its destination, and how often it retries a destination that
            grants no Sequence. If several forwarders have the same address, the newest one's policy applies.
        expires: Seconds since a message was received after which the forwarder does not send it for the first time.
            None means 50 for a request if its requester waits for the answer, since clients wait for a minute, and
            never for others. A stopped forwarder returns such a request with a fault at once.
        on_expired: What happens to an expired message.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    sending: SourcePolicy | None = None
    refusals: int = 10
    patience: SecondsOrZero = 600.0
    on_refused: OnRefused | None = None
    circuit: CircuitPolicy = CircuitPolicy()
    expires: Seconds | None = None
    on_expired: OnExpired = OnExpired.DEAD_LETTER

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class StagingPolicy:
    """Limits for external writers that stage rows.

    Args:
        max_bytes: Bytes of rows that are staged, or published and not yet in their queues, over all sinks; with several
            workers, for each. The rows are on disk, and while they move they are there twice until the engine has
            compacted. So set a fraction of the disk.
        max_age: Seconds since its last row after which the broker discards an unpublished part. A writer that died
            stages its batch again when it restarts, so a part that old has no owner. Batches of a week's work exist.
        remember: Seconds for which the broker remembers a sink after its final batch, as that of a write with an
            ``idempotencyKey``. A repetition of the write within this time sends nothing, and a later one sends again.
            The broker remembers other sinks until an operator forgets them, since their batches continue.
        max_sinks: Number of sinks. A job that writes hourly under a new ``idempotencyKey`` leaves 2,160 in 90 days.
            A sink takes about 2 KB of memory.
        max_parts: Number of parts that are staged, or published and not yet in their queues, over all sinks, including
            parts without rows. A task makes one for each batch. A part takes about 3 KB of memory.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    max_bytes: Bytes = 16 * 10**9
    max_age: Seconds = 7 * 86_400.0
    remember: Seconds = 90 * 86_400.0
    max_sinks: int = 10_000
    max_parts: int = 20_000

    def __post_init__(self) -> None:
        check_settings(self)
