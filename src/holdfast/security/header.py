"""The Security header: its parts as typed values, read strictly, and written for a request or an answer."""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final, ParamSpec, TypeVar

from lxml import etree

from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError
from holdfast.security.names import BASE64, CONVERSATIONS, PASSWORD_DIGEST, PASSWORD_TEXT, SECURITY, WSSE, WSU
from holdfast.security.times import read_time, write_time
from holdfast.wire.names import ROLES_OF_OURS, SOAP_NS
from holdfast.wire.text import NOT_IN_XML, block_pattern, escape

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

MAX_NONCE: Final = 256
"""Maximum bytes of a Nonce. Peers write 16."""
MAX_NAME: Final = 1024
"""Maximum characters of a Username."""

_TIMESTAMP: Final = f"{{{WSU}}}Timestamp"
_CREATED: Final = f"{{{WSU}}}Created"
_EXPIRES: Final = f"{{{WSU}}}Expires"
PLAIN_PASSWORD: Final = "security.plain_password"
PLAIN_ASSERTION: Final = "security.plain_assertion"
"""Log events."""
USERNAME_TOKEN: Final = f"{{{WSSE}}}UsernameToken"
_USERNAME: Final = f"{{{WSSE}}}Username"
_PASSWORD: Final = f"{{{WSSE}}}Password"
_NONCE: Final = f"{{{WSSE}}}Nonce"
_STAMP: Final = (_CREATED, _EXPIRES)
_TOKEN: Final = (_USERNAME, _PASSWORD, _NONCE, _CREATED)
_LOCAL: Final = b"Security"
_NO_MARKUP: Final = re.compile(rb"<!\[CDATA\[.*?\]\]>|<\?.*?\?>|(<!--.*?-->)", re.DOTALL)
"""Comments, and what may contain what looks like one."""
_MAX_FORMS: Final = 32
_MAX_FORMS_ALIKE: Final = 4
_MAX_FORM: Final = 4096
_CONTEXT_TOKENS: Final = {namespace: f"{{{namespace}}}SecurityContextToken" for namespace in CONVERSATIONS}


class Invalid(ValueError):
    """The Security header is malformed, or two values contradict each other. The text is for the log."""


def check_addressed(context: MessageContext, addresses: frozenset[str] | None) -> None:
    """Check that a request was signed for this service: another one may have received it, and pass it on.

    Args:
        context: The request, or an answer, which belongs to its request. Its ``wsa:To`` is signed.
        addresses: The addresses of this service, besides its public one; None: every address is accepted.

    Raises:
        Invalid: It is for another address, or has none.
    """
    if addresses is None or context.is_answer or context.role != "destination":
        return
    if context.envelope.to is None or context.envelope.to not in (*addresses, context.public_address):
        raise Invalid(f"it is addressed to {(context.envelope.to or 'no address')[:200]}, which is not in addresses=")


def drop_comments(context: MessageContext, body: etree._Element) -> None:
    """Remove the comments from the Body of a checked message: whoever passed it on may have written them.

    Args:
        context: The message.
        body: Its Body that was checked.

    Raises:
        Invalid: The Body is the protocol's or a fault, of which the texts are read already.
    """
    envelope = context.envelope
    if envelope.control is None and envelope.fault is None:
        if b"<!--" in envelope.body:
            envelope.body = _NO_MARKUP.sub(lambda found: b"" if found[1] else found[0], envelope.body)
    elif next(body.iter(etree.Comment), None) is not None:
        raise Invalid("the Body has a comment, which is not signed")


def addresses_of(given: str | Sequence[str] | None) -> frozenset[str] | None:
    """Return the argument ``addresses`` of a processor as a set."""
    return None if given is None else frozenset({given} if isinstance(given, str) else given)


