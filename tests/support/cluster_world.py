"""WS-ReliableMessaging over the nodes of a cluster, in virtual time: a source, a load balancer without stickiness,
nodes that share partitions by leases, and a table or a log with the content of each partition.

The decisions are the shipped ones: the whole protocol of the source and of each worker, who owns which partition, which
worker a request belongs to, when a request is passed on again, and who may write to a log. The world mirrors the rest
of the shells: how a request enters, how others are asked, and that a worker asks for its trust before it accepts, sends
or calls a handler. It loses and delays everything between them, and kills, pauses and cuts off nodes. It watches what
becomes durable, and what leaves nodes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cluster_engines import Log, LogClient, Table, TableClient
from lease_world import Broken, Process
from lease_world import World as LeaseWorld

from holdfast.core.events import BackChannel, Transmit
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED
from holdfast.core.messages import Envelope, TerminateSequence
from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Batch, Record
from holdfast.core.states.inbound import DestinationState
from holdfast.core.states.outbound import SourceState
from holdfast.core.versions import TRIED_VERSIONS
from holdfast.endpoint.worker import identifier_of, worker_of
from holdfast.endpoint.workers.passage import Move, Passage
from holdfast.endpoint.workers.sequence_owner import Said, found_in, owner_of, sorted_out, worker_of_address
from holdfast.simulation.nodes.clock import EPOCH
from holdfast.simulation.nodes.ledger import DurableState, Words
from holdfast.simulation.nodes.network import PERFECT, Network, NetworkFaults
from holdfast.simulation.nodes.node import OUTBOX, Arrival, Journey, Node, Setup
from holdfast.simulation.nodes.store import SimStore
from holdfast.simulation.options import SOURCE_ADDRESS, Options
from holdfast.store.kafka.replay import Replay

LOOK = 0.25
"""Seconds between two looks at requests that wait for their owner."""
BUSY, MISDIRECTED = 503, 421
DAY = 86_400.0

Answer = Callable[[int, Envelope | None], None]


@dataclass(slots=True, eq=False)
class Request:
    """A request at a node: what came, and who waits for the answer.

    Args:
        lost: Called if the connection breaks before the answer.
    """

    journey: Journey
    answer: Answer
    lost: Callable[[], None]
    is_relayed: bool = False

    @property
    def envelope(self) -> Envelope:
        return self.journey.transmit.envelope


@dataclass(slots=True, eq=False)
class Came(Arrival):
    """A request at a worker, as the core names it in its answer."""

    request: Request | None = None


class Desk:
    """What a simulated endpoint of the core tells its driver; the driver of :class:`Node`, for one endpoint."""

    service = None

    def __init__(self, world: World, skew: float) -> None:
        self.world, self.skew = world, skew
        self.nodes: tuple[Any, ...] = (self, world)
        self.clock = self.surroundings = self
        self.jitter = world.random.random
        self.timer_at: float | None = None

    def local(self, _index: int) -> float:
        return EPOCH + self.world.now + self.skew

    def settle(self, node: Node, later: Callable[[float, Callable[[], None]], None], fired: Callable[[], None]) -> None:
        """Do what an endpoint wants after an input, and set its timer."""
        node.settle()
        deadline = node.protocol.deadline()
        if deadline is not None and (self.timer_at is None or deadline < self.timer_at):
            self.timer_at = deadline

            def fire() -> None:
                if self.timer_at == deadline:
                    self.timer_at = None
                    fired()

            later(max(0.0, deadline - self.local(0)) + 1e-6, fire)

    def batch_durable(self, _node: Node, _batch: Batch) -> None: ...

    def pumped(self, _node: Node) -> None: ...

    def delivered(self, *_: Any) -> None: ...

    handed_over = acknowledged = told = handler_succeeded = handler_failed = delivered

    def ended(self, _node: Node, effect: Any) -> None: ...

    def stopped(self, node: Node, effect: Any) -> None:
        raise Broken(f"{node.name} stops {effect.key}: {effect.code}, {effect.reason}")

    def count(self, _what: str) -> None: ...


class Source(Desk):
    """The source's program and its endpoint, which never fails."""

    def __init__(self, world: World, setup: Setup) -> None:
        super().__init__(world, 0.0)
        self.disk, self.has_ended = DurableState(), False
        self.terminated = set[str]()
        """MessageIDs of the CreateSequences of Sequences that it has ended."""
        self.node = world.source_node(0, "source", setup, self)  # type: ignore[arg-type]
        self.node.start()
        self.wants_reply: set[bytes] = set()
        self.submitted: list[bytes] = []

    def go_on(self) -> None:
        self.settle(self.node, self.world.at, self._fire)

    def _fire(self) -> None:
        self.node.pump()
        self.go_on()

    def submit(self, *, wants_reply: bool) -> None:
        body = b"m%d" % len(self.submitted)
        self.submitted.append(body)
        if wants_reply:
            self.wants_reply.add(body)
        name = f"urn:message:{len(self.submitted)}"
        record = Record(OUTBOX, 0, "urn:request", body, self.node.now, name, wants_reply=wants_reply)
        self.node.submit(record)
        self.go_on()

    def batch_durable(self, _node: Node, batch: Batch) -> None:
        self.disk.apply(batch)

    def batch_taken(self, node: Node) -> None:
        self.world.at(0.001, self._store)

    def _store(self) -> None:
        self.node.durable()
        self.go_on()

    def read_wanted(self, node: Node, wanted: Any) -> None:
        self.world.at(0.0, lambda: (node.read(wanted), self.go_on()))  # type: ignore[arg-type, return-value]

    def handler_started(self, node: Node, handle: Any) -> None:
        self.world.at(0.001, lambda: (node.handled(handle), self.go_on()))  # type: ignore[arg-type, return-value]

    def ended(self, _node: Node, effect: Any) -> None:
        self.has_ended = self.has_ended or effect.key == OUTBOX

    def respond(self, _node: Node, arrival: Came, envelope: Envelope | None) -> None:
        assert arrival.request is not None
        arrival.request.answer(200, envelope)

    def transmit(self, node: Node, transmit: Transmit) -> None:
        """Send a request through the load balancer, to any node each time."""
        world = self.world
        journey = Journey(0, node.run, transmit, 1, 0)
        if isinstance(transmit.envelope.control, TerminateSequence):
            self.terminated.add(transmit.source)

        def conclude(status: int, envelope: Envelope | None) -> None:
            if not (journey.is_answered or journey.has_failed):
                journey.is_answered = True
                if status == BUSY:
                    node.fail(journey)
                else:
                    world.check_heard(envelope)
                    node.conclude(journey, envelope)
                self.go_on()

        def fail() -> None:
            if not (journey.is_answered or journey.has_failed):
                journey.has_failed = True
                node.fail(journey)
                self.go_on()

        world.exchange(lambda answer, lost: world.balance(Request(journey, answer, lost)), conclude, fail)

    def receive(self, request: Request) -> None:
        """Take a request of a worker: a reply, or an acknowledgement."""
        envelope = replace(request.envelope)
        came = Came(request.journey, self.node.run, request=request)
        self.world.check_heard(envelope)
        origin = self.node.origin_of(request.journey)
        self.node.protocol.receive(envelope, BackChannel(came), self.node.now, origin=origin)
        self.go_on()


