"""The service behind the client's contract ``orders``: a one-way operation, a call, and a call that returns nothing."""

from __future__ import annotations

import asyncio

import holdfast

ORDERS = "http://tempuri.org/IOrders"
PROBLEM = "http://schemas.example.org/orders"
REFUSED_ID, LAST_ID = "13", "99"


class Orders:
    """The service, and the calls of its operations by Sequence.

    ``Cancel`` of the order 13 raises the contract's typed fault. ``Cancel`` of the order 99 returns when as many
    clients as there are have called it. From then on, no handler takes ``Submit`` and ``Price``.

    Args:
        clients: So many call ``Cancel`` of the order 99.
    """

    def __init__(self, clients: int = 1) -> None:
        self.called: dict[str, list[str]] = {}
        self.app = app = holdfast.Destination(":memory:", handling=holdfast.HandlingPolicy(concurrency=64))
        leaving, is_closed = clients, asyncio.Event()

        @app.on(f"{ORDERS}/Submit")
        async def submit(message: holdfast.Message) -> None:
            self._note("submit", message)

        @app.on(f"{ORDERS}/Price")
        async def price(message: holdfast.Message) -> str:
            self._note("price", message)
            return '<PriceResponse xmlns="http://tempuri.org/"><PriceResult>12.50</PriceResult></PriceResponse>'

        @app.on(f"{ORDERS}/Cancel")
        async def cancel(message: holdfast.Message) -> None:
            self._note("cancel", message)
            identifier = message.body.findtext("{*}id")
            if identifier == REFUSED_ID:
                detail = f'<Problem xmlns="{PROBLEM}"><Id>13</Id><Reason>it has left</Reason></Problem>'
                raise holdfast.ApplicationFault("too late", detail=detail)
            if identifier == LAST_ID:
                nonlocal leaving
                leaving -= 1
                if leaving == 0:
                    del app.settings.table.handlers[f"{ORDERS}/Submit"], app.settings.table.handlers[f"{ORDERS}/Price"]
                    is_closed.set()
                await is_closed.wait()

    def _note(self, name: str, message: holdfast.Message) -> None:
        self.called.setdefault(message.sequence, []).append(f"{name} {message.message_number}")
