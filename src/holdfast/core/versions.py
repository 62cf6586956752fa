"""The protocol versions a Sequence can speak, and which of them go together.

A Sequence keeps the versions it was created with; answers come in the version received.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.exceptions import ConfigurationError


class RM(str, Enum):
    """WS-ReliableMessaging. 1.1 stands for 1.2 too: same namespace, same schema, nothing differs on the wire."""

    V1_0 = "1.0"
    V1_1 = "1.1"


class Addressing(str, Enum):
    """WS-Addressing: the member submission of 2004/08 or the W3C's 1.0 of 2005/08."""

    V2004_08 = "2004/08"
    V2005_08 = "2005/08"


class SOAP(str, Enum):
    """The SOAP envelope version."""

    V1_1 = "1.1"
    V1_2 = "1.2"


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
            object.__setattr__(self, "rm", RM("1.1" if rm == "1.2" else rm))
            object.__setattr__(self, "addressing", Addressing(addressing))
            object.__setattr__(self, "soap", SOAP(soap))
        except ValueError as error:
            raise ConfigurationError(
                f"unknown protocol version: {error}",
                remedy='rm is "1.0" or "1.1", addressing "2004/08" or "2005/08", soap "1.1" or "1.2"',
            ) from None
        if self.rm is RM.V1_1 and self.addressing is Addressing.V2004_08:
            raise ConfigurationError(
                "WS-RM 1.1 is defined with WS-Addressing 2005/08 only",
                remedy='use addressing="2005/08", or rm="1.0"',
            )


ALL_VERSIONS: tuple[Versions, ...] = (
    Versions("1.0", "2004/08", "1.1"),
    Versions("1.0", "2004/08", "1.2"),
    Versions("1.0", "2005/08", "1.1"),
    Versions("1.0", "2005/08", "1.2"),
    Versions("1.1", "2005/08", "1.1"),
    Versions("1.1", "2005/08", "1.2"),
)