class WorkerNode(Node):
    """The endpoint of a worker. Its Identifiers name the partition."""

    def new_identifier(self) -> str:
        return identifier_of(self.index, self.world.world.random.getrandbits(128) & ~(3 << 62) | 2 << 62)


class Store(SimStore):
    """The content as the engine's client has it, with the batches that it has not confirmed."""

    def __init__(self, client: TableClient | LogClient) -> None:
        super().__init__(lambda _batch: None)
        self.durable, self._is_shared = client.content, client.is_shared

    def make_durable(self) -> None:
        batch = self.pending.popleft()
        if not self._is_shared:
            self.durable.commit(batch)


class Worker(Desk):
    """The worker of one partition in one process of a node."""

    def __init__(self, world: World, process: Process, partition: int) -> None:
        super().__init__(world, world.skews[process])
        self.process, self.partition = process, partition
        self.name = f"{process.name}/{partition}"
        self.is_open = self.is_over = self.is_committing = self.is_prepared = False
        self.waiting: list[Request] = []
        self.node = WorkerNode(partition, self.name, world.setup, self, world.build)  # type: ignore[arg-type]
        self.client = world.engines[partition].client(self)
        self.begin()

    def begin(self) -> None:
        """Open the content. The endpoint starts, and sets its timers, when nobody else can write any longer."""
        self.client.open()

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """Do something in this worker's process, unless it is over."""
        self.world.of(self.process, delay, lambda: None if self.is_over else what())

    def start(self) -> None:
        self.node.store = Store(self.client)
        self.node.start()

    def opened(self) -> None:
        self.start()
        self.is_open = True
        self.go_on()

    @property
    def is_serving(self) -> bool:
        """Whether it accepts requests: only after it has read what an earlier owner may have sent."""
        return self.is_open and self.node.is_listening

    def go_on(self) -> None:
        if not self.is_over:
            self.settle(self.node, self.later, self._fire)

    def _fire(self) -> None:
        self.node.pump()
        self.pumped(self.node)
        self.go_on()

    def pumped(self, _node: Node) -> None:
        if not self.client.is_claimed:
            raise Broken(f"a timer of {self.name} fires before its claim")

    def read_to_end(self) -> None:
        """Note that a log was read to its end, and is about to be claimed."""

    def check_acting(self, what: str) -> None:
        if not self.process.may_act(self.partition, self.world.now):
            raise Broken(f"{self.name} {what}, although another node may have its partition")

    @property
    def may_act(self) -> bool:
        return self.process.may_act(self.partition, self.world.now)

    def knows(self, identifier: str) -> bool:
        protocol = self.node.protocol
        is_inbound = identifier in protocol.inbound.destinations or identifier in protocol.sequences.offered
        return is_inbound or bool(protocol.outbound.sequences.named(identifier))

    # --- the store ---------------------------------------------------------------------------------------------------

    def batch_taken(self, _node: Node) -> None:
        if not self.is_committing and self.client.is_claimed:
            self.is_committing = True
            self.client.commit(self.node.store.pending[0])

    def durable(self) -> None:
        self.is_committing = False
        self.node.durable()
        self.go_on()
        if self.node.store.pending and not self.is_over:
            self.batch_taken(self.node)

    def read_wanted(self, node: Node, wanted: Any) -> None:
        self.later(self.world.delay(0.001, 0.05), lambda: self._read(node, wanted))

    def _read(self, node: Node, wanted: Any) -> None:
        """Answer a read. What the next owner of a table has deleted is missing, after a pause of this one."""
        found = node.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        if self.client.is_lost and not (found and found[0][0] == wanted.start):
            self.fail("fenced")
        else:
            node.read(wanted)
            self.go_on()

    def fail(self, why: str) -> None:
        """End: another process has the content. The supervisor starts another worker, if its node still has a claim."""
        self.world.counts[why] += 1
        self.end(MISDIRECTED)
        self.world.of(self.process, 0.5, lambda: self.world.replace_worker(self))

    def end(self, status: int | None) -> None:
        """End, and answer who waits; None: their connections break."""
        self.is_over, self.is_open = True, False
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            if status is None:
                request.lost()
            else:
                request.answer(status if request.is_relayed else BUSY, None)

    # --- handlers, and what leaves -----------------------------------------------------------------------------------

    def handler_started(self, node: Node, handle: Any) -> None:
        def call() -> None:
            if not self.may_act:
                self.later(0.1, call)  # another node may call it
                return
            self.check_acting("calls a handler")
            self.world.handled[handle.record.body] += 1
            self.later(self.world.delay(0.01, 0.5), lambda: (node.handled(handle), self.go_on()))  # type: ignore[arg-type, return-value]

        call()

    def respond(self, _node: Node, arrival: Came, envelope: Envelope | None) -> None:
        request = arrival.request
        assert request is not None
        if request in self.waiting:
            self.waiting.remove(request)
            self.world.check_leaving(self, envelope)
            request.answer(200, envelope)

    def transmit(self, node: Node, transmit: Transmit) -> None:
        world, journey = self.world, Journey(1, node.run, transmit, 0, 0)

        def conclude(status: int, envelope: Envelope | None) -> None:
            self.later(0.0, lambda: ended(lambda: node.conclude(journey, envelope)))

        def fail() -> None:
            self.later(0.0, lambda: ended(lambda: node.fail(journey)))

        def ended(tell: Callable[[], None]) -> None:
            if not journey.is_answered:
                journey.is_answered = True
                tell()
                self.go_on()

        if not self.may_act:  # as the sender of each worker does
            self.later(0.05, fail)
            return
        self.check_acting("sends")
        assert transmit.to.startswith(SOURCE_ADDRESS), transmit.to
        world.check_leaving(self, transmit.envelope)
        world.exchange(lambda answer, lost: world.source.receive(Request(journey, answer, lost)), conclude, fail)

    # --- what comes --------------------------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        """Take a request that is this worker's, or may be any worker's."""
        if not (self.is_serving and self.may_act):
            request.answer(MISDIRECTED if request.is_relayed else BUSY, None)
            return
        node, envelope = self.node, replace(request.envelope)
        origin = node.origin_of(request.journey)
        if (said := sorted_out(envelope, origin, self.knows)) is not None:
            self.world.tell_others(self, said)
        self.waiting.append(request)
        came = Came(request.journey, node.run, request=request)
        node.protocol.receive(envelope, BackChannel(came), node.now, origin=origin)
        self.go_on()

    def hear(self, said: Said) -> None:
        envelope = said.envelope()
        envelope.acknowledgements = tuple(one for one in envelope.acknowledgements if self.knows(one.identifier))
        envelope.ack_requested = tuple(one for one in envelope.ack_requested if self.knows(one.identifier))
        if self.may_act and (envelope.acknowledgements or envelope.ack_requested):
            self.node.protocol.receive(envelope, None, self.node.now, origin=said.origin)
            self.go_on()


