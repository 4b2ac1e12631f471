"""An order that can be cancelled at any time until the parcel has left, even while a step runs or is retried.

    python -m xdb serve order:worker

A running call can't be taken back: the parcel could leave after its shipment was cancelled. So an RPC only notes the cancellation, and
one thread decides. It checks the note before a call that has effects, and again after it, under a lock.
"""

from __future__ import annotations

from decimal import Decimal

import xdb

TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, article text NOT NULL, total numeric NOT NULL,
    status text NOT NULL DEFAULT 'new', payment text)
"""


class Warehouse:
    """The warehouse of another department. Repeating a call has no effect."""

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
    cancelled_because: str | None = None  # written only by `cancel`
    paid = xdb.Queue[str]()
    cancelled = xdb.Queue[str]()

    @xdb.state(start=True)
    def place(self) -> xdb.Decision:
        self.order.status = "placed"
        return self.pay()

    @xdb.state(wait=xdb.any_of(paid, cancelled, xdb.timer(days=3)))
    def pay(self) -> xdb.Decision:
        if self.paid.received:
            self.order.payment = self.paid.message
        if self.cancelled.received:  # it may be both paid and cancelled
            return self.undo(self.cancelled.message)
        if not self.paid.received:
            return self.undo("it was not paid")
        self.order.status = "paid"
        return self.ship()

    @xdb.state(retry=xdb.Retry(attempts=8), on_failure="undo")
    def ship(self) -> xdb.Decision:
        if self.cancelled_because is not None:  # checked in each attempt
            return self.undo(self.cancelled_because)
        warehouse.ship(self.call.process_id, self.order.article)
        return self.shipped()

    @xdb.state(lock="exclusive")
    def shipped(self) -> xdb.Decision:
        if self.cancelled_because is not None:  # cancelled while the warehouse was called
            return self.undo(self.cancelled_because)
        self.order.status = "shipped"
        return xdb.complete("shipped")

    @xdb.state(lock="exclusive")
    def undo(self, why: str | None) -> xdb.Decision:
        warehouse.call_back(self.call.process_id)
        if self.order.payment is not None:
            pay_back(self.order.payment, self.order.total)
        self.order.status = "cancelled"
        return xdb.fail(why or self.cancelled_because or "it could not be shipped")

    @xdb.rpc(lock="exclusive")
    def cancel(self, why: str) -> bool:
        """Cancels the order. Returns False if it is too late."""
        if self.order.status in ("shipped", "cancelled"):
            return False
        self.cancelled_because = why
        self.cancelled.publish(why)
        return True


worker = xdb.Worker(Order)
