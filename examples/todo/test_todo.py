from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import todo
from todo import ApproveOrder, Email, LaunchVendorActivityReport, Mail, OrderInfo, TakeOrder

from xdb.testing.pytest_plugin import Database

PLACED = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
ORDER = OrderInfo("order-1", "test@example.com", PLACED)


@pytest.fixture
def shop(xdb_db: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    xdb_db.execute(todo.MERGE_REPORT)
    xdb_db.serve(TakeOrder, ApproveOrder, Email, LaunchVendorActivityReport)
    monkeypatch.setattr(todo, "client", xdb_db.client)
    return xdb_db


def failing(times: int, what: object = ConnectionError("it does not answer")) -> tuple[list[int], object]:
    """A counter of calls, and a function that raises or returns `what` in its first `times` calls, and then returns 7."""
    calls = [0]

    def function(*_: object) -> object:
        calls[0] += 1
        if calls[0] > times:
            return 7
        if isinstance(what, Exception):
            raise what
        return what

    return calls, function


def events(db: Database) -> list[str]:
    return [str(event) for (event,) in db.execute("SELECT event_type FROM xdb.history ORDER BY execution_id, event_id")]


def test_a_mail_is_sent_once_and_forgotten(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    mail = shop.client.start(Email, None, Mail("test@example.com", "Hello", "This message is from todo"))
    assert mail.process_id == str(mail.execution_id)
    shop.clock.settle()
    assert capsys.readouterr().out == "to test@example.com: Hello\n"


def test_an_order_is_taken_and_approved_later(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    shop.client.start(TakeOrder, "order-1", ORDER)
    shop.clock.settle()
    out = capsys.readouterr().out
    assert "order-1 is stored in 7" in out and "to test@example.com: Order order-1" in out
    approval = shop.client.wait(ApproveOrder, "approve-order-1")
    assert approval.result == "approved by sys"


def test_it_is_executed_again_until_there_is_room(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, partition = failing(2, None)
    monkeypatch.setattr(todo.shop, "partition", partition)
    shop.client.start(TakeOrder, "order-1", ORDER)
    shop.clock.settle()
    assert calls == [1]
    shop.clock.advance(seconds=11)
    shop.clock.advance(seconds=11)
    assert calls == [3]


def test_an_error_keeps_the_changes_and_the_order_resumes_there(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, partition = failing(1)
    monkeypatch.setattr(todo.shop, "partition", partition)
    monkeypatch.setattr(todo, "throttled", lambda attempt: timedelta(minutes=attempt))
    shop.client.start(TakeOrder, "order-1", ORDER)
    shop.clock.settle()
    assert calls == [1] and shop.client.local(TakeOrder, "order-1").looked == 1
    shop.clock.advance(minutes=2)
    assert calls == [2]
    assert shop.client.wait(ApproveOrder, "approve-order-1").status == "COMPLETED"


def test_an_order_that_fails_too_often_goes_to_the_reject_queue(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(todo, "MAX_ENQUEUE_AUTO_APPROVE_RETRIES", 2)
    calls, enqueue = failing(9)
    monkeypatch.setattr(todo.shop, "enqueue_approval", enqueue)
    shop.client.start(TakeOrder, "order-1", ORDER)
    shop.clock.settle()
    shop.clock.advance(seconds=4)
    shop.clock.advance(seconds=7)
    assert calls == [3]
    assert shop.execute("SELECT queue_name, payload FROM xdb.queue_messages") == [("rejected", "order-1")]


def test_an_approval_that_is_asked_for_again_is_there_once(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue, asked = todo.shop.enqueue_approval, list[str]()

    def answer_is_lost_once(order_id: str, at: datetime) -> None:
        enqueue(order_id, at)
        asked.append(order_id)
        if len(asked) == 1:
            raise OSError("the answer was lost")

    monkeypatch.setattr(todo.shop, "enqueue_approval", answer_is_lost_once)
    shop.client.start(TakeOrder, "order-1", ORDER)
    shop.clock.settle()
    shop.clock.advance(seconds=4)
    assert shop.client.wait(ApproveOrder, "approve-order-1").status == "COMPLETED"
    assert asked == ["order-1", "order-1"]
    assert shop.execute("SELECT count(*) FROM xdb.processes WHERE process_type = 'ApproveOrder'") == [(1,)]
    assert shop.execute("SELECT error_type FROM xdb.failures") == []


def test_many_requests_are_one_report(shop: Database) -> None:
    now = datetime.now(timezone.utc)
    first = todo.request_report(shop.client, "vendor-7", "2026-10-05", now + timedelta(minutes=10))
    assert todo.request_report(shop.client, "vendor-7", "2026-10-01", now + timedelta(minutes=40)) == first
    assert todo.request_report(shop.client, "vendor-7", "2026-10-03", now + timedelta(minutes=95)) == first
    assert todo.request_report(shop.client, "vendor-8", "2026-09-01", now + timedelta(minutes=40)) != first
    other = todo.request_report(shop.client, "vendor-7", "2026-09-01", now + timedelta(minutes=160))
    assert other != first
    outcome = shop.clock.run_until_closed(first.process_id)
    assert outcome.result == "vendor-7 from 2026-10-01"
    assert events(shop).count("StartMerged") == 2