class PlainTextWarning:
    """Logs once, for a processor, that what should be secret travels without TLS."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._is_given = False

    def check(self, context: MessageContext, user: str = "") -> None:
        if not (self._is_given or context.is_secure):
            self._is_given = True
            log.warning(self._event, peer=context.peer or context.to, user=user, remedy="Use https.")


@dataclass(frozen=True, slots=True)
class Timestamp:
    """When a message was secured, and until when it is valid; seconds since 1970, None if absent."""

    created: float | None
    expires: float | None
    element: etree._Element | None = None


def require_user(kind: str, name: str, password: str) -> None:
    """Check the credentials of a processor for requests.

    Args:
        kind: The class, for the error.
        name, password: What a program gives it, perhaps from its environment.

    Raises:
        ConfigurationError: The name is empty, or one of the two is not text that XML can hold.
    """
    if not name:
        raise ConfigurationError("the user name is empty", remedy=f"Give a name: {kind}('alice', '…').")
    for what, value in (("user name", name), ("password", password)):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"the {what} of {kind} is not text but {value.__class__.__name__}",
                remedy="Is the environment variable set that it comes from?" if value is None else "Give a str.",
            )
        if NOT_IN_XML.search(value) is not None:
            raise ConfigurationError(
                f"the {what} of {kind} has a character that XML cannot hold",
                remedy="Remove control characters, such as a zero byte.",
            )


def strictly(name: str, function: Callable[P, object], kind: type[T], otherwise: U) -> Callable[P, T | U]:
    """Return a function that a program gives, which decides about access, such that its result is of one type.

    Another result would count as true, a coroutine for example. It is logged, and refuses access.

    Args:
        name: Of the argument, for the log.
        function: Decides.
        kind: The type of its results.
        otherwise: The result that refuses access. Its type is a valid one, too.
    """

    kinds = kind, type(otherwise)

    def decide(*arguments: P.args, **options: P.kwargs) -> T | U:
        result = function(*arguments, **options)
        if isinstance(result, kinds):
            return result
        if inspect.iscoroutine(result):
            result.close()
        log.error(
            "security.wrong_result",
            function=name,
            type=type(result).__name__,
            remedy=f"Access was refused. Let {name}= return a {kind.__name__}, from a function that is not async.",
        )
        return otherwise

    return decide


@dataclass(slots=True)
class Token:
    """A UsernameToken.

    Args:
        name: The user.
        password: The password, or the digest in base64.
        is_digest: Whether it is the digest.
        nonce: Random bytes, b"" if absent.
        created: As it came, "" if absent: the digest is over these characters.
        created_at: The same in seconds since 1970, None if absent.
    """

    name: str
    password: str
    is_digest: bool
    nonce: bytes = b""
    created: str = ""
    created_at: float | None = None


class Unproven(ValueError):
    """The token proves nothing. The text is for the log."""


@dataclass(frozen=True, slots=True)
class ContextToken:
    """A SecurityContextToken, which names a security context.

    Args:
        identifier: The context.
        instance: Which of its keys; "" for the first.
        element: It itself.
    """

    identifier: str
    instance: str
    element: etree._Element


@dataclass(frozen=True, slots=True)
class Security:
    """The parts of a Security header that are understood here; None if absent."""

    element: etree._Element
    timestamp: Timestamp | None = None
    token: Token | None = None
    context: ContextToken | None = None


@dataclass(slots=True)
class PlainSecurity:
    """The only Security header of a message, with a Timestamp and a UsernameToken at most: it needs no element."""

    block: bytes
    timestamp: Timestamp | None = None
    token: Token | None = None
    context: None = None


AnySecurity = Security | PlainSecurity


def read_security(context: MessageContext) -> AnySecurity | None:
    """Return the Security header of an inbound message that is addressed to this endpoint, None without one.

    Raises:
        Invalid: There is more than one, or it is malformed.
    """
    envelope = context.envelope
    soap, found, known = envelope.soap, envelope.headers, envelope.known_block
    # XML has no escapes in names, so a Security header has these bytes.
    if len(found) != 1 or known is None:
        found = tuple([block for block in found if _LOCAL in block])
    plain = _forms.read(found[0], soap, known) if len(found) == 1 else None
    if plain is not None or not found:
        return plain
    security = read_security_of(context.headers, soap)
    if security is not None and len(found) == 1:
        _forms.learn(found[0], soap, security.element)
    return security


def remove_security(context: MessageContext, security: AnySecurity | None) -> None:
    if type(security) is PlainSecurity:
        headers = context.envelope.headers
        context.envelope.headers = tuple([one for one in headers if one is not security.block]) if headers[1:] else ()
        context.envelope.known_block = None
    else:
        context.remove_header(SECURITY)


def read_security_of(blocks: Iterable[etree._Element], soap: SOAP) -> Security | None:
    """Return the Security header among header blocks that is addressed to this endpoint, None without one.

    There may be one for each role (SOAP Message Security 1.1, section 5).

    Raises:
        Invalid: There is more than one, or it is malformed.
    """
    roles = ROLES_OF_OURS[soap]
    ours = [one for one in blocks if one.tag == SECURITY and _role(one, soap) in roles]
    if not ours:
        return None
    if len(ours) > 1:
        raise Invalid("two Security headers for this endpoint")
    parts = _Parts(ours[0])
    timestamp, token = parts.get(_TIMESTAMP), parts.get(USERNAME_TOKEN)
    return Security(
        ours[0],
        None if timestamp is None else _timestamp(timestamp),
        None if token is None else _username_token(token),
        _context_token(parts),
    )


def _role(block: etree._Element, soap: SOAP) -> str:
    name = "actor" if soap is SOAP.V1_1 else "role"
    return str(block.get(f"{{{SOAP_NS[soap]}}}{name}", "")).strip()


class _Parts:
    """The children of an element by their names. All are read at once: a search for each takes longer."""

    def __init__(self, parent: etree._Element) -> None:
        self._found: dict[str, etree._Element] = {}
        self._repeated: set[str] = set()
        for child in parent:
            name = str(child.tag)
            if name in self._found:
                self._repeated.add(name)
            self._found[name] = child

    def get(self, name: str) -> etree._Element | None:
        """Return the only child with a name, None without one."""
        if name in self._repeated:
            raise Invalid(f"more than one element {name.rpartition('}')[2]}")
        return self._found.get(name)

    def text(self, name: str) -> str | None:
        found = self.get(name)
        if found is None:
            return None
        if len(found):
            raise Invalid(f"{name.rpartition('}')[2]} has content that is not text")
        return found.text or ""


def _timestamp(element: etree._Element) -> Timestamp:
    """Read a Timestamp (SOAP Message Security 1.1, section 10)."""
    parts = _Parts(element)
    return _timestamp_of(parts.text(_CREATED), parts.text(_EXPIRES), element)


def _timestamp_of(created: str | None, expires: str | None, element: etree._Element | None = None) -> Timestamp:
    return Timestamp(_time(created, "Created"), _time(expires, "Expires"), element)


@lru_cache(maxsize=1024)  # a busy server gets many messages in a millisecond
def _known_timestamp(created: str | None, expires: str | None) -> Timestamp:
    return _timestamp_of(created, expires)


def _time(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    time = read_time(text)
    if time is None:
        raise Invalid(f"the Timestamp's {name} is not a time: {text[:40]!r}")
    return time


def _context_token(security: _Parts) -> ContextToken | None:
    found = [(one, namespace) for namespace, name in _CONTEXT_TOKENS.items() if (one := security.get(name)) is not None]
    if not found:
        return None
    if len(found) > 1:
        raise Invalid("two SecurityContextTokens")
    element, namespace = found[0]
    parts = _Parts(element)
    identifier, instance = parts.text(f"{{{namespace}}}Identifier"), parts.text(f"{{{namespace}}}Instance")
    if not identifier or max(len(identifier), len(instance or "")) > MAX_NAME:
        raise Invalid("the SecurityContextToken has no Identifier, or a very long one")
    return ContextToken(identifier.strip(), (instance or "").strip(), element)


def _username_token(element: etree._Element) -> Token:
    parts = _Parts(element)
    password = parts.get(_PASSWORD)
    kind = PASSWORD_TEXT if password is None else password.get("Type", PASSWORD_TEXT)
    return _token_of(kind, *[parts.text(name) for name in _TOKEN])


def read_base64(text: str, what: str) -> bytes:
    """Return the bytes that a peer has written in base64, with white space as XML permits.

    Raises:
        Invalid: It is not base64. ``what`` names it.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        text = "".join(text.split())
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also of a text that is not ASCII, which is no binascii.Error
        raise Invalid(f"{what} is not base64") from None


