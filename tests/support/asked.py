"""One endpoint's core with a store, for tests: asked one request at a time, killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from reads import take_effects

from holdfast.core.events import Incident, Respond, Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope, Fault, Sequence
from holdfast.core.origin import Origin
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.receiving.replies import APART
from holdfast.core.records import Record
from holdfast.core.versions import Addressing, Versions
from holdfast.store.memory import MemoryStore

NAMELESS = Origin(is_named=False)
"""Who asks: as WCF's client, it sends no User-Agent."""


def never(_value: str) -> bool:
    """Allow no address."""
    return False


class Endpoint:
    """One protocol with a store, asked one request at a time; ``ask`` gives the answers that are there at once.

    Args:
        rm: The WS-RM version it is spoken to in.
        store: Where it keeps what it has.
        now: Seconds.
        allows: Which addresses it sends to.
        tell: A fault as the reply to a request.
        policy: Of its destination.
    """

    def __init__(
        self,
        rm: str = "1.1",
        store: MemoryStore | None = None,
        now: float = 0.0,
        allows: Callable[[str], bool] = never,
        tell: Callable[[Record, Fault, Addressing], Record | None] = lambda _request, _fault, _wsa: None,
        **policy: Any,
    ) -> None:
        self.versions = Versions(rm)
        self.store = store or MemoryStore()
        self.now = now
        self.granted = 0
        self.incidents: list[Incident] = []
        self.transmitted: list[Transmit] = []
        self.answers: dict[object, Envelope | None] = {}
        self.allows = allows
        self.tell = tell
        self.policy = DestinationPolicy(**policy)
        self._policy = policy
        self.protocol = RMProtocol(
            Queue("inbox"),
            Environment(self.store.read, self._identifier, lambda: 0.0),
            policies=Policies(destination=self.policy),
            rules=MessageRules(allows=allows, tell=tell),
        )
        self.protocol.recover(self.store.load(), now)
        self._see_to_effects()

    def _identifier(self) -> str:
        self.granted += 1
        return f"urn:d{self.granted}"

    def restart(self, now: float | None = None) -> Endpoint:
        """What comes up after it was killed. It has a disk of its own, as that was left."""
        when = self.now if now is None else now
        again = Endpoint(self.versions.rm.value, deepcopy(self.store), when, self.allows, self.tell, **self._policy)
        again.granted = self.granted
        return again

    def envelope(self, **fields: Any) -> Envelope:
        return Envelope(self.versions.soap, self.versions.addressing, self.versions.rm, **fields)

    def settle(self, *, durable: bool = True) -> None:
        while True:
            self._see_to_effects()
            if not (durable and self.protocol.wants_commit):
                return
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def _see_to_effects(self) -> None:
        for effect in take_effects(self.protocol, self.store, self.now):
            if isinstance(effect, Respond):
                assert effect.back_channel not in self.answers
                self.answers[effect.back_channel] = effect.envelope
            elif isinstance(effect, Transmit):
                self.transmitted.append(effect)
            elif isinstance(effect, Incident):
                self.incidents.append(effect)

    def ask(self, *, durable: bool = True, **fields: Any) -> Envelope | None:
        exchange = object()
        self.protocol.receive(self.envelope(**fields), exchange, self.now, origin=NAMELESS)
        self.settle(durable=durable)
        return self.answers.get(exchange, self.envelope(action="no answer yet"))

    def create(self, message_id: str = "urn:create", **fields: Any) -> str:
        answer = self.ask(control=CreateSequence(ANONYMOUS_EPR, **fields), message_id=message_id, to="http://d/")
        assert answer is not None and isinstance(answer.control, CreateSequenceResponse), answer
        return answer.control.identifier

    def send(self, identifier: str, number: int, **fields: Any) -> Envelope | None:
        return self.ask(
            **{"sequence": Sequence(identifier, number), "action": "urn:a", "body": b"<m%d/>" % number, **fields}
        )

    def request(self, identifier: str, number: int) -> Envelope | None:
        self.now += APART  # no repeat is sooner than a further exchange may get the reply
        return self.send(identifier, number, message_id=f"urn:m{number}", reply_to=ANONYMOUS_EPR)

    def reply(self, number: int, *, durable: bool = True) -> None:
        """The handler answers the request with that number."""
        record = next(record for record in self.records() if record.message_number == number)
        answer = Record("", 0, "urn:reply", b"<r%d/>" % number, 0.0)
        self.protocol.replies.reply(record, answer, self.now)
        self.settle(durable=durable)
        if durable:
            self.pass_time(APART)  # for the further exchanges of a repeated request

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.now += seconds
        self.settle()
        self.protocol.pump(self.now)
        self.settle()

    def records(self) -> list[Record]:
        return [record for _, record in self.store.read("inbox", 0, 0, 1000)]


def ranges(answer: Envelope | None) -> tuple[tuple[int, int], ...]:
    assert answer is not None
    return answer.acknowledgements[0].ranges


def code(answer: Envelope | None) -> str:
    assert answer is not None and answer.fault is not None, answer
    return answer.fault.code
