"""The protocol versions a Sequence can speak, what each can do, and which of them go together.

What differs between the versions of WS-ReliableMessaging is a row of data, :class:`Capabilities`: nobody else asks
which version it is. A Sequence keeps the versions it was created with; answers come in the version received.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast import exceptions
from holdfast.exceptions import ConfigurationError


class Addressing(str, Enum):
    """WS-Addressing: the member submission of 2004/08 or the W3C's 1.0 of 2005/08."""

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
        exceptions.CreateSequenceRefused,
    )
)
"""The faults that every version has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a version of WS-ReliableMessaging can do.

    Args:
        addressing: The versions of WS-Addressing it is defined with.
        faults: The codes of its faults.
        closes: Whether a Sequence can be closed before it is terminated, by either side.
        answers_terminate: Whether TerminateSequence is answered, and either side may send it; else the source alone
            sends it, one way.
        has_last_message: Whether a source ends with a message of its own that says so, and that has a number.
        names_last_number: Whether CloseSequence and TerminateSequence name the last number.
        has_final: Whether an acknowledgement can say that it never changes again.
        acknowledges_nothing: Whether a peer that has not asked for it understands an acknowledgement of nothing.
        offers_endpoint: Whether an Offer names where its messages are to be sent.
        rollover_ends: Whether MessageNumberRollover ends the Sequence; else it names the limit, and the Sequence stays.
        aliases: Other names of the version.
    """

    addressing: tuple[Addressing, ...]
    faults: frozenset[str]
    closes: bool
    answers_terminate: bool
    has_last_message: bool
    names_last_number: bool
    has_final: bool
    acknowledges_nothing: bool
    offers_endpoint: bool
    rollover_ends: bool
    aliases: tuple[str, ...] = ()


class RM(str, Enum):
    """WS-ReliableMessaging, oldest first. 1.1 stands for 1.2 too: same namespace, same schema, nothing differs on the
    wire. ``can`` says what a version can do.
    """

    can: Capabilities

    def __new__(cls, value: str, can: Capabilities) -> RM:
        """A version: what it is called, and what it can do."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.can = can
        return member

    V1_0 = (
        "1.0",
        Capabilities(
            addressing=(Addressing.V2004_08, Addressing.V2005_08),
            faults=_FAULTS | {exceptions.LastMessageNumberExceeded.code},
            closes=False,
            answers_terminate=False,
            has_last_message=True,
            names_last_number=False,
            has_final=False,
            # It says "nothing yet" by the range 0-0, which ends a Sequence of gSOAP's that has not asked.
            acknowledges_nothing=False,
            offers_endpoint=False,
            rollover_ends=True,
        ),
    )
    V1_1 = (
        "1.1",
        Capabilities(
            addressing=(Addressing.V2005_08,),
            faults=_FAULTS | {exceptions.SequenceClosed.code, exceptions.WSRMRequired.code},
            closes=True,
            answers_terminate=True,
            has_last_message=False,
            names_last_number=True,
            has_final=True,
            acknowledges_nothing=True,
            offers_endpoint=True,
            rollover_ends=False,
            aliases=("1.2",),
        ),
    )


RM_OF_NAME: dict[str, RM] = {name: rm for rm in RM for name in (rm.value, *rm.can.aliases)}
"""What a version may be called -> the version."""


def newest_rm(addressing: str | None) -> RM:
    """The newest WS-RM that goes with that WS-Addressing; None: with any."""
    return [rm for rm in RM if addressing is None or addressing in rm.can.addressing][-1]


def _told(values: object) -> str:
    *rest, last = [f'"{getattr(value, "value", value)}"' for value in values]  # type: ignore[attr-defined]
    return f"{', '.join(rest)} or {last}" if rest else last


@dataclass(frozen=True, slots=True)
class Versions:
    """One valid combination of versions.

    Args:
        rm: "1.0" or "1.1" (1.1 is 1.2 too).
        addressing: "2004/08" or "2005/08".
        soap: "1.1" or "1.2".

    Raises:
        ConfigurationError: for WS-RM 1.1 with WS-Addressing 2004/08, which no specification defines,
            and for a value that is none of those above.
    """

    rm: RM
    addressing: Addressing
    soap: SOAP

    def __init__(self, rm: str = "1.1", addressing: str = "2005/08", soap: str = "1.2") -> None:
        try:
            object.__setattr__(self, "rm", RM_OF_NAME[rm])
            object.__setattr__(self, "addressing", Addressing(addressing))
            object.__setattr__(self, "soap", SOAP(soap))
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"unknown protocol version: {error}",
                remedy=f"rm is {_told(RM)}, addressing {_told(Addressing)}, soap {_told(SOAP)}",
            ) from None
        defined = self.rm.can.addressing
        if self.addressing not in defined:
            others = [other for other in RM if self.addressing in other.can.addressing]
            raise ConfigurationError(
                f"WS-RM {self.rm.value} is defined with WS-Addressing {' and '.join(defined)} only",
                remedy=f"use addressing={_told(defined)}, or rm={_told(others)}",
            )

    @property
    def in_words(self) -> str:
        """For people."""
        return f"RM {self.rm.value}, WSA {self.addressing.value}, SOAP {self.soap.value}"


ALL_VERSIONS: tuple[Versions, ...] = tuple(
    Versions(rm, addressing, soap) for rm in RM for addressing in rm.can.addressing for soap in SOAP
)
