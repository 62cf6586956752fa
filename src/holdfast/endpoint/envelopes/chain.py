"""The chain of an endpoint's processors: which are called when, and how their errors are handled.

Owns the order, the set of understood header blocks, and the log line and the count of each error. Reads and writes
nothing itself: ``envelopes`` does, and decides the response to the peer.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from holdfast.core.messages import Envelope
from holdfast.endpoint.envelopes.attachments import check_inlined, check_secured_size, inlined_size
from holdfast.endpoint.envelopes.processors import MessageContext, Processor, Role
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.logs import log
from holdfast.exceptions import (
    ConfigurationError,
    EnvelopeError,
    MessageFlowError,
    NotForThisRole,
    ProcessingError,
    ProcessorError,
    ProcessorFailed,
    UnknownExchange,
    clause,
)
from holdfast.settings import brief_value
from holdfast.wire import parse_element
from holdfast.wire.limits import DEFAULT, Limits

REFUSED, PUT_OFF, FAILED = "message.rejected_by_processor", "message.deferred_by_processor", "processor.failed"
"""Incidents: the message itself is invalid; it must wait; the processor has a bug."""

LONGEST_WAIT = 86_400
"""Maximum seconds that a processor may ask a sender to wait before a retry."""

_ABSENT = object()
_OWNERS: dict[Role, tuple[str, str]] = {
    "source": (
        "writes",
        "keep the processor that the service's policy demands. SymmetricBinding sends a user name in a signed and "
        "encrypted message.",
    ),
    "destination": (
        "checks",
        "keep the processor for what the clients send. Give clients with other credentials a destination of their own, "
        "at another path. SymmetricBindingValidator checks a user name in a signed and encrypted message.",
    ),
}
"""What processors with the same header block do with it, and what to do instead."""
_NAME = re.compile(r"\{[^{}\s]*\}[^{}\s:]+")


def most_bytes_of(limits: Limits) -> int:
    """Return the maximum size of a protected message: a low limit for peers' messages is none for ours."""
    return max(limits.max_bytes, DEFAULT.max_bytes)


