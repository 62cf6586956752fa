"""Limits on a message's size and cost, with the reason for each number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.settings import Bytes, Within, check_settings

USUAL_DECLARATIONS = 16
"""Namespaces in scope of a usual header block or Body; the fast path leaves a message with more to the complete one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds checked by :func:`holdfast.wire.decode`; an envelope beyond one raises ``LimitExceeded``.

    Args:
        max_bytes: The whole envelope, for an operation by name with its attachments in base64. 16 MiB: far above any
            message seen, and it bounds the memory of one exchange.
        max_depth: Depth of nested elements, including Envelope. 64: an open element costs the parser some 150 bytes, so
            three bytes of ``<a>`` would otherwise cost fifty times their size in memory.
        max_attributes: Attributes of one element, including namespace declarations. 16,384: all of them are in memory
            at once, as objects fifty times their size.
        max_namespace: Characters of a namespace's name. 2,048: the parser reads it for every attribute that has a
            prefix; the longest in use have about a hundred.
        max_declarations: Namespaces in scope of the Body or of a header block, at least 16. 1,024: every stored part
            may need them.
        max_inserted_bytes: Namespace declarations added to header blocks and elements of the Body, in total, so that
            each of them is complete on its own. 1 MiB: a body with one element has each once, a few hundred bytes; only
            one with thousands of adjacent elements comes near.
        max_headers: Header blocks. 64: messages have about ten; each is work for the processors.
        max_header_bytes: From the first byte to the Body's start tag. 256 KiB: room for signatures and tokens; all of
            it becomes Python objects.
        max_elements: Elements that become objects at once: headers, RM bodies, faults. 10,000: about 5 MB.
        max_ranges: AcknowledgementRange (or Nack) elements in one header. 4,096: a healthy Sequence has a handful, and
            code that stores them has a lower limit.
        max_uri: Characters of each stored URI: Identifier, MessageID, RelatesTo, Action, To and the addresses of
            endpoints. 2,048: the common limit of browsers and servers; most have fifty.
        max_reference_parameters: Bytes of the reference parameters of one endpoint. 8 KiB: those of AcksTo are stored
            as long as their Sequence; a token fits, a document does not.
        max_parts: MIME parts of a message with attachments, including the envelope. 1,000: each is a few objects.
        max_part_headers: Bytes of the headers of one MIME part. 16 KiB: they have about two hundred bytes, and are
            stored with the message.

    Raises:
        ConfigurationError: A number is not valid.
    """

    max_bytes: Bytes = 16 * 1024 * 1024
    max_depth: int = 64
    max_attributes: int = 16_384
    max_namespace: int = 2_048
    max_declarations: Annotated[int, Within(USUAL_DECLARATIONS)] = 1_024
    max_inserted_bytes: Bytes = 1024 * 1024
    max_headers: int = 64
    max_header_bytes: Bytes = 256 * 1024
    max_elements: int = 10_000
    max_ranges: int = 4_096
    max_uri: int = 2_048
    max_reference_parameters: Bytes = 8 * 1024
    max_parts: Annotated[int, Within(1)] = 1_000
    max_part_headers: Bytes = 16 * 1024

    def __post_init__(self) -> None:
        check_settings(self)


DEFAULT = Limits()
