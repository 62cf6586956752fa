"""The cost of a message with many open Sequences, compared with few: both halves of the core and the store.

    python bench/sequences.py                       # 64 open and 64 in use, then 10,000 open and 100 in use
    python bench/sequences.py --open 10000 --used 100 --rounds 20

In one thread and without sockets, as in ``walk.py``, because the cost of HTTP does not depend on Sequences. The two run
in alternation, a round each; the figures are CPU microseconds per message of the best round, the median, and the ratio
of the medians. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from time import thread_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load
from walk import content

from holdfast.core.events import Respond, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.policy import SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.wire import decode, encode

BATCH = 32
BODY = b"<order xmlns='urn:holdfast:bench'>" + b"x" * 958 + b"</order>"
VERSIONS = Versions()


class Side:
    """One half with this many open Sequences, of which some are in use."""

    def __init__(self, directory: str, opened: int, used: int) -> None:
        self.store = RocksDBStore(Path(directory) / "store")
        policy = SourcePolicy(window=64, initial_window=64)
        self.protocol = RMProtocol(
            Queue("inbox", 4),
            Environment(self.store.read, new_identifier, lambda: 0.5),
            policies=Policies(source=policy),
            rules=MessageRules(replies=lambda _action: False),
        )
        self.opened, self.used = opened, used
        self.at = 0

    def next_ones(self, count: int) -> list[int]:
        """Return the Sequences with a message next; those in use take turns, and are spread over the open ones."""
        step = max(1, self.opened // self.used)
        ones = [(self.at + number) % self.used * step for number in range(count)]
        self.at = (self.at + count) % self.used
        return ones

    def commit(self) -> None:
        now = time.time()
        while self.protocol.wants_commit:
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(now)
            self.protocol.outbound.pump(now)
        self.protocol.deadline()


class Destination(Side):
    """Receives messages: decoded, accepted, stored, acknowledged."""

    def __init__(self, directory: str, opened: int, used: int) -> None:
        super().__init__(directory, opened, used)
        make = load.reliable()
        self.scripts = [make("http://127.0.0.1:1/", number) for number in range(opened)]
        for begin in range(0, opened, BATCH):
            self._take(list(range(begin, min(opened, begin + BATCH))))

    def round(self, messages: int) -> None:
        for _ in range(messages // BATCH):
            self._take(self.next_ones(BATCH))

    def _take(self, ones: list[int]) -> None:
        now = time.time()
        for one in ones:
            script = self.scripts[one]
            self.protocol.receive(decode(content(script.next_request())), script, now)
        self.commit()
        for effect in self.protocol.take_effects():
            if isinstance(effect, Respond):
                assert effect.envelope is not None
                problem = effect.back_channel.check(200, encode(effect.envelope))  # type: ignore[attr-defined]
                if problem:
                    raise SystemExit(problem)


class Source(Side):
    """Sends messages: stored, encoded, and acknowledged as by its peer."""

    def __init__(self, directory: str, opened: int, used: int) -> None:
        super().__init__(directory, opened, used)
        choices = [(VERSIONS, False)]
        self.outboxes = [self.protocol.outbound.open(str(n), "http://127.0.0.1:1/", choices) for n in range(opened)]
        for begin in range(0, opened, BATCH):
            self._send(list(range(begin, min(opened, begin + BATCH))))

    def round(self, messages: int) -> None:
        for _ in range(messages // BATCH):
            self._send(self.next_ones(BATCH))

    def _send(self, ones: list[int]) -> None:
        now = time.time()
        for one in ones:
            self.protocol.submit(self.outboxes[one], Record(str(one), 0, "urn:a", BODY, now, new_identifier()), now)
        while True:
            self.commit()
            sent = [effect for effect in self.protocol.take_effects() if isinstance(effect, Transmit)]
            if not sent and not self.protocol.wants_commit:
                return
            for one in sent:
                encode(one.envelope)
                self.protocol.received(one, decode(encode(self._answer(one))), now)
            self.protocol.outbound.pump(now)

    def _answer(self, sent: Transmit) -> Envelope:
        answer = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm)
        if isinstance(sent.envelope.control, CreateSequence):
            answer.relates_to = sent.envelope.message_id
            answer.control = CreateSequenceResponse(new_identifier())
        else:
            assert sent.envelope.sequence is not None
            answer.control = Acknowledge()
            identifier, number = sent.envelope.sequence.identifier, sent.number
            answer.acknowledgements = (SequenceAcknowledgement(identifier, ((1, number),)),)
        return answer


def measure(kind: type[Destination] | type[Source], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        sides = [kind(few, 64, 64), kind(many, options.open, options.used)]
        gc.set_threshold(20_000)  # as in a server
        gc.freeze()
        taken: list[list[float]] = [[], []]
        for number in range(options.rounds + 1):
            for side, times in zip(sides, taken, strict=True):
                began = thread_time()
                side.round(options.messages)  # type: ignore[attr-defined]
                if number:  # the first round is the warm-up
                    times.append(1e6 * (thread_time() - began) / (options.messages // BATCH * BATCH))
        for side in sides:
            side.store.close()
    medians = [statistics.median(times) for times in taken]
    for (opened, used), times, median in zip(((64, 64), (options.open, options.used)), taken, medians, strict=True):
        name = f"{kind.__name__.lower()}, {opened:,} open, {used} in use"
        print(f"{name:<42} best {min(times):6.1f}  median {median:6.1f} us CPU")
    print(f"{'':<42} {medians[1] / medians[0]:.2f} times as much")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--used", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--messages", type=int, default=2_000)
    options = parser.parse_args()
    measure(Destination, options)
    measure(Source, options)


if __name__ == "__main__":
    main()
