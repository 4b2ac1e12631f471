"""A delivery: the warehouse is reminded every day until it has sent the parcel, and the customer may recall the order until then.

    python -m xdb serve delivery:worker

Two guards wait beside `send`. `remind` leaves it waiting, `recall` ends it. If the parcel and the recall come at the same moment, one of
them is first, and the other one changes nothing.
"""

from __future__ import annotations

import xdb

TABLES = """
CREATE TABLE deliveries (order_id text PRIMARY KEY, article text NOT NULL, status text NOT NULL DEFAULT 'ordered')
"""


class Warehouse:
    """The warehouse of another company. It ignores a request whose key it has seen."""

    def order(self, order_id: str, article: str) -> None:
        print(f"{order_id}: please send a {article}", flush=True)

    def remind(self, order_id: str, key: str) -> None:
        print(f"{order_id}: please do not forget it", flush=True)

    def call_back(self, order_id: str) -> None:
        print(f"{order_id}: the parcel stays, or comes back", flush=True)


warehouse = Warehouse()


class DeliveryRow(xdb.Row, table="public.deliveries", key="order_id"):
    article: str
    status: str


class Delivery(xdb.Process):
    delivery: DeliveryRow
    sent = xdb.Queue[str]()  # the number of the parcel
    recalls = xdb.Queue[str]()  # why

    @xdb.state(start=True)
    def order(self) -> xdb.Decision:
        warehouse.order(self.call.process_id, self.delivery.article)
        return self.send()

    @xdb.state(wait=xdb.timer(days=1), interrupting=False)
    def remind(self) -> xdb.Decision:
        warehouse.remind(self.call.process_id, key=self.call.id)
        return self.remind()  # waits for another day, while `send` waits

    @xdb.state(wait=recalls)
    def recall(self) -> xdb.Decision:
        warehouse.call_back(self.call.process_id)
        self.delivery.status = "recalled"
        return xdb.fail(self.recalls.message)

    @xdb.state(wait=sent, guards=[remind, recall])
    def send(self) -> xdb.Decision:
        self.delivery.status = "sent"
        # `force` also ends a reminder that is under way.
        return xdb.complete_if_empty(self.recalls, result=self.sent.message, otherwise=self.recall(), force=True)


worker = xdb.Worker(Delivery)