def _token_of(kind: str, name: str | None, password: str | None, encoded: str | None, created: str | None) -> Token:
    if not name or len(name) > MAX_NAME:
        raise Invalid("the UsernameToken has no Username, or a very long one")
    if password is None:
        raise Invalid("the UsernameToken has no Password")
    if kind not in (PASSWORD_TEXT, PASSWORD_DIGEST):
        raise Invalid(f"the Password has the type {kind[:100]!r}")
    nonce = read_base64(encoded, "the Nonce") if encoded else b""
    if len(nonce) > MAX_NONCE:
        raise Invalid(f"the Nonce has {len(nonce)} bytes")
    created = (created or "").strip()
    created_at = read_time(created) if created else None
    if created and created_at is None:
        raise Invalid(f"the UsernameToken's Created is not a time: {created[:40]!r}")
    return Token(name, password, kind == PASSWORD_DIGEST, nonce, created, created_at)


# --- known forms --------------------------------------------------------------------------------------------------


class _Form:
    """The common parts of Security headers that differ only in their values, and the place of each value.

    Args:
        pattern: Of the headers, with a group for the text of each element.
        security: One of them.
    """

    __slots__ = ("_has_stamp", "_has_token", "_kind", "_match", "_values")

    def __init__(self, pattern: str, security: etree._Element) -> None:
        self._match = re.compile(pattern).fullmatch
        elements = list(security.iter())
        stamp, token = security.find(_TIMESTAMP), security.find(USERNAME_TOKEN)
        self._has_stamp, self._has_token = stamp is not None, token is not None
        places = [*_places(stamp, _STAMP, elements), *_places(token, _TOKEN, elements)]
        self._values = itemgetter(*places)
        password = None if token is None else token.find(_PASSWORD)
        self._kind = PASSWORD_TEXT if password is None else password.get("Type", PASSWORD_TEXT)

    def texts(self, block: str) -> tuple[str | None, ...] | None:
        """Return the text after each start tag of a header, None if it has another form."""
        found = self._match(block)
        return None if found is None else found.groups()

    def read(self, block: bytes, texts: tuple[str | None, ...]) -> PlainSecurity:
        created, expires, name, password, nonce, token_created = self._values((*texts, None))
        return PlainSecurity(
            block,
            _known_timestamp(created, expires) if self._has_stamp else None,
            _token_of(self._kind, name, password, nonce, token_created) if self._has_token else None,
        )