class Chain:
    """An endpoint's processors.

    Args:
        processors: The first stands next to the network.
        incidents: Counts what goes wrong, by name.
        most_bytes: Maximum size of a protected message, as peers accept it.

    Raises:
        ConfigurationError: one of them is no processor, or is written so that it would do nothing.
    """

    def __init__(self, role: Role, processors: Iterable[Processor], incidents: Counter[str], most_bytes: int) -> None:
        self.role = role
        self.most_bytes = most_bytes
        self.passes_on = False
        """Whether the endpoint forwards messages: processors then see messages with headers for other receivers."""
        self._incidents = incidents
        self.processors = to_processors(processors)
        for processor in self.processors:
            _check(processor, role)
        _check_owners(self.processors, role)
        self._inbound = [one for one in self.processors if _has(one, "inbound")]
        self._outbound = [one for one in reversed(self.processors) if _has(one, "outbound")]
        self._encoding = [one for one in reversed(self.processors) if _has(one, "encoded")]
        self._receiving = [one for one in self.processors if _has(one, "received")]
        self.receives = bool(self._receiving)
        """Whether a processor sees messages before they are read."""
        self.opening_waits = any(one.waits for one in self._receiving)
        """Whether :meth:`received` may wait."""
        self._inlining = [one for one in self.processors if _has(one, "_inlines")]
        self._checking_large = [one for one in self.processors if _has(one, "_check_large")]
        self.checks_large = bool(self._checking_large)
        """Whether a processor checks large messages in another thread."""
        self._checking = [one for one in self.processors if _has(one, "_check_content")]
        self.waits = any(one.waits for one in self._inbound)
        """Whether :meth:`inbound` may wait."""
        self.writing_waits = any(one.waits for one in self._outbound)
        """Whether :meth:`outbound` may wait."""
        self._understood = frozenset(name for one in self.processors for name in one.understands)

    @property
    def is_empty(self) -> bool:
        return not self.processors

    def leave_to_handlers(self, envelope: Envelope, declared: Collection[str]) -> None:
        """Count header blocks as understood that the service declares, except those that only processors can check."""
        envelope.not_understood = tuple(
            name
            for name in envelope.not_understood
            if name not in declared or name in self._understood or name.endswith("}Security")  # of any WS-Security
        )

    def inlines(self, to: str) -> bool:
        """Return whether messages have their attachments in the body; see :meth:`Processor._inlines`."""
        return any(one._inlines(to) for one in self._inlining)

    def check_content(self, body: bytes, headers: bytes, attachments: bytes, most: int) -> None:
        """Check that each processor can write a message with this content.

        Args:
            attachments: As a record stores them.
            most: Maximum number of bytes of the message, with its attachments and encrypted parts in base64.

        Raises:
            EnvelopeError: One never can.
        """
        content, is_signed = headers + body, self.inlines("")  # otherwise, at most a token goes with it
        size = len(content)
        if attachments and is_signed:
            size = inlined_size(content, check_inlined(content, attachments, most))
        for processor in self._checking:
            processor._check_content(content)
            size = processor._secured_size(size)
        if is_signed:
            check_secured_size(size, most)

    # --- in -------------------------------------------------------------------------------------------------------

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Call the processors for the octets of a message, and return those to read.

        Raises:
            ProcessorError: it is stopped.
        """
        for processor in self._receiving:
            changed = self._call(processor, processor.received, context, data)
            data = data if changed is _ABSENT else changed
        return data

    def inbound(self, context: MessageContext) -> None:
        """Pass an inbound message to the processors. Afterwards ``not_understood`` names the blocks that none
        understands.

        SOAP 1.2 part 1, 2.6: the check that every mandatory block is understood comes before any processing. A
        processor that has no part in a message does not understand its headers, which shows only then.

        Raises:
            ProcessorError: a processor stopped the message.
        """
        envelope = context.envelope
        mandatory = envelope.not_understood
        if mandatory and self._understood.issuperset(mandatory):
            envelope.not_understood = ()
        elif mandatory:
            envelope.not_understood = tuple([name for name in mandatory if name not in self._understood])
            # What a later receiver must understand does not stop an intermediary.
            passed = envelope.for_receiver if self.passes_on else ()
            if any(name not in passed for name in envelope.not_understood):
                return
        absent: list[Processor] = []
        for processor in self._inbound:
            if self._call(processor, processor.inbound, context) is _ABSENT:
                absent.append(processor)
            if context.is_answered:
                return
        if absent and mandatory:
            present = [one for one in self.processors if one not in absent]
            understood = {name for one in present for name in one.understands}
            envelope.not_understood = tuple([name for name in mandatory if name not in understood])

    def stopping(self, context: MessageContext) -> ProcessorError | None:
        """Call :meth:`inbound`; return the error that stops the message, None if it passes."""
        try:
            self.inbound(context)
        except ProcessorError as error:
            return error.with_traceback(None)
        return None

    def failure(self, context: MessageContext) -> ProcessorError | None:
        """Call :meth:`Processor._check_large`; return the error if one fails, else None."""
        try:
            for processor in self._checking_large:
                self._call(processor, processor._check_large, context)
        except ProcessorError as error:
            return error.with_traceback(None)
        return None

    # --- out ------------------------------------------------------------------------------------------------------

    def outbound(self, context: MessageContext) -> None:
        """Call the processors for a message before it is written, up to one that sends another request first.

        Raises:
            ProcessorError: it is stopped.
        """
        for processor in self._outbound:
            self._call(processor, processor.outbound, context)
            if context.preceding is not None:
                return

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Call the processors for a written message, and return the octets to send.

        Raises:
            ProcessorError: it is stopped.
        """
        for processor in self._encoding:
            changed = self._call(processor, processor.encoded, context, data)
            data = data if changed is _ABSENT else changed
        # A receiver that refuses its size answers with a fault without a signature, which is not believed here.
        if self.inlines(context.to):
            try:
                check_secured_size(len(data), self.most_bytes)
            except EnvelopeError as error:
                raise ProcessingError(
                    f"The message cannot be sent: {clause(error.message)}.", remedy=error.remedy
                ) from None
        return data

    # --- one processor --------------------------------------------------------------------------------------------

    def _call(self, processor: Processor, method: Callable[..., Any], context: MessageContext, *data: bytes) -> Any:
        """Call it; what it returns, ``_ABSENT`` if it has no part in the message."""
        try:
            try:
                returned = method(context, *data)
            except (MessageFlowError, ProcessingError) as error:
                unfit = _unfit(error)
                if unfit:
                    raise ValueError(f"its error cannot be sent to the peer: {unfit}") from error
                raise
            if returned is None and not data:
                return None
            if not isinstance(returned, bytes if data else type(None)):
                wanted = "the envelope, in bytes" if data else "None; to reject a message, raise ProcessingError"
                raise TypeError(f"{method.__name__}() returned {returned!r:.80}; it must return {wanted}")
            return returned
        except (UnknownExchange, NotForThisRole) as error:
            log.debug("processor.skipped", **_about(processor, context), why=error.message)
            return _ABSENT
        except ProcessingError as error:
            self._tell(REFUSED, processor, context, error)
            raise
        except MessageFlowError as error:
            self._tell(PUT_OFF, processor, context, error)
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a processor raises, other messages continue
            self._incidents[FAILED] += 1
            log.error(FAILED, **_about(processor, context), exception=reason_of(error))
            raise ProcessorFailed(
                f"the processor {_name(processor)} failed: {brief(error)}",
                remedy="This is a bug in the processor: the log has the traceback.",
            ) from None

    def _tell(self, what: str, processor: Processor, context: MessageContext, error: ProcessorError) -> None:
        self._incidents[what] += 1
        log.warning(what, **_about(processor, context), reason=error.message)


