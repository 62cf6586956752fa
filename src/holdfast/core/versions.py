"""The protocol versions of a Sequence, their capabilities, and their valid combinations.

A row of data, :class:`Capabilities`, describes the differences between the versions of WS-ReliableMessaging; other
modules do not compare versions. A Sequence keeps the versions of its creation; answers use the version of the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from holdfast import exceptions
from holdfast.exceptions import ConfigurationError
from holdfast.settings import brief_value


class Addressing(str, Enum):
    """WS-Addressing, oldest first: two early drafts, the member submission of 2004/08, and the W3C's 1.0 of 2005/08."""

    V2003_03 = "2003/03"
    V2004_03 = "2004/03"
    V2004_08 = "2004/08"
    V2005_08 = "2005/08"


class SOAP(str, Enum):
    """The SOAP envelope version."""

    V1_1 = "1.1"
    V1_2 = "1.2"


_FAULTS = frozenset(
    error.code
    for error in (
        exceptions.SequenceTerminated,
        exceptions.UnknownSequence,
        exceptions.InvalidAcknowledgement,
        exceptions.MessageNumberRollover,
    )
)
"""The faults that every version has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a version of WS-ReliableMessaging.

    Args:
        addressing: The versions of WS-Addressing for which it is defined, the usual one last.
        faults: The codes of its faults.
        closes: Whether a Sequence can be closed before it is terminated, by either side.
        creates: Whether CreateSequence begins a Sequence; else the first message with a new Identifier does.
        negotiates: Whether CreateSequence and its response have content: AcksTo, Expires, and an Offer.
        is_tried: Whether a source that detects the versions of its destination tries it.
        answers_terminate: Whether TerminateSequence is answered, and either side may send it; else the source alone
            sends it, one way.
        marks_last: Whether the Sequence header can mark the last message.
        has_last_message: Whether a source announces the end with a separate, numbered message.
        names_last_number: Whether CloseSequence and TerminateSequence name the last number.
        has_final: Whether an acknowledgement can declare itself final.
        acknowledges_nothing: Whether a peer understands an unsolicited acknowledgement without numbers.
        offers_endpoint: Whether an Offer names the endpoint of its messages.
        rollover_ends: Whether MessageNumberRollover ends the Sequence; else it names the limit, and the Sequence stays.
        aliases: Other names of the version.
    """

    addressing: tuple[Addressing, ...]
    faults: frozenset[str]
    closes: bool
    creates: bool = True
    negotiates: bool = True
    is_tried: bool = True
    answers_terminate: bool
    marks_last: bool
    has_last_message: bool
    names_last_number: bool
    has_final: bool
    acknowledges_nothing: bool
    offers_endpoint: bool
    rollover_ends: bool
    aliases: tuple[str, ...] = ()


class RM(str, Enum):
    """Versions of WS-ReliableMessaging, oldest first.

    1.1 includes 1.2, which has the same namespace, schema and wire format. ``can`` gives the capabilities of a version.
    """

    can: Capabilities

    def __new__(cls, value: str, can: Capabilities) -> RM:
        member = str.__new__(cls, value)
        member._value_ = value
        member.can = can
        return member

    V2003_03 = (
        "2003/03",
        Capabilities(
            addressing=(Addressing.V2003_03,),
            faults=_FAULTS,
            closes=False,
            creates=False,
            negotiates=False,
            is_tried=False,
            answers_terminate=False,
            marks_last=True,
            has_last_message=False,
            names_last_number=False,
            has_final=False,
            acknowledges_nothing=False,
            offers_endpoint=False,
            rollover_ends=True,
        ),
    )
    V2004_03 = (
        "2004/03",
        Capabilities(
            addressing=(Addressing.V2004_03, Addressing.V2003_03),
            faults=_FAULTS | {exceptions.LastMessageNumberExceeded.code},
            closes=False,
            negotiates=False,
            is_tried=False,
            answers_terminate=False,
            marks_last=True,
            # No document says that an empty message may carry the mark, and a peer's application would receive it.
            has_last_message=False,
            names_last_number=False,
            has_final=False,
            acknowledges_nothing=False,
            offers_endpoint=False,
            rollover_ends=True,
        ),
    )
    V1_0 = (
        "1.0",
        Capabilities(
            addressing=(Addressing.V2004_08, Addressing.V2005_08),
            faults=_FAULTS | {exceptions.CreateSequenceRefused.code, exceptions.LastMessageNumberExceeded.code},
            closes=False,
            answers_terminate=False,
            marks_last=True,
            has_last_message=True,
            names_last_number=False,
            has_final=False,
            # Its acknowledgement without numbers is the range 0-0. Unsolicited, it ends a Sequence of gSOAP.
            acknowledges_nothing=False,
            offers_endpoint=False,
            rollover_ends=True,
        ),
    )
    V1_1 = (
        "1.1",
        Capabilities(
            addressing=(Addressing.V2005_08,),
            faults=_FAULTS
            | {
                exceptions.CreateSequenceRefused.code,
                exceptions.SequenceClosed.code,
                exceptions.WSRMRequired.code,
            },
            closes=True,
            answers_terminate=True,
            marks_last=False,
            has_last_message=False,
            names_last_number=True,
            has_final=True,
            acknowledges_nothing=True,
            offers_endpoint=True,
            rollover_ends=False,
            aliases=("1.2",),
        ),
    )

    @property
    def addressing_in_words(self) -> str:
        """The versions of WS-Addressing for which it is defined, in readable form."""
        return " and ".join(sorted(self.can.addressing))


