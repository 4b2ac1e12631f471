"""Todos: jobs that run once, run later, are retried, or are merged while they wait.

    python -m xdb serve todo:worker

An order is taken step by step. A step that fails is retried after a time that its code chooses. After too many failures the order goes to
a reject queue. The approval is another job, two days later. A mail is a job whose execution is deleted at once. Many requests for a
vendor's report become one report.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

import xdb

MERGE_REPORT = """
CREATE FUNCTION merge_report(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN
    pending || jsonb_build_object('from_date', least(pending ->> 'from_date', new ->> 'from_date'));
"""

MAX_ENQUEUE_AUTO_APPROVE_RETRIES = 50


class Shop:
    """The systems of other departments. Repeating a call with the same order has no effect."""

    def partition(self, order_id: str) -> int | None:
        """Returns the partition for an order. None if there is no room."""
        return 7

    def store(self, order_id: str, part: int) -> None:
        print(f"{order_id} is stored in {part}", flush=True)

    def mail(self, address: str, subject: str, text: str) -> None:
        print(f"to {address}: {subject}", flush=True)

    def enqueue_approval(self, order_id: str, at: datetime) -> None:
        """Starts the approval of an order. Its id and key make sure that there is one, even if this is called again."""
        id = f"approve-{order_id}"
        client.start(ApproveOrder, id, start_at=at, idempotency_key=id)


shop = Shop()
client = xdb.Client()


@dataclass
class OrderInfo:
    order_id: str
    email: str
    placed: datetime
    auto_approve_hours: int = 48


@dataclass
class Mail:
    email: str
    subject: str
    text: str


@dataclass
class Report:
    vendor: str
    from_date: str


def throttled(attempt: int) -> timedelta:
    """A time that grows with each failure. It is random, so that orders that failed together are not retried together."""
    ms = random.randint(1000, 3000)
    return timedelta(milliseconds=min(4 * ms + 5 * 60_000, ms * attempt))


class TakeOrder(xdb.Process, retention=timedelta(0)):
    order: OrderInfo
    part: int | None = None
    looked: int = 0
    rejected = xdb.GlobalQueue[str]("rejected")

    @xdb.state(start=True)
    def take(self, order: OrderInfo) -> xdb.Decision:
        self.order = order
        return self.assign_part()

    @xdb.state
    def assign_part(self) -> xdb.Decision:
        self.looked += 1
        try:
            self.part = shop.partition(self.order.order_id)
        except ConnectionError as error:
            # The attempt fails, but `looked` is stored.
            return xdb.retry("PartitionError", str(error), after=throttled(self.call.attempt))
        if self.part is None:
            return self.assign_part.later(seconds=10)()
        return self.store_order()

    @xdb.state
    def store_order(self) -> xdb.Decision:
        assert self.part is not None
        shop.store(self.order.order_id, self.part)
        return self.send_mail()

    @xdb.state
    def send_mail(self) -> xdb.Decision:
        shop.mail(self.order.email, f"Order {self.order.order_id}", "Thank you.")
        return xdb.complete() if self.order.auto_approve_hours < 0 else self.enqueue_auto_approve()

    @xdb.state(on_failure="reject")
    def enqueue_auto_approve(self) -> xdb.Decision:
        try:
            shop.enqueue_approval(self.order.order_id, self.order.placed + timedelta(hours=self.order.auto_approve_hours))
        except Exception as error:
            if self.call.attempt > MAX_ENQUEUE_AUTO_APPROVE_RETRIES:
                raise xdb.Fatal("Exhausted", str(error)) from error
            raise xdb.Retryable("Unavailable", str(error), after=throttled(self.call.attempt)) from error
        return xdb.complete()

    @xdb.state
    def reject(self) -> xdb.Decision:
        """Publishes the order for a review by other processes or people."""
        self.rejected.publish(self.order.order_id)
        return xdb.complete("rejected")


class ApproveOrder(xdb.Process):
    @xdb.state(start=True)
    def approve(self) -> xdb.Decision:
        print(f"{self.call.process_id}: AUTO APPROVE", flush=True)
        return xdb.complete("approved by sys")


class Email(xdb.Process, retention=timedelta(0)):
    @xdb.state(start=True)
    def send(self, mail: Mail) -> xdb.Decision:
        shop.mail(mail.email, mail.subject, mail.text)
        return xdb.complete()


class LaunchVendorActivityReport(xdb.Process):
    @xdb.state(start=True)
    def launch(self, report: Report) -> xdb.Decision:
        return xdb.complete(f"{report.vendor} from {report.from_date}")


def request_report(calling: xdb.Client, vendor: str, from_date: str, at: datetime) -> xdb.Execution:
    """Requests a report. Requests less than an hour apart become one report: from the earliest date, at the time of the last request."""
    merge = xdb.Merge("public.merge_report", start_at="replace", within=timedelta(minutes=60))
    report = Report(vendor, from_date)
    return calling.start(LaunchVendorActivityReport, None, report, start_at=at, correlation_key=vendor, merge=merge)


worker = xdb.Worker(TakeOrder, ApproveOrder, Email, LaunchVendorActivityReport)
