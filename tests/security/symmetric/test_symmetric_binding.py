"""SymmetricBinding, and SecureConversation with a certificate: what a source sends, and which answers it believes.

Covers security/symmetric/client_protection.py and security/symmetric/binding_policy.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from symmetric_messages import KEY, NOW, OTHER, SHOP, Exchange, Served, plain

from holdfast import (
    ConfigurationError,
    MessageContext,
    PeerFault,
    ProcessingError,
    Processor,
    SecureConversation,
    Source,
    SymmetricBinding,
    UsernameToken,
)
from holdfast.core.messages import Envelope, Fault, MakeConnection
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import SOAP, Versions
from holdfast.security.conversation.secure_conversation import MOST_UNPROVEN
from holdfast.security.names import CIPHERS, INVALID_SECURITY, WSSE
from holdfast.security.symmetric import client_protection
from holdfast.wire import encode

CLIENTS: dict[str, Callable[[Path], Processor]] = {
    "a key for each message": lambda file: SymmetricBinding("alice", "secret", file),
    "derived keys": lambda file: SymmetricBinding(
        "alice", "secret", file, derived_keys=True, reference="issuer-serial"
    ),
    "conversation 1.3": lambda file: SecureConversation("alice", "secret", certificate=file),
    "conversation 2005/02": lambda file: SecureConversation("alice", "secret", certificate=file, version="2005/02"),
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_source_calls_a_destination_over_http(tmp_path: Path, client: str) -> None:
    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        processor = CLIENTS[client](served.files.certificate)
        async with Source(served.url, ":memory:", processors=[processor]) as source:
            reply = await source.request("<order xmlns='urn:shop'/>", action="urn:shop/order", timeout=240)
            assert reply.body.tag == "taken"
            await source.end(timeout=240)
        assert [(message.user, message.body.tag) for message in served.got] == [("alice", "{urn:shop}order")]


async def test_a_conversation_ends_with_its_sequence_and_keeps_its_token_until_then(tmp_path: Path) -> None:
    def tokens() -> int:
        return len(served.users.sessions._contexts._db.run("", "SELECT 1 FROM holdfast_contexts"))

    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
        async with Source(served.url, ":memory:", processors=[conversation]) as source:
            for _ in range(3):
                await source.request("<order/>", action="urn:shop/order", timeout=240)
            assert tokens() == 1
            await source.end(timeout=240)
            assert tokens() == 0


@pytest.mark.parametrize("versions", [Versions("1.0", "2005/08", "1.1"), Versions("1.1", "2005/08", "1.2")], ids=str)
async def test_a_create_sequence_names_its_token_if_the_destination_demands_it(
    tmp_path: Path, versions: Versions
) -> None:
    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        served.validator.bind_sequences()
        for binds in (False, True):
            conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
            processors = [conversation.bind_sequences() if binds else conversation]
            async with Source(served.url, ":memory:", processors=processors, versions=versions) as source:
                if binds:
                    await source.request("<order/>", action="urn:shop/order", timeout=240)
                    continue
                with pytest.raises(PeerFault, match="InvalidSecurity"):
                    await source.request("<order/>", action="urn:shop/order", timeout=240)
        assert [message.user for message in served.got] == ["alice"]
        wsdl = f"{served.url.rstrip('/')}/?wsdl"
        async with await Source.from_wsdl(wsdl, ":memory:", processors=processors) as source:
            await source.request("<order/>", action="urn:shop/order", timeout=240)


async def test_a_sequence_cannot_be_bound_to_a_user_name(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        with pytest.raises(ConfigurationError, match="cannot be bound to the user name"):
            served.validator.bind_sequences()


class Forging(Processor):
    """Replaces answers to a source by faults without any protection, as an attacker on the network can."""

    def __init__(self) -> None:
        self.left = 0
        fault = Envelope(SOAP.V1_2, action="http://www.w3.org/2005/08/addressing/soap/fault")
        fault.fault = Fault(INVALID_SECURITY.rpartition("}")[2], "no", code_namespace=WSSE)
        self.fault = encode(fault)

    def received(self, context: MessageContext, data: bytes) -> bytes:
        if self.left and context.is_answer:
            self.left -= 1
            return self.fault
        return data


@pytest.mark.parametrize("forged", range(1, 2 * MOST_UNPROVEN))
async def test_a_few_forged_refusals_do_not_end_a_sequence(tmp_path: Path, forged: int) -> None:
    """Only the service can prove an answer. But one that has lost the token cannot, so many refusals end it."""
    soon = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.1, cap=0.1))
    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
        forging = Forging()
        processors = [forging, conversation]
        async with Source(
            served.url, ":memory:", processors=processors, policy=soon, assurance="at-least-once"
        ) as source:
            await source.request("<order/>", action="urn:shop/order", timeout=240)
            (before,) = served.sequences
            forging.left = min(forged, MOST_UNPROVEN)
            await source.request("<order/>", action="urn:shop/order", timeout=240)
            forging.left = max(forged - MOST_UNPROVEN, 0)
            await source.request("<order/>", action="urn:shop/order", timeout=240)
            if forged < MOST_UNPROVEN:
                assert served.sequences == [before]


async def test_a_source_continues_after_its_service_has_lost_all_tokens(tmp_path: Path) -> None:
    soon = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.1, cap=0.1))
    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
        async with Source(
            served.url, ":memory:", processors=[conversation], policy=soon, assurance="at-least-once"
        ) as source:
            for _ in range(3):
                await source.request("<order/>", action="urn:shop/order", timeout=240)
                served.users.sessions._contexts._db.run("", "DELETE FROM holdfast_contexts")
        assert len(served.got) == 3


@pytest.mark.parametrize("losses", [1, 2])
async def test_a_token_lost_before_its_first_use_is_replaced(tmp_path: Path, losses: int) -> None:
    soon = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.1, cap=0.1))
    left = losses * MOST_UNPROVEN

    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        contexts = served.users.sessions._contexts
        find = contexts.find

        def lost(identifier: str, instance: str) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                contexts._db.run("", "DELETE FROM holdfast_contexts")
            return find(identifier, instance)

        contexts.find = lost  # type: ignore[method-assign]
        conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
        async with Source(served.url, ":memory:", processors=[conversation], policy=soon) as source:
            await source.request("<order/>", action="urn:shop/order", timeout=240)
        assert len(served.got) == 1 and left < 0


async def test_a_wrong_password_stops_the_source(tmp_path: Path) -> None:
    async with Served(tmp_path, clock=time.time) as served:
        wrong = SymmetricBinding("alice", "wrong", served.files.certificate)
        async with Source(served.url, ":memory:", processors=[wrong]) as source:
            with pytest.raises(PeerFault, match="could not be authenticated"):
                await source.request("<order/>", action="urn:shop/order", timeout=240)
        assert not served.got


# --- answers ------------------------------------------------------------------------------------------------------


def exchange_of(directory: Path, message_id: str | None = None) -> Exchange:
    binding = SymmetricBinding("alice", "secret", SHOP.files(directory).certificate, clock=lambda: NOW)
    return Exchange(directory, binding, message_id)


def test_the_answer_of_the_service_is_decrypted(tmp_path: Path) -> None:
    exchange = exchange_of(tmp_path)
    assert b"order" not in exchange.request.partition(b"<s:Body")[2]
    assert b"secret" not in exchange.request
    answer = exchange.answer()
    assert b"<taken" not in answer
    assert b"<taken " in exchange.take(answer)
    assert b"<taken " in exchange.take(exchange.answer(cipher=CIPHERS["aes256-gcm"]))


FORGED: dict[str, tuple[Callable[[Exchange], bytes], str]] = {
    "not protected": (lambda one: plain("<taken/>"), "no Security header"),
    "with another key": (lambda one: one.answer(key=KEY), "another key"),
    "for another request": (lambda one: one.answer(confirms=(b"other",)), "does not confirm"),
    "for no request": (lambda one: one.answer(confirms=()), "does not confirm"),
    "old": (lambda one: one.answer(now=NOW - 1000), "compare the clocks"),
    "of the request itself": (
        # The reference to the key is not signed: an attacker can make it one of an answer.
        lambda one: re.sub(
            rb"<wsse:SecurityTokenReference[^>]*><wsse:Reference [^>]*></wsse:SecurityTokenReference>",
            re.findall(rb"<wsse:SecurityTokenReference[^>]*><wsse:KeyIdentifier.*?Reference>", one.answer())[0],
            re.sub(rb"<wsse:Reference ([^>]*)/>", rb"<wsse:Reference \1>", one.request),
        ),
        "does not confirm",
    ),
    "with a header added": (
        lambda one: one.answer().replace(b"</s:Header>", b"<a:From><a:Address>urn:x</a:Address></a:From></s:Header>"),
        "From is not signed",
    ),
    "with another cipher": (lambda one: one.answer(cipher=CIPHERS["aes128-cbc"]), "aes128-cbc"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_an_answer_that_is_not_the_services_counts_as_lost(
    tmp_path: Path, forged: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = FORGED[forged]
    exchange = exchange_of(tmp_path)
    with pytest.raises(ProcessingError):
        exchange.take(make(exchange))
    assert why in caplog.text


def is_believed(exchange: Exchange, answer: bytes, relates_to: str | None = None) -> bool:
    try:
        return b"<taken " in exchange.take(answer, relates_to=relates_to)
    except ProcessingError:
        return False


def test_a_repeated_reply_may_have_the_key_of_an_earlier_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Metro sends it. The attempts that a source remembers of a request are few, and so are the requests."""
    monkeypatch.setattr(client_protection, "MOST_ATTEMPTS", 2)
    monkeypatch.setattr(client_protection, "MOST_REQUESTS", 3)
    first = exchange_of(tmp_path, "urn:1")
    attempts = [first, *(Exchange(tmp_path, first.processor, "urn:1") for _ in range(5))]
    assert [is_believed(attempts[-1], one.answer()) for one in attempts] == [True, True, False, False, True, True]
    others = [Exchange(tmp_path, first.processor, f"urn:{number}") for number in range(2, 5)]
    assert not any(is_believed(one, first.answer()) for one in (*others, Exchange(tmp_path, first.processor)))
    assert not is_believed(others[0], first.answer(), relates_to="urn:1")
    assert not is_believed(Exchange(tmp_path, first.processor, "urn:1"), first.answer()), "others have its place"


