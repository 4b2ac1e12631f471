"""Messages that start processes: each message of the global queue `orders` starts an order, once. Its key is the customer. Orders of one
customer run one at a time, in the order of their messages.

    python -m xdb serve queue_starts:worker

One process takes the messages: `client.start(Orders, "orders")`. The application publishes them:
`client.publish_global(Orders.incoming, NewOrder("1", "bicycle"), key="alice")`.

Limitations: a step takes one message, because a refused start refuses the whole answer. `examples/queue-starts` takes up to 100. With
several processes of the type `Orders`, two of them may take messages of one customer at the same time. Then the order of their starts
counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import xdb


@dataclass
class NewOrder:
    number: str
    article: str


@dataclass
class Refused:
    order: NewOrder
    why: str


def ship(order: NewOrder) -> None:
    """Asks the warehouse. It ignores an order whose number it has seen."""
    print(f"{order.number}: please send a {order.article}", flush=True)


class Order(xdb.Process):
    @xdb.state(start=True)
    def send(self, order: NewOrder) -> xdb.Decision:
        ship(order)
        return xdb.complete()


class Orders(xdb.Process, history=100):
    incoming = xdb.GlobalQueue[NewOrder]("orders")
    refused = xdb.GlobalQueue[Refused]("orders.refused")

    @xdb.state(start=True, wait=incoming)
    def take(self) -> xdb.Decision:
        message, error = self.incoming.message, self.call.database_error
        # After a conflict (40...) or a lack of resources (5...), the start is tried again.
        if error is not None and not error.sqlstate.startswith(("40", "5")):
            self.refused.publish(Refused(message.payload, error.message), key=message.key)
            return self.take()
        locks = [] if message.key is None else [f"orders/{message.key}"]
        # The number is in the process id, so a second order with this number is refused.
        id = f"order-{message.payload.number}"
        self.start_child(Order, message.payload, id=id, id_reuse="disallow_reuse", locks=locks, leave=True)
        return self.take()


worker = xdb.Worker(Orders, Order)
