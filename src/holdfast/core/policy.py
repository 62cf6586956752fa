"""What each side promises and its limits, every number with its reason. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.core.messages import MAX_MESSAGE_NUMBER, IncompleteSequenceBehavior
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.settings import check_settings


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
        """From words such as ``"exactly-once in-order"`` or ``"at-most-once"``.

        Raises:
            ConfigurationError: for any other word, or none of the three assurances.
        """
        words = str(text).lower().replace(",", " ").split()
        deliveries = [word for word in words if word != "in-order"]
        try:
            (word,) = deliveries
            return cls(Delivery(word), "in-order" in words)
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is no delivery assurance",
                remedy='one of "at-most-once", "at-least-once", "exactly-once", with or without " in-order"',
            ) from None

    def __str__(self) -> str:
        return f"{self.delivery.value} in-order" if self.in_order else self.delivery.value


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """How an RM Destination treats its Sequences.

    Args:
        assurance: What the Application Destination is promised.
        incomplete_sequence_behavior: What happens to a Sequence that ends with a gap.
        acknowledgement_interval: Seconds an acknowledgement to an addressable AcksTo may wait for company.
        acknowledgement_count: So many unacknowledged messages make it due at once.
        inactivity_timeout: Seconds without a message of the Sequence after which it is ended; None: never. A day,
            since a durable source may come back after a night, and a source that never ends its Sequences (CXF
            does not in 1.1) must not fill the store.
        keep_alive_timeout: The same for the Sequence of a two-way WCF client, which keeps nothing on disk, and while it
            runs asks for an acknowledgement after every half of its InactivityTimeout (ten minutes unless configured).
            If clients have an InactivityTimeout above an hour, raise this to more than half of it; None: as
            ``inactivity_timeout``.
        max_expires: Seconds; a longer or endless Expires asked for is shortened to it; None: as asked.
        max_sequences: Open Sequences; the next CreateSequence is refused, and with 0 each one. About 2 KB
            of memory each.
        max_party_sequences: Open Sequences of one peer: of one client certificate, else of one network address (of an
            IPv6 address, the first 64 bits). Its next CreateSequence is refused. Half of ``max_sequences``, so that
            nobody takes the room of all others; a peer has a handful, but a proxy or NAT makes many look like one.
            Raise it to ``max_sequences`` where all of them come by one address.
        max_remembered: Ended Sequences that are remembered, within ``remember_terminated``; the oldest is forgotten
            for the next. As many as may be open: thirty a second may end for ten minutes.
        buffer: Messages of one Sequence held beyond a gap; a message further on is not accepted yet. Advertised
            to .NET as BufferRemaining.
        buffer_bytes: Bytes of them. They are on disk, acknowledged, and in no queue that anybody could read or limit; a
            message that would exceed this is not accepted yet. A quarter of ``max_buffer_bytes``.
        max_party_buffer_bytes: Bytes held beyond gaps in all Sequences of one peer, counted as ``max_party_sequences``
            counts peers. Half of ``max_buffer_bytes``, so that no peer takes the room of all others.
        max_buffer_bytes: Bytes held beyond gaps in all Sequences.
        max_ranges: Acknowledgement ranges of one Sequence (WCF's own quota); a number that needs one more waits.
        max_message_number: Above it: MessageNumberRollover.
        max_open_requests: Requests of one Sequence that await their reply or its acknowledgement; the next one is not
            accepted yet. Where replies go in no Sequence, so many of them are kept. Sources have some tens in flight.
        remember_terminated: Seconds an ended Sequence is remembered, to answer repeats in kind.
        advertise_buffer: Whether acknowledgements carry BufferRemaining.
        reply_patience: Seconds an anonymous requester's back-channel is held open for its reply before it is answered
            202 and left to ask again; half of WCF's one-minute send timeout. For a request beyond a gap it is a
            twentieth of that, as the message that closes the gap may need the connection.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    assurance: Assurance = Assurance()
    incomplete_sequence_behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD
    acknowledgement_interval: float = 0.2
    acknowledgement_count: int = 8
    inactivity_timeout: float | None = 86_400.0
    keep_alive_timeout: float | None = 1_800.0
    max_expires: float | None = None
    max_sequences: int = 20_000
    max_party_sequences: int = 10_000
    max_remembered: int = 20_000
    buffer: int = 256
    buffer_bytes: int = 1024 * 1024 * 1024
    max_party_buffer_bytes: int = 2 * 1024 * 1024 * 1024
    max_buffer_bytes: int = 4 * 1024 * 1024 * 1024
    max_ranges: int = 128
    max_message_number: int = MAX_MESSAGE_NUMBER
    max_open_requests: int = 1_024
    remember_terminated: float = 600.0
    advertise_buffer: bool = True
    reply_patience: float = 30.0

    def __post_init__(self) -> None:
        may_be_zero = ("acknowledgement_interval", "max_sequences", "remember_terminated", "reply_patience")
        check_settings(self, least=dict.fromkeys(may_be_zero, 0), most={"max_message_number": MAX_MESSAGE_NUMBER})


def for_forwarded_replies(policy: DestinationPolicy) -> DestinationPolicy:
    """How a Sequence is treated in which replies to forwarded requests come. Each goes to its requester by itself, so
    none waits for another; and as requests may come after any silence, it lives as long as theirs."""
    assurance = Assurance(Delivery.EXACTLY_ONCE, in_order=False)
    behavior = IncompleteSequenceBehavior.NO_DISCARD
    return replace(policy, assurance=assurance, incomplete_sequence_behavior=behavior, inactivity_timeout=None)


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """How an RM Source treats its Sequences.

    Args:
        retransmission: When a message is sent again, and when it is given up.
        assurance: What the Application Source is promised. With at-least-once, messages of a lost Sequence are sent
            again in a new one by itself; otherwise somebody must say so, for some may have arrived.
        window: Unacknowledged messages in flight at most.
        window_bytes: Bytes of bodies in flight at most, but for one message: they wait in memory for their answers.
        initial_window: The window before anything was acknowledged; doubled a round trip up to ``window``.
        expires: Seconds of life asked for each Sequence; None: no end.
        keep_alive: Seconds of silence after which an idle Sequence is kept alive by AckRequested; half of the ten
            minutes after which WCF's server drops it.
        max_message_number: The number after which a Sequence is full and a new one begins.
        max_ranges: An acknowledgement with more ranges is invalid.
        poll_interval: Seconds between AckRequested while the destination's buffer is full (WCF: 3.75 to 30).
        mark_ahead: Numbers that are saved as perhaps transmitted, ahead of those that are. After a crash so many more
            may be in doubt, and are read before anything is sent; fewer cost more writes.
        kept_replies: Replies that were given to the program and that it has not said it has; the oldest beyond these
            are taken for done, so that a program that never says so keeps no more.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    retransmission: RetransmissionPolicy = field(default_factory=RetransmissionPolicy)
    assurance: Assurance = Assurance()
    window: int = 32
    window_bytes: int = 16 * 1024 * 1024
    initial_window: int = 4
    expires: float | None = None
    keep_alive: float = 300.0
    max_message_number: int = MAX_MESSAGE_NUMBER
    max_ranges: int = 128
    poll_interval: float = 3.75
    mark_ahead: int = 256
    kept_replies: int = 10_000

    def __post_init__(self) -> None:
        check_settings(self, most={"max_message_number": MAX_MESSAGE_NUMBER})


class OnRefused(str, Enum):
    """What becomes of a message that is refused for good, and of those behind it."""

    WAIT = "wait"
    DEAD_LETTER = "dead-letter"


class OnExpired(str, Enum):
    """What becomes of a message that is too old to be sent."""

    DEAD_LETTER = "dead-letter"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class CircuitPolicy:
    """When forwarders leave an address alone that does not answer, and how often one of them tries.

    Args:
        failures: So many attempts in a row without an answer open the circuit: no connection, no HTTP answer in time,
            an HTTP error without a fault. A Retry-After opens it at once.
        silence: Seconds since the last answer before they do: many messages are under way at a time, and a network that
            loses some of them is not a destination that is away.
        first: Seconds until one message is tried.
        cap: Seconds; the time between two such attempts doubles up to this. Where nobody listens, an attempt costs
            nothing: then it doubles up to four seconds.
        jitter: Share of that time that is drawn at random besides.

    Raises:
        ConfigurationError: for a number that cannot be, or two that contradict each other.
    """

    failures: int = 5
    silence: float = 1.0
    first: float = 1.0
    cap: float = 60.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        check_settings(self, least={"jitter": 0, "silence": 0}, most={"jitter": 1})
        if self.first > self.cap:
            raise ConfigurationError(
                f"CircuitPolicy(first={self.first:g}) is above cap={self.cap:g}",
                remedy="first is the shortest time until a destination is tried again, cap the longest.",
            )


@dataclass(frozen=True, slots=True)
class ForwardingPolicy:
    """How a forwarder treats what it sends on: beyond how its Sequences are treated, what it gives up by itself.

    A message is refused if the destination answers it with a fault outside its Sequence. A one-way message is sent
    again, and is refused for good once that has happened ``refusals`` times and for as long as ``patience`` says. A
    request is refused for good at once: its requester gets the fault, and may ask again. Only a request of which an
    earlier transmission may still arrive is sent again, as a one-way message is. A refused CreateSequence is sent again
    in every version and with whatever is offered, for as long; then nothing goes on until somebody decides.

    Args:
        sending: How its Sequences are treated; None: as all others of this side.
        refusals: So often a message is refused before it is refused for good.
        patience: Seconds from its first refusal before it is refused for good. Ten minutes, since a service whose
            database is away answers everything with faults. Where replies go to an address, also the seconds, at least
            60, that the destination has to reply to a request that it acknowledged; then the requester gets a fault.
        on_refused: What becomes of a one-way message that is refused for good. "dead-letter": it goes there with what
            the destination said, and the rest goes on. "wait": nothing goes on until somebody decides. None: it waits
            if the assurance is in order, and is a dead letter if not. A refused request is a dead letter always.
        circuit: When its destination is left alone, and how often one that grants no Sequence is asked again. Of
            several forwarders to one address, that of the newest counts.
        expires: Seconds since a message was received, after which it is not sent any more if it never was. None: 50 for
            a request whose requester waits for the answer to it, as clients wait for a minute; else never.
        on_expired: What becomes of it then.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    sending: SourcePolicy | None = None
    refusals: int = 10
    patience: float = 600.0
    on_refused: OnRefused | None = None
    circuit: CircuitPolicy = CircuitPolicy()
    expires: float | None = None
    on_expired: OnExpired = OnExpired.DEAD_LETTER

    def __post_init__(self) -> None:
        check_settings(self, least={"patience": 0})


@dataclass(frozen=True, slots=True)
class StagingPolicy:
    """What writers outside may stage.

    Args:
        max_bytes: Of rows that are staged, or published and not in their queues yet, over all sinks; of each worker's,
            if there are several. They are on the disk, and what moves is there twice until the engine has cleared up;
            so it is a part of the disk's room.
        max_age: Seconds after its last row that a part waits to be published. A writer that died stages its batch again
            when it is started, so what is that old has no owner; a batch of a week's work is not unheard of.
        remember: Seconds that a sink is remembered after its final batch, as that of a write with an
            ``idempotencyKey``: repeated within them the write sends nothing, and after them it sends again. Others are
            remembered until somebody forgets them, as their batches go on.
        max_sinks: Sinks. One that writes hourly under an ``idempotencyKey`` of its own each time leaves 2,160 in 90
            days. About 2 KB of memory each.
        max_parts: Parts that are staged, or published and not in their queues yet, over all sinks; one without rows
            counts too. A task makes one for each batch. About 3 KB of memory each.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    max_bytes: int = 16 * 10**9
    max_age: float = 7 * 86_400.0
    remember: float = 90 * 86_400.0
    max_sinks: int = 10_000
    max_parts: int = 20_000

    def __post_init__(self) -> None:
        check_settings(self)
