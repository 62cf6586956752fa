"""A source that sends under tokens of WS-SecureConversation: against a destination that issues them, and in recordings'
words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import conversation_child
import pytest
from growth import entries
from lxml import etree
from waiting import until

import holdfast
from holdfast import SecureConversation, Source, Versions
from holdfast.endpoint.serve import Listeners, Service
from holdfast.security.conversation.secure_conversation import MOST_NEW_REFUSED
from holdfast.security.conversation.source_tokens import SourceTokens
from holdfast.security.names import FAILED_AUTHENTICATION
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

WSHTTP, WS2007 = Versions("1.0", "2005/08", "1.2"), Versions("1.1", "2005/08", "1.2")
each_binding = pytest.mark.parametrize("versions", [WSHTTP, WS2007], ids=["ws", "ws2007"])
SOON = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.4))
LATE = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=60, floor=60, cap=60))
"""For a test that counts requests: on a slow machine, none is sent a second time."""


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Refusing(holdfast.Processor):
    """Comes after the check of the user, which answers requests for tokens itself."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def inbound(self, context: holdfast.MessageContext) -> None:
        if self._shop.refuses:
            raise holdfast.ProcessingError("not you", code=FAILED_AUTHENTICATION)


class Losing(holdfast.Processor):
    """Comes before the check of the user: the service restarts just before the message, without its tokens."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def inbound(self, context: holdfast.MessageContext) -> None:
        if self._shop.losses and not context.envelope.action.endswith("/SCT"):
            self._shop.losses -= 1
            self._shop.lose_tokens()


class Shop:
    """A destination that demands user names and issues tokens, and a proxy before it that notes what passes."""

    def __init__(self, directory: Path, faults: Faults | None = None, **options: Any) -> None:
        self.got: list[str] = []
        self.users: set[str] = set()
        self.seen: list[Relayed] = []
        options.setdefault("passwords", {"alice": "secret"})
        users = holdfast.UsernameTokenValidator(nonces=directory / "nonces", **options)
        self.contexts = users.sessions._contexts
        self.refuses = False
        """Whether it refuses all messages that are no request for a token."""
        self.losses = 0
        """Number of messages before which it loses all tokens."""
        self.app = holdfast.Destination(directory / "inbox", processors=[Losing(self), users, Refusing(self)])
        self.app.on()(self._handle)
        self.service = Service(self.app, Listeners(port=0))
        self._faults = faults

    def lose_tokens(self) -> None:
        """Lose all tokens, as at a restart without a file for them."""
        self.contexts._db.run("", "DELETE FROM holdfast_contexts")

    async def _handle(self, message: holdfast.Message) -> str | None:
        self.got.append(message.body[0].text or "")
        self.users.add(message.user)
        return f"<r><t>{self.got[-1]}</t></r>" if message.action == "urn:ask" else None

    async def __aenter__(self) -> Shop:
        await self.service.start()
        self.proxy = LossyProxy(self.service.url, self._faults or Faults(), seed=3, on_relayed=self.seen.append)
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.__aexit__(*error)
        await self.service.close(0.0)

    @property
    def actions(self) -> list[str]:
        """The last word of each request's action."""
        found = [re.search(rb"Action[^>]*>([^<]+)<", one.request) for one in self.seen]
        return [one[1].decode().rpartition("/")[2] for one in found if one]

    def requests(self, action: str) -> list[bytes]:
        pattern = re.compile(rb"Action[^>]*>[^<]*%s<" % action.encode())
        return [one.request.partition(b"\r\n\r\n")[2] for one in self.seen if pattern.search(one.request)]


def source_to(
    shop: Shop,
    directory: Path,
    versions: Versions,
    policy: holdfast.SourcePolicy = SOON,
    of_source: Mapping[str, Any] | None = None,
    **options: Any,
) -> Source:
    more = {"versions": versions, "policy": policy, **(of_source or {})}
    options.setdefault("tokens", directory / "tokens")
    conversation = SecureConversation("alice", options.pop("password", "secret"), **options)
    return Source(shop.proxy.url, directory / "outbox", processors=[conversation], **more)


def text_of(number: int) -> str:
    return f"<m><t>{number}</t></m>"


async def send_and_leave_open(shop: Shop, source: Source, number: int) -> None:
    """Send a message, and end the process's use of its Sequence without ending the Sequence."""
    await source.open()
    await source.send(text_of(number), action="urn:tell")
    await source.flush(60)
    await source.close(0)


