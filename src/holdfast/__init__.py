"""Holdfast: WS-ReliableMessaging for Python. SOAP messages that arrive once, in order, across loss and crashes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast import sync
    from holdfast import zeep as zeep
    from holdfast.core.handling.handler_cursor import HandlingPolicy
    from holdfast.core.policy import Assurance, DestinationPolicy, SourcePolicy
    from holdfast.core.queues.retention import RetentionPolicy
    from holdfast.core.retransmission import RetransmissionPolicy
    from holdfast.core.versions import Versions
    from holdfast.endpoint.destination.destination import Destination
    from holdfast.endpoint.destination.http_settings import DestinationHTTP
    from holdfast.endpoint.destination.operations import SoapHeaders
    from holdfast.endpoint.envelopes.attachments import Attachment, WithAttachments, WithHeaders
    from holdfast.endpoint.envelopes.message import ApplicationFault, Message
    from holdfast.endpoint.envelopes.processors import MessageContext, Processor
    from holdfast.endpoint.journal.policy import JournalPolicy
    from holdfast.endpoint.sending.policies import Policy
    from holdfast.endpoint.source.http_settings import SourceHTTP
    from holdfast.endpoint.source.pending_sends import Progress
    from holdfast.endpoint.source.replies import Reply
    from holdfast.endpoint.source.sent import Enqueued, Sent
    from holdfast.endpoint.source.source import Source
    from holdfast.endpoint.trace import trace
    from holdfast.exceptions import (
        ConfigurationError,
        CreateSequenceRefused,
        DeliveryError,
        EnvelopeError,
        HoldfastError,
        MessageFlowError,
        NotAcknowledged,
        NotForThisRole,
        OperationFault,
        PeerFault,
        ProcessingError,
        ProcessorError,
        SequenceFault,
        SequenceLost,
        StoreError,
        UnknownExchange,
    )
    from holdfast.http.outcome import TransportError
    from holdfast.http.tls import PeerCertificate
    from holdfast.security.conversation.secure_conversation import SecureConversation
    from holdfast.security.freshness import Freshness
    from holdfast.security.protection.encryption_settings import Encryption
    from holdfast.security.saml.saml_token import SamlToken, SamlTokenValidator
    from holdfast.security.symmetric.endorsement import EndorsingCertificates
    from holdfast.security.symmetric.symmetric_binding import EndorsedSymmetricBinding, SymmetricBinding
    from holdfast.security.symmetric.symmetric_binding_validator import SymmetricBindingValidator
    from holdfast.security.timestamp import Timestamp
    from holdfast.security.username_token import UsernameToken, UsernameTokenValidator
    from holdfast.security.x509 import X509

__all__ = [
    "X509",
    "ApplicationFault",
    "Assurance",
    "Attachment",
    "ConfigurationError",
    "CreateSequenceRefused",
    "DeliveryError",
    "Destination",
    "DestinationHTTP",
    "DestinationPolicy",
    "Encryption",
    "EndorsedSymmetricBinding",
    "EndorsingCertificates",
    "Enqueued",
    "EnvelopeError",
    "Freshness",
    "HandlingPolicy",
    "HoldfastError",
    "JournalPolicy",
    "Message",
    "MessageContext",
    "MessageFlowError",
    "NotAcknowledged",
    "NotForThisRole",
    "OperationFault",
    "PeerCertificate",
    "PeerFault",
    "Policy",
    "ProcessingError",
    "Processor",
    "ProcessorError",
    "Progress",
    "Reply",
    "RetentionPolicy",
    "RetransmissionPolicy",
    "SamlToken",
    "SamlTokenValidator",
    "SecureConversation",
    "Sent",
    "SequenceFault",
    "SequenceLost",
    "SoapHeaders",
    "Source",
    "SourceHTTP",
    "SourcePolicy",
    "StoreError",
    "SymmetricBinding",
    "SymmetricBindingValidator",
    "Timestamp",
    "TransportError",
    "UnknownExchange",
    "UsernameToken",
    "UsernameTokenValidator",
    "Versions",
    "WithAttachments",
    "WithHeaders",
    "__version__",
    "sync",
    "trace",
]

_HOMES = {
    "ApplicationFault": "endpoint.envelopes.message",
    "Assurance": "core.policy",
    "Attachment": "endpoint.envelopes.attachments",
    "Destination": "endpoint.destination.destination",
    "DestinationHTTP": "endpoint.destination.http_settings",
    "DestinationPolicy": "core.policy",
    "EndorsedSymmetricBinding": "security.symmetric.symmetric_binding",
    "EndorsingCertificates": "security.symmetric.endorsement",
    "HandlingPolicy": "core.handling.handler_cursor",
    "JournalPolicy": "endpoint.journal.policy",
    "Message": "endpoint.envelopes.message",
    "MessageContext": "endpoint.envelopes.processors",
    "PeerCertificate": "http.tls",
    "Policy": "endpoint.sending.policies",
    "Processor": "endpoint.envelopes.processors",
    "Progress": "endpoint.source.pending_sends",
    "Reply": "endpoint.source.replies",
    "RetentionPolicy": "core.queues.retention",
    "RetransmissionPolicy": "core.retransmission",
    "Enqueued": "endpoint.source.sent",
    "SamlToken": "security.saml.saml_token",
    "SamlTokenValidator": "security.saml.saml_token",
    "SecureConversation": "security.conversation.secure_conversation",
    "Sent": "endpoint.source.sent",
    "SoapHeaders": "endpoint.destination.operations",
    "Source": "endpoint.source.source",
    "SourceHTTP": "endpoint.source.http_settings",
    "SourcePolicy": "core.policy",
    "SymmetricBinding": "security.symmetric.symmetric_binding",
    "SymmetricBindingValidator": "security.symmetric.symmetric_binding_validator",
    "Timestamp": "security.timestamp",
    "TransportError": "http.outcome",
    "UsernameToken": "security.username_token",
    "UsernameTokenValidator": "security.username_token",
    "Versions": "core.versions",
    "WithAttachments": "endpoint.envelopes.attachments",
    "WithHeaders": "endpoint.envelopes.attachments",
    "Freshness": "security.freshness",
    "Encryption": "security.protection.encryption_settings",
    "X509": "security.x509",
    "trace": "endpoint.trace",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the command line and Spark's workers need only some of them."""
    if name not in __all__ and name != "zeep":  # not in __all__: it needs an extra
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    if name in ("sync", "zeep"):
        value: Any = import_module(f"holdfast.{name}")
    else:
        value = getattr(import_module(f"holdfast.{_HOMES.get(name, 'exceptions')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
