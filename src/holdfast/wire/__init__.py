"""Bytes <-> the core's messages: SOAP 1.1 and 1.2, WS-Addressing 2004/08 and 2005/08, WS-RM 1.0 and 1.1.

This package owns all XML work. It knows the core's message types, but no transport, store or clock. Its two main
functions are :func:`decode` and :func:`encode`; the others return actions and HTTP headers. Open ``decoding.envelopes``
first.
"""

from __future__ import annotations

from holdfast.wire.attachments.package import check_parts, receive_package
from holdfast.wire.attachments.packing import pack
from holdfast.wire.attachments.references import MissingPart
from holdfast.wire.attachments.root_head import RootHead
from holdfast.wire.attachments.stored import ArrivingPackage
from holdfast.wire.body import parse_element
from holdfast.wire.decoding.envelopes import as_utf8, decode
from holdfast.wire.encoding.envelopes import action_of, control_action, encode
from holdfast.wire.encoding.outgoing import (
    AROUND,
    body_content,
    check_action,
    check_header_blocks,
    check_iri,
    check_text,
    known_contents,
)
from holdfast.wire.http import content_type, http_headers, soap_of_content_type
from holdfast.wire.limits import DEFAULT, Limits
from holdfast.wire.names import actions
from holdfast.wire.text import storable as storable_text

__all__ = [
    "AROUND",
    "DEFAULT",
    "ArrivingPackage",
    "Limits",
    "MissingPart",
    "RootHead",
    "action_of",
    "actions",
    "as_utf8",
    "body_content",
    "check_action",
    "check_header_blocks",
    "check_iri",
    "check_parts",
    "check_text",
    "content_type",
    "control_action",
    "decode",
    "encode",
    "http_headers",
    "known_contents",
    "pack",
    "parse_element",
    "receive_package",
    "soap_of_content_type",
    "storable_text",
]
