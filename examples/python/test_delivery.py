from __future__ import annotations

import threading

import delivery
import psycopg
import pytest
from delivery import Delivery, DeliveryRow

import xdb
from xdb.testing.pytest_plugin import Database


@pytest.fixture
def db(xdb_db: Database) -> Database:
    """A delivery that the warehouse has to send."""
    xdb_db.execute(delivery.TABLES)
    xdb_db.serve(Delivery)
    xdb_db.client.start(Delivery, "order-1", rows=[DeliveryRow.row("1", article="bicycle")])
    xdb_db.clock.settle()
    return xdb_db


def status(db: Database) -> str:
    [(found,)] = db.execute("SELECT status FROM deliveries")
    return str(found)


def test_it_is_sent_after_two_reminders(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.clock.advance(days=2.5)
    db.client.publish(Delivery.sent, "order-1", "parcel 7")
    assert db.client.wait(Delivery, "order-1").result == "parcel 7"
    assert status(db) == "sent"
    with pytest.raises(xdb.errors.NotRunning):
        db.client.publish(Delivery.recalls, "order-1", "too late")
    printed = capsys.readouterr().out
    assert printed.count("do not forget") == 2 and "comes back" not in printed


def test_it_is_recalled_after_a_reminder(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.clock.advance(days=1.5)
    db.client.publish(Delivery.recalls, "order-1", "changed my mind")
    outcome = db.client.wait(Delivery, "order-1")
    assert (outcome.status, outcome.output, status(db)) == ("FAILED", "changed my mind", "recalled")
    assert capsys.readouterr().out.count("do not forget") == 1


@pytest.mark.parametrize("sent_first", [True, False])
def test_it_is_sent_and_recalled_at_the_same_moment(db: Database, capsys: pytest.CaptureFixture[str], sent_first: bool) -> None:
    """The recall was accepted before the delivery closed, so it holds."""
    with psycopg.connect(db.dsn) as conn:
        if sent_first:
            db.client.publish(Delivery.sent, "order-1", "parcel 7", conn=conn)
        db.client.publish(Delivery.recalls, "order-1", "changed my mind", conn=conn)
        if not sent_first:
            db.client.publish(Delivery.sent, "order-1", "parcel 7", conn=conn)
    assert db.client.wait(Delivery, "order-1").output == "changed my mind"
    assert status(db) == "recalled"
    assert capsys.readouterr().out.count("comes back") == 1


def test_it_is_recalled_while_the_parcel_is_noted(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`send` has been called, and has not answered yet."""
    send = Delivery.send.fn

    def late(self: Delivery) -> xdb.Decision:
        answer: xdb.Decision = send(self)
        if db.client.describe("order-1").status == "RUNNING":
            db.client.publish(Delivery.recalls, "order-1", "changed my mind")
        return answer

    monkeypatch.setattr(Delivery._xdb.states["send"], "fn", late)
    db.client.publish(Delivery.sent, "order-1", "parcel 7")
    assert db.client.wait(Delivery, "order-1").output == "changed my mind"
    assert status(db) == "recalled"


def test_it_is_sent_while_a_reminder_is_under_way(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """That reminder is the last one."""
    reminders: list[str] = []
    asked, sent = threading.Event(), threading.Event()

    def remind(order_id: str, key: str) -> None:
        reminders.append(order_id)
        asked.set()
        assert sent.wait(60)

    monkeypatch.setattr(delivery.warehouse, "remind", remind)
    db.execute("SELECT xdb.skip_timer('order-1', 'remind-1')")
    assert asked.wait(60)
    db.client.publish(Delivery.sent, "order-1", "parcel 7")
    assert db.client.wait(Delivery, "order-1").result == "parcel 7"
    sent.set()
    db.clock.advance(days=3)
    assert reminders == ["order-1"] and status(db) == "sent"
