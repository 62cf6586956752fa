"""The envelopes of .NET's reliable session: written as it writes them, read as strictly as it reads them.

Nothing here comes from Holdfast: a mistake in its codecs must not be mirrored by the peers that judge it.
Envelopes are put together from strings and compared byte for byte with recorded ones; reading uses lxml alone.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from lxml import etree

MAX_NUMBER = 2**63 - 1
FLOW_NS = "http://schemas.microsoft.com/ws/2006/05/rm"
CONTRACT_NS = "urn:holdfast:interop"
NOTIFY = f"{CONTRACT_NS}/Notify"
ECHO = f"{CONTRACT_NS}/Echo"
FAIL = f"{CONTRACT_NS}/Fail"
NOTHING = f"{CONTRACT_NS}/Nothing"

_SOAP_NS = {"1.1": "http://schemas.xmlsoap.org/soap/envelope/", "1.2": "http://www.w3.org/2003/05/soap-envelope"}
_WSA_NS = {
    "2004/08": "http://schemas.xmlsoap.org/ws/2004/08/addressing",
    "2005/08": "http://www.w3.org/2005/08/addressing",
}
_ANONYMOUS = {
    "2004/08": "http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous",
    "2005/08": "http://www.w3.org/2005/08/addressing/anonymous",
}
_RM_NS = {"1.0": "http://schemas.xmlsoap.org/ws/2005/02/rm", "1.1": "http://docs.oasis-open.org/ws-rx/wsrm/200702"}
_CONTENT_TYPE = {"1.1": "text/xml", "1.2": "application/soap+xml"}
_RM_NAME = {"1.0": "WS-ReliableMessaging February 2005", "1.1": "WS-ReliableMessaging 1.1"}


@dataclass(frozen=True, slots=True)
class Profile:
    """One of the six version combinations a .NET client can be bound to."""

    rm: str
    addressing: str
    soap: str

    @property
    def rm_ns(self) -> str:
        return _RM_NS[self.rm]

    @property
    def other_rm_ns(self) -> str:
        return _RM_NS["1.1" if self.rm == "1.0" else "1.0"]

    @property
    def rm_name(self) -> str:
        return _RM_NAME[self.rm]

    @property
    def wsa_ns(self) -> str:
        return _WSA_NS[self.addressing]

    @property
    def other_wsa_ns(self) -> str:
        return _WSA_NS["2004/08" if self.addressing == "2005/08" else "2005/08"]

    @property
    def soap_ns(self) -> str:
        return _SOAP_NS[self.soap]

    @property
    def anonymous(self) -> str:
        return _ANONYMOUS[self.addressing]

    @property
    def content_type(self) -> str:
        return f"{_CONTENT_TYPE[self.soap]}; charset=utf-8"

    @property
    def fault_action(self) -> str:
        """The action the real server gives its RM faults."""
        if self.rm == "1.1":
            return f"{self.rm_ns}/fault"
        return f"{self.wsa_ns}/fault" if self.addressing == "2004/08" else f"{self.wsa_ns}/soap/fault"

    @property
    def application_fault_action(self) -> str:
        """The default action of a fault that a contract declares."""
        return f"{self.wsa_ns}/fault" if self.addressing == "2004/08" else f"{self.wsa_ns}/soap/fault"

    def action(self, name: str) -> str:
        return f"{self.rm_ns}/{name}"

    def __str__(self) -> str:
        return f"rm{self.rm}-wsa{self.addressing[:4]}-soap{self.soap}".replace(".", "")


COMBINATIONS = (
    Profile("1.0", "2004/08", "1.1"),
    Profile("1.0", "2004/08", "1.2"),
    Profile("1.0", "2005/08", "1.1"),
    Profile("1.0", "2005/08", "1.2"),
    Profile("1.1", "2005/08", "1.1"),
    Profile("1.1", "2005/08", "1.2"),
)


def profile_of(versions: Any) -> Profile:
    """The profile with the values of anything that has ``rm``, ``addressing`` and ``soap``."""
    for profile in COMBINATIONS:
        if (profile.rm, profile.addressing, profile.soap) == (versions.rm, versions.addressing, versions.soap):
            return profile
    raise ValueError(f"no reliable session speaks {versions}")


def new_id() -> str:
    return f"urn:uuid:{uuid.uuid4()}"


# --- writing ---------------------------------------------------------------------------------------------------------


def envelope(profile: Profile, headers: Iterable[str], body: str = "", *, application: bool = False) -> bytes:
    """An envelope as .NET writes it: prefix r only where a header uses it, xsi and xsd declared on Body."""
    head = "".join(headers)
    reliable = f' xmlns:r="{profile.rm_ns}"' if "<r:" in head else ""
    schema = (
        ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema"'
        if application
        else ""
    )
    content = f"<s:Body{schema}>{body}</s:Body>" if body else "<s:Body/>"
    return (
        f'<s:Envelope xmlns:s="{profile.soap_ns}"{reliable} xmlns:a="{profile.wsa_ns}">'
        f"<s:Header>{head}</s:Header>{content}</s:Envelope>"
    ).encode()


def action(uri: str) -> str:
    return f'<a:Action s:mustUnderstand="1">{escape(uri)}</a:Action>'


def to(uri: str) -> str:
    return f'<a:To s:mustUnderstand="1">{escape(uri)}</a:To>'


def message_id(identifier: str) -> str:
    return f"<a:MessageID>{escape(identifier)}</a:MessageID>"


def relates_to(identifier: str) -> str:
    return f"<a:RelatesTo>{escape(identifier)}</a:RelatesTo>"


def reply_to_anonymous(profile: Profile) -> str:
    return f"<a:ReplyTo><a:Address>{profile.anonymous}</a:Address></a:ReplyTo>"


def sequence(identifier: str, number: int, *, last: bool = False) -> str:
    return (
        f'<r:Sequence s:mustUnderstand="1"><r:Identifier>{escape(identifier)}</r:Identifier>'
        f"<r:MessageNumber>{number}</r:MessageNumber>{'<r:LastMessage/>' if last else ''}</r:Sequence>"
    )


def acknowledgement(
    profile: Profile, identifier: str, numbers: Iterable[int], *, final: bool = False, buffer: int | None = None
) -> str:
    ranges = "".join(f'<r:AcknowledgementRange Lower="{low}" Upper="{high}"/>' for low, high in as_ranges(numbers))
    if not ranges:
        ranges = "<r:None/>" if profile.rm == "1.1" else '<r:AcknowledgementRange Lower="0" Upper="0"/>'
    flow = f'<netrm:BufferRemaining xmlns:netrm="{FLOW_NS}">{buffer}</netrm:BufferRemaining>'
    return (
        f"<r:SequenceAcknowledgement><r:Identifier>{escape(identifier)}</r:Identifier>{ranges}"
        f"{'<r:Final/>' if final and profile.rm == '1.1' else ''}{'' if buffer is None else flow}"
        "</r:SequenceAcknowledgement>"
    )


def ack_requested(identifier: str) -> str:
    return f"<r:AckRequested><r:Identifier>{escape(identifier)}</r:Identifier></r:AckRequested>"


def about_sequence(profile: Profile, headers: list[str], name: str, identifier: str, last: int = 0) -> bytes:
    """CloseSequence, TerminateSequence or a response to one: the r prefix where the header declared it already."""
    number = f"LastMsgNumber>{last}</" if last else ""
    if any("<r:" in header for header in headers):
        inner = f"<r:Identifier>{escape(identifier)}</r:Identifier>"
        inner += f"<r:{number}r:LastMsgNumber>" if last else ""
        return envelope(profile, headers, f"<r:{name}>{inner}</r:{name}>")
    inner = f"<Identifier>{escape(identifier)}</Identifier>"
    inner += f"<{number}LastMsgNumber>" if last else ""
    return envelope(profile, headers, f'<{name} xmlns="{profile.rm_ns}">{inner}</{name}>')


def as_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ascending, merged (lower, upper) pairs."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


# --- reading ---------------------------------------------------------------------------------------------------------


class NotAsWCFReads(Exception):
    """A message .NET would not take.

    ``how`` says what becomes of it at the server: "reset" (the connection dies without an answer), "MustUnderstand",
    "VersionMismatch", or "fault" for everything it answers with a fault.
    """

    def __init__(self, reason: str, how: str = "fault") -> None:
        super().__init__(reason)
        self.reason = reason
        self.how = how


@dataclass(slots=True)
class Acknowledgement:
    identifier: str
    ranges: list[tuple[int, int]]
    final: bool = False
    buffer: int | None = None

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.ranges)

    @property
    def numbers(self) -> set[int]:
        return {number for low, high in self.ranges for number in range(low, high + 1)}


@dataclass(slots=True)
class SequenceHeader:
    identifier: str
    number: int
    last: bool = False


@dataclass(slots=True)
class FaultBody:
    """A fault, and whether .NET would take it for the RM fault it means to be (see ``_recognised``)."""

    code: str
    namespace: str
    reason: str
    sender: bool
    identifier: str | None = None
    recognised: bool = False


@dataclass(slots=True)
class Read:
    """One envelope, read and found acceptable."""

    action: str = ""
    to: str | None = None
    message_id: str | None = None
    relates_to: str | None = None
    reply_to: str | None = None
    sequence: SequenceHeader | None = None
    acknowledgement: Acknowledgement | None = None
    ack_requested: str | None = None
    control: str = ""
    body: Any = None
    fault: FaultBody | None = None
    headers: list[str] = field(default_factory=list)

    @property
    def body_bytes(self) -> bytes:
        """The body's content in canonical form, to compare one copy with another."""
        return b"" if self.body is None else etree.tostring(self.body, method="c14n", exclusive=True)


