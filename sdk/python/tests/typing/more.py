"""All of the API at once, for type checkers: nothing in here is a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import xdb
from xdb.testing import call, wait


@dataclass
class Item:
    sku: str
    amount: int


class Stock(xdb.Row, table="stock", key=("shop", "sku"), columns={"left": "amount_left"}):
    left: int
    note: str | None


class Parcel(xdb.Process, locks=["parcels", xdb.Shared("system")], changes="parcel-events"):
    """A child of a shop, guarded and undone."""

    number: str = ""
    recalls = xdb.Queue[str]()

    @xdb.state(wait=xdb.any_of(xdb.timer(days=1), xdb.cron("@daily", timezone="Europe/Rome", id="tick")), interrupting=False)
    def remind(self) -> xdb.Decision:
        tick: datetime | None = xdb.results().timer("tick").fire_at
        guarded: str | None = self.call.guards
        return self.remind() if tick or guarded else xdb.end_thread()

    @xdb.state(wait=recalls)
    async def recall(self) -> xdb.Decision:
        xdb.abort(self.remind, "take_back-1")
        return xdb.compensate(self.recalls.message)

    @xdb.state(retry=xdb.Retry(attempts=3), on_failure=xdb.RAISE_INCIDENT)
    def take_back(self, item: Item) -> xdb.Decision:
        undone: str | None = self.call.compensates
        return xdb.complete(undone)

    @xdb.state(start=True, guards=[remind, "recall"], compensate=take_back, on_failure=xdb.COMPENSATE)
    def send(self, item: Item) -> xdb.Decision:
        parent: xdb.Parent | None = self.call.parent
        if parent is not None and parent.state_execution_id is None:
            return xdb.compensate()
        return self.send.with_config(on_failure=xdb.COMPENSATE)(item)


class Shop(xdb.Process, name="shop", timeout=timedelta(days=30), history=100, guards=["delivered"]):
    stock: Stock
    tries: int = 0
    seen: list[Item] = []
    items = xdb.Queue[Item]("items")
    closed = xdb.Queue[xdb.ChildClosed]()
    prices = xdb.GlobalQueue[Decimal]("prices")

    @xdb.state
    async def failed(self, item: Item | None) -> xdb.Decision:
        return xdb.end_thread() if item is None else self.pack(item)

    @xdb.state(
        start=True,
        wait=xdb.any_of(xdb.all_of(items.take(2), prices.take(key="EUR")), xdb.timer(hours=1, id="patience"), items),
        wait_retry=xdb.Retry(attempts=2),
    )
    def begin(self) -> xdb.Decision:
        if xdb.results().timer("patience").fired:
            return xdb.force_complete()
        item: Item = self.items.message
        price: Decimal = self.prices.message.payload
        key: str | None = self.prices.messages[0].key
        self.prices.publish(price, key=key, message_id="m", ttl=timedelta(hours=1))
        self.seen.append(item)
        return self.pack(item) + self.failed(None) + self.pack.with_config(retry=xdb.Retry(attempts=1))(item)

    @xdb.state(retry=xdb.Retry(attempts=3, factor=1.5), on_failure=failed, load=("left", "tries"), lock="exclusive")
    def pack(self, item: Item) -> xdb.Decision:
        self.stock.left -= item.amount
        if self.stock.left < 0:
            raise xdb.Fatal("OutOfStock", item.sku)
        return xdb.complete_if_empty(self.items, result=item, otherwise=self.later())

    @xdb.state(wait=xdb.any_of(closed.take(2), xdb.cron("0 3 * * mon-fri")))
    def delivered(self) -> xdb.Decision:
        self.start_child(Parcel, Item("a", 1), on_close=self.closed)
        self.start_child(Parcel, Item("b", 1), id="b", leave=True, local={"number": "7"}, locks=["b"], timeout=timedelta(days=1), priority=1)
        done: list[str] = [child.process_id for child in self.closed.messages if child.completed and not child.omitted]
        why: str | None = self.closed.message.reason
        return xdb.complete([done, why])

    @xdb.state(wait=lambda self: xdb.any_of(self.items, xdb.timer(seconds=self.tries)))
    def later(self) -> xdb.Decision:
        deadline, recovered = self.call.deadline, self.call.recovered_from
        return xdb.fail(recovered.detail if recovered and deadline else xdb.current().id)

    @xdb.rpc
    async def ask(self, sku: str) -> list[Item]:
        return [item for item in self.seen if item.sku == sku]

    @xdb.rpc(timeout=timedelta(seconds=3), lock="share")
    def go_on(self) -> None:
        xdb.abort(self.later, Shop.pack, "pack-2")
        xdb.then(self.later())


def use(asked: xdb.Rpc[str, list[Item]], nothing: xdb.Rpc[None, None], packed: xdb.State[Item]) -> None:
    """The types of what a class has."""


use(Shop.ask, Shop.go_on, Shop.pack)
worker = xdb.Worker(Shop, Parcel, secret=["one", "another"], tolerance=timedelta(minutes=1))
asgi, definition, digest = worker.asgi(), Shop.definition(), Shop.definition_hash()
start: xdb.RowStart = Stock.row({"shop": 1, "sku": "a"}, left=3)
result = call(Shop.begin, received={Shop.items: [Item("a", 1)], Shop.prices: [Decimal(1)]}, rows={Stock: {"left": 1}})
waits_for = wait(Shop.later, local={"tries": 3})
aborted: list[str] = call(Shop.go_on).aborted
children = call(Shop.delivered, received={Shop.closed: [xdb.ChildClosed("p", "e", "Parcel", "COMPLETED", 7)] * 2}).children
reminded = call(Parcel.remind, guards="send-1", fired=["tick"])
undone = call(Parcel.take_back, Item("a", 1), compensates="send-1", parent={"processId": "s", "processExecutionId": "e"})
locks: list[xdb.Lock] = ["account:42", xdb.Shared("system")]


def move(client: xdb.Client) -> None:
    client.move_state("s-1", "pack-1", [Shop.later(), Shop.pack.later(days=1)(Item("a", 1)) + Shop.failed(None)], "by hand")
    client.move_state("s-1", "pack-2", [], execution=None)


def begin(client: xdb.Client) -> None:
    first: xdb.Execution = client.start(Parcel, "p-1", Item("a", 1), locks=locks)
    many: list[xdb.Execution] = client.start_many([xdb.Start(Parcel, None, Item("a", 1), locks=["a"])])
    nightly: xdb.Execution = client.schedule("nightly", "0 3 * * *", xdb.Start(Shop, "shop-{time}"), timezone="Europe/Rome")
    client.publish(Parcel.recalls, first.process_id, f"{len(many)} {nightly.process_id}")