@each_binding
async def test_a_source_sends_and_asks_under_a_token_that_it_cancels_at_the_end(
    tmp_path: Path, versions: Versions
) -> None:
    async with Shop(tmp_path) as shop:
        async with source_to(shop, tmp_path, versions) as source:
            await source.send(text_of(1), action="urn:tell")
            reply = await source.request(text_of(2), action="urn:ask")
            assert reply.body[0].text == "2"
            await source.end(timeout=240)
        assert shop.got == ["1", "2"] and shop.users == {"alice"}
        assert shop.actions[:2] == ["SCT", "CreateSequence"]
        # A repeat of TerminateSequence may have been on its way when the first one was answered. Nothing else follows.
        assert set(shop.actions[shop.actions.index("Cancel") + 1 :]) <= {"TerminateSequence", "Cancel"}
        assert shop.actions.count("SCT") == 1
        assert not [request for request in shop.requests("CreateSequence") if b"secret" in request]


@each_binding
async def test_a_create_sequence_names_its_token_as_wcf_does(tmp_path: Path, versions: Versions) -> None:
    async with Shop(tmp_path) as shop:
        async with source_to(shop, tmp_path, versions) as source:
            await source.send(text_of(1), action="urn:tell")
            await source.flush(60)
        envelope = etree.fromstring(shop.requests("CreateSequence")[0])
    creation = envelope.find("{*}Body/{*}CreateSequence")
    assert creation is not None
    assert etree.QName(creation[-1]).localname == "SecurityTokenReference"
    token = envelope.find("{*}Header/{*}Security/{*}SecurityContextToken/{*}Identifier")
    assert token is not None and creation[-1][0].get("URI") == token.text
    uses = envelope.find("{*}Header/{*}UsesSequenceSTR")
    assert (uses is not None) == (versions is WS2007)
    assert ("2005/02/sc" in etree.QName(token).namespace) == (versions is WSHTTP)


def creations(shop: Shop) -> set[bytes]:
    """Identifiers of the messages that create Sequences. On a busy machine, a source repeats such a message."""
    return {re.findall(rb"MessageID>([^<]+)<", one)[0] for one in shop.requests("CreateSequence")}


async def test_each_sequence_has_a_token_of_its_own(tmp_path: Path) -> None:
    async with Shop(tmp_path) as shop:
        async with source_to(shop, tmp_path, WS2007) as source:
            for key in "ab":
                await source.send(text_of(1), action="urn:tell", sequence_key=key)
            await source.flush(60)
        under = [
            re.findall(rb"MessageID>([^<]+)<|Identifier>(urn:uuid[^<]+)</c:", one)
            for one in shop.requests("CreateSequence")
        ]
    pairs = {(creation, token) for ((creation, _), (_, token)) in under}
    assert len(pairs) == len({token for _, token in pairs}) == 2


@each_binding
async def test_the_token_and_its_sequence_survive_a_restart(tmp_path: Path, versions: Versions) -> None:
    async with Shop(tmp_path) as shop:
        await send_and_leave_open(shop, source_to(shop, tmp_path, versions), 1)
        await send_and_leave_open(shop, source_to(shop, tmp_path, versions), 2)
        assert shop.got == ["1", "2"]
        assert shop.actions.count("SCT") == len(creations(shop)) == 1


@each_binding
async def test_no_message_is_lost_or_doubled_on_a_bad_network(tmp_path: Path, versions: Versions) -> None:
    async with Shop(tmp_path, Faults(lose_request=0.2, lose_response=0.2, double=0.1)) as shop:
        async with source_to(shop, tmp_path, versions) as source:
            for number in range(10):
                await source.send(text_of(number), action="urn:tell")
            replies = [await source.request(text_of(number), action="urn:ask") for number in range(10, 15)]
            assert [one.body[0].text for one in replies] == [str(number) for number in range(10, 15)]
            await source.end(timeout=240)
        assert shop.proxy.counts.lost > 0
    assert shop.got == [str(number) for number in range(15)]


