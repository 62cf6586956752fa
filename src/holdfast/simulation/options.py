"""The options of one simulated run, all drawn from its seed, so that every seed gives a different world."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import MAX_MESSAGE_NUMBER, MC_ANONYMOUS, IncompleteSequenceBehavior
from holdfast.core.policy import Assurance, Delivery, DestinationPolicy, SourcePolicy, StagingPolicy
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import EARLY_VERSIONS, TRIED_VERSIONS, Versions, creation_choices
from holdfast.simulation.nodes.network import PERFECT, NetworkFaults
from holdfast.simulation.nodes.node import USUAL_RETENTION, USUAL_STAGING, Setup
from holdfast.simulation.nodes.routed_queues import names_of
from holdfast.simulation.promises.refusals import FORWARDING, PATIENT

SOURCE_ADDRESS = "http://source.test/"
BROKER_ADDRESS = "http://broker.test/"
DESTINATION_ADDRESS = "http://destination.test/"
USUAL_VERSIONS = Versions()
_USUAL_ASSURANCE = Assurance()
_USUAL_RETRANSMISSION = RetransmissionPolicy()


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one world. :meth:`draw` draws them; times are in seconds, rates from 0 to 1.

    Args:
        versions: Protocol versions of the source and the first endpoint it sends to.
        offer: Whether the source offers a Sequence for replies.
        requests: Share of messages that request a reply.
        listener: Whether the source has an address for acknowledgements and replies.
        assurance: The delivery assurance of both applications.
        behavior: The destination's behavior for incomplete Sequences.
        messages: Number of submitted messages.
        storm: Duration of faults and crashes.
        window, initial_window: Of the source.
        buffer, max_ranges: Of the destination.
        mark_ahead: Numbers that the source and the replies may transmit before they must save a new mark.
        source_limit: Messages per Sequence of the source (its roll-over); None: the specification's.
        destination_limit: The highest message number the destination accepts; None: the specification's.
        expires: Requested lifetime of each Sequence; None: unlimited.
        inactivity_timeout: Of the destination; None: it waits for ever.
        retransmission: Retransmission times of the source.
        acknowledgement_interval, acknowledgement_count: Of the destination, for a source with a listener.
        advertise_buffer: Whether acknowledgements carry BufferRemaining.
        reply_patience: How long the destination keeps a requester's exchange open.
        partitions: Of the destination's queue.
        batches: Batches that may await a disk at once.
        commit_latency: The longest time a batch takes to become durable.
        read_latency: The longest time that a read of a store takes; 0: reads are immediate.
        concurrency: Handlers that run at once.
        reader: Whether a reader outside reads the destination's queue.
        keeps: Seconds that the destination keeps records; None: for ever.
        alone: Whether each handling commits its own batch, as in a handler's own transaction.
        trims: Whether the destination deletes handled records.
        handler_latency: The longest time a handler takes; in some worlds longer than the retransmission timeout.
        handler_failures: How often a handler fails.
        network: The faults of the network.
        partition_rate: How often, at an event, the network is partitioned for a while.
        crash_source, crash_broker, crash_destination: How often, at an event, an endpoint crashes.
        again: Whether the source submits more messages after the end.
        writer: Whether a writer stages rows in a sink of the broker, which forwards them with all other messages.
        broker_offers: Whether the broker offers the destination a Sequence for replies.
        broker: Protocol versions between the broker and the destination; None: there is no broker.
        twin: Whether the source also sends to a second destination, which grants the same Identifiers.
        ends: How often an operator closes or terminates a Sequence at the destination.
        clock_jumps: Whether a restarted endpoint finds its wall clock moved.
        refuses: The service behind the broker refuses each ``refuses``-th message every time, and the one before it
            once; 0: it refuses none.
        repaired: Whether an operator repairs that service after the storm.
        strangers: Number of forged messages during the storm.
        certified: Whether the endpoints present client certificates; the strangers present a different one.
        queues: Further queues of the destination; each has several readers.
        routed_retention: How long these keep records.
        broker_queues: Further queues of the broker; each has a forwarder and a service.
        block_bytes: Bytes of held messages that an endpoint releases in one batch; None: the core's default.
        block_crashes: How often a destination crashes between two such batches.
        writers: Sinks with a writer at the same time, if there is a writer.
        repeats: How often a request of a writer arrives twice.
        remembers: Seconds that a sink is remembered after its last batch; None: the core's default.
        polls: Whether the source and the broker poll with MakeConnection for acknowledgements and replies; never drawn.
        asked_only: Whether the destination acknowledges only on request; never drawn.
        hides_limit: Whether its MessageNumberRollover omits the limit; never drawn.
        drops_early: Whether a destination in order drops messages that overtake others; never drawn.
    """

    versions: Versions = USUAL_VERSIONS
    offer: bool = False
    requests: float = 0.0
    listener: bool = False
    assurance: Assurance = _USUAL_ASSURANCE
    behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD
    messages: int = 10
    storm: float = 20.0
    window: int = 8
    initial_window: int = 4
    buffer: int = 256
    max_ranges: int = 128
    mark_ahead: int = 256
    source_limit: int | None = None
    destination_limit: int | None = None
    expires: float | None = None
    inactivity_timeout: float | None = None
    retransmission: RetransmissionPolicy = _USUAL_RETRANSMISSION
    acknowledgement_interval: float = 0.2
    acknowledgement_count: int = 8
    advertise_buffer: bool = True
    reply_patience: float = 30.0
    partitions: int = 1
    batches: int = 1
    commit_latency: float = 0.01
    read_latency: float = 0.0
    concurrency: int = 32
    reader: bool = False
    keeps: float | None = None
    alone: bool = False
    trims: bool = False
    handler_latency: float = 0.01
    handler_failures: float = 0.0
    network: NetworkFaults = PERFECT
    partition_rate: float = 0.0
    crash_source: float = 0.0
    crash_broker: float = 0.0
    crash_destination: float = 0.0
    clock_jumps: bool = False
    again: bool = False
    broker: Versions | None = None
    broker_offers: bool = False
    sessions: int = 0
    writer: bool = False
    twin: bool = False
    ends: int = 0
    refuses: int = 0
    repaired: bool = False
    strangers: int = 0
    certified: bool = False
    queues: int = 0
    routed_retention: RetentionPolicy = USUAL_RETENTION
    broker_queues: int = 0
    block_bytes: int | None = None
    block_crashes: float = 0.0
    writers: int = 1
    repeats: float = 0.0
    remembers: float | None = None
    polls: bool = False
    asked_only: bool = False
    hides_limit: bool = False
    drops_early: bool = False

    @classmethod
    def draw(cls, chance: random.Random) -> Options:
        """Draw one world. Some worlds omit each kind of fault, to test the others alone (swarm testing)."""
        versions = chance.choice(TRIED_VERSIONS)
        pattern = chance.choice(("one-way", "one-way", "offer", "offer", "plain"))
        # At-most-once in order may drop a request, which would then get no reply. So it needs an Offer.
        delivery = chance.choice(
            (Delivery.EXACTLY_ONCE, Delivery.EXACTLY_ONCE, *Delivery)[: 2 if pattern == "plain" else 5]
        )
        window = chance.choice((1, 2, 4, 8, 32))
        source_limit = chance.choice((None, None, None, chance.randint(2, 8)))
        destination_limit = chance.choice((None,) * 9 + (chance.randint(2, 8),))
        if versions.rm.can.rollover_ends and (window > 1 or pattern != "one-way"):
            # The fault of this version names no limit and ends the Sequence; only acknowledged messages are progress.
            destination_limit = None
        return cls(
            versions=versions,
            offer=pattern == "offer",
            requests=0.0 if pattern == "one-way" else chance.choice((1.0, 0.5)),
            listener=chance.random() < 0.3,
            assurance=Assurance(delivery, chance.random() < 0.7),
            # DiscardEntireSequence delays a request, and so its reply, until the Sequence ends.
            behavior=chance.choice(tuple(IncompleteSequenceBehavior)[0 if pattern == "one-way" else 1 :]),
            messages=chance.randint(1, 16),
            storm=chance.choice((3.0, 10.0, 30.0)),
            window=window,
            initial_window=min(window, chance.choice((1, 4))),
            buffer=chance.choice((1, 2, 4, 256, 256)),
            max_ranges=chance.choice((2, 128, 128)),
            source_limit=source_limit,
            destination_limit=destination_limit,
            expires=chance.choice((None,) * 9 + (chance.uniform(8.0, 30.0),)),
            inactivity_timeout=chance.choice((None,) * 9 + (chance.uniform(5.0, 30.0),)),
            retransmission=RetransmissionPolicy(
                chance.choice((0.3, 2.0)), chance.choice((0.1, 0.5)), chance.choice((1.0, 5.0, 30.0))
            ),
            acknowledgement_interval=chance.choice((0.0, 0.2, 1.0)),
            acknowledgement_count=chance.choice((1, 2, 8)),
            advertise_buffer=chance.random() < 0.5,
            reply_patience=chance.choice((0.05, 1.0, 30.0)),
            partitions=chance.choice((1, 1, 1, 2)),
            batches=chance.choice((1, 1, 2, 3)),
            commit_latency=chance.choice((0.001, 0.02, 0.5)),
            trims=chance.random() < 0.5,
            handler_latency=chance.choice((0.0, 0.01, 1.0)),
            handler_failures=chance.choice((0.0, 0.0, 0.3)),
            network=cls._network(chance),
            partition_rate=chance.choice((0.0, 0.0, 0.01)),
            crash_source=chance.choice((0.0, 0.0, 0.01, 0.05)),
            crash_destination=chance.choice((0.0, 0.0, 0.01, 0.05)),
            clock_jumps=chance.random() < 0.3,
            again=chance.random() < 0.3,
        )

    @classmethod
    def of_seed(cls, seed: int, chance: random.Random) -> Options:
        """Draw the whole world of a seed.

        Each special feature has its own random numbers, so that a new feature leaves the other worlds unchanged.

        Args:
            chance: Draws the common options; the run continues with it.
        """
        drawn = cls.draw(chance)
        drawn = drawn.turned_to_the_rare(random.Random(f"rare {seed}"))
        drawn = drawn.with_handlers(random.Random(f"reads of {seed}"))
        drawn = drawn.with_broker(random.Random(f"broker of {seed}"))
        drawn = drawn.with_slow_services(random.Random(f"slow services of {seed}"))
        drawn = drawn.with_refusals(random.Random(f"refusals of {seed}"))
        drawn = drawn.with_twin(random.Random(f"twin of {seed}"))
        drawn = drawn.with_strangers(random.Random(f"strangers of {seed}"))
        drawn = drawn.with_queues(random.Random(f"queues of {seed}"))
        drawn = drawn.with_broker_queues(random.Random(f"queues of the broker of {seed}"))
        return drawn.with_early_versions(random.Random(f"early versions of {seed}"))

    def turned_to_the_rare(self, chance: random.Random) -> Options:
        """Turn every third world to rare cases and leave the others unchanged.

        The cases are Sequences that the destination ends, retried handlers, and at-most-once in order.
        """
        turn = chance.choice((None,) * 6 + ("ended", "ended and retried", "at most once"))
        options = self
        if turn is None:
            return options
        if turn == "at most once":
            assurance = Assurance(Delivery.AT_MOST_ONCE, True)
            # Requests need an Offer here, because only that prevents dropped messages.
            requests = self.requests if self.offer else 0.0
            return replace(options, assurance=assurance, requests=requests, handler_failures=chance.choice((0.0, 0.3)))
        ending = chance.choice(("by hand", "expires", "inactivity"))
        options = replace(
            options,
            storm=chance.choice((10.0, 30.0)),
            ends=chance.randint(1, 3) if ending == "by hand" else 0,
            # Longer than a handler takes, with the exchanges around it: otherwise no requester would ever get a reply.
            expires=chance.uniform(8.0, 12.0) if ending == "expires" else self.expires,
            inactivity_timeout=chance.uniform(6.0, 10.0) if ending == "inactivity" else self.inactivity_timeout,
            handler_latency=chance.choice((0.01, 1.0, 2.0)),
        )
        if turn == "ended and retried":
            options = replace(options, handler_failures=chance.choice((0.3, 0.7)))
        return options

    def with_handlers(self, chance: random.Random) -> Options:
        """Vary the time of reads, the number of handlers, and the distance of the marks."""
        return replace(
            self,
            read_latency=chance.choice((0.0, 0.001, 0.02, 0.5)),
            concurrency=chance.choice((1, 2, 32)),
            alone=chance.random() < 0.3,
            reader=chance.random() < 0.3,
            keeps=chance.choice((None, 0.5, 5.0)),
            mark_ahead=chance.choice((1, 2, 5, 256)),
        )

    def with_broker(self, chance: random.Random) -> Options:
        """Add a broker to every eighth world; its Sequences never end early."""
        if chance.random() >= 1 / 8:
            return self
        return replace(
            self,
            broker=chance.choice(TRIED_VERSIONS),
            crash_broker=chance.choice((0.0, 0.01, 0.05)),
            broker_offers=chance.random() < 0.5,
            writer=chance.random() < 0.5,
            assurance=Assurance(Delivery.EXACTLY_ONCE, self.assurance.in_order),
            behavior=IncompleteSequenceBehavior.NO_DISCARD,
            destination_limit=None,
            expires=None,
            inactivity_timeout=None,
            ends=0,
            sessions=chance.choice((0, 1, 2)),
        )

    def with_early_versions(self, chance: random.Random) -> Options:
        """Let the source of every eighth world speak an early version, or the forwarder of its broker."""
        if chance.random() >= 1 / 8:
            return self
        versions = chance.choice(EARLY_VERSIONS)
        if self.broker is not None and chance.random() < 1 / 2:
            return replace(self, broker=versions)
        return self.in_early_version(versions)

    def in_early_version(self, versions: Versions) -> Options:
        """Let the source speak an early version, without what that does not have."""
        return replace(
            self,
            versions=versions,
            offer=False,
            # As without an Offer in a later version.
            assurance=Assurance(Delivery.EXACTLY_ONCE, self.assurance.in_order) if self.requests else self.assurance,
            # MessageNumberRollover ends the Sequence, and CreateSequence does not ask for a life.
            destination_limit=None,
            expires=None,
        )

    def with_refusals(self, chance: random.Random) -> Options:
        """Let the service behind every other broker refuse messages."""
        if self.broker is None or chance.random() >= 1 / 2:
            return self
        repaired = chance.random() < 0.5
        # In order, the service holds the requests behind a refused message, so the forwarder stops repeatedly until
        # the service is repaired.
        in_order = self.assurance.in_order and (repaired or not self.requests)
        return replace(
            self,
            refuses=chance.choice((2, 3, 5)),
            repaired=repaired,
            assurance=Assurance(self.assurance.delivery, in_order),
            # Several messages in flight and lost answers put the arrival of messages in doubt, which this world tests.
            messages=max(self.messages, 8),
            window=max(self.window, 4),
            initial_window=4,
            network=replace(self.network, lose_response=max(self.network.lose_response, 0.2), duplicate=0.0),
            buffer=256,
            max_ranges=128,
        )

    def with_slow_services(self, chance: random.Random) -> Options:
        """Let the handlers of every twelfth world take longer than the retransmission timeout."""
        if self.assurance.delivery is Delivery.AT_MOST_ONCE or self.ends or chance.random() >= 1 / 12:
            return self
        is_two_way = self.behavior is IncompleteSequenceBehavior.NO_DISCARD and chance.random() < 0.8
        return replace(
            self,
            requests=1.0 if is_two_way else self.requests,
            handler_latency=chance.choice((5.0, 20.0)),
            handler_failures=0.0,
            retransmission=RetransmissionPolicy(0.3, 0.1, 5.0),
            reply_patience=chance.choice((1.0, 30.0)),
            expires=None,
            inactivity_timeout=None,
            destination_limit=None,
        )

    def with_twin(self, chance: random.Random) -> Options:
        """Add a second destination to every twelfth world without a broker; its Sequences never end early."""
        if self.broker is not None or chance.random() >= 1 / 12:
            return self
        return replace(
            self,
            twin=True,
            clock_jumps=False,
            destination_limit=None,
            expires=None,
            inactivity_timeout=None,
            ends=0,
        )

    def with_strangers(self, chance: random.Random) -> Options:
        """Add forged messages to every sixth world; most of its sources get a listener, where those arrive."""
        if chance.random() >= 1 / 6:
            return self
        return replace(
            self,
            strangers=chance.choice((5, 20)),
            certified=chance.random() < 0.5,
            listener=self.listener or chance.random() < 0.7,
        )

    def with_queues(self, chance: random.Random) -> Options:
        """Add further queues, small blocks of released messages, and several writers to some worlds.

        Further queues and small blocks belong to the destination, and the writers write to the broker's sinks.
        """
        options = self
        if chance.random() < 1 / 5:
            limits = RetentionPolicy(
                age=chance.choice((None, None, 0.5, 5.0)),
                size=chance.choice((None, 1, 500, 1500)),
                reader_age=chance.choice((None, None, 2.0)),
                reader_size=chance.choice((None, None, 1000)),
            )
            options = replace(options, queues=chance.choice((1, 2, 3)), routed_retention=limits)
            options = replace(options, partitions=chance.choice((1, 2, 3)))
        is_held_up = self.refuses > 0 and self.requests > 0.0  # see with_refusals: not with order
        if chance.random() < 1 / 4 and not is_held_up:
            may_drop = options.assurance.delivery is Delivery.AT_MOST_ONCE
            options = replace(
                options,
                block_bytes=chance.choice((1, 300)),
                block_crashes=chance.choice((0.0, 0.3)),
                # Messages overtake each other, so that the destination holds many at once.
                network=replace(options.network, delay=0.5, lose_request=max(0.2, options.network.lose_request)),
                assurance=Assurance(options.assurance.delivery, in_order=True),
                requests=options.requests if options.offer or not may_drop else 0.0,
                window=max(8, options.window),
                initial_window=max(8, options.initial_window),
                buffer=256,
                max_ranges=128,
                destination_limit=None,
                messages=max(12, options.messages),
            )
        if options.writer and chance.random() < 2 / 3:
            options = replace(
                options,
                writers=chance.choice((1, 2, 3)),
                repeats=chance.choice((0.0, 0.2)),
                remembers=chance.choice((None, 200.0)),
            )
        return options

    def with_broker_queues(self, chance: random.Random) -> Options:
        """Add further queues with forwarders and services to every third broker; these get one-way messages."""
        if self.broker is None or chance.random() >= 1 / 3:
            return self
        return replace(
            self,
            broker_queues=chance.choice((1, 2, 3)),
            clock_jumps=False,
            requests=min(self.requests, 0.5),
            messages=max(self.messages, 6),
        )

    @staticmethod
    def _network(chance: random.Random) -> NetworkFaults:
        def sometimes(*rates: float) -> float:
            return chance.choice(rates) if chance.random() < 0.6 else 0.0

        return NetworkFaults(
            lose_request=sometimes(0.05, 0.2, 0.5),
            lose_response=sometimes(0.05, 0.2, 0.5),
            duplicate=sometimes(0.1, 0.5),
            delay=sometimes(0.1, 0.5),
            latency=chance.choice((0.0, 0.02, 0.2)),
            max_delay=chance.choice((1.0, 5.0, 20.0)),
            silent=chance.choice((0.0, 0.3, 1.0)),
        )

    def with_loss(self, loss: float) -> Options:
        return replace(self, network=replace(self.network, lose_request=loss, lose_response=loss))

    def setups(self) -> tuple[Setup, ...]:
        """Return the setups of the source, the broker if there is one, and the destination."""
        destination_policy = DestinationPolicy(
            assurance=self.assurance,
            incomplete_sequence_behavior=self.behavior,
            acknowledgement_interval=self.acknowledgement_interval,
            acknowledgement_count=self.acknowledgement_count,
            inactivity_timeout=self.inactivity_timeout,
            buffer=self.buffer,
            max_ranges=self.max_ranges,
            max_message_number=self.destination_limit or MAX_MESSAGE_NUMBER,
            advertise_buffer=self.advertise_buffer,
            reply_patience=self.reply_patience,
        )
        source_policy = SourcePolicy(
            retransmission=self.retransmission,
            assurance=self.assurance,
            window=self.window,
            initial_window=self.initial_window,
            expires=self.expires,
            max_message_number=self.source_limit or MAX_MESSAGE_NUMBER,
            mark_ahead=self.mark_ahead,
        )
        replies_policy = replace(
            destination_policy,
            assurance=Assurance(Delivery.EXACTLY_ONCE, self.assurance.in_order),
            # The source cannot slow its replies down: one that cannot hold a window of them would wait for ever.
            buffer=256,
            max_ranges=128,
            max_message_number=MAX_MESSAGE_NUMBER,
            inactivity_timeout=None,
        )
        address = MC_ANONYMOUS if self.polls else SOURCE_ADDRESS if self.listener else ""
        choices = tuple(creation_choices([self.versions], self.offer))
        handling = HandlingPolicy(attempts=3, backoff=0.2, backoff_cap=2.0)
        source = Setup(
            address, replies_policy, source_policy, handling, choices, batches=self.batches, certified=self.certified
        )
        destination = Setup(
            DESTINATION_ADDRESS,
            replace(destination_policy, buffer_bytes=1) if self.drops_early else destination_policy,
            replace(source_policy, expires=None, max_message_number=MAX_MESSAGE_NUMBER),
            replace(handling, concurrency=self.concurrency),
            partitions=self.partitions,
            batches=self.batches,
            retention=RetentionPolicy(self.keeps, reader_age=None) if self.keeps is not None else None,
            alone=self.alone,
            trims=self.trims,
            asked_only=self.asked_only,
            hides_limit=self.hides_limit,
            certified=self.certified,
            routed=names_of(self.queues),
            routed_retention=self.routed_retention,
            block_bytes=self.block_bytes,
        )
        if self.broker is None:
            return source, destination
        return source, self._broker_setup(self.broker, source_policy, destination_policy), destination

    def _broker_setup(self, versions: Versions, source_policy: SourcePolicy, policy: DestinationPolicy) -> Setup:
        return Setup(
            BROKER_ADDRESS,
            policy,
            # Otherwise the numbers alone would end its Sequences along with its sessions.
            replace(source_policy, max_message_number=MAX_MESSAGE_NUMBER) if self.sessions else source_policy,
            choices=tuple(creation_choices([versions], self.broker_offers)),
            partitions=self.partitions,
            sessions=self.sessions,
            batches=self.batches,
            trims=True,
            certified=self.certified,
            forwarding=FORWARDING if self.refuses else PATIENT,
            forwards=True,
            polls=self.polls,
            routed=names_of(self.broker_queues),
            block_bytes=self.block_bytes,
            staging=StagingPolicy(remember=self.remembers) if self.remembers is not None else USUAL_STAGING,
        )

    @property
    def may_stop(self) -> bool:
        """Whether a Sequence may be lost and reported as such: by a limit, an expiry, a timeout or an operator."""
        refused = self.destination_limit is not None and self.versions.rm.can.rollover_ends
        return refused or self.expires is not None or self.inactivity_timeout is not None or self.ends > 0

    def lines(self) -> list[str]:
        """Return one line for each field, to print before a run."""
        return [f"{field.name.replace('_', ' ')}: {words(getattr(self, field.name))}" for field in fields(self)]


def words(value: object) -> str:
    """Format a value for people."""
    if isinstance(value, Versions):
        return f"WS-RM {value.rm.value}, WS-Addressing {value.addressing.value}, SOAP {value.soap.value}"
    if isinstance(value, RetransmissionPolicy | NetworkFaults):
        shown = {field.name: getattr(value, field.name) for field in fields(value)}
        return ", ".join(f"{name.replace('_', ' ')} {words(part)}" for name, part in shown.items() if part is not None)
    if isinstance(value, IncompleteSequenceBehavior):
        return value.value
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
