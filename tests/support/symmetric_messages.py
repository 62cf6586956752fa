"""A destination with a SymmetricBinding at a socket, and the messages of a client whose key the test knows."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import served_destination
from signers import issue

from holdfast import (
    Destination,
    EndorsingCertificates,
    Message,
    MessageContext,
    Processor,
    SymmetricBindingValidator,
    UsernameTokenValidator,
)
from holdfast.core.messages import Envelope, Fault, MakeConnection
from holdfast.core.versions import SOAP
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.encryption import key_in_message, write_encrypted_key
from holdfast.security.header import Token
from holdfast.security.names import CIPHERS, CONVERSATION_1_3
from holdfast.security.symmetric.message_keys import to_encrypted_key
from holdfast.security.symmetric.protected_message import SUITES, Protecting, protect

SHOP, OTHER = issue("CN=shop,O=Example"), issue("CN=other,O=Example")
NOW: Final = 1_796_000_000.0
KEY: Final = bytes(range(32))
ALICE: Final = Token("alice", "secret", is_digest=False)
CBC: Final = CIPHERS["aes256-cbc"]
RM: Final = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
ENVELOPE: Final = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="{rm}"><s:Header><a:Action>{action}</a:Action><a:MessageID>urn:m:1</a:MessageID><a:To>http://shop/</a:To>'
    "{headers}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
)
ANONYMOUS: Final = "<a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"


class Served(served_destination.Served):
    """A destination at a socket.

    Args:
        directory: For its files.
        clock: Seconds since 1970.
        clients: Whose certificates endorse messages; None: user names.
        options: Of the SymmetricBindingValidator.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = lambda: NOW,
        clients: EndorsingCertificates | None = None,
        **options: Any,
    ) -> None:
        self.users = UsernameTokenValidator({"alice": "secret", "bob": "hidden"}, clock=clock)
        self.files = SHOP.files(directory)
        self.validator = SymmetricBindingValidator(*self.files, users=clients or self.users, **options)
        processors: list[Processor] = [self.validator]
        super().__init__(Destination(directory / "inbox", processors=processors), "application/soap+xml")

    def take(self, message: Message) -> str:
        super().take(message)
        return "<taken/>"


def creation(more: str = "", headers: str = "") -> bytes:
    """An envelope with a CreateSequence."""
    body = f"<r:CreateSequence><r:AcksTo>{ANONYMOUS}</r:AcksTo>{more}</r:CreateSequence>"
    return ENVELOPE.format(rm=RM, action=f"{RM}/CreateSequence", headers=headers, body=body).encode()


def plain(body: str = "<order/>", headers: str = "", action: str = "urn:shop/order") -> bytes:
    """An envelope with a message of the application, or an answer."""
    return ENVELOPE.format(rm=RM, action=action, headers=headers, body=body).encode()


def encrypted_key(key: bytes = KEY) -> tuple[bytes, str]:
    """A key encrypted for the shop: the bytes, and the token."""
    certificate = Certificate(SHOP.found)
    wrapped = certificate.wrap(key)
    return wrapped, write_encrypted_key(certificate, "thumbprint", wrapped, "_x")


def protected(data: bytes, *, key: bytes = KEY, derives: bool = False, now: float = NOW, **changed: Any) -> bytes:
    """A request of a client, as it is on the wire."""
    token = changed.pop("token", None) or encrypted_key(key)[1]
    settings: dict[str, Any] = {"user": ALICE, "suite": SUITES["Basic256Sha256"], "cipher": CBC, **changed}
    derives_in = CONVERSATION_1_3 if derives else ""
    made = Protecting(key, key_in_message("_x"), life=300, token=token, derives_in=derives_in, **settings)
    return protect(data, SOAP.V1_2, made, now, must_understand=True)[0]


def answer_to(wrapped: bytes, data: bytes, *, key: bytes = KEY, now: float = NOW, **changed: Any) -> bytes:
    """An answer of a service that has decrypted the key."""
    settings: dict[str, Any] = {"suite": SUITES["Basic256Sha256"], "cipher": CBC, **changed}
    made = Protecting(key, to_encrypted_key(wrapped), life=300, **settings)
    return protect(data, SOAP.V1_2, made, now, must_understand=False)[0]


def signature_of(data: bytes) -> bytes:
    """The SignatureValue of a message, in base64."""
    found = re.search(rb"SignatureValue>([^<]+)<", data)
    assert found is not None
    return found[1]


class Exchange:
    """A request of a source, and what it says of an answer.

    Args:
        directory: For the files of the shop.
        processor: Of the source, for the certificate of the shop.
        message_id: Of the request. Exchanges of one processor with the same one are attempts to send one request.
        control: What the request is in the protocol; None: a message.
    """

    def __init__(
        self,
        directory: Path,
        processor: Processor,
        message_id: str | None = None,
        control: MakeConnection | None = None,
    ) -> None:
        self.processor = processor
        self._about: dict[str, Any] = {"message_id": message_id, "control": control}
        self.notes: dict[str, Any] = {}
        context = self._context("outbound", is_answer=False)
        self.processor.outbound(context)
        self.request = self.processor.encoded(context, plain())
        (wrapped, *_) = re.findall(rb"CipherValue>([^<]+)<", self.request)
        self.wrapped = base64.b64decode(wrapped)
        self.key = Credential(*SHOP.files(directory)).unwrap(self.wrapped, 16, 32)
        self.signatures = tuple(map(base64.b64decode, re.findall(rb"SignatureValue>([^<]+)<", self.request)))

    def _context(self, direction: Any, *, is_answer: bool, fault: bool = False) -> MessageContext:
        envelope = Envelope(SOAP.V1_2, **({} if is_answer else self._about))
        if fault:
            envelope.fault = Fault("Receiver", "told by nobody")
        return MessageContext(envelope, direction, "source", self.notes, is_answer=is_answer, to="http://shop/")

    def answer(self, data: bytes = b"", **changed: Any) -> bytes:
        """An answer of the service, or of somebody else."""
        settings = {"key": self.key, "confirms": self.signatures, **changed}
        return answer_to(self.wrapped, data or plain("<taken/>"), **settings)

    def take(self, answer: bytes, *, fault: bool = False, relates_to: str | None = None) -> bytes:
        context = self._context("inbound", is_answer=True, fault=fault)
        context.envelope.relates_to = relates_to
        data = self.processor.received(context, answer)
        self.processor.inbound(context)
        return data