def read(profile: Profile, content_type: str, data: bytes) -> Read:
    """Reads a message as a .NET endpoint bound to ``profile`` does. Raises NotAsWCFReads."""
    media, _, parameters = content_type.partition(";")
    if media.strip().lower() != _CONTENT_TYPE[profile.soap]:
        raise NotAsWCFReads(f"Content-Type is {content_type!r}, not {_CONTENT_TYPE[profile.soap]}", "content-type")
    charset = re.search(r"charset\s*=\s*\"?([^\";\s]+)", parameters, re.IGNORECASE)
    if charset is not None and charset.group(1).lower() != "utf-8":
        raise NotAsWCFReads(f"charset is {charset.group(1)}, not utf-8", "reset")
    root = _parse(data)
    if root.tag != f"{{{profile.soap_ns}}}Envelope":
        raise NotAsWCFReads(f"the root is {root.tag}, not an Envelope of SOAP {profile.soap}", "VersionMismatch")
    parts = [child.tag for child in root if isinstance(child.tag, str)]
    header, body = f"{{{profile.soap_ns}}}Header", f"{{{profile.soap_ns}}}Body"
    if parts not in ([header, body], [body]):
        raise NotAsWCFReads(f"the Envelope holds {parts}")
    result = Read()
    sequence_fault = None
    for block in root.find(header) if parts[0] == header else ():
        if isinstance(block.tag, str):
            found = _read_header(profile, block, result)
            sequence_fault = found if found is not None else sequence_fault
    _read_body(profile, root.find(body), result, sequence_fault)
    return result


