from __future__ import annotations

from datetime import timedelta

import pytest
import trip
from trip import Trip, TripRow

import xdb
from xdb.testing.pytest_plugin import Database


class Services:
    """What the services have booked. `lost` has calls that work, and whose first answer is lost."""

    def __init__(self) -> None:
        self.booked: set[str] = set()
        self.taken_back: list[str] = []
        self.lost: set[tuple[str, str]] = set()

    def book(self, service: str, key: str) -> None:
        if key in self.taken_back:
            raise xdb.Fatal("TakenBack", key)
        self.booked.add(key)
        self.answer("book", service)

    def take_back(self, service: str, key: str) -> None:
        self.taken_back.append(key)
        self.booked.discard(key)
        self.answer("take back", service)

    def answer(self, call: str, service: str) -> None:
        if (call, service) in self.lost:
            self.lost.remove((call, service))
            raise ConnectionError("the answer was lost")

    def order(self) -> list[str]:
        """The services in the order in which they were taken back. A call may come twice."""
        return list(dict.fromkeys(key.rpartition("/")[2] for key in self.taken_back))


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    services = Services()
    monkeypatch.setattr(trip, "services", services)
    return services


@pytest.fixture
def db(xdb_db: Database, services: Services) -> Database:
    xdb_db.execute(trip.TABLES)
    xdb_db.serve(Trip)
    return xdb_db


def start(db: Database) -> None:
    [(now,)] = db.execute("SELECT now()")
    db.client.start(Trip, "trip", rows=[TripRow.row("t", begins_at=now + timedelta(days=30))])


def status(db: Database) -> str:
    [(found,)] = db.execute("SELECT status FROM trips")
    return str(found)


def test_a_good_trip(db: Database, services: Services) -> None:
    services.lost = {("book", "hotel")}
    start(db)
    db.clock.advance(days=1)
    assert status(db) == "booked" and len(services.booked) == 3
    assert db.clock.run_until_closed("trip").result == "a good trip"
    with pytest.raises(xdb.errors.NotRunning):
        db.client.rpc(Trip.cancel, "trip", "too late")
    assert len(services.booked) == 3


def test_it_is_cancelled_after_days(db: Database, services: Services) -> None:
    """The first answer to each undoing is lost, so each is called twice."""
    services.lost = {("take back", service) for service in trip.SERVICES}
    start(db)
    db.clock.advance(days=3)
    db.client.rpc(Trip.cancel, "trip", "ill")
    assert db.clock.run_until_closed("trip").output == "ill"
    assert (status(db), services.booked) == ("cancelled", set())
    assert services.order() == ["payment", "hotel", "flight"] and len(services.taken_back) >= 6


def test_a_hotel_that_books_and_never_answers(db: Database, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    book = services.book

    def fails(service: str, key: str) -> None:
        book(service, key)
        if service == "hotel":
            raise ConnectionError("no answer")

    monkeypatch.setattr(services, "book", fails)
    start(db)
    assert db.clock.run_until_closed("trip").status == "FAILED"
    assert (status(db), services.booked, services.order()) == ("cancelled", set(), ["hotel", "flight"])
