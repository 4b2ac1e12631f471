"""An order whose steps write to the database: stock, invoice and shipment are booked exactly once, even after a crash.

    python order_desk.py                    # with PGHOST and so on; start as many as you like

It is a pull worker: it claims its calls with SQL, over an ordinary connection. Each step is completed in the transaction in which its
handler wrote, so both are committed, or neither is.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import xdb

TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, article text NOT NULL, status text NOT NULL DEFAULT 'new');
CREATE TABLE stock (article text PRIMARY KEY, amount int NOT NULL CHECK (amount >= 0));
CREATE TABLE invoices (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL);
CREATE TABLE shipments (order_id text NOT NULL, article text NOT NULL)
"""


class OrderRow(xdb.Row, table="public.orders", key="order_id"):
    article: str
    status: str


def book(sql: str, *params: Any) -> Any:
    """Executes a statement in the step's transaction."""
    return xdb.connection().execute(sql, params)


class Order(xdb.Process):
    order: OrderRow
    paid = xdb.Queue[str]()

    @xdb.state(start=True, retry=xdb.Retry(attempts=3, initial=timedelta(seconds=1)), on_failure="sold_out")
    def reserve(self, order_id: str) -> xdb.Decision:
        book("UPDATE stock SET amount = amount - 1 WHERE article = %s", self.order.article)
        book("INSERT INTO invoices (order_id) VALUES (%s)", order_id)
        self.order.status = "reserved"
        return self.ship(order_id)

    @xdb.state(wait=xdb.any_of(paid, xdb.timer(days=3)))
    def ship(self, order_id: str) -> xdb.Decision:
        if not self.paid.received:
            return self.give_back(order_id)
        book("INSERT INTO shipments VALUES (%s, %s)", order_id, self.order.article)
        self.order.status = "shipped"
        return xdb.complete(self.paid.message)

    @xdb.state
    def give_back(self, order_id: str) -> xdb.Decision:
        book("UPDATE stock SET amount = amount + 1 WHERE article = %s", self.order.article)
        book("DELETE FROM invoices WHERE order_id = %s", order_id)
        self.order.status = "cancelled"
        return xdb.fail("it was not paid")

    @xdb.state
    def sold_out(self, order_id: str) -> xdb.Decision:
        self.order.status = "sold out"
        return xdb.fail("sold out")


worker = xdb.PullWorker(Order, name="order-desk", threads=2)

if __name__ == "__main__":
    worker.run()