def test_what_a_poll_fetches_may_have_the_key_of_the_request_that_it_is_about(tmp_path: Path) -> None:
    first = exchange_of(tmp_path, "urn:1")
    other = Exchange(tmp_path, first.processor, "urn:2")
    poll = Exchange(tmp_path, first.processor, "urn:3", MakeConnection("urn:me"))
    assert is_believed(poll, first.answer(), relates_to="urn:1")
    assert is_believed(poll, poll.answer(), relates_to="urn:1")
    assert not is_believed(poll, first.answer(), relates_to="urn:2")
    assert not is_believed(poll, first.answer())
    assert not is_believed(other, first.answer(), relates_to="urn:1")


def test_the_log_names_the_attachments_of_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint does not call received() for a message with attachments."""
    exchange = exchange_of(tmp_path)
    context = exchange._context("inbound", is_answer=True)
    context.envelope.attachments = b"any"
    with pytest.raises(ProcessingError):
        exchange.processor.inbound(context)
    assert "SOAP with Attachments), which are not supported in signed messages" in caplog.text


def test_a_fault_that_is_not_protected_is_told_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = exchange_of(tmp_path)
    with pytest.raises(ProcessingError):
        exchange.take(plain("<fault/>"), fault=True)
    assert "told by nobody" in caplog.text


# --- policies -----------------------------------------------------------------------------------------------------


async def test_a_source_meets_the_policy_that_the_destination_publishes(tmp_path: Path) -> None:
    async with Served(tmp_path, clock=time.time) as served:
        file = served.files.certificate
        wsdl = f"{served.url.rstrip('/')}/?wsdl"
        binding = SymmetricBinding("alice", "secret", file)
        async with await Source.from_wsdl(wsdl, ":memory:", processors=[binding]) as source:
            reply = await source.request("<order/>", action="urn:shop/order", timeout=240)
            assert reply.body.tag == "taken"
        for processor, told in (
            (UsernameToken("alice", "secret"), "SymmetricBinding"),
            (SymmetricBinding("alice", "secret", file, suite="Basic256"), "Basic256Sha256"),
            (SymmetricBinding("alice", "secret", file, cipher="aes128-cbc"), "Basic256Sha256"),
        ):
            with pytest.raises(ConfigurationError, match=told):
                await Source.from_wsdl(wsdl, ":memory:", processors=[processor])


async def test_the_policy_of_a_conversation_is_met_by_one_with_a_certificate(tmp_path: Path) -> None:
    async with Served(tmp_path, clock=time.time, conversation=True) as served:
        file = served.files.certificate
        wsdl = f"{served.url.rstrip('/')}/?wsdl"
        conversation = SecureConversation("alice", "secret", certificate=file)
        async with await Source.from_wsdl(wsdl, ":memory:", processors=[conversation]) as source:
            reply = await source.request("<order/>", action="urn:shop/order", timeout=240)
            assert reply.body.tag == "taken"
        for processor, told in (
            (SymmetricBinding("alice", "secret", file), "SecureConversation"),
            (SecureConversation("alice", "secret"), "certificate"),
        ):
            with pytest.raises(ConfigurationError, match=told):
                await Source.from_wsdl(wsdl, ":memory:", processors=[processor])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"suite": "rsa-sha256"}, "rsa-sha256"),
        ({"cipher": "des"}, "des"),
        ({"reference": "token"}, "token"),
        ({"name": ""}, "user name is empty"),
    ],
)
def test_an_unknown_setting_is_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    settings: dict[str, Any] = {"name": "alice", **options}
    with pytest.raises(ConfigurationError, match=told):
        SymmetricBinding(password="secret", certificate=OTHER.files(tmp_path).certificate, **settings)
