"""Processes that want one log, and a fake Kafka under it: appends that come late or never, outcomes that get lost, ends
that a reader sees too early, crashes, caches that are behind. Every order of steps is a course of the world.

A world is data: pickled, it is a state of the search, and choices lead from one state to the next.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.exceptions import HoldfastError
from holdfast.store.kafka.frames import HEAD_BYTES, Change, Put, decode_write, encode_write
from holdfast.store.kafka.owner import LogOwner, Write
from holdfast.store.kafka.replay import Checkpoint, Replay, Written
from holdfast.store.kafka.states import OwnerAction, OwnerState
from holdfast.store.kafka.sweep import Sweep

MOST = HEAD_BYTES + 40
"""Bytes of a record: a write with a payload above forty has several."""
COUNT = b"count"


class Broken(AssertionError):
    """A promise that the world broke."""


@dataclass
class Request:
    """An append on its way: the records, where those are that have arrived, and how many Kafka has judged."""

    records: list[bytes]
    offsets: list[int] = field(default_factory=list)
    judged: int = 0
    is_heard: bool = True
    """Whether its sender still waits for the outcome."""


@dataclass
class Content:
    """What a process has of the log, as its cache has it."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    payloads: list[bytes] = field(default_factory=list)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def apply(self, found: Written) -> None:
        copied, changes = decode_write(found.data, "the log")
        if found.has_copy:
            self.values.update(copied)
        self.change(changes)

    def change(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case (key, value):
                    self.values[key] = value
                    if key != COUNT:
                        self.payloads.append(key)

    def copy(self) -> Content:
        return Content(dict(self.values), list(self.payloads), self.checkpoint)


@dataclass
class Log:
    """The records; those before ``start`` are deleted, and kept for the judge only."""

    records: list[bytes] = field(default_factory=list)
    start: int = 0

    def content(self, end: int) -> Content:
        """What the records up to ``end`` say to a reader that makes no mistake, and began with the first one."""
        content, replay = Content(), Replay(Checkpoint(), "the log")
        for offset, record in enumerate(self.records[:end]):
            if isinstance(found := replay.read(offset, record), Written):
                content.apply(found)
        return content


class Process:
    """One that opens the log, commits its payloads, and continues until it has lost the log."""

    def __init__(self, world: World, number: int, cache: Content, payloads: list[bytes]) -> None:
        self.number, self.payloads = number, payloads
        self.content = cache
        self.request: Request | None = None
        self.write: tuple[bytes, list[Change]] | None = None
        self.serves = False
        self.acknowledged: list[bytes] = []
        start = cache.checkpoint
        if start.next < world.log.start or not start.epoch:
            start = Checkpoint(next=world.log.start)
            self.content = Content()
        self.replay = world.replay(start, "the log")
        self.owner = world.owner(f"process {number}", b"%d" % number, self.replay, MOST)
        self.sweep = Sweep(self.replay, world.fewest, step=20)

    def steps(self, world: World) -> Iterator[str]:
        """What it may do next."""
        owner, request = self.owner, self.request
        if request is not None:
            if len(request.offsets) == len(request.records):
                yield "hear"
            elif request.judged == len(request.records):
                yield "hear refusal"
            if world.budget["unknown"]:
                yield "give up"
        elif owner.reads:
            left = len(world.log.records) - self.replay.next
            if left > 0:
                yield "read"
            if left <= 0 or (world.budget["short end"] and self.replay.next > world.log.start):
                yield "end"
        elif owner.claims:
            yield "claim"
        elif owner.state is OwnerState.OWNING and self.payloads:
            yield "commit"
        if world.budget["crash"]:
            yield "crash"
            if self.content.checkpoint.epoch:
                yield "crash without cache"

    def step(self, world: World, what: str) -> None:
        owner = self.owner
        match what:
            case "read":
                self.read(world)
            case "end":
                if self.replay.next < len(world.log.records):
                    world.budget["short end"] -= 1
                elif owner.state is OwnerState.READING:
                    self.replay.require_whole()
                self.do(world, owner.ended())
            case "claim":
                self.request = world.append([owner.claim(0.0)])
            case "commit":
                self.commit(world)
            case "hear":
                self.hear(world, self.request.offsets if self.request else None)
            case "hear refusal":
                self.hear(world, None)
            case "give up":
                world.budget["unknown"] -= 1
                self.hear(world, None)

    def read(self, world: World) -> None:
        offset = self.replay.next
        found, action = self.owner.read(offset, world.log.records[offset])
        if isinstance(found, Written) and not self.serves:
            self.content.apply(found)
        if not self.serves and found is not None:
            self.content.checkpoint = self.replay.checkpoint or Checkpoint()
        self.do(world, action)

    def hear(self, world: World, offsets: list[int] | None) -> None:
        assert self.request is not None
        size = sum(map(len, self.request.records))
        self.request.is_heard = False
        self.request = None
        if self.owner.claims:
            self.owner.claimed()
        else:
            self.do(world, self.owner.appended(offsets, size))

    def commit(self, world: World) -> None:
        key = self.payloads.pop(0)
        count = b"%d" % (int(self.content.values.get(COUNT, b"0")) + 1)
        changes: list[Change] = [(key, key[:1]), (COUNT, count)]
        copies, copied = self.sweep.part(0, self.scan)
        self.write = (key, changes)
        self.do(world, self.owner.commit(Write(encode_write(changes, copied), copies)))

    def scan(self, first: bytes, size: int) -> tuple[list[Put], bytes | None]:
        keys = [key for key in sorted(self.content.values) if key >= first]
        return [(key, self.content.values[key]) for key in keys[:2]], keys[2] if len(keys) > 2 else None

    def do(self, world: World, action: OwnerAction) -> None:
        match action:
            case OwnerAction.SERVE:
                self.serves = True
            case OwnerAction.APPEND:
                self.request = world.append(self.owner.records)
            case OwnerAction.ACKNOWLEDGE:
                assert self.write is not None
                key, changes = self.write
                self.acknowledged.append(key)
                world.acknowledged.append(key)
                self.content.change(changes)
                self.content.checkpoint = self.replay.checkpoint or Checkpoint()
                self.write = None
                if self.replay.trim_to is not None:
                    world.log.start = max(world.log.start, self.replay.trim_to)


class World:
    """A log, and processes that open it at once.

    Args:
        payloads: For each process, what it commits.
        budget: How often each fault may happen: "unknown", "crash", "short end", "refused" (one record of an append is,
            and later ones are not), "never".
        fewest: Bytes of the log that need no copy of the content.
        owner, replay: Classes of the processes, which may have a mistake.
    """

    def __init__(
        self,
        payloads: list[list[bytes]],
        budget: dict[str, int] | None = None,
        fewest: int = 1 << 20,
        owner: type[LogOwner] = LogOwner,
        replay: type[Replay] = Replay,
        process: type[Process] = Process,
    ) -> None:
        self.log = Log()
        self.budget = {"unknown": 0, "crash": 0, "short end": 0, "refused": 0, **(budget or {})}
        self.fewest, self.owner, self.replay, self.process = fewest, owner, replay, process
        self.requests: list[Request] = []
        self.acknowledged: list[bytes] = []
        self.started = 0
        self.processes: list[Process] = []
        for one in payloads:
            self.start(Content(), list(one))

    def start(self, cache: Content, payloads: list[bytes]) -> Process:
        self.started += 1
        self.processes.append(self.process(self, self.started, cache, payloads))
        return self.processes[-1]

    def append(self, records: list[bytes]) -> Request:
        self.requests.append(Request(records))
        return self.requests[-1]

    def steps(self) -> list[tuple[int, str]]:
        """Every step that may come next: of a process, or with negative numbers of Kafka."""
        found = [(at, what) for at, one in enumerate(self.processes) for what in one.steps(self)]
        for at, request in enumerate(self.requests):
            found.append((-1 - at, "arrive"))
            if self.budget["refused"]:
                found.append((-1 - at, "refuse"))
            if not request.is_heard and not request.judged:
                found.append((-1 - at, "vanish"))
        return found

    def step(self, at: int, what: str) -> None:
        """Take a step.

        Raises:
            Broken: A promise is broken after it.
        """
        try:
            if at < 0:
                self.move(self.requests[-1 - at], what)
            elif what.startswith("crash"):
                self.budget["crash"] -= 1
                self.replace(at, keeps=what == "crash")
            elif what == "read" and self.processes[at].replay.next < self.log.start:
                self.replace(at, keeps=True)  # another one trimmed the log meanwhile: it must start again
            else:
                self.processes[at].step(self, what)
            self.judge()
        except HoldfastError as error:
            raise Broken(f"a reader failed: {error}") from error

    def move(self, request: Request, what: str) -> None:
        if what == "arrive":
            request.offsets.append(len(self.log.records))
            self.log.records.append(request.records[request.judged])
            request.judged += 1
        elif what == "refuse":
            self.budget["refused"] -= 1
            request.judged += 1
        if what == "vanish" or request.judged == len(request.records):
            self.requests.remove(request)

    def replace(self, at: int, *, keeps: bool) -> None:
        """The process is killed, or ends; another one starts in its place, with its cache or without."""
        dead = self.processes[at]
        if dead.request is not None:
            dead.request.is_heard = False
        self.started += 1
        cache = dead.content.copy() if keeps else Content()
        self.processes[at] = self.process(self, self.started, cache, dead.payloads)

    def judge(self) -> None:
        """A reader of the log finds what was acknowledged, once, in order; and each owner has what the log says."""
        whole = self.log.content(len(self.log.records))
        found = whole.payloads
        if len(set(found)) != len(found):
            raise Broken(f"a payload is in the log twice: {found}")
        if not set(self.acknowledged) <= set(found):
            raise Broken(f"acknowledged were {self.acknowledged}, and the log has {found}")
        if int(whole.values.get(COUNT, b"0")) != len(found):
            raise Broken(f"a process wrote what it computed from older content: {whole.values}")
        for one in self.processes:
            if sorted(one.acknowledged, key=found.index) != one.acknowledged:
                raise Broken("the order of a process changed")
            if one.serves and one.owner.state is OwnerState.OWNING:
                self.judge_content(one)
        self.judge_rebuild(whole)

    def judge_content(self, one: Process) -> None:
        expected = self.log.content(one.replay.next)
        if one.content.values != expected.values:
            raise Broken(f"process {one.number} has {one.content.values}, and the log says {expected.values}")

    def judge_rebuild(self, whole: Content) -> None:
        if not self.log.start:
            return
        content, replay = Content(), Replay(Checkpoint(next=self.log.start), "the log")
        try:
            for offset in range(self.log.start, len(self.log.records)):
                if isinstance(found := replay.read(offset, self.log.records[offset]), Written):
                    content.apply(found)
            replay.require_whole()
        except HoldfastError as error:
            raise Broken(f"the trimmed log cannot be read: {error}") from error
        if content.values != whole.values:
            raise Broken(f"the trimmed log says {content.values}, and the whole one {whole.values}")

    def finish(self) -> None:
        """Without further faults, a process that opens the log can write.

        Raises:
            Broken: It cannot.
        """
        self.budget = dict.fromkeys(self.budget, 0)
        last = self.start(Content(), [b"last"])
        for _ in range(10_000):
            mine = [(at, what) for at, what in self.steps() if at == len(self.processes) - 1 or what == "arrive"]
            if not mine:
                break
            self.step(*mine[0])
        if last.acknowledged != [b"last"]:
            raise Broken(f"a process cannot write: it {last.owner.state.value}")


def explore(world: World, most: int) -> int:
    """Take every course of a world.

    Args:
        world: Its beginning.
        most: A limit for the states; without mistakes it is an error to reach it.

    Returns:
        How many different states there are.

    Raises:
        Broken: A promise is broken in one of them.
    """
    begin = pickle.dumps(world)
    seen, waiting = {begin}, [begin]
    while waiting:
        state = waiting.pop()
        for at, what in pickle.loads(state).steps():
            one: World = pickle.loads(state)
            one.step(at, what)
            reached = pickle.dumps(one)
            if reached not in seen:
                seen.add(reached)
                waiting.append(reached)
        if len(seen) > most:
            raise AssertionError(f"more than {most} states")
    return len(seen)


def wander(world: World, seed: int, steps: int = 120) -> World:
    """Take one course of a world, by chance, and let a process finish.

    Raises:
        Broken: A promise is broken.
    """
    draw = random.Random(seed)
    for _ in range(steps):
        if not (choices := world.steps()):
            break
        world.step(*draw.choice(choices))
    world.finish()
    return world
