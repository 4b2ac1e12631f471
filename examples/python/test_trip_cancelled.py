"""A trip that is cancelled at the same time as another event."""

from __future__ import annotations

import threading

import pytest
from test_trip import Services, db, services, start, status
from trip import Trip, TripRow

from xdb.testing.pytest_plugin import Database

__all__ = ["db", "services"]


def test_it_is_cancelled_while_the_payment_is_under_way(db: Database, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank gets the payment after it was taken back, and refuses it."""
    asked, closed, paid = threading.Event(), threading.Event(), threading.Event()
    book = services.book

    def slow(service: str, key: str) -> None:
        if service != "payment":
            return book(service, key)
        asked.set()
        assert closed.wait(60)
        try:
            book(service, key)
        finally:
            paid.set()

    monkeypatch.setattr(services, "book", slow)
    start(db)
    assert asked.wait(60)
    db.client.rpc(Trip.cancel, "trip", "ill")
    assert db.client.wait(Trip, "trip").output == "ill"
    closed.set()
    assert paid.wait(60)
    assert (status(db), services.booked, services.order()) == ("cancelled", set(), ["payment", "hotel", "flight"])


def test_it_is_cancelled_before_its_first_step(db: Database, services: Services) -> None:
    [(day,)] = db.execute("SELECT now() + interval '1 day'")
    db.client.start(Trip, "trip", rows=[TripRow.row("t", begins_at=day)], start_at=day)
    db.client.rpc(Trip.cancel, "trip", "ill")
    assert db.client.wait(Trip, "trip").output == "ill"
    assert (status(db), services.booked, services.order()) == ("cancelled", set(), [])


def test_it_is_cancelled_while_it_is_undone(db: Database, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second cancellation changes nothing."""
    start(db)
    db.clock.settle()
    asked, go_on = threading.Event(), threading.Event()
    take_back = services.take_back

    def slow(service: str, key: str) -> None:
        asked.set()
        assert go_on.wait(60)
        take_back(service, key)

    monkeypatch.setattr(services, "take_back", slow)
    db.client.rpc(Trip.cancel, "trip", "ill")
    assert asked.wait(60)
    db.client.rpc(Trip.cancel, "trip", "really ill")
    go_on.set()
    assert db.client.wait(Trip, "trip").status == "FAILED"
    assert (status(db), services.booked, services.order()) == ("cancelled", set(), ["payment", "hotel", "flight"])