def _parse(data: bytes) -> Any:
    declared = re.match(rb"<\?xml[^>]*encoding=[\"']([^\"']+)", data)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or (declared and declared.group(1).lower() != b"utf-8"):
        raise NotAsWCFReads("the message is not UTF-8", "reset")
    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError as error:
        raise NotAsWCFReads(f"malformed XML: {error}", "reset") from None


def _read_header(profile: Profile, block: Any, result: Read) -> Any:
    """Takes one header block into ``result``; returns it if it is a SequenceFault."""
    name = etree.QName(block)
    result.headers.append(f"{name.localname}")
    role = block.get(f"{{{profile.soap_ns}}}{'actor' if profile.soap == '1.1' else 'role'}", "")
    mandatory = block.get(f"{{{profile.soap_ns}}}mustUnderstand", "0").strip() in ("1", "true")
    if role and not role.endswith(("/next", "/ultimateReceiver")):
        return None
    if name.namespace == profile.wsa_ns and name.localname in _WSA_READERS:
        _read_addressing(profile, block, name.localname, result)
    elif name.namespace == profile.rm_ns and name.localname in ("Sequence", "SequenceAcknowledgement", "AckRequested"):
        attribute = {"SequenceAcknowledgement": "acknowledgement", "AckRequested": "ack_requested"}.get(
            name.localname, "sequence"
        )
        if getattr(result, attribute) is not None:
            raise NotAsWCFReads(f"more than one {name.localname} header in one message", "MustUnderstand")
        setattr(result, attribute, _RM_READERS[name.localname](profile, block))
    elif name.namespace == profile.rm_ns and name.localname == "SequenceFault":
        return block
    elif name.namespace == profile.other_rm_ns:
        raise NotAsWCFReads(f"header {name.localname} of another version than {profile.rm_name}", "wrong-rm")
    elif name.namespace == profile.other_wsa_ns:
        raise NotAsWCFReads(f"header {name.localname} of another WS-Addressing than {profile.addressing}")
    elif mandatory:
        raise NotAsWCFReads(f"header {name} is marked mustUnderstand and is not known", "MustUnderstand")
    return None


