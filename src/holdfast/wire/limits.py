"""What a message may cost us before it is refused. Owns the numbers and their reasons; knows no XML."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.settings import check_settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds checked by :func:`holdfast.wire.decode`; whatever exceeds one raises ``LimitExceeded``.

    Args:
        max_bytes: The whole envelope. 16 MiB: far above any message seen, and it bounds what one exchange can hold.
        max_depth: Elements inside one another, Envelope counted. 64: an open element costs the parser some 150
            bytes, so three bytes of ``<a>`` would otherwise buy fifty times their size in memory.
        max_headers: Header blocks. 64: messages have about ten; each is work for the chain behind.
        max_header_bytes: From the first byte to the Body's start tag. 256 KiB: room for signatures and tokens;
            everything in it becomes Python objects.
        max_elements: Elements that become objects at once: headers, RM bodies, faults. 10,000: about 5 MB.
        max_ranges: AcknowledgementRange (or Nack) elements in one header. 4,096: a healthy Sequence has a handful,
            and whoever keeps them has a lower limit of its own.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    max_bytes: int = 16 * 1024 * 1024
    max_depth: int = 64
    max_headers: int = 64
    max_header_bytes: int = 256 * 1024
    max_elements: int = 10_000
    max_ranges: int = 4_096

    def __post_init__(self) -> None:
        check_settings(self)


DEFAULT = Limits()
