"""Holdfast: WS-ReliableMessaging for Python. SOAP messages that arrive once, in order, across loss and crashes."""

from __future__ import annotations

from holdfast.core.cursor import HandlingPolicy
from holdfast.core.policy import Assurance, DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import Versions
from holdfast.endpoint import sync
from holdfast.endpoint.client import Progress, Sent, Source
from holdfast.endpoint.message import ApplicationFault, Message
from holdfast.endpoint.server import Destination
from holdfast.exceptions import (
    ConfigurationError,
    CreateSequenceRefused,
    DeliveryError,
    EnvelopeError,
    HoldfastError,
    NotAcknowledged,
    PeerFault,
    SequenceFault,
    SequenceLost,
    StoreError,
)

__all__ = [
    "ApplicationFault",
    "Assurance",
    "ConfigurationError",
    "CreateSequenceRefused",
    "DeliveryError",
    "Destination",
    "DestinationPolicy",
    "EnvelopeError",
    "HandlingPolicy",
    "HoldfastError",
    "Message",
    "NotAcknowledged",
    "PeerFault",
    "Progress",
    "RetransmissionPolicy",
    "Sent",
    "SequenceFault",
    "SequenceLost",
    "Source",
    "SourcePolicy",
    "StoreError",
    "Versions",
    "sync",
]