_WSA_READERS = {
    "Action": "action",
    "To": "to",
    "MessageID": "message_id",
    "RelatesTo": "relates_to",
    "ReplyTo": "reply_to",
    "FaultTo": "",
    "From": "",
}


def _read_addressing(profile: Profile, block: Any, local: str, result: Read) -> None:
    attribute = _WSA_READERS[local]
    if not attribute:
        return
    if getattr(result, attribute):
        raise NotAsWCFReads(f"more than one {local} header in one message")
    value = address_of(profile, block) if local == "ReplyTo" else (block.text or "").strip()
    if len(block) and local != "ReplyTo":
        raise NotAsWCFReads(f"the {local} header holds elements")
    setattr(result, attribute, value)


def address_of(profile: Profile, reference: Any) -> str:
    """The Address of an endpoint reference, exactly as it stands there."""
    children = list(reference)
    if not children or children[0].tag != f"{{{profile.wsa_ns}}}Address":
        raise NotAsWCFReads(f"{etree.QName(reference).localname} does not begin with an Address")
    return children[0].text or ""


def children_in_order(profile: Profile, element: Any, allowed: list[tuple[str, bool]]) -> dict[str, Any]:
    """The RM children of ``element`` by name; ``allowed`` is (name, mandatory) in schema order, extensions follow."""
    name = etree.QName(element).localname
    found: dict[str, Any] = {}
    position = 0
    extensions = False
    for child in element:
        if not isinstance(child.tag, str):
            continue
        tag = etree.QName(child)
        if tag.namespace != profile.rm_ns:
            extensions = True
            continue
        names = [candidate for candidate, _ in allowed]
        if tag.localname not in names:
            raise NotAsWCFReads(f"{name} holds an unexpected {tag.localname}")
        index = names.index(tag.localname)
        if extensions or index < position or tag.localname in found:
            raise NotAsWCFReads(f"the children of {name} are out of schema order at {tag.localname}")
        position = index
        found[tag.localname] = child
    for candidate, mandatory in allowed:
        if mandatory and candidate not in found:
            raise NotAsWCFReads(f"{name} has no {candidate}", "reset" if name == "Sequence" else "fault")
    return found


