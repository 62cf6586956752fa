"""Nothing that a peer says reaches the store and fails there: whole envelopes, from bytes to a real store and back."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import take_effects

from examples import examples
from holdfast.core.events import Transmit
from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import ALL_VERSIONS, RM, TRIED_VERSIONS, Versions, creation_choices
from holdfast.exceptions import EnvelopeError
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.wire import actions, decode, encode
from holdfast.wire.dialects.dialect import UTILITY_NS as UTILITY
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.names import ANONYMOUS_URI, NETRM_NS, RM_NS, SOAP_NS, WSA_NS

# --- what a peer may say ---------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 2, 3, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**63]
numbers = st.one_of(
    st.integers(1, 6).map(str),
    st.sampled_from(NUMBERS).map(str),
    st.sampled_from(["-1", "", "1e400", "NaN", "inf", "0x1", "9" * 65, "9" * 5000, " 1 ", "01", "\u0661"]),
)
durations = st.one_of(
    st.sampled_from(["PT0S", "PT1H", "P1D", "PT0.000001S", "P999999999Y", "PT999999999999H", "P999999999Y999999999M"]),
    st.sampled_from(["-PT1S", "P", "PT1E400S", "PT" + "9" * 400 + "S", "never", ""]),
)
characters = st.characters(codec="utf-8", exclude_categories=("Cs",))
texts = st.one_of(
    st.text(characters, max_size=20),
    st.sampled_from(
        ["urn:x", "", " ", "\x00", "\x1f", "\x7f", "\ufffe", "\uffff", "\U0010ffff", "a" * 2048, "a" * 2049]
    ),
    st.sampled_from(["handler", "spark", "inbox", "to/x", "plain/urn:d1", "replies", "\xff" * 9, "anonymous", "none"]),
)
addresses = st.one_of(st.sampled_from(["{anonymous}", "http://allowed.example/a", "urn:none"]), texts)
identifiers = st.one_of(st.sampled_from(["{known}"] * 5 + ["{outbound}"] * 3 + ["{offered}"] * 2), texts)


def element(name: str, content: str, *, times: int = 1) -> str:
    return f"<{name}>{content}</{name}>" * times


def said(draw: st.DrawFn, name: str, values: st.SearchStrategy[str], *, often: int = 4) -> str:
    """The element with some value; seldom none of it, or two."""
    times = draw(st.sampled_from([1] * often + [0, 2]))
    return "".join([element(name, escape(draw(values))) for _ in range(times)])


def endpoint(draw: st.DrawFn, name: str) -> str:
    parameters = "<a:ReferenceParameters><p/></a:ReferenceParameters>" if draw(st.booleans()) else ""
    return element(name, said(draw, "a:Address", addresses, often=20) + parameters)


def control(draw: st.DrawFn, local: str) -> str:
    if local == "CreateSequence":
        offer = element(
            "r:Offer",
            said(draw, "r:Identifier", identifiers, often=20)
            + (endpoint(draw, "r:Endpoint") if draw(st.booleans()) else "")
            + said(draw, "r:Expires", durations),
            times=draw(st.integers(0, 1)),
        )
        content = endpoint(draw, "r:AcksTo") + said(draw, "r:Expires", durations, often=1) + offer
    elif local == "CreateSequenceResponse":
        accept = element("r:Accept", endpoint(draw, "r:AcksTo"), times=draw(st.integers(0, 1)))
        content = said(draw, "r:Identifier", identifiers, often=20) + said(draw, "r:Expires", durations) + accept
    else:
        content = said(draw, "r:Identifier", identifiers, often=20) + said(draw, "r:LastMsgNumber", numbers)
    return element(f"r:{local}", content)


FAULTS = ["UnknownSequence", "SequenceTerminated", "SequenceClosed", "MessageNumberRollover", "InvalidAcknowledgement"]


def fault(draw: st.DrawFn) -> str:
    code = draw(st.one_of(st.sampled_from(FAULTS), st.sampled_from(["CreateSequenceRefused", "x" * 3000, "Ä"])))
    detail = said(draw, "r:Identifier", identifiers) + said(draw, "r:MaxMessageNumber", numbers)
    return (
        f"<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:{code}</s:Value></s:Subcode></s:Code>"
        f"<s:Reason><s:Text>{escape(draw(texts))}</s:Text></s:Reason><s:Detail>{detail}</s:Detail></s:Fault>"
    )


def headers(draw: st.DrawFn) -> str:
    parts = []
    if draw(st.sampled_from([True, True, False])):
        number = said(draw, "r:MessageNumber", numbers, often=20)
        last = "<r:LastMessage/>" if draw(st.integers(0, 5)) == 0 else ""
        parts.append(element("r:Sequence", said(draw, "r:Identifier", identifiers, often=20) + number + last))
    if draw(st.integers(0, 3)) == 0:
        ranges = "".join(
            f'<r:AcknowledgementRange Lower="{escape(draw(numbers))}" Upper="{escape(draw(numbers))}"/>'
            for _ in range(draw(st.integers(0, 3)))
        )
        said_of_it = (ranges or "<r:None/>") + said(draw, "r:Nack", numbers, often=1)
        remaining = said(draw, "n:BufferRemaining", numbers)
        parts.append(
            element("r:SequenceAcknowledgement", said(draw, "r:Identifier", identifiers) + said_of_it + remaining)
        )
    if draw(st.integers(0, 4)) == 0:
        parts.append(element("r:AckRequested", said(draw, "r:Identifier", identifiers)))
    if draw(st.integers(0, 9)) == 0:
        parts.append(element("r:SequenceTerminate", said(draw, "r:Identifier", identifiers)))
    parts += [said(draw, name, texts) for name in ("a:To", "a:MessageID", "a:RelatesTo") if draw(st.booleans())]
    if draw(st.booleans()):
        parts.append(endpoint(draw, "a:ReplyTo"))
    if draw(st.integers(0, 3)) == 0:
        parts.append(element("h", escape(draw(texts))))
    return "".join(parts)


CONTROLS = [type_.__name__ for type_ in {**actions[RM.V1_0], **actions[RM.V1_1]}]


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, str, bool]:
    """Header and Body of a message, and whether it comes as an answer; ``{known}`` and such are filled in later."""
    kind = draw(st.sampled_from(["application", "application", "control", "fault"]))
    header = headers(draw)
    if kind == "application":
        action, body = draw(st.one_of(st.just("urn:a"), texts)), f"<b>{escape(draw(texts))}</b>"
    elif kind == "control":
        local = draw(st.sampled_from(CONTROLS))
        is_empty = local in ("Acknowledge", "RequestAcknowledgement", "LastMessage")
        action, body = f"{{{local}}}", "" if is_empty else control(draw, local)
    else:
        action, body = "{rm}/fault", fault(draw)
    return element("a:Action", escape(action) if kind == "application" else action) + header, body, draw(st.booleans())


# --- one side with a real store --------------------------------------------------------------------------------------


class Side:
    """Both halves of one side over a store in a directory, which may be reopened at any time."""

    def __init__(self, directory: Path, versions: Versions) -> None:
        self.directory, self.versions = directory, versions
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
        self.store = RocksDBStore(self.directory)
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
                if isinstance(effect, Transmit):
                    sent.append(effect)
            if not self.protocol.wants_commit:
                return sent
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)
        raise AssertionError("it never settles")

    def hear(self, data: bytes, is_answer: bool) -> None:
        self.now += 1.0
        try:
            envelope = decode(data)
        except EnvelopeError:
            return  # answered with a fault, and nothing has changed
        if is_answer:
            self.protocol.received(Transmit("http://allowed.example/", envelope, "", 1), envelope, self.now)
        else:
            self.protocol.receive(envelope, object(), self.now)
        self.settle()

    def reopen(self) -> None:
        before = {key: (state["role"], state["identifier"]) for key, state in self.store.load().sequences.items()}
        self.store.close()
        self.open()
        assert {
            key: (state["role"], state["identifier"]) for key, state in self.store.load().sequences.items()
        } == before
        self.settle()


@settings(max_examples=examples(60))
@given(said=st.lists(messages(), min_size=1, max_size=6), versions=st.sampled_from(ALL_VERSIONS))
def test_whatever_a_peer_says_is_refused_or_stored_and_read_back(
    said: list[tuple[str, str, bool]], versions: Versions
) -> None:
    with TemporaryDirectory() as directory:
        side = Side(Path(directory) / "store", versions)
        for header, body, is_answer in said:
            side.hear(side.envelope(header, body), is_answer)
        side.reopen()
        for header, body, is_answer in said:
            side.hear(side.envelope(header, body), is_answer)
        side.store.close()


LIMITS = (0, 2**32, 2**63, 2**64, 10**63)
"""The numbers of the default suite: those at the limit of a type or beyond it."""


@pytest.mark.parametrize(
    "number", [pytest.param(one, marks=[] if one in LIMITS else pytest.mark.nightly) for one in NUMBERS]
)
@pytest.mark.parametrize("is_answer", [False, True])
def test_a_number_of_any_size_in_any_place_does_no_harm(number: int, is_answer: bool, tmp_path: Path) -> None:
    for versions in (ALL_VERSIONS[0], TRIED_VERSIONS[0], ALL_VERSIONS[-1]):
        side = Side(tmp_path / f"{versions}".replace("/", "-"), versions)
        identifier = element("r:Identifier", "{known}")
        outbound = element("r:Identifier", "{outbound}")
        a_range = f'<r:AcknowledgementRange Lower="1" Upper="{number}"/>'
        places = [
            (element("r:Sequence", identifier + element("r:MessageNumber", str(number))), "urn:a", "<b/>"),
            (element("r:SequenceAcknowledgement", outbound + a_range), "{rm}/SequenceAcknowledgement", ""),
            (
                element("r:SequenceAcknowledgement", outbound + element("r:Nack", str(number))),
                "{rm}/SequenceAcknowledgement",
                "",
            ),
            (
                element(
                    "r:SequenceAcknowledgement",
                    outbound
                    + '<r:AcknowledgementRange Lower="1" Upper="1"/>'
                    + element("n:BufferRemaining", str(number)),
                ),
                "{rm}/SequenceAcknowledgement",
                "",
            ),
            *(
                ("", f"{{rm}}/{local}", element(f"r:{local}", identifier + element("r:LastMsgNumber", str(number))))
                for local in ("CloseSequence", "TerminateSequence")
            ),
            (
                "",
                "{rm}/fault",
                "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:MessageNumberRollover</s:Value>"
                "</s:Subcode></s:Code><s:Reason><s:Text>x</s:Text></s:Reason><s:Detail>"
                f"{outbound}<r:MaxMessageNumber>{number}</r:MaxMessageNumber></s:Detail></s:Fault>",
            ),
        ]
        for header, action, body in places:
            side.hear(side.envelope(element("a:Action", action) + header, body), is_answer)
            side.reopen()
        side.store.close()
