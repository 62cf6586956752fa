"""Send a message, and know that it arrived.

    python send.py http://localhost:8080/

Kill it between the two awaits and start it again: it resumes, and the order arrives once.
"""

import asyncio
import sys

import holdfast


async def main(url: str) -> None:
    async with holdfast.Source(url, store="outbox") as source:
        sent = await source.send("<order xmlns='urn:orders'>12 boxes</order>", action="urn:orders/Submit")
        print("stored here:", sent.message_id)
        await sent.acknowledged(timeout=60)
        print("stored there")

        price = await source.request("<item xmlns='urn:orders'>box</item>", action="urn:orders/Price")
        print("a box costs", price.body.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/"))