def number_of(text: str | None, what: str, *, zero: bool = False) -> int:
    """A message number: digits only, 1 .. 2^63-1 (``zero``: 0 too)."""
    value = (text or "").strip()
    if not re.fullmatch(r"[0-9]+", value) or int(value) > MAX_NUMBER or (int(value) == 0 and not zero):
        raise NotAsWCFReads(f"{what} is {value!r}, not a number from {0 if zero else 1} to 2^63-1", "reset")
    return int(value)


def _read_sequence(profile: Profile, block: Any) -> SequenceHeader:
    allowed = [("Identifier", True), ("MessageNumber", True)]
    if profile.rm == "1.0":
        allowed.append(("LastMessage", False))
    found = children_in_order(profile, block, allowed)
    number = number_of(found["MessageNumber"].text, "MessageNumber")
    return SequenceHeader((found["Identifier"].text or "").strip(), number, "LastMessage" in found)


def _read_acknowledgement(profile: Profile, block: Any) -> Acknowledgement:
    children = [child for child in block if isinstance(child.tag, str)]
    kinds = [etree.QName(child) for child in children]
    grammar = {"Identifier": "i", "AcknowledgementRange": "r", "None": "n", "Nack": "k", "Final": "f"}
    word = "".join(grammar.get(kind.localname, "?") if kind.namespace == profile.rm_ns else "x" for kind in kinds)
    legal = r"i(r+|k+)x*" if profile.rm == "1.0" else r"i((r+|n)f?|k+)x*"
    if not re.fullmatch(legal, word):
        names = [kind.localname for kind in kinds]
        raise NotAsWCFReads(f"the children of SequenceAcknowledgement are not in schema order: {names}")
    ranges = [_read_range(profile, child) for child, mark in zip(children, word, strict=True) if mark == "r"]
    if ranges == [(0, 0)]:
        ranges = []
    for (low, high), (next_low, _) in itertools.pairwise(ranges):
        if next_low <= high or low < 1:
            raise NotAsWCFReads(f"acknowledgement ranges overlap or are not ascending: {ranges}")
    return Acknowledgement((children[0].text or "").strip(), ranges, "f" in word, _read_buffer(children))


def _read_range(profile: Profile, element: Any) -> tuple[int, int]:
    low = number_of(element.get("Lower"), "AcknowledgementRange/@Lower", zero=profile.rm == "1.0")
    high = number_of(element.get("Upper"), "AcknowledgementRange/@Upper", zero=profile.rm == "1.0")
    if low > high or (low == 0 and high > 0):
        raise NotAsWCFReads(f"an acknowledgement range from {low} to {high}")
    return low, high


def _read_buffer(children: list[Any]) -> int | None:
    buffer: int | None = None
    for child in children:
        if child.tag == f"{{{FLOW_NS}}}BufferRemaining":
            text = (child.text or "").strip()
            if buffer is not None or not re.fullmatch(r"[0-9]+", text) or int(text) > 2**31 - 1:
                raise NotAsWCFReads(f"BufferRemaining is {text!r}, not one number from 0 to 2^31-1")
            buffer = int(text)
    return buffer


def _read_ack_requested(profile: Profile, block: Any) -> str:
    allowed = [("Identifier", True)]
    if profile.rm == "1.0":
        allowed += [("MessageNumber", False), ("MaxMessageNumberUsed", False)]
    return (children_in_order(profile, block, allowed)["Identifier"].text or "").strip()


_RM_READERS = {
    "Sequence": _read_sequence,
    "SequenceAcknowledgement": _read_acknowledgement,
    "AckRequested": _read_ack_requested,
}


