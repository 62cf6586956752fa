"""A service, and messages to one, with an attachment each: the tests of MTOM with Java stacks share them."""

from __future__ import annotations

from base64 import b64decode, b64encode

from java_contract import COUNT, PATIENCE, Operation, Shop, correct_reply, values
from java_peer import NAMESPACE

import holdfast
from holdfast.wire.attachments.references import XOP_NS

SIZE = 3000
INCLUDE = f"<x:Include xmlns:x='{XOP_NS}' href='cid:data@holdfast'/>"


def data_of(size: int) -> bytes:
    """The bytes that the peers send and expect."""
    return bytes(7 * index % 256 for index in range(size))


class AttachmentShop(Shop):
    """A shop that checks the attachment of each message, and returns it with its reply."""

    size = SIZE

    def _take(self, message: holdfast.Message) -> None:
        super()._take(message)
        (attachment,) = message.attachments
        assert attachment.read() == data_of(self.size)
        assert attachment.media_type == "application/octet-stream"

    async def _echo(self, message: holdfast.Message) -> holdfast.WithAttachments:
        return holdfast.WithAttachments(await super()._echo(message), message.attachments)


def body(operation: str, number: int) -> str:
    return (
        f"<t:{operation} xmlns:t='{NAMESPACE}'><t:key>k</t:key><t:number>{number}</t:number>"
        f'<t:body>&lt;{number}&gt; &amp; "quoted"</t:body>'
        f"<t:data>{INCLUDE}</t:data></t:{operation}>"
    )


async def exchange(source: holdfast.Source, operation: Operation, size: int = SIZE) -> None:
    """Send every message with an attachment; replies are checked with theirs."""
    given = [holdfast.Attachment(data_of(size), content_id="data@holdfast")]
    for number in range(1, COUNT + 1):
        text, action = body(operation, number), f"{NAMESPACE}/{operation}"
        if operation == "notify":
            await source.send(text, action=action, attachments=given)
        else:
            reply = await source.request(text, action=action, attachments=given, timeout=PATIENCE)
            assert values(reply) == correct_reply(number)
            assert [one.read() for one in reply.attachments] == [data_of(size)]
    await source.flush(PATIENCE)


# --- signed: a signature is over the base64, so the data is in the body of what arrives ------------------------------


def data_in(message: holdfast.Message) -> bytes:
    assert message.attachments == ()
    return b64decode(message.body.findtext(f"{{{NAMESPACE}}}data", ""))


class SignedShop(Shop):
    """A shop that checks the data in each message, and returns it in MTOM."""

    def _take(self, message: holdfast.Message) -> None:
        super()._take(message)
        assert data_in(message) == data_of(SIZE)

    async def _echo(self, message: holdfast.Message) -> holdfast.WithAttachments:
        text = (await super()._echo(message)).replace(b64encode(data_of(SIZE)), INCLUDE.encode())
        assert INCLUDE.encode() in text
        return holdfast.WithAttachments(text, [holdfast.Attachment(data_of(SIZE), content_id="data@holdfast")])


async def signed_exchange(source: holdfast.Source, count: int) -> None:
    """Send requests in MTOM; replies are checked with their data."""
    given = [holdfast.Attachment(data_of(SIZE), content_id="data@holdfast")]
    for number in range(1, count + 1):
        text = body("echo", number)
        reply = await source.request(text, action=f"{NAMESPACE}/echo", attachments=given, timeout=PATIENCE)
        assert values(reply) == correct_reply(number)
        assert data_in(reply) == data_of(SIZE)
