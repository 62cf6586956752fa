"""The seeded simulator: the real core of two or more endpoints, first under faults, then without them.

One :class:`random.Random` decides everything, so a seed reproduces a whole run. The storm comes first: loss,
duplicates, delays, partitions, crashes. The simulator checks every named invariant after every event (safety). Then the
faults stop. Every submitted message must arrive and every Sequence must end within bounded virtual time (liveness).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from holdfast.core.events import Handle, ReadWanted
from holdfast.core.messages import Envelope
from holdfast.core.protocol import RMProtocol
from holdfast.simulation.actors.reader import Reader
from holdfast.simulation.actors.routed_readers import RoutedReaders
from holdfast.simulation.actors.strangers import Stranger
from holdfast.simulation.actors.writer import Writer
from holdfast.simulation.forwarded_services import ForwardedService
from holdfast.simulation.nodes.clock import EPOCH
from holdfast.simulation.nodes.network import PERFECT, Network
from holdfast.simulation.nodes.node import SECOND, Arrival, Journey, Node
from holdfast.simulation.options import Options
from holdfast.simulation.promises.invariant import Invariant, InvariantViolation
from holdfast.simulation.promises.invariants import ALL_INVARIANTS
from holdfast.simulation.promises.liveness import unfinished
from holdfast.simulation.promises.refusals import RefusedInOnePlace, RefusingService, RequeuedInOneBatch, unsettled
from holdfast.simulation.promises.restarted import Heard
from holdfast.simulation.promises.routed_invariants import ROUTED_INVARIANTS
from holdfast.simulation.promises.slow_services import OpenRequests
from holdfast.simulation.second_world import Carrier
from holdfast.simulation.twin import Twin
from holdfast.simulation.world import World

REQUEST_TIMEOUT = 60.0
"""Seconds after which a caller without an answer stops waiting."""
HEALING = 900.0
"""Virtual seconds after the storm within which every message must arrive and every Sequence must end."""
MOST_EVENTS = 50_000
"""Limit of the events in one run. More events mean that the protocol itself floods the network."""


class SimulationFailed(AssertionError):
    """A run broke a guarantee. The message names it and the command that reproduces the run.

    Args:
        seed: Reproduces the run.
        invariant: The broken invariant, or "Liveness".
        what: What happened.
        report: The run up to the failure.
    """

    def __init__(self, seed: int, invariant: str, what: str, report: Report) -> None:
        super().__init__(f"seed {seed}: {invariant}: {what}\n  reproduce: holdfast simulate --seed {seed} --trace")
        self.seed = seed
        self.invariant = invariant
        self.what = what
        self.report = report


@dataclass(slots=True)
class Report:
    """The result of one run.

    Args:
        seed: Reproduces it.
        options: Options of the world.
        events: Number of events; the invariants were checked after each.
        seconds: Virtual time from beginning to end.
        counts: Number of occurrences by kind.
    """

    seed: int
    options: Options
    events: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class Simulator:
    """One run.

    Args:
        seed: Decides everything that the options leave open.
        options: Options of the world; None: the seed draws them too.
        loss: Replaces the options' loss of requests and of responses.
        build: Makes each endpoint's protocol; tests plant bugs through it.
        trace: Called with a line for each event.
    """

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        loss: float | None = None,
        invariants: Iterable[type[Invariant]] = ALL_INVARIANTS,
        build: Callable[..., RMProtocol] = RMProtocol,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        drawn = Options.of_seed(seed, self.random) if options is None else options
        self.options = drawn if loss is None else drawn.with_loss(loss)
        self.network = Network(self.options.network, self.random)
        self._trace = trace
        self.world = World(
            self.options.setups(),
            self,
            self.random.random,
            invariants=self._all_invariants(invariants),
            build=build,
            trace=self._line if trace is not None else None,
        )
        if self.options.refuses:
            self.world.service = RefusingService(self.options.refuses)
        self.report = Report(seed, self.options, counts=self.world.counts)
        self._events: list[tuple[float, int, Callable[[], Node | None]]] = []
        self._scheduled = 0
        self._is_storm = True
        self._crashes_left = 8
        self._open: dict[Arrival, None] = {}
        self._disk_free_at = [0.0] * len(self.world.nodes)
        self._read_at: dict[tuple[int, str, int], float] = {}
        # Separate random numbers for each feature leave the events of existing seeds unchanged.
        self._read_chance = random.Random(f"reads {seed}")
        self._reader: Reader | None = None
        if self.options.reader:
            self._reader = Reader(self.world, self.world.nodes[-1], self._at, self._read_chance, 1.0)
        self._writers: list[Writer] = []
        for number in range(self.options.writers if self.options.writer else 0):
            loss = self.options.network.lose_request
            chance = random.Random(f"writer {seed}" if number == 0 else f"writer {number} of {seed}")
            writer = Writer(
                self.world, self.world.nodes[1], self._at, chance, 1.0, max(loss, 0.1), number, self.options.repeats
            )
            self._writers.append(writer)
        self._twin: Twin | None = None
        if self.options.twin:
            chance = random.Random(f"twin {seed}")
            carrier = Carrier(self._at, chance, self.request, self.respond)
            self._twin = Twin(self.options, self.world, carrier, invariants=tuple(invariants), build=build)
        self._services = self._forwarded_services(tuple(invariants), build)
        self._others: dict[int, Node] = {one.number: one.node for one in self._services}
        if self._twin is not None:
            self._others[SECOND] = self._twin.node
        self._endpoints = (*self.world.nodes, *self._others.values())
        self._requests = OpenRequests(self.world)
        self._readers: RoutedReaders | None = None
        if self.options.queues:
            chance = random.Random(f"readers {seed}")
            self._readers = RoutedReaders(self.world, self.world.nodes[-1], self._at, chance)
        self._block_chance = random.Random(f"blocks {seed}")
        self._heard = Heard(self.world.nodes[-1])

    def _forwarded_services(
        self, invariants: tuple[type[Invariant], ...], build: Callable[..., RMProtocol]
    ) -> list[ForwardedService]:
        made, watching = [], (*invariants, *ROUTED_INVARIANTS)
        for index in range(self.options.broker_queues):
            chance = random.Random(f"service {index} of {self.seed}")
            carrier = Carrier(self._at, chance, self.request, self.respond)
            made.append(ForwardedService(index, self.options, self.world, carrier, invariants=watching, build=build))
        return made

    def _all_invariants(self, always: Iterable[type[Invariant]]) -> list[type[Invariant]]:
        """Return the given invariants and those of the parts that only some worlds have."""
        found = list(always)
        if self.options.refuses:
            found += [RefusedInOnePlace, RequeuedInOneBatch]
        if self.options.queues or self.options.broker_queues:
            found += ROUTED_INVARIANTS
        return found

    def run(self) -> Report:
        """Run the storm, then the healing.

        Raises:
            SimulationFailed: an invariant was broken, or the world did not heal in time.
        """
        try:
            self._storm()
            self._heal()
            if self.options.again:
                self._go_on()
        except InvariantViolation as violation:
            self._finish()
            raise SimulationFailed(self.seed, violation.invariant, violation.what, self.report) from violation
        except Exception as error:  # an error inside the core: only the seed can reproduce it
            self._finish()
            raise SimulationFailed(self.seed, type(error).__name__, str(error), self.report) from error
        self._finish()
        return self.report

    def _finish(self) -> None:
        self.report.seconds = self.world.clock.now - EPOCH

    def _line(self, text: str) -> None:
        assert self._trace is not None
        self._trace(f"{self.world.clock.now - EPOCH:9.3f}  {text}")

    # --- storm and healing ----------------------------------------------------------------------------------------

    def _storm(self) -> None:
        options, chance = self.options, self.random
        for node in reversed(self.world.nodes):
            self._start(node)
        if self._twin is not None:
            self._twin.begin()
        for service in self._services:
            service.world.start(service.node)
        if self._reader is not None:
            self._reader.begin()
        if self._readers is not None:
            self._readers.begin()
        for writer in self._writers:
            writer.begin()
        if options.strangers:
            stranger_chance = random.Random(f"strangers {self.seed}")
            stranger = Stranger(self.world, self._at, stranger_chance, self._opened, is_certified=options.certified)
            stranger.begin(options.strangers, options.storm)
        for number in range(options.messages):
            wants_reply = chance.random() < options.requests
            self._at(chance.random() * options.storm * 0.6, partial(self._submit, number, wants_reply))
        if chance.random() < 0.5:
            self._at(options.storm * (0.6 + 0.4 * chance.random()), self._end)
        for node in self.world.nodes:
            for _ in range(2 if options.handler_failures or (options.refuses and node.setup.forwards) else 0):
                self._at(options.storm * self._read_chance.random(), partial(self._retry_letters, node))
        for _ in range(options.ends):
            self._at(options.storm * 0.6 * self.random.random(), self._end_inbound)
        self._until(EPOCH + options.storm, lambda: False)
        self._compare_with_restarted()

    def _heal(self) -> None:
        self.world.note(lambda: "the storm is over: the faults end, and every message must arrive")
        self._is_storm = False
        if self.world.service is not None and self.options.repaired:
            self.world.service.repaired_after = self.world.journeys
        self.network.faults = PERFECT
        for writer in self._writers:
            writer.heal()
        if self._readers is not None:
            self._readers.heal()
        self.network.is_partitioned = False
        for node in self.world.nodes:
            if not node.is_up:
                self._restart(node)
        self._end()
        if self._twin is not None:
            self._twin.end()
        self.world.settle(self.world.nodes[0])
        self._wait_until_well()

    def _go_on(self) -> None:
        """Submit more messages after the end, which must use a new Sequence because the last one has ended."""
        node, world = self.world.nodes[0], self.world
        world.has_ended = False
        for _ in range(2):
            world.submit(self.random.random() < self.options.requests)
        self._end()
        world.settle(node)
        self._wait_until_well()

    def _wait_until_well(self) -> None:
        end = self.world.clock.now + HEALING
        while (missing := self._unfinished()) is not None:
            if self.world.clock.now >= end:
                raise InvariantViolation("Liveness", f"{missing}, {HEALING:g} s after the faults ended")
            self._resume_if_stopped()
            self._resume_forwarders()
            for node in self.world.nodes:
                if self.options.repaired or not node.setup.forwards:
                    self._retry_letters(node)
                self.world.settle(node)
            self._until(min(end, self.world.clock.now + 20.0), lambda: self._unfinished() is None)

    def _unfinished(self) -> str | None:
        if self._reader is not None and self._reader.is_behind:
            return "the reader has not read everything"
        for writer in self._writers:
            if (missing := writer.missing()) is not None:
                return missing
        if self._twin is not None and (missing := self._twin.missing()) is not None:
            return missing
        for service in self._services:
            if (missing := service.missing()) is not None:
                return missing
        missing = unfinished(self.world, may_stop=self.options.may_stop)
        if missing is None and self._readers is not None:
            missing = self._readers.missing()
        return missing if missing is not None else unsettled(self.world)

    def _retry_letters(self, node: Node) -> Node | None:
        if not node.is_up:
            return None
        letters = node.giving_up.letters if node.setup.forwards else node.handling.letters
        if letters.count == letters.asked:
            return None
        self.world.note(lambda: f"an operator retries {letters.count} dead letters of {node.name}")
        if node.setup.forwards:
            self.world.count("dead letters requeued")
            node.giving_up.requeue()
        else:
            node.handling.retry()
        return node

    def _resume_forwarders(self) -> None:
        if self.world.service is None:
            return
        broker = self.world.nodes[1]
        for outbox in broker.protocol.outbound.outboxes.values():
            if outbox.lifecycle.stopped:
                self.world.note(lambda: "an operator resumes a forwarder of the broker")
                outbox.resume([*broker.setup.choices], broker.now)

    def _resume_if_stopped(self) -> None:
        """Act as the operator: resume the outbox in a new Sequence after a reported loss."""
        node, world = self.world.nodes[0], self.world
        outbox = node.outbox
        assert outbox is not None
        if not outbox.lifecycle.stopped:
            return
        if not self.options.may_stop:
            raise InvariantViolation("Liveness", f"the outbox stopped without cause: {outbox.lifecycle.stopped}")
        world.note(lambda: "an operator resumes the outbox")
        world.ledger.doubt(outbox.records.first, outbox.records.end)
        outbox.resume([*node.setup.choices], node.now)
        node.end()
        world.settle(node)

    def _until(self, end: float, is_done: Callable[[], bool]) -> None:
        world, events = self.world, self._events
        while not is_done():
            # The next step is the earliest event or timer; at the same moment, a timer comes first.
            time = events[0][0] if events else end
            timer: Node | None = None
            for node in self._endpoints:
                deadline = node.deadline()
                if deadline is not None and deadline <= time:
                    time, timer = deadline, node
            if time >= end:
                world.clock.advance_to(end)
                return
            world.clock.advance_to(time)
            if timer is None:
                touched = heapq.heappop(events)[2]()
                if touched is None:
                    continue
            else:
                touched = timer
            self.report.events += 1
            if self.report.events > MOST_EVENTS:
                raise InvariantViolation("Liveness", f"more than {MOST_EVENTS} events")
            touched.world.settle(touched)
            if self._is_storm:
                self._misfortune()

    def _at(self, delay: float, event: Callable[[], Node | None]) -> None:
        """Schedule ``event`` in ``delay`` seconds; it returns the endpoint it changed, or None."""
        self._scheduled += 1
        heapq.heappush(self._events, (self.world.clock.now + delay, self._scheduled, event))

    # --- faults ---------------------------------------------------------------------------------------------------

    def _misfortune(self) -> None:
        options, chance = self.options, self.random.random
        rates = (options.crash_source, options.crash_broker, options.crash_destination)
        for node, rate in zip(self.world.nodes, rates if options.broker is not None else rates[::2], strict=True):
            if rate and node.is_up and self._crashes_left and chance() < rate:
                self._crash(node)
        if options.block_crashes:
            self._crash_between_blocks()
        if options.partition_rate and not self.network.is_partitioned and chance() < options.partition_rate:
            self.world.note(lambda: "the network is partitioned")
            self.network.is_partitioned = True
            self._at(chance() * 10.0, self._rejoin)

    def _crash_between_blocks(self) -> None:
        """Crash an endpoint that has released a part of its held messages, but not all."""
        for node in self.world.nodes[1:]:
            if not node.is_up or not self._crashes_left:
                continue
            is_between = any(one.is_releasing for one in node.protocol.inbound.destinations.values())
            if is_between and self._block_chance.random() < self.options.block_crashes:
                self.world.count("crashes between blocks")
                self._crash(node)

    def _rejoin(self) -> None:
        self.network.is_partitioned = False

    def _end_inbound(self) -> Node | None:
        """Act as the destination's operator: end the newest open Sequence there."""
        node = self.world.nodes[1]
        if not node.is_up:
            return None
        inbound = node.protocol.inbound.destinations.values()
        is_open = [destination.identifier for destination in inbound if not destination.is_over]
        terminate = self.random.random() < 0.5
        if not is_open:
            return None
        self.world.note(lambda: f"an operator {'terminates' if terminate else 'closes'} {is_open[-1]} at {node.name}")
        node.protocol.end_inbound(is_open[-1], node.now, terminate=terminate)
        return node

    def _crash(self, node: Node) -> None:
        self._crashes_left -= 1
        if node is self.world.nodes[-1]:
            self._compare_with_restarted()
        self.world.crash(node, self.random.randint(0, len(node.store.pending)))
        for arrival in [arrival for arrival in self._open if arrival.journey.receiver == node.index]:
            del self._open[arrival]
            self._at(self.network.delay(), partial(self._fail, arrival.journey))
        self._at(self.random.choice((0.001, 0.5, 10.0)) * self.random.random(), partial(self._restart_later, node))

    def _compare_with_restarted(self) -> None:
        if self._heard.compare():
            self.world.count("restarts compared")

    def _restart_later(self, node: Node) -> Node | None:
        if node.is_up:
            return None
        self._restart(node)
        return node

    def _restart(self, node: Node) -> None:
        if self.options.clock_jumps:
            self.world.clock.jump(node.index, self.random.choice((-86_400.0, -1.0, 0.0, 1.0, 300.0)))
        self._start(node)

    def _start(self, node: Node) -> None:
        self.world.start(node)
        if self._twin is not None and node is self.world.nodes[0]:
            self._twin.open()
            self.world.settle(node)

    def _node(self, index: int) -> Node:
        return self._others.get(index) or self.world.nodes[index]

    # --- the applications -----------------------------------------------------------------------------------------

    def _submit(self, number: int, wants_reply: bool) -> Node | None:
        node = self.world.nodes[0]
        if not node.is_up:
            self._at(0.5, partial(self._submit, number, wants_reply))
            return None
        if node.end_wanted:
            return None
        self.world.submit(wants_reply)
        return node

    def _end(self) -> Node | None:
        node = self.world.nodes[0]
        self.world.note(lambda: "the source's application has sent its last message")
        node.end()
        return node if node.is_up else None

    def handler_started(self, node: Node, handle: Handle) -> None:
        """See :class:`Surroundings`."""
        delay = self.random.random() * self.options.handler_latency
        self._at(delay, partial(self._handled, node, node.run, handle))

    def _handled(self, node: Node, run: int, handle: Handle) -> Node | None:
        if not node.is_up or node.run != run:
            return None
        where = f"offset {handle.offset} of {handle.queue}"
        if self._is_storm and self.random.random() < self.options.handler_failures:
            self.world.note(lambda: f"the handler of {node.name} fails at {where}")
            node.handler_failed(handle)
        else:
            self.world.note(lambda: f"the handler of {node.name} finishes {where}: {handle.record.body.decode()}")
            node.handled(handle)
        return node

    # --- the disks ------------------------------------------------------------------------------------------------

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """See :class:`Surroundings`. Reads that take time finish in order within a partition."""
        if not self.options.read_latency:
            node.read(wanted)
            return
        now = self.world.clock.now
        where = (node.index, wanted.queue, wanted.partition)
        ready = max(self._read_at.get(where, 0.0), now + self._read_chance.random() * self.options.read_latency)
        self._read_at[where] = ready
        self._at(ready - now, partial(self._read, node, node.run, wanted))

    def _read(self, node: Node, run: int, wanted: ReadWanted) -> Node | None:
        if not node.is_up or node.run != run:
            return None
        self.world.note(lambda: f"{node.name} has read {wanted.queue}, starting at {wanted.start}")
        node.read(wanted)
        return node

    def batch_taken(self, node: Node) -> None:
        """See :class:`Surroundings`."""
        now = self.world.clock.now
        ready = max(self._disk_free_at[node.index], now + self.random.random() * self.options.commit_latency)
        self._disk_free_at[node.index] = ready
        self._at(ready - now, partial(self._durable, node, node.run))

    def _durable(self, node: Node, run: int) -> Node | None:
        if not node.is_up or node.run != run:
            return None
        self.world.note(lambda: f"a batch of {node.name} is durable")
        node.durable()
        return node

    # --- the network ----------------------------------------------------------------------------------------------

    def request(self, journey: Journey) -> None:
        """See :class:`Surroundings`."""
        self._requests.sent(journey)
        fate = self.network.fate()
        for copy in fate.copies:
            self._at(copy.request_delay, partial(self._arrive, journey, copy.response_delay))
        if not any(copy.response_delay is not None for copy in fate.copies):
            self.world.count("exchanges lost")
            self._at(REQUEST_TIMEOUT if fate.silent else self.network.delay(), partial(self._fail, journey))
        else:
            self._at(REQUEST_TIMEOUT, partial(self._fail, journey))

    def _arrive(self, journey: Journey, response_delay: float | None) -> Node | None:
        node = self._node(journey.receiver)
        if not node.is_listening:
            self._at(self.network.delay(), partial(self._fail, journey))
            return None
        self.world.note(lambda: f"#{journey.number} arrives at {node.name}")
        arrival = Arrival(journey, node.run, response_delay)
        self._opened(arrival)
        if node is self.world.nodes[-1]:
            self._heard.hear(journey.transmit.envelope, node.origin_of(journey))
        node.receive(arrival)
        return node

    def _opened(self, arrival: Arrival) -> None:
        self._open[arrival] = None

    def respond(self, arrival: Arrival, envelope: Envelope | None) -> None:
        """See :class:`Surroundings`."""
        if arrival not in self._open:
            raise InvariantViolation("AnsweredOnce", f"#{arrival.journey.number} is answered a second time")
        del self._open[arrival]
        self._requests.answered(arrival, envelope)
        if arrival.response_delay is not None and not self.network.is_partitioned:
            self._at(arrival.response_delay, partial(self._answer, arrival.journey, envelope))

    def _answer(self, journey: Journey, envelope: Envelope | None) -> Node | None:
        node = self._node(journey.sender)
        # A connection carries one answer, however often the network duplicates the request.
        if not node.is_up or node.run != journey.run or journey.has_failed or journey.is_answered:
            return None
        self._requests.concluded(journey)
        journey.is_answered = True
        self.world.note(lambda: f"the answer to #{journey.number} arrives at {node.name}")
        node.conclude(journey, envelope)
        return node

    def _fail(self, journey: Journey) -> Node | None:
        node = self._node(journey.sender)
        if not node.is_up or node.run != journey.run or journey.is_answered or journey.has_failed:
            return None
        journey.has_failed = True
        self.world.note(lambda: f"#{journey.number} fails for {node.name}")
        node.fail(journey)
        return node