def _places(parent: etree._Element | None, names: tuple[str, ...], elements: list[etree._Element]) -> list[int]:
    """Return the places of the children with these names among all elements; -1 for those that are absent."""
    found = {} if parent is None else {child.tag: elements.index(child) for child in parent}
    return [found.get(name, -1) for name in names]


class _Forms:
    """The forms of Security headers that occurred twice, by their start tag."""

    def __init__(self) -> None:
        self._known: dict[tuple[SOAP, bytes], list[_Form]] = {}
        self._once: set[tuple[SOAP, str]] = set()
        self._of_wire: dict[object, _Form] = {}
        """What stands for a form in the wire, which reads the texts of such headers -> the same form here."""

    def read(
        self, block: bytes, soap: SOAP, known: tuple[bytes, object, tuple[str | None, ...]] | None = None
    ) -> PlainSecurity | None:
        of_wire: object | None = None
        if known is not None and known[0] is block:
            _, of_wire, texts_of_wire = known
            form_of_wire = self._of_wire.get(of_wire)
            if form_of_wire is not None:
                return form_of_wire.read(block, texts_of_wire)
        forms = self._known.get((soap, block[: block.find(b">")]))
        if forms is None:
            return None
        text = block.decode()
        for form in forms:
            texts = form.texts(text)
            if texts is not None:
                self._remember(of_wire, form)
                return form.read(block, texts)
        return None

    def _remember(self, of_wire: object | None, form: _Form) -> None:
        if of_wire is not None:
            if len(self._of_wire) >= _MAX_FORMS:
                self._of_wire.clear()
            self._of_wire[of_wire] = form

    def learn(self, block: bytes, soap: SOAP, security: etree._Element) -> None:
        """Remember the form of a header that was read, if it occurs the second time and has only the parts of one."""
        if len(block) > _MAX_FORM or not block.isascii() or not _is_plain(security):
            return
        pattern = block_pattern(block.decode())
        if pattern is None:
            return
        if (soap, pattern) not in self._once:
            if len(self._once) >= _MAX_FORMS:
                self._once.clear()
            self._once.add((soap, pattern))
            return
        if len(self._known) >= _MAX_FORMS:
            self._known.clear()
        key = soap, block[: block.find(b">")]
        self._known[key] = [_Form(pattern, security), *self._known.get(key, ())][:_MAX_FORMS_ALIKE]


