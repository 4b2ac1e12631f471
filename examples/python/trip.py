"""A trip of a flight, a hotel and a payment: all of them, or none. It can be cancelled until it begins, even while a call runs.

    python -m xdb serve trip:worker

A call that runs when the trip is cancelled, or that gets no answer, may have booked. So `plan` completes before each call: what it has
planned is undone whatever became of the call. Undoing may come before the booking, and may come twice. So each booking has a key.
"""

from __future__ import annotations

from datetime import datetime

import xdb

TABLES = """
CREATE TABLE trips (trip_id text PRIMARY KEY, begins_at timestamptz NOT NULL, status text NOT NULL DEFAULT 'new')
"""

SERVICES = ["flight", "hotel", "payment"]


class Services:
    """The services of other companies. A booking has a key of ours; a second booking with a key changes nothing."""

    def book(self, service: str, key: str) -> None:
        print(f"{service}: books {key}", flush=True)

    def take_back(self, service: str, key: str) -> None:
        """Undoes the booking with this key, if there is one. From now on the service refuses the key."""
        print(f"{service}: takes back {key}", flush=True)


services = Services()


class TripRow(xdb.Row, table="public.trips", key="trip_id"):
    begins_at: datetime
    status: str


class Trip(xdb.Process):
    trip: TripRow

    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        return self.plan(SERVICES[0])

    @xdb.state(compensate="undo")
    def plan(self, service: str) -> xdb.Decision:
        return self.book(service)

    @xdb.state(retry=xdb.Retry(attempts=5), on_failure=xdb.COMPENSATE)
    def book(self, service: str) -> xdb.Decision:
        services.book(service, self.key(service))
        if service != SERVICES[-1]:
            return self.plan(SERVICES[SERVICES.index(service) + 1])
        self.trip.status = "booked"
        return self.travel()

    @xdb.state(wait=lambda self: xdb.timer(at=self.trip.begins_at))
    def travel(self) -> xdb.Decision:
        return xdb.complete("a good trip")

    @xdb.state(retry=xdb.Retry(attempts=20), on_failure=xdb.RAISE_INCIDENT)
    def undo(self, service: str) -> xdb.Decision:
        services.take_back(service, self.key(service))
        self.trip.status = "cancelled"
        return xdb.end_thread()

    @xdb.rpc
    def cancel(self, why: str) -> None:
        """Cancels the trip. If the trip has begun, the caller gets `xdb.errors.NotRunning`."""
        self.trip.status = "cancelled"
        xdb.then(xdb.compensate(why))

    def key(self, service: str) -> str:
        return f"{self.call.execution_id}/{service}"


worker = xdb.Worker(Trip)