@each_binding
async def test_a_token_is_renewed_before_it_expires_and_its_sequence_continues(
    tmp_path: Path, versions: Versions
) -> None:
    times = [0.0]

    def clock() -> float:
        return 2e9 + times[0]

    async with Shop(tmp_path, session=1000, clock=clock) as shop:
        async with source_to(shop, tmp_path, versions, LATE, clock=clock) as source:
            for number, times[0] in enumerate((0, 700, 800, 900, 1700, 2300)):
                await source.send(text_of(number), action="urn:tell")
                await source.flush(60)
            await source.end(timeout=240)
        assert shop.got == [str(number) for number in range(6)]
        assert shop.actions.count("SCT") == len(creations(shop)) == 1
        assert shop.actions.count("Renew") == 2
        assert shop.actions[-1] == "Cancel"


async def test_a_wrong_password_stops_the_source_with_the_fault_of_the_service(tmp_path: Path) -> None:
    async with Shop(tmp_path) as shop:
        async with source_to(shop, tmp_path, WS2007, password="wrong") as source:
            sent = await source.send(text_of(1), action="urn:tell")
            with pytest.raises(holdfast.PeerFault) as refused:
                await sent.acknowledged(timeout=240)
            assert refused.value.code == "FailedAuthentication"
    assert set(shop.actions) == {"SCT"} and shop.got == []


async def test_a_lost_token_is_a_lost_sequence(tmp_path: Path) -> None:
    """Without its file: the service does not take messages of the Sequence under another token."""
    async with Shop(tmp_path) as shop:
        await send_and_leave_open(shop, source_to(shop, tmp_path, WS2007, LATE, tokens=None), 1)
        await send_and_leave_open(shop, source_to(shop, tmp_path, WS2007, LATE, tokens=None), 2)
        assert shop.got == ["1", "2"]
        assert len(creations(shop)) == 2


@pytest.mark.every(3)
@each_binding
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("assurance", ["at-least-once", "exactly-once"])
async def test_a_source_continues_after_its_service_has_lost_all_tokens(
    tmp_path: Path, versions: Versions, assurance: Any, restarts: bool
) -> None:
    async with Shop(tmp_path) as shop:

        async def send(source: Source, number: int) -> None:
            await source.send(text_of(number), action="urn:tell")
            try:
                await source.flush(timeout=240)
            except holdfast.SequenceLost:
                assert assurance == "exactly-once", "the user decides about messages that may have arrived"
                source.resume()
                await source.flush(timeout=240)

        options = {"assurance": assurance}
        async with source_to(shop, tmp_path, versions, of_source=options) as source:
            await send(source, 1)
            shop.lose_tokens()
            if not restarts:
                await send(source, 2)
                await send(source, 3)
                assert not {"LastMessage", "CloseSequence"} & set(shop.actions), "a lost Sequence ends no other one"
        if restarts:
            async with source_to(shop, tmp_path, versions, of_source=options) as source:
                await send(source, 2)
                await send(source, 3)
        await shop.app.handled()
        assert shop.got == ["1", "2", "3"]


@each_binding
@pytest.mark.parametrize("is_open", [False, True], ids=["creation", "sequence"])
@pytest.mark.parametrize("losses", [1, pytest.param(2, marks=pytest.mark.nightly), MOST_NEW_REFUSED])
async def test_a_token_lost_before_its_first_use_is_replaced_up_to_a_limit(
    tmp_path: Path, versions: Versions, is_open: bool, losses: int
) -> None:
    async with Shop(tmp_path) as shop:
        async with source_to(shop, tmp_path, versions, of_source={"assurance": "at-least-once"}) as source:
            if is_open:
                await source.send(text_of(1), action="urn:tell")
                await source.flush(timeout=240)
            shop.losses = losses + is_open  # the first one loses a token that was in use
            await source.send(text_of(2), action="urn:tell")
            if losses == MOST_NEW_REFUSED:
                with pytest.raises(holdfast.PeerFault, match="requires other credentials"):
                    await source.flush(timeout=240)
                assert shop.losses == 0
                source.resume()
            await source.flush(timeout=240)
        await shop.app.handled()
        assert shop.got == ["1", "2"][not is_open :]


async def test_a_service_that_refuses_new_tokens_stops_its_source(tmp_path: Path) -> None:
    """Refusals of several tokens that were issued just now do not mean that they are lost."""
    async with Shop(tmp_path) as shop:
        shop.refuses = True
        async with source_to(shop, tmp_path, WS2007) as source:
            await source.send(text_of(1), action="urn:tell")
            for attempt in (1, 2):
                with pytest.raises(holdfast.PeerFault) as refused:
                    await source.flush(timeout=240)
                assert refused.value.code == "FailedAuthentication"
                assert shop.actions.count("SCT") == attempt * MOST_NEW_REFUSED, "each attempt requests three tokens"
                source.resume()
            shop.refuses = False
            with contextlib.suppress(holdfast.PeerFault):
                await source.flush(timeout=240)
            source.resume()
            await source.flush(timeout=240)
        await shop.app.handled()
        assert shop.got == ["1"]