def _is_plain(security: etree._Element) -> bool:
    """Return whether a header consists of a Timestamp, a UsernameToken, and texts that are read."""
    names = {_TIMESTAMP: _STAMP, USERNAME_TOKEN: _TOKEN}
    for part in security:
        parts = [child.tag for child in part]
        if any(name not in names.get(str(part.tag), ()) for name in parts) or len(set(parts)) != len(parts):
            return False
    return all(part.tag in names and not any(map(len, part)) for part in security)


_forms = _Forms()


# --- writing ------------------------------------------------------------------------------------------------------


def add_security(context: MessageContext, content: str) -> None:
    """Add a Security header to an outbound message. The receiver of a request must understand it.

    The receiver of an answer need not: a client that sends tokens may not read the header itself, as CXF does not with
    only an interceptor for outgoing messages.
    """
    block = security_block(context.envelope.soap, content, must_understand=not context.is_answer)
    context.envelope.headers = (*context.envelope.headers, block)


def security_block(soap: SOAP, content: str, *, must_understand: bool) -> bytes:
    must = f' xmlns:e="{SOAP_NS[soap]}" e:mustUnderstand="1"' if must_understand else ""
    return f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}"{must}>{content}</wsse:Security>'.encode()


def write_timestamp(now: float, life: float, name: str = "") -> str:
    """Return the Timestamp of a message that is valid for ``life`` seconds from ``now``, with an Id if it gets one."""
    named = f' wsu:Id="{name}"' if name else ""
    return (
        f"<wsu:Timestamp{named}><wsu:Created>{write_time(now)}</wsu:Created>"
        f"<wsu:Expires>{write_time(now + life)}</wsu:Expires></wsu:Timestamp>"
    )


def write_token(token: Token, name: str = "") -> str:
    """Return a UsernameToken, with an Id if it gets one."""
    named = f' wsu:Id="{name}"' if name else ""
    kind = PASSWORD_DIGEST if token.is_digest else PASSWORD_TEXT
    nonce = base64.b64encode(token.nonce).decode()
    return (
        f"<wsse:UsernameToken{named}><wsse:Username>{escape(token.name)}</wsse:Username>"
        f'<wsse:Password Type="{kind}">{escape(token.password)}</wsse:Password>'
        + (f'<wsse:Nonce EncodingType="{BASE64}">{nonce}</wsse:Nonce>' if nonce else "")
        + (f"<wsu:Created>{token.created}</wsu:Created>" if token.created else "")
        + "</wsse:UsernameToken>"
    )
