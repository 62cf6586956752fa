"""Grants: CreateSequenceResponses that open no usable Sequence."""

from __future__ import annotations

from holdfast.core.messages import CreateSequenceResponse
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.composer import Offered
from holdfast.core.sending.outboxes.outbox import Outbox

LEAST_LIFE = 1.0
"""Minimum seconds of life: a shorter one cannot carry a message there and its acknowledgement back."""


def why_unusable(
    response: CreateSequenceResponse, source: RMSource, outbox: Outbox, named: list[Outbox], offered: Offered
) -> str:
    """Return why a granted Sequence cannot be used, "" if it can."""
    # WS-RM 3.4: an Identifier is unique. Two peers may choose one, as the peer distinguishes acknowledgements.
    identifier = response.identifier
    is_inbound = identifier == source.offer or offered.acknowledgement(identifier) is not None
    if is_inbound or any(one.to == outbox.to for one in named):
        return (
            f"the destination granted the Identifier {identifier}, which another open Sequence has. "
            "Its Identifiers must be unique: look for two destinations behind this address, or a counter that restarted"
        )
    if response.expires is not None and response.expires < LEAST_LIFE:
        return (
            f"the destination granted a Sequence that expires after {response.expires:g} s. "
            "Configure a longer life for Sequences there"
        )
    return ""
