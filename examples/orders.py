"""Receive messages once and in order.

    holdfast serve orders:app --port 8080

Every order becomes a row of orders.db. After a crash, the destination calls an interrupted handler again with the same
message, so the handler must tolerate a repeat. Here the Sequence and the number are the row's key.
"""

import sqlite3
from contextlib import closing

import holdfast

PRICES = {"box": 12, "crate": 40}

app = holdfast.Destination(store="inbox", assurance="exactly-once in-order")


@app.on("urn:orders/Submit")
def submit(message: holdfast.Message) -> None:
    with closing(sqlite3.connect("orders.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (sequence, number, what, PRIMARY KEY (sequence, number))")
        row = (message.sequence, message.message_number, message.body.text)
        database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row)


@app.on("urn:orders/Price")
async def price(message: holdfast.Message) -> str:
    item = message.body.text or ""
    if item not in PRICES:
        raise holdfast.ApplicationFault(f"There is no {item!r}.")
    return f"<price xmlns='urn:orders'>{PRICES[item]}</price>"
