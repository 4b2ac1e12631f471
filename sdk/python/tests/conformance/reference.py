"""The reference worker of sdk/conformance, as its README describes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import xdb


class Item(xdb.Row, table="public.items", key="id"):
    name: str
    amount: Decimal
    note: str | None


@dataclass
class Gathered:
    words: list[str]
    fired: bool
    skipped: bool
    price: Decimal | None
    key: str | None


class Conformance(xdb.Process, locks=["conformance", xdb.Shared("system")], changes="conformance-events", guards=["stopped"]):
    item: Item
    tries: int = 0
    tags: list[str] = []
    words = xdb.Queue[str]()
    amounts = xdb.Queue[Decimal]()
    ended = xdb.Queue[xdb.ChildClosed]()
    stops = xdb.Queue[str]()
    prices = xdb.GlobalQueue[Decimal]("prices")

    @xdb.state(start=True, compensate="look")
    def begin(self) -> xdb.Decision:
        self.tries += 1
        return self.gather()

    @xdb.state(
        wait=xdb.any_of(
            xdb.all_of(words.take(2, id="words"), xdb.timer(seconds=90, id="patience")), prices.take(key="EUR", id="price")
        )
    )
    def gather(self) -> xdb.Decision:
        patience, price = xdb.results().timer("patience"), self.prices.message if self.prices.received else None
        return xdb.complete(
            Gathered(
                words=self.words.messages,
                fired=patience.fired,
                skipped=patience.skipped,
                price=price.payload if price else None,
                key=price.key if price else None,
            )
        )

    def patience(self) -> xdb.Wait:
        words = self.words.take(at_least=1, at_most=self.tries, id="words")
        return xdb.any_of(words, xdb.timer(seconds=self.tries, id="patience"))

    @xdb.state(wait=patience)
    def later(self) -> xdb.Decision:
        return xdb.end_thread()

    @xdb.state(wait=xdb.timer(days=1, id="day"), interrupting=False)
    def nag(self) -> xdb.Decision:
        return self.nag()

    @xdb.state(wait=stops)
    def stopped(self) -> xdb.Decision:
        return xdb.compensate(self.stops.message)

    @xdb.state(guards=[nag], on_failure=xdb.COMPENSATE)
    def decide(self, how: str) -> xdb.Decision:
        if how == "fatal":
            raise xdb.Fatal("OutOfStock", "no more red ones")
        if how == "busy":
            raise xdb.Retryable("Busy", "come back")
        if how == "broken":
            raise RuntimeError("it is broken")
        if how == "both":
            return self.begin() + self.decide("end")
        if how == "abort":
            xdb.abort(self.later, "gather-2")
            return xdb.end_thread()
        if how == "alone":
            xdb.abort("*")
            return xdb.end_thread()
        if how == "children":
            self.start_child(
                Conformance,
                id="child-1",
                rows=[Item.row("i-7", amount=Decimal("12.30"))],
                local={"tags": ["a"]},
                id_reuse="disallow_reuse",
                timeout=60,
                priority=3,
                locks=["child", xdb.Shared("system")],
                on_close=self.ended,
            )
            self.start_child(Conformance, "end", rows=[Item.row("i-8")], starting_state=Conformance.decide, leave=True)
            return self.joined()
        if how == "if-empty":
            return xdb.complete_if_empty(self.words, result=7, otherwise=self.begin())
        return {
            "complete": xdb.complete("done"),
            "force": xdb.force_complete(),
            "fail": xdb.fail({"why": "no more red ones"}),
            "end": xdb.end_thread(),
            "undo": xdb.compensate({"why": "no more red ones"}),
        }[how]

    @xdb.state(wait=ended.take(2))
    def joined(self) -> xdb.Decision:
        return xdb.complete([[one.process_id, one.status, one.result, one.reason, one.omitted] for one in self.ended.messages])

    @xdb.state(wait=xdb.cron("0 3 * * mon-fri", timezone="Europe/Berlin", id="tick"))
    def daily(self) -> xdb.Decision:
        tick = xdb.results().timer("tick").fire_at
        assert tick is not None
        return xdb.complete(int(tick.timestamp()))

    @xdb.state
    def origin(self) -> xdb.Decision:
        call, parent = self.call, self.call.parent
        of = [parent.process_id, parent.execution_id, parent.state_execution_id] if parent else None
        return xdb.complete([of, call.guards, call.compensates])

    @xdb.state
    def write(self, amount: Decimal) -> xdb.Decision:
        self.item.amount += amount
        self.item.note = self.item.name
        self.tags.append("b")
        self.words.publish("Größe")
        self.prices.publish(amount, key="EUR", message_id="m-1", ttl=timedelta(minutes=1))
        return xdb.end_thread()

    @xdb.state
    def look(self) -> xdb.Decision:
        return xdb.complete([self.item.name, self.item.amount, self.item.note, self.tags, self.tries])

    @xdb.state
    def told(self) -> xdb.Decision:
        recovered, refused = self.call.recovered_from, self.call.database_error
        assert recovered is not None and refused is not None
        return xdb.complete([recovered.error_type, recovered.detail, refused.sqlstate, refused.constraint, self.call.attempt])

    @xdb.state
    def who(self) -> xdb.Decision:
        call = self.call
        return xdb.complete([call.process_id, str(call.execution_id), call.state_execution_id, call.id, call.owner])

    @xdb.rpc
    def add(self, amount: Decimal) -> Decimal:
        self.amounts.publish(amount, message_id="m-1")
        return self.item.amount + amount

    @xdb.rpc
    def adopt(self, id: str) -> str:
        xdb.abort(self.later)
        self.start_child(Conformance, id=id, rows=[Item.row(id)])
        return id

    @xdb.rpc
    def nothing(self) -> None:
        assert self.call.owner is None