@dataclass(slots=True, eq=False)
class Relay:
    """A request that another worker answers."""

    process: Process
    request: Request
    passage: Passage
    is_open: bool = True


class World(LeaseWorld):
    """One run: a source and a cluster. See :class:`lease_world.World` for what happens to the nodes.

    Args:
        seed: Decides all that happens.
        engine: ``Table`` or ``Log``.
        worker, build, passage, replay: Classes of the parts, which may have a mistake.
        source_node: Makes the Identifiers of the source: ``WorkerNode``, as a worker of another server does.
        is_calm: Whether no message is lost, and no node fails.
        prepares: Whether workers on a log also start before their node may act.
    """

    def __init__(
        self,
        seed: int,
        engine: type[Table] | type[Log],
        *,
        worker: type[Worker] = Worker,
        build: Callable[..., RMProtocol] = RMProtocol,
        passage: type[Passage] = Passage,
        replay: type[Replay] = Replay,
        source_node: type[Node] = Node,
        is_calm: bool = False,
        prepares: bool = False,
        **options: Any,
    ) -> None:
        draw = random.Random(f"messages {seed}")
        super().__init__(seed, nodes=draw.choice((2, 2, 3)), partitions=draw.choice((1, 2, 2, 3)), lease=2.0, **options)
        self.prepares = prepares
        self.worker, self.passage, self.replay, self.is_calm = worker, passage, replay, is_calm
        self.build, self.source_node = build, source_node
        self.setup, self.source_setup, self.requests, count = self._options(draw)
        self.engines = [engine(self._stored(partition)) for partition in range(self.partitions)]
        self.disks = [DurableState() for _ in range(self.partitions)]
        self.words, self.created = Words(), dict[str, dict[str, dict[str, Any]]]()
        self.returns, self.left_returns = dict[str, str](), set[str]()
        self.served_by: dict[Process, dict[int, Worker]] = {}
        self.skews: dict[Process, float] = {}
        self.handled: Counter[bytes] = Counter()
        self.counts: Counter[str] = Counter()
        self.splits: set[frozenset[str]] = set()
        self.lost_answers = 0.0 if is_calm else draw.choice((0.0, 0.02, 0.1))
        self.network = Network(PERFECT if is_calm else self._faults(draw), draw)
        self.source = Source(self, self.source_setup)
        self.left = count

    @staticmethod
    def _options(draw: random.Random) -> tuple[Setup, Setup, float, int]:
        pattern = draw.choice(("one-way", "offer", "offer", "plain"))
        options = Options(
            versions=draw.choice(TRIED_VERSIONS),
            offer=pattern == "offer",
            listener=draw.random() < 0.3,
            window=draw.choice((1, 2, 8)),
            acknowledgement_interval=draw.choice((0.0, 0.2, 1.0)),
            reply_patience=draw.choice((0.05, 1.0, 30.0)),
            batches=draw.choice((1, 2)),
            trims=draw.random() < 0.5,
        )
        source, cluster = options.setups()
        return cluster, source, 0.0 if pattern == "one-way" else draw.choice((1.0, 0.5)), draw.randint(1, 8)

    @staticmethod
    def _faults(draw: random.Random) -> NetworkFaults:
        rate, rates = draw.choice, (0.0, 0.05, 0.2)
        return NetworkFaults(rate(rates), rate(rates), rate(rates), rate(rates), max_delay=rate((0.5, 5.0)))

    # --- time --------------------------------------------------------------------------------------------------------

    def chance(self, rate: float) -> bool:
        return self.random.random() < rate

    def of(self, process: Process, delay: float, what: Callable[[], None]) -> None:
        """Do something in a process: not after its death, and when it is paused, later."""

        def run() -> None:
            if process.is_frozen and not process.is_dead:
                process.waiting.append(run)
            elif not process.is_dead:
                what()

        self.at(delay, run)

    def start(self, name: str) -> Process:
        process = super().start(name)
        self.served_by[process] = {}
        self.skews[process] = 0.0 if self.is_calm else self.random.choice((0.0, 0.5, -3.0, DAY, -DAY))
        return process

    def tick(self, process: Process) -> None:
        super().tick(process)
        workers = self.served_by[process]
        for partition in [one for one in workers if one not in process.workers and not workers[one].is_prepared]:
            workers.pop(partition).end(None)
        for partition, is_ending in process.workers.items():
            if partition in workers:
                self.counts["prepared"] += workers[partition].is_prepared
                workers[partition].is_prepared = False
            elif not is_ending:
                workers[partition] = self.worker(self, process, partition)
        self.prepare(process)

    def prepare(self, process: Process) -> None:
        """Start a worker before its node may act, or end it again: the owner does not notice."""
        if not self.prepares or not self.chance(0.05):
            return
        workers, partition = self.served_by[process], self.random.randrange(self.partitions)
        if partition not in workers:
            workers[partition] = self.worker(self, process, partition)
            workers[partition].is_prepared = True
        elif workers[partition].is_prepared and self.chance(0.2):
            workers.pop(partition).end(None)

    def replace_worker(self, failed: Worker) -> None:
        process, partition = failed.process, failed.partition
        if self.served_by[process].get(partition) is failed and process.workers.get(partition) is False:
            self.served_by[process][partition] = self.worker(self, process, partition)

    def crash(self, process: Process) -> None:
        super().crash(process)
        for worker in self.served_by[process].values():
            worker.end(None)
        self.served_by[process] = {}

    def fault(self) -> None:
        if self.random.random() < 0.2:
            pair = frozenset(self.random.sample(self.names, 2))
            self.splits.add(pair)
            self.at(self.random.uniform(0, 3 * self.policy.lease), lambda: self.splits.discard(pair))
        else:
            super().fault()

    # --- between the source and the nodes ----------------------------------------------------------------------------

    def exchange(
        self,
        deliver: Callable[[Answer, Callable[[], None]], None],
        conclude: Answer,
        fail: Callable[[], None],
    ) -> None:
        """Carry one request over the network, perhaps twice, and its answer back."""
        fate = self.network.fate()
        for copy in fate.copies:

            def answer(status: int, envelope: Envelope | None, back: float | None = copy.response_delay) -> None:
                if back is not None:
                    self.at(back, lambda: conclude(status, None if envelope is None else replace(envelope)))

            self.at(copy.request_delay, lambda answer=answer: deliver(answer, lambda: self.at(0.01, fail)))
        self.at(60.0 if fate.copies or fate.silent else 0.1, fail)

    def balance(self, request: Request) -> None:
        """Give a request to any node that runs, or is paused."""
        running = [one for one in self.processes if not one.is_dead]
        if running:
            process = self.random.choice(running)
            self.of(process, 0.0, lambda: self.enter(process, request))
        else:
            request.lost()

    def enter(self, process: Process, request: Request) -> None:
        """Find the owner of a request. Any process of the node may have taken it."""
        workers = {number: one for number, one in self.served_by[process].items() if one.is_serving}
        entry = workers.get(self.random.choice([*workers, -1]))  # None: the gateway
        if entry is not None and not entry.may_act:
            request.answer(BUSY, None)
            return
        owner = worker_of_address(request.journey.transmit.to)
        named = owner_of(request.envelope, self.partitions)
        if owner is None and named.is_sought(entry.knows if entry is not None else lambda _: False):
            self.of(process, self.delay(0.005, 0.2), lambda: self.seek(process, named.identifiers, request))
            return
        owner = named.worker if owner is None else owner
        owner = None if owner is None else owner % self.partitions
        if entry is not None and owner in (None, entry.partition):
            entry.receive(request)
        else:
            self.pass_on(process, owner, request)

    def seek(self, process: Process, identifiers: Iterable[str], request: Request) -> None:
        """Ask all workers for a Sequence with an Identifier that the source made."""
        is_sure = True
        for identifier in identifiers:
            owner, is_certain = found_in({one: self.ask(process, one, identifier) for one in range(self.partitions)})
            is_sure = is_sure and is_certain
            if owner is not None:
                self.pass_on(process, owner, request)
                return
        if is_sure:
            self.pass_on(process, None, request)
        else:
            request.answer(BUSY, None)

    def ask(self, process: Process, number: int, identifier: str) -> bool | None:
        worker = self.reach(process, number)
        return worker.knows(identifier) if worker is not None and worker.is_serving and worker.may_act else None

    # --- between nodes -----------------------------------------------------------------------------------------------

    def place_of(self, process: Process, number: int) -> str | None:
        """Where a worker is, as the supervisor of a node says it."""
        view = process.membership.view
        if number in view.mine:
            worker = self.served_by[process].get(number)
            return view.node if worker is not None and worker.is_serving else None
        owner = view.owners.get(number)
        return None if owner in (None, view.node) else owner

    def reach(self, process: Process, number: int) -> Worker | None:
        """The worker to which a request of a process comes now, if one does."""
        place = self.place_of(process, number)
        if place == process.name:
            return self.served_by[process].get(number)
        if place is None or frozenset((place, process.name)) in self.splits:
            return None
        there = [one for one in self.processes if one.name == place and not one.is_dead and not one.is_frozen]
        return self.served_by[there[-1]].get(number) if there else None

    def pass_on(self, process: Process, owner: int | None, request: Request) -> None:
        relay = Relay(process, request, self.passage(self.now, owner))
        self.ask_owner(relay)
        self.of(process, LOOK, lambda: self.look(relay))

    def ask_owner(self, relay: Relay) -> None:
        process, passage = relay.process, relay.passage
        number = passage.ask(partial(self.place_of, process), partial(self.any_worker, process), self.now)
        if number is None:
            return
        place = self.place_of(process, number)
        attempt = passage.attempt
        self.counts["passed on again" if attempt > 1 else "passed on"] += 1

        def back(status: int, envelope: Envelope | None) -> None:
            if place == process.name or not self.chance(self.lost_answers):
                self.of(process, self.delay(0.002, 0.3), lambda: self.told(relay, attempt, status, envelope))
            else:
                lost()

        def lost() -> None:
            self.of(process, self.delay(0.01, 1.0), lambda: self.told(relay, attempt, 0, None))

        def arrive() -> None:
            worker = self.reach(process, number)
            if worker is None:
                lost()
                return
            passed = Request(relay.request.journey, back, lost, is_relayed=True)
            self.of(worker.process, 0.0, lambda: worker.receive(passed))

        self.at(self.delay(0.002, 0.3), arrive)

    def any_worker(self, process: Process) -> int | None:
        served = [one for one in range(self.partitions) if self.place_of(process, one) is not None]
        return self.random.choice(served) if served else None

    def told(self, relay: Relay, attempt: int, status: int, envelope: Envelope | None) -> None:
        if attempt != relay.passage.attempt or not relay.is_open:
            return
        if status not in (0, MISDIRECTED):
            relay.is_open = False
            relay.request.answer(status, envelope)
        elif relay.passage.failed("it has moved" if status else "lost", self.now, is_lost=not status) is Move.ASK:
            self.ask_owner(relay)

    def look(self, relay: Relay) -> None:
        if not relay.is_open:
            return
        move = relay.passage.look(partial(self.place_of, relay.process), self.now)
        if move is Move.GIVE_UP:
            relay.is_open = False
            relay.request.answer(BUSY, None)
            return
        if move is Move.ASK:
            self.ask_owner(relay)
        self.of(relay.process, LOOK, lambda: self.look(relay))

    def tell_others(self, worker: Worker, said: Said) -> None:
        for number in range(self.partitions):
            other = self.reach(worker.process, number) if number != worker.partition else None
            if other is not None and other.is_serving and not self.chance(self.lost_answers):
                other.later(self.delay(0.002, 0.3), lambda other=other: other.hear(said) if other.is_serving else None)

    # --- the promises ------------------------------------------------------------------------------------------------

    def _stored(self, partition: int) -> Callable[[Batch], None]:
        def stored(batch: Batch) -> None:
            disk = self.disks[partition]
            before = {name: ranges.copy() for name, ranges in disk.accepted.items()}
            disk.apply(batch)
            for name, ranges in before.items():
                if list(ranges.outside(disk.accepted[name])):
                    raise Broken(f"{name} accepted {ranges}, and then only {disk.accepted[name]}")
            for name, state in batch.sequences.items():
                self._check_created(name, state)
                self._note_return(name, state)
            self._check_queue(disk)

        return stored

    def _check_created(self, name: str, state: dict[str, Any] | None) -> None:
        """A CreateSequence makes one Sequence, unless that has ended, or has messages: then its source has the answer,
        and a transmission that comes so late makes another one, which nobody uses."""
        create = state.get("create_message_id") if state is not None else None
        if create is None:
            return
        made = self.created.setdefault(create, {})
        for first, saved in made.items() if name not in made else ():
            is_open = saved["state"] == DestinationState.CREATED.value
            if is_open and (saved.get("offered") is not None or not saved["accepted"]):
                raise Broken(f"one CreateSequence made two Sequences, {first} and {name}")
        made[name] = state

    def _check_queue(self, disk: DurableState) -> None:
        bodies = [one.body for other in self.disks for one in other.queues.get(0, ())]
        if len(set(bodies)) != len(bodies):
            raise Broken(f"a message is in a queue twice: {bodies}")
        for sequence in disk.accepted:
            numbers = [one.number for one in disk.queues.get(0, ()) if one.sequence == sequence]
            if numbers != list(range(1, len(numbers) + 1)):
                raise Broken(f"{sequence} has {numbers}")

    def _note_return(self, name: str, state: dict[str, Any] | None) -> None:
        """Note the Identifier of a Sequence of replies, and when a node is about to end it."""
        if state is not None and state["role"] == "source" and state["identifier"]:
            self.returns[name] = state["identifier"]
        if name in self.returns and (state is None or state["state"] == SourceState.TERMINATING.value):
            self.left_returns.add(self.returns[name])

    def check_heard(self, envelope: Envelope | None) -> None:
        """No fault of reliable messaging reaches the source, unless a late copy names a Sequence that has ended: it
        acknowledges one of replies, or offers one again."""
        fault = None if envelope is None else envelope.fault
        if envelope is None or fault is None:
            return
        if fault.code == "UnknownSequence" and fault.identifier in self.left_returns:
            return
        if fault.code == CREATE_SEQUENCE_REFUSED and envelope.relates_to in self.source.terminated:
            return
        raise Broken(f"the source gets the fault {fault.code}: {fault.reason}")

    def check_leaving(self, worker: Worker, envelope: Envelope | None) -> None:
        """What a node says is durable, and a number always means the same message."""
        if not worker.client.is_claimed:
            raise Broken(f"{worker.name} speaks before its claim")
        if envelope is None:
            return
        if isinstance(envelope.control, TerminateSequence):
            self.left_returns.add(envelope.control.identifier)
        for acknowledgement in envelope.acknowledgements:
            number = worker_of(acknowledgement.identifier)
            disk = self.disks[worker.partition if number is None else number]
            accepted = disk.accepted.get(acknowledgement.identifier)
            for lower, upper in acknowledgement.ranges:
                for one in range(max(1, lower), upper + 1):
                    if accepted is None or one not in accepted:
                        raise Broken(f"{worker.name} acknowledges {one} of {acknowledgement.identifier}: {accepted}")
        if envelope.sequence is not None:
            key = envelope.sequence.identifier, envelope.sequence.message_number
            before = self.words.bodies.pop(key, None)
            self.words.transmitted(envelope)
            if before not in (None, self.words.bodies[key]):
                raise Broken(f"number {key} was {before!r}, and is {self.words.bodies[key]!r}")
        if envelope.body.startswith(b"r") and envelope.body not in self.disks[worker.partition].replies:
            raise Broken(f"{worker.name} sends {envelope.body!r}, which is not durable")

    # --- whole runs --------------------------------------------------------------------------------------------------

    def run(self, faults: int = 6) -> None:
        """Let the source send while faults happen, then wait until everything has arrived."""
        for _ in range(self.left):
            wants_reply = self.random.random() < self.requests
            self.at(
                self.random.uniform(3.0, 5.0 + 3.0 * faults), lambda it=wants_reply: self.source.submit(wants_reply=it)
            )
        if self.is_calm:
            self.losses, faults = 0.0, 0
            self.keep_started()
            self.run_until(30.0)
        super().run(faults)
        self.network.faults, self.lost_answers = PERFECT, 0.0
        self.splits.clear()
        self.run_until(max(self.now, 10.0 + 3.0 * faults), lambda: len(self.source.submitted) == self.left)
        self.source.node.end()
        self.source.go_on()
        until = self.now + 900.0
        while self.now < until and not self.is_done():
            self.run_until(self.now + 5.0)
            self.keep_started()
            if self.source.has_ended:  # it sends nothing more
                until = min(until, self.now + 60.0)
        if not self.is_done():
            raise Broken(f"at the end: {self.state()}")

    def is_done(self) -> bool:
        return self.source.has_ended and not self.missing()

    def missing(self) -> list[bytes]:
        """Messages and replies that did not arrive."""
        there = {one.body for disk in self.disks for one in disk.queues.get(0, ())}
        replies = [one.body for one in self.source.disk.queues.get(0, ())]
        if len(set(replies)) != len(replies):
            raise Broken(f"the source has replies twice: {replies}")
        wanted = [b"r" + body[1:] for body in self.source.submitted if body in self.source.wants_reply]
        lost = [body for body in self.source.submitted if body not in there]
        return lost + [body for body in wanted if body not in replies]

    def state(self) -> str:
        return f"missing {self.missing()}, ended {self.source.has_ended}, served {self.served()}"