def _read_body(profile: Profile, body: Any, result: Read, sequence_fault: Any) -> None:
    content = [child for child in body if isinstance(child.tag, str)]
    if not result.action:
        raise NotAsWCFReads("the message has no Action", "no-action")
    if not content:
        return
    result.body = content[0]
    name = etree.QName(content[0])
    if name.namespace == profile.rm_ns:
        result.control = name.localname
        if len(content) > 1:
            raise NotAsWCFReads(f"the body holds more than {name.localname}")
    elif name.namespace == profile.other_rm_ns:
        raise NotAsWCFReads(f"{name.localname} of another version than {profile.rm_name}", "wrong-rm")
    elif content[0].tag == f"{{{profile.soap_ns}}}Fault":
        result.fault = _read_fault(profile, content[0], sequence_fault)


def _qname(element: Any) -> tuple[str, str]:
    """A QName in text, resolved with the namespaces in scope where it stands: (namespace, local name)."""
    prefix, colon, local = (element.text or "").strip().rpartition(":")
    return element.nsmap.get(prefix if colon else None) or "", local


def _read_fault(profile: Profile, fault: Any, header: Any) -> FaultBody:
    if profile.soap == "1.1":
        return _read_fault_11(profile, fault, header)
    ns = {"s": profile.soap_ns}
    value, subcode = fault.find("s:Code/s:Value", ns), fault.find("s:Code/s:Subcode/s:Value", ns)
    if value is None or fault.find("s:Reason/s:Text", ns) is None:
        raise NotAsWCFReads("the fault has no Code/Value or no Reason/Text")
    namespace, code = _qname(subcode if subcode is not None else value)
    detail = fault.find("s:Detail", ns)
    inside = [] if detail is None else list(detail)
    return FaultBody(
        code=code,
        namespace=namespace,
        reason=fault.findtext("s:Reason/s:Text", "", ns),
        sender=_qname(value)[1] == "Sender",
        identifier=_identifier_in(profile, inside),
        recognised=namespace == profile.rm_ns and _recognised(profile, code, inside),
    )


def _read_fault_11(profile: Profile, fault: Any, header: Any) -> FaultBody:
    value = fault.find("faultcode")
    if value is None or fault.find("faultstring") is None:
        raise NotAsWCFReads("the fault has no faultcode or no faultstring")
    namespace, code = _qname(value)
    sender = code.split(".")[0] != "Server"
    recognised = namespace == profile.rm_ns and code in _WITHOUT_DETAIL
    inside: list[Any] = [] if fault.find("detail") is None else list(fault.find("detail"))
    if header is not None:
        children = list(header)
        if not children or children[0].tag != f"{{{profile.rm_ns}}}FaultCode":
            raise NotAsWCFReads("SequenceFault does not begin with FaultCode")
        namespace, code = _qname(children[0])
        inside = children[1:]
        if profile.rm == "1.1":
            wrapped = bool(inside) and inside[0].tag == f"{{{profile.rm_ns}}}Detail"
            inside = list(inside[0]) if wrapped else []
        recognised = namespace == profile.rm_ns and _recognised(profile, code, inside)
    return FaultBody(
        code=code,
        namespace=namespace,
        reason=fault.findtext("faultstring", ""),
        sender=sender,
        identifier=_identifier_in(profile, inside),
        recognised=recognised,
    )


_WITHOUT_DETAIL = ("CreateSequenceRefused", "WSRMRequired", "WsrmRequired")


def _recognised(profile: Profile, code: str, detail: list[Any]) -> bool:
    """Whether .NET takes it for an RM fault: the first detail child must be the one it expects."""
    if code in _WITHOUT_DETAIL:
        return True
    expected = "SequenceAcknowledgement" if code == "InvalidAcknowledgement" else "Identifier"
    if not detail or detail[0].tag != f"{{{profile.rm_ns}}}{expected}":
        return False
    if code == "MessageNumberRollover" and profile.rm == "1.1":
        return len(detail) > 1 and detail[1].tag == f"{{{profile.rm_ns}}}MaxMessageNumber"
    return True


def _identifier_in(profile: Profile, detail: list[Any]) -> str | None:
    for element in detail:
        for found in element.iter(f"{{{profile.rm_ns}}}Identifier"):
            return (found.text or "").strip()
    return None
