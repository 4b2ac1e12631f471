"""A subscription: billed on the same day of every month, for years, until the customer cancels it or the card is refused.

    python -m xdb serve subscription:worker
"""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta
from decimal import Decimal

import xdb

TABLES = """
CREATE TABLE subscriptions (subscription_id text PRIMARY KEY, price numeric NOT NULL, card text NOT NULL,
    status text NOT NULL DEFAULT 'active', paid_until timestamptz)
"""


PATIENCE = xdb.Retry(initial=timedelta(hours=6), maximum=timedelta(days=1), give_up_after=timedelta(days=7))


def charge(card: str, amount: Decimal, idempotency_key: str) -> None:
    """Charges a card. The payment provider ignores a request whose key it has seen."""
    print(f"{amount} from {card}", flush=True)


def months_after(day: datetime, months: int) -> datetime:
    """The same day some months later, or the last day of a shorter month."""
    year, month = divmod(day.month - 1 + months, 12)
    last = calendar.monthrange(day.year + year, month + 1)[1]
    return day.replace(year=day.year + year, month=month + 1, day=min(day.day, last))


class Plan(xdb.Row, table="public.subscriptions", key="subscription_id"):
    price: Decimal
    card: str
    status: str
    paid_until: datetime | None


class Subscription(xdb.Process, history=100):  # keeps about the latest hundred events
    plan: Plan
    months: int = 0
    cancelled = xdb.Queue[str]()

    @xdb.state(start=True, retry=PATIENCE, on_failure="suspend")
    def bill(self) -> xdb.Decision:
        charge(self.plan.card, self.plan.price, idempotency_key=self.call.id)
        self.months += 1
        # Counted from the first day. Counted from the last payment, the 31st would become the 28th for ever, after February.
        self.plan.paid_until = months_after(self.call.process_started_at, self.months)
        return self.next_month()

    def due(self) -> xdb.Wait:
        return xdb.any_of(self.cancelled, xdb.timer(at=self.plan.paid_until))

    @xdb.state(wait=due)
    def next_month(self) -> xdb.Decision:
        if self.cancelled.received:
            self.plan.status = "cancelled"
            return xdb.complete(f"cancelled after {self.months} months: {self.cancelled.message}")
        return self.bill()

    @xdb.state
    def suspend(self) -> xdb.Decision:
        self.plan.status = "suspended"
        return xdb.fail(f"not paid: {self.call.recovered_from.detail if self.call.recovered_from else ''}")

    @xdb.rpc
    def cancel(self, why: str) -> datetime | None:
        """Cancels the subscription. Returns until when it is paid."""
        self.cancelled.publish(why)
        return self.plan.paid_until


worker = xdb.Worker(Subscription)
