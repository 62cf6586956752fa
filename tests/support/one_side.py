"""Both halves of one side, over a real store, to which a test says whole envelopes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from reads import take_effects

from holdfast.core.events import Transmit
from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import RM, Versions, creation_choices
from holdfast.exceptions import EnvelopeError
from holdfast.store import Store
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.wire import actions, decode, encode
from holdfast.wire.dialects.dialect import UTILITY_NS as UTILITY
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.names import ANONYMOUS_URI, NETRM_NS, RM_NS, SOAP_NS, WSA_NS


def element(name: str, content: str, *, times: int = 1) -> str:
    return f"<{name}>{content}</{name}>" * times


class Side:
    """Both halves of one side, which may be reopened at any time.

    Args:
        directory: For its store.
        versions: What its peer speaks.
        open_store: Opens the store.
    """

    def __init__(self, directory: Path, versions: Versions, open_store: Callable[[Path], Store] = RocksDBStore) -> None:
        self.directory, self.versions, self._open_store = directory, versions, open_store
        self.answered: list[Envelope] = []
        self.identifiers = (f"urn:d{number}" for number in count(1))
        self.now = 1000.0
        self.known = self.outbound = self.offered = "urn:none-yet"
        dialect = DIALECTS[versions.rm]
        self.spelling = [
            ("r:SequenceAcknowledgement", f"r:{dialect.acknowledgement}"),
            ("r:AcknowledgementRange", f"r:{dialect.acknowledgement_range}"),
            *([("r:Identifier", "u:Identifier")] if dialect.identifier_namespace else ()),
        ]
        self.open()
        self.begin()

    def open(self) -> None:
        self.store = self._open_store(self.directory)
        self.protocol = RMProtocol(
            Queue("inbox", 2),
            Environment(self.store.read, lambda: next(self.identifiers), lambda: 0.5),
            policies=Policies(destination=DestinationPolicy(buffer=4)),
            rules=MessageRules(
                allows=lambda address: address.startswith("http://allowed.example/"),
                always_replies=lambda _action: True,
            ),
        )
        self.protocol.recover(self.store.load(), self.now)

    def envelope(self, header: str, body: str) -> bytes:
        soap, addressing, rm = self.versions.soap, self.versions.addressing, self.versions.rm
        filled = f"<s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
        for name, value in (
            ("{known}", self.known),
            ("{outbound}", self.outbound),
            ("{offered}", self.offered),
            ("{rm}", RM_NS[rm]),
            *((f"{{{kind.__name__}}}", action) for kind, action in actions[rm].items()),
            ("{anonymous}", ANONYMOUS_URI[addressing]),
            *self.spelling,
        ):
            filled = filled.replace(name, value)
        namespaces = (
            ("s", SOAP_NS[soap]),
            ("a", WSA_NS[addressing]),
            ("r", RM_NS[rm]),
            ("n", NETRM_NS),
            ("u", UTILITY),
        )
        declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in namespaces)
        return f"<s:Envelope{declared}>{filled}".encode("utf-8", "surrogatepass")

    def begin(self) -> None:
        """An inbound Sequence with an Offer, and an outbound one with messages in flight."""
        can = self.versions.rm.can
        if not can.creates:
            self.known = "urn:known"
            first = element("u:Identifier", self.known) + element("r:MessageNumber", "1")
            self.hear(self.envelope(element("a:Action", "urn:a") + element("r:Sequence", first), "<b/>"), False)
        else:
            self.ask()
        choices = creation_choices([self.versions], True)
        outbox = self.protocol.outbound.open("key", "http://allowed.example/", choices)
        for number in range(4):
            record = Record("key", 0, "urn:a", b"<m/>", self.now, f"urn:m{number}", wants_reply=number % 2 == 0)
            self.protocol.submit(outbox, record, self.now)
        sent = self.settle()
        if can.creates:
            (creating,) = [one for one in sent if isinstance(one.envelope.control, CreateSequence)]
            response = Envelope(self.versions.soap, self.versions.addressing, self.versions.rm)
            response.control, response.relates_to = CreateSequenceResponse("urn:outbound"), creating.envelope.message_id
            self.protocol.received(creating, decode(encode(response)), self.now)
            self.settle()
        assert outbox.source is not None and outbox.source.identifier is not None
        self.outbound = outbox.source.identifier

    def ask(self) -> None:
        """Ask for the inbound Sequence, with an Offer that only some versions read."""
        action = element("a:Action", actions[self.versions.rm][CreateSequence])
        anonymous = element("a:Address", "{anonymous}")
        endpoint = element("r:Endpoint", anonymous) if self.versions.rm is RM.V1_1 else ""
        offer = element("r:Offer", element("r:Identifier", "urn:offered") + endpoint)
        create = element("r:CreateSequence", element("r:AcksTo", anonymous) + offer)
        self.offered, self.known = "urn:offered", "urn:d1"
        self.hear(self.envelope(action, create), False)
        assert "urn:d1" in self.protocol.inbound.destinations

    def settle(self) -> list[Transmit]:
        """Carry out what is to be done, until nothing is; what would be sent is written, too."""
        sent: list[Transmit] = []
        self.protocol.outbound.pump(self.now)
        for _ in range(50):
            for effect in take_effects(self.protocol, self.store, self.now):
                answer = getattr(effect, "envelope", None)
                if answer is not None:
                    encode(answer)
                    self.answered.append(answer)
                if isinstance(effect, Transmit):
                    sent.append(effect)
            if not self.protocol.wants_commit:
                return sent
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)
        raise AssertionError("it never settles")

    def hear(self, data: bytes, is_answer: bool) -> EnvelopeError | None:
        """Receive a message, as a request or an answer; return why it is no envelope."""
        self.now += 1.0
        try:
            envelope = decode(data)
        except EnvelopeError as error:
            return error  # answered with a fault, and nothing has changed
        if is_answer:
            self.protocol.received(Transmit("http://allowed.example/", envelope, "", 1), envelope, self.now)
        else:
            self.protocol.receive(envelope, object(), self.now)
        self.settle()
        return None

    def reopen(self) -> None:
        before = {key: (state["role"], state["identifier"]) for key, state in self.store.load().sequences.items()}
        self.store.close()
        self.open()
        assert {
            key: (state["role"], state["identifier"]) for key, state in self.store.load().sequences.items()
        } == before
        self.settle()
