"""A nightly report: a schedule starts a process, which starts a child for each shop and adds up what they have counted.

    python -m xdb serve nightly_report:worker

`schedule(client)` makes the schedule, or replaces it. The type `Schedule` is registered once: see docs/reference/schedules.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import xdb


def open_shops() -> list[str]:
    return ["berlin", "oslo", "rome"]


def count_sales(shop: str) -> Decimal:
    """Asks a shop for the sales of the day."""
    return Decimal(len(shop)) * 100


@dataclass
class Report:
    total: Decimal
    missing: list[str]  # shops that have not answered


class ShopSales(xdb.Process, timeout=timedelta(minutes=30)):
    """The child of one shop. Because of its timeout, the report does not wait for ever."""

    @xdb.state(start=True, retry=xdb.Retry(attempts=8))
    def count(self, shop: str) -> xdb.Decision:
        return xdb.complete(count_sales(shop))


class NightlyReport(xdb.Process):
    closed = xdb.Queue[xdb.ChildClosed]()

    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        shops = open_shops()
        if not shops:
            return xdb.complete(Report(Decimal(0), []))
        for shop in shops:
            self.start_child(ShopSales, shop, id=f"{self.call.process_id}/{shop}", on_close=self.closed)
        return self.add_up(len(shops))

    def all_closed(self, shops: int) -> xdb.Wait:
        return self.closed.take(shops)

    @xdb.state(wait=all_closed)
    def add_up(self, shops: int) -> xdb.Decision:
        total = sum((Decimal(child.result) for child in self.closed.messages if child.completed), Decimal(0))
        missing = [child.process_id.rpartition("/")[2] for child in self.closed.messages if not child.completed]
        return xdb.complete(Report(total, sorted(missing)))


def schedule(client: xdb.Client) -> None:
    """Starts a report at three o'clock each night, for instance `report-20270328T010000Z`."""
    client.schedule("nightly-report", "0 3 * * *", xdb.Start(NightlyReport, "report-{time}"), timezone="Europe/Rome")


worker = xdb.Worker(NightlyReport, ShopSales)
