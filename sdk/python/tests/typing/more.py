"""All of the API at once, for type checkers: nothing in here is a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
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


class Shop(xdb.Process, name="shop", timeout=timedelta(days=30), history=100):
    stock: Stock
    tries: int = 0
    seen: list[Item] = []
    items = xdb.Queue[Item]("items")
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
worker = xdb.Worker(Shop, secret=["one", "another"], tolerance=timedelta(minutes=1))
asgi, definition, digest = worker.asgi(), Shop.definition(), Shop.definition_hash()
start: xdb.RowStart = Stock.row({"shop": 1, "sku": "a"}, left=3)
result = call(Shop.begin, received={Shop.items: [Item("a", 1)], Shop.prices: [Decimal(1)]}, rows={Stock: {"left": 1}})
waits_for = wait(Shop.later, local={"tries": 3})
aborted: list[str] = call(Shop.go_on).aborted


def move(client: xdb.Client) -> None:
    client.move_state("s-1", "pack-1", [Shop.later(), Shop.pack.later(days=1)(Item("a", 1)) + Shop.failed(None)], "by hand")
    client.move_state("s-1", "pack-2", [], execution=None)
