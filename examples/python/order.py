"""An order that can be cancelled at any time, until the parcel has left: also while a step is running or failing.

    python -m xdb serve order:worker

One thread does the work, another one waits for the cancellation. Whichever closes the process ends the other.
"""

from __future__ import annotations

from decimal import Decimal

import xdb

TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, article text NOT NULL, total numeric NOT NULL,
    status text NOT NULL DEFAULT 'new', payment text)
"""


class Warehouse:
    """Of another department. Both are of no effect the second time."""

    def ship(self, order_id: str, article: str) -> None:
        print(f"{order_id}: {article} leaves", flush=True)

    def call_back(self, order_id: str) -> None:
        print(f"{order_id} stays, or comes back", flush=True)


def pay_back(payment: str, amount: Decimal) -> None:
    print(f"{amount} of payment {payment} goes back", flush=True)


warehouse = Warehouse()


class OrderRow(xdb.Row, table="public.orders", key="order_id"):
    article: str
    total: Decimal
    status: str
    payment: str | None


class Order(xdb.Process):
    order: OrderRow
    paid = xdb.Queue[str]()
    cancelled = xdb.Queue[str]()

    @xdb.state(start=True)
    def place(self) -> xdb.Decision:
        self.order.status = "placed"
        return self.pay() + self.watch()  # two threads

    @xdb.state(wait=xdb.any_of(paid, xdb.timer(days=3)))
    def pay(self) -> xdb.Decision:
        if not self.paid.received:
            return self.undo("it was not paid")
        self.order.payment, self.order.status = self.paid.message, "paid"
        return self.ship()

    @xdb.state(retry=xdb.Retry(attempts=8), on_failure="undo")
    def ship(self) -> xdb.Decision:
        warehouse.ship(self.call.process_id, self.order.article)
        self.order.status = "shipped"
        return xdb.force_complete("shipped")  # there is nothing to watch for any more

    @xdb.state(wait=cancelled)
    def watch(self) -> xdb.Decision:
        return self.undo(self.cancelled.message)

    @xdb.state(lock="exclusive")
    def undo(self, why: str | None) -> xdb.Decision:
        warehouse.call_back(self.call.process_id)
        if self.order.payment is not None:
            pay_back(self.order.payment, self.order.total)
        self.order.status = "cancelled"
        return xdb.fail(why or "it could not be shipped")

    @xdb.rpc
    def cancel(self, why: str) -> bool:
        """Whether it was not too late."""
        if self.order.status in ("shipped", "cancelled"):
            return False
        self.cancelled.publish(why)
        return True


worker = xdb.Worker(Order)