async def test_a_token_that_is_refused_when_it_is_renewed_is_lost(tmp_path: Path) -> None:
    clock = Clock()
    async with Shop(tmp_path, clock=clock, session=100.0) as shop:
        async with source_to(shop, tmp_path, WS2007, clock=clock) as source:
            await source.send(text_of(1), action="urn:tell")
            await source.flush(timeout=240)
            shop.lose_tokens()
            clock.now += 80
            await source.send(text_of(2), action="urn:tell")
            with contextlib.suppress(holdfast.SequenceLost):
                await source.flush(timeout=240)
            source.resume()
            await source.flush(timeout=240)
        await shop.app.handled()
        assert shop.got == ["1", "2"]


@pytest.mark.parametrize("wrong", [{"name": ""}, {"version": "1.4"}, {"tokens": "/nowhere/tokens"}])
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(holdfast.ConfigurationError):
        SecureConversation(**({"name": "alice", "password": "secret"} | wrong))


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(SecureConversation("alice", "secret"))


@pytest.mark.crash
@pytest.mark.nightly
async def test_a_source_killed_again_and_again_keeps_its_token_and_its_sequence(tmp_path: Path) -> None:
    many = 30
    program = [sys.executable, conversation_child.__file__]
    async with Shop(tmp_path, Faults(lose_response=0.1)) as shop:
        for due in (1, 10, 20, many):
            words = [shop.proxy.url, str(tmp_path), str(many)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            process = await asyncio.create_subprocess_exec(*program, *words, env=environment)
            try:
                await until(lambda due=due: len(shop.got) >= due)  # type: ignore[misc]
                if due == many:
                    assert await asyncio.wait_for(process.wait(), 240) == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        assert shop.got == [str(number) for number in range(1, many + 1)]
        tokens = {re.findall(rb"Identifier>(urn:uuid[^<]+)</c:", one)[0] for one in shop.requests("CreateSequence")}
        assert len(tokens) == 1
        assert shop.actions[-1] == "Cancel"


@each_binding
async def test_tokens_in_a_database_are_asked_for_outside_the_event_loop(
    tmp_path: Path, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that answers slowly would hold up every other message."""
    assert SecureConversation("alice", "secret", tokens="postgresql://127.0.0.1:1/shop").waits
    here, there = threading.current_thread(), set()
    for name in ("find", "keep", "use", "forget"):
        method = getattr(SourceTokens, name)

        def noted(*arguments: Any, method: Any = method, name: str = name) -> Any:
            there.add((name, threading.current_thread() is here))
            return method(*arguments)

        monkeypatch.setattr(SourceTokens, name, noted)
    async with Shop(tmp_path) as shop:
        source = source_to(shop, tmp_path, versions)
        (conversation,) = source._envelopes._chain.processors
        conversation.waits = True  # as with the URL of a database
        source._envelopes.process_with([conversation])
        async with source:
            await source.send(text_of(1), action="urn:tell")
            assert (await source.request(text_of(2), action="urn:ask")).body[0].text == "2"
            await source.end(timeout=240)
        assert shop.got == ["1", "2"]
    assert there == {(name, False) for name in ("find", "keep", "use", "forget")}


@pytest.mark.parametrize("ends", [True, False])
async def test_what_is_remembered_of_tokens_does_not_grow_with_their_number(tmp_path: Path, ends: bool) -> None:
    clock, counts = Clock(), []
    async with Shop(tmp_path, clock=clock, session=100.0) as shop:
        source = source_to(shop, tmp_path, WS2007, clock=clock)
        (conversation,) = source._envelopes._chain.processors
        async with source:
            for number in range(8):
                await source.send(text_of(number), action="urn:tell", sequence_key=str(number))
                await source.flush(60)
                conversation._unproven[f"refused-{number}"] = 1, clock() + 50
                conversation._untried[f"untried-{number}"] = f"use-{number}", clock() + 50
                conversation._refused[f"use-{number}"] = 1, clock() + 50
                if ends:
                    await source.end(str(number), timeout=240)
                clock.now += 150
                counts.append(entries(conversation))
    assert counts[-1] == counts[2], (counts[2], counts[-1])