RM_OF_NAME: dict[str, RM] = {name: rm for rm in RM for name in (rm.value, *rm.can.aliases)}
"""Each name of a version -> the version."""


def newest_rm(addressing: str | None) -> RM:
    """Return the newest WS-RM defined for a version of WS-Addressing; None: for any version."""
    return [rm for rm in RM if addressing is None or addressing in rm.can.addressing][-1]


def creation_choices(versions: Iterable[Versions], offer: bool | None) -> list[tuple[Versions, bool]]:
    """Return the variants of CreateSequence to try, in order: the versions, and whether to offer a Sequence.

    Args:
        versions: The versions to try.
        offer: Whether to offer a Sequence for replies; None: first with an Offer, then without.
    """
    offers = (True, False) if offer is None else (offer,)
    return list(dict.fromkeys((one, offer and one.rm.can.negotiates) for offer in offers for one in versions))


def _told(values: object) -> str:
    *rest, last = [f'"{getattr(value, "value", value)}"' for value in values]  # type: ignore[attr-defined]
    return f"{', '.join(rest)} or {last}" if rest else last


@dataclass(frozen=True, slots=True)
class Versions:
    """One valid combination of versions.

    Args:
        rm: "2003/03", "2004/03", "1.0" (February 2005) or "1.1" (1.1 is 1.2 too).
        addressing: "2003/03", "2004/03", "2004/08" or "2005/08"; None: "2005/08", and with an ``rm`` that is not
            defined with it, "2003/03".
        soap: "1.1" or "1.2".

    Raises:
        ConfigurationError: no specification defines this WS-RM with this WS-Addressing, or a value is not listed
            above. WS-RM 1.1 is defined with WS-Addressing 2005/08, 1.0 with 2004/08 and 2005/08, 2004/03 with
            2003/03 and 2004/03, and 2003/03 with 2003/03.
    """

    rm: RM
    addressing: Addressing
    soap: SOAP

    def __init__(self, rm: str = "1.1", addressing: str | None = None, soap: str = "1.2") -> None:
        try:
            object.__setattr__(self, "rm", RM_OF_NAME[rm])
            chosen = self.rm.can.addressing[-1] if addressing is None else addressing
            object.__setattr__(self, "addressing", Addressing(chosen))
            object.__setattr__(self, "soap", SOAP(soap))
        except (KeyError, ValueError, TypeError):
            given = f"rm={brief_value(rm)}, addressing={brief_value(addressing)}, soap={brief_value(soap)}"
            raise ConfigurationError(
                f"unknown protocol version: {given}",
                remedy=f"Use rm={_told(RM_OF_NAME)}, addressing={_told(Addressing)}, soap={_told(SOAP)}.",
            ) from None
        defined = self.rm.can.addressing
        if self.addressing not in defined:
            others = [name for name, other in RM_OF_NAME.items() if self.addressing in other.can.addressing]
            raise ConfigurationError(
                f"WS-RM {self.rm.value} is defined with WS-Addressing {self.rm.addressing_in_words} only",
                remedy=f"Use addressing={_told(defined)}, or rm={_told(others)}.",
            )

    @property
    def in_words(self) -> str:
        """The versions in readable form."""
        return f"RM {self.rm.value}, WSA {self.addressing.value}, SOAP {self.soap.value}"


ALL_VERSIONS: tuple[Versions, ...] = tuple(
    Versions(rm, addressing, soap) for rm in RM for addressing in rm.can.addressing for soap in SOAP
)
TRIED_VERSIONS: tuple[Versions, ...] = tuple(versions for versions in ALL_VERSIONS if versions.rm.can.is_tried)
EARLY_VERSIONS: tuple[Versions, ...] = tuple(versions for versions in ALL_VERSIONS if not versions.rm.can.is_tried)
"""Versions that are used only where they are named."""
