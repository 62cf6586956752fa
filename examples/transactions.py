"""A shop: the order's row, the delivery mark and the confirmation are one transaction.

    export SHOP=postgresql://shop@localhost/shop        # or mariadb://…; pip install 'holdfast[sql]'
    export CUSTOMER=https://customer.example/confirmations
    python transactions.py                              # makes the tables, and sends confirmations until it is stopped
    holdfast serve transactions:app --port 8080         # in a second terminal

If you kill either process at any moment and start it again, each order still has one row, and each row one
confirmation.
"""

import asyncio
import os

import sqlalchemy

import holdfast

SHOP = os.environ.get("SHOP", "postgresql://shop@localhost/shop")
DRIVER = "+psycopg://" if SHOP.startswith("postgresql") else "+pymysql://"
SPACE = "&space=" if "?" in SHOP else "?space="

metadata = sqlalchemy.MetaData()
orders = sqlalchemy.Table("orders", metadata, sqlalchemy.Column("what", sqlalchemy.String(100)))

app = holdfast.Destination(store=f"{SHOP}{SPACE}orders")
customer = holdfast.Source(os.environ.get("CUSTOMER", "http://localhost:9000/"), store=f"{SHOP}{SPACE}confirmations")


@app.on("urn:shop/Order")
def order(message: holdfast.Message, connection: sqlalchemy.Connection) -> None:
    what = message.body.text
    connection.execute(orders.insert().values(what=what))
    customer.send(f"<confirmed xmlns='urn:shop'>{what}</confirmed>", action="urn:shop/Confirmed", connection=connection)


async def main() -> None:
    async with customer:
        metadata.create_all(sqlalchemy.create_engine(SHOP.replace("://", DRIVER, 1)))
        print("sending", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
