"""A header that each message must carry, and each destination must check.

    DIGEST_KEY=secret holdfast serve checked:app --port 8080
    DIGEST_KEY=secret python checked.py http://localhost:8080/

Every envelope carries its tenant, and a keyed digest (HMAC, RFC 2104) of all its octets and the time. Each attempt
writes the headers again, so that a retransmission carries its own time.
"""

import asyncio
import hashlib
import hmac
import os
import re
import sys
import time

import holdfast


class Digest(holdfast.Processor):
    """Signs each sent envelope and checks each received one; an intermediary must not change a single octet.

    Args:
        key: The secret that both ends share.
        patience: Seconds by which a message may be older than this machine's clock, or ahead of it.
    """

    understands = ("{urn:example:digest}Digest",)
    header = re.compile(
        rb'<d:Digest xmlns:d="urn:example:digest"(?: s:mustUnderstand="1")? at="(\d{1,12})">([0-9a-f]{64})</d:Digest>'
    )

    def __init__(self, key: bytes, patience: float = 300.0) -> None:
        self.key, self.patience = key, patience

    def encoded(self, context: holdfast.MessageContext, data: bytes) -> bytes:
        at = b"%d" % time.time()
        # A destination that cannot check a request must refuse it. An answer stays readable: it may be a fault.
        mark = b"" if context.is_answer else b' s:mustUnderstand="1"'
        header = b'<d:Digest xmlns:d="urn:example:digest"%b at="%b">%b</d:Digest>' % (mark, at, self.digest(at, data))
        return data.replace(b"</s:Header>", header + b"</s:Header>", 1)

    def inbound(self, context: holdfast.MessageContext) -> None:
        found = self.header.search(context.data)
        if found is None:
            raise holdfast.ProcessingError("The header Digest is missing.")
        rest = context.data[: found.start()] + context.data[found.end() :]
        if not hmac.compare_digest(self.digest(found[1], rest), found[2]):
            raise holdfast.ProcessingError("The Digest does not match this message and key.")
        if abs(time.time() - int(found[1])) > self.patience:
            raise holdfast.ProcessingError("The Digest is too old.", sender=False)  # a newer attempt may do

    def digest(self, at: bytes, data: bytes) -> bytes:
        return hmac.new(self.key, at + data, hashlib.sha256).hexdigest().encode()


class Tenant(holdfast.Processor):
    """Names the tenant of each request at a source, and accepts only known tenants at a destination."""

    name = "{urn:example:tenants}Tenant"
    understands = (name,)

    def __init__(self, *names: str) -> None:
        self.names = names

    def outbound(self, context: holdfast.MessageContext) -> None:
        if not context.is_answer:
            header = f"<t:Tenant xmlns:t='urn:example:tenants'>{self.names[0]}</t:Tenant>"
            context.add_header(header, must_understand=True)

    def inbound(self, context: holdfast.MessageContext) -> None:
        if context.is_answer:
            return
        tenant = context.header(self.name)
        if tenant is None or tenant.text not in self.names:
            raise holdfast.ProcessingError("The header Tenant names an unknown tenant.")


KEY = os.environ.get("DIGEST_KEY", "secret").encode()

# The first processor is next to the network, so that its digest covers the tenant, too.
app = holdfast.Destination(store="checked", processors=[Digest(KEY), Tenant("acme", "zenith")])


@app.on("urn:orders/Submit")
def submit(message: holdfast.Message) -> None:
    (tenant,) = [header.text for header in message.headers if header.tag == Tenant.name]
    print(tenant, "orders", message.body.text, flush=True)


async def main(url: str) -> None:
    async with holdfast.Source(url, store="checked-outbox", processors=[Digest(KEY), Tenant("acme")]) as source:
        for number in range(10):
            await source.send(f"<order xmlns='urn:orders'>{number}</order>", action="urn:orders/Submit")
        await source.flush(timeout=60)
        print("stored there:", source.progress.acknowledged)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/"))