def _unfit(error: MessageFlowError | ProcessingError) -> str:
    """Return why a processor's error cannot be sent to a peer, "" if it can."""
    message: object = error.message
    if not isinstance(message, str):
        return f"the reason must be text, not {type(message).__name__}"
    if isinstance(error, MessageFlowError):
        wait: object = error.retry_after
        fits = isinstance(wait, int | float) and 0 <= wait <= LONGEST_WAIT
        return "" if fits else f"retry_after must be a number of seconds up to {LONGEST_WAIT:,}"
    code: object = error.code
    if not isinstance(code, str) or (code and not _NAME.fullmatch(code)):
        return f"the code must be like {{namespace}}local, not {code!r}"
    detail: object = error.detail
    if not isinstance(detail, bytes):
        return f"the detail must be bytes of XML, not {type(detail).__name__}"
    try:
        if detail:
            parse_element(detail)
    except EnvelopeError as found:
        return f"the detail: {found.message}"
    return ""


def _about(processor: Processor, context: MessageContext) -> dict[str, Any]:
    fields: dict[str, Any] = {"processor": _name(processor), "direction": context.direction}
    if context.to:
        fields["to"] = context.to
    if context.peer:
        fields["peer"] = context.peer
    if context.sequence:
        fields |= {"sequence": context.sequence, "message_number": context.message_number}
    if context.direction == "outbound" and context.envelope.relates_to:
        fields |= {"action": context.envelope.action, "relates_to": context.envelope.relates_to}
    return fields


def pass_on(envelope: Envelope) -> None:
    """Leave the headers for the ultimate receiver to it: we are an intermediary for this message (SOAP 1.2 part 1, 2.7;
    SOAP 1.1, 4.2.2)."""
    if envelope.for_receiver:
        passed = envelope.for_receiver
        envelope.not_understood = tuple([name for name in envelope.not_understood if name not in passed])


def to_processors(given: Iterable[Processor]) -> tuple[Processor, ...]:
    """Return the processors of an argument ``processors``.

    Raises:
        ConfigurationError: It is a single processor, or something else that is no collection of processors.
    """
    if isinstance(given, Processor):
        raise ConfigurationError(
            f"processors={_name(given)} is a single processor", remedy="Give a list: processors=[…]."
        )
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise ConfigurationError(
            f"processors cannot be {brief_value(given)}", remedy="It may be a list: processors=[…]."
        )
    processors = tuple(given)
    for one in processors:
        if not isinstance(one, Processor):
            raise ConfigurationError(
                f"{brief_value(one)} is not a processor",
                remedy="Derive a class from holdfast.Processor, and pass an instance of it.",
            )
    return processors


def _name(processor: object) -> str:
    return type(processor).__qualname__


def _has(processor: Processor, method: str) -> bool:
    return getattr(type(processor), method) is not getattr(Processor, method)


def _check(processor: Processor, role: Role) -> None:
    if role not in processor.roles:
        of_role = "Destination" if role == "destination" else "Source"
        instead = f"Use {processor.counterpart} here, or give" if processor.counterpart else "Give"
        raise ConfigurationError(
            f"{_name(processor)} is not for a {role}: processors= of a {of_role} cannot contain it",
            remedy=f"{instead} it to a {'Source' if role == 'destination' else 'Destination'}.",
        )
    for method in ("received", "inbound", "outbound", "encoded"):
        if inspect.iscoroutinefunction(getattr(processor, method)):
            raise ConfigurationError(
                f"{_name(processor)}.{method} is async: calling it would not run its code",
                remedy="Write processors as plain methods that do not wait; do slow work beforehand.",
            )
    names = processor.understands
    wrong = [names] if isinstance(names, str) else [name for name in names if not _NAME.fullmatch(str(name))]
    if wrong:
        raise ConfigurationError(
            f"{_name(processor)}.understands contains {wrong[0]!r}, which is not the name of a header block",
            remedy='Use a collection of names with their namespaces: {"{urn:tenants}Tenant"}.',
        )


def _check_owners(processors: tuple[Processor, ...], role: Role) -> None:
    owners: dict[str, Processor] = {}
    for processor in processors:
        for name in processor.owns:
            other = owners.setdefault(name, processor)
            if other is not processor or processors.count(processor) > 1:
                both = f"{_name(other)} and {_name(processor)}"
                does, remedy = _OWNERS[role]
                raise ConfigurationError(
                    f"processors= of a {role.title()} contains {both}, and each {does} the header "
                    f"{name.rpartition('}')[2]}",
                    remedy=f"A message has only one: {remedy}",
                )
