"""The clock of a test server: days pass in milliseconds.

It is the server's, for all of its databases: tests that run at the same time each need a server of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..client import Client, Outcome
from ..client.statements import wait as wait_statement

# Real seconds: for what the engine has to do, and how often time may be moved on for one process.
SETTLES_WITHIN = 30.0
ROUNDS = 500

_MICROSECOND = timedelta(microseconds=1)

# What the engine is at or could begin with; timers, attempts and messages that it has not come to.
_BUSY = """
SELECT s.state, s.reason, s.backlog + s.in_flight,
    (SELECT count(*) FROM xdb.timers WHERE fire_at <= clock_timestamp() + %s::text::interval),
    (SELECT count(*) FROM xdb.inbox JOIN xdb.process_execution USING (execution_id) WHERE status = 'RUNNING')
FROM xdb.status() AS s"""

_NEXT = """
SELECT min(due) - clock_timestamp() - %s::text::interval FROM (
    SELECT fire_at AS due FROM xdb.timers
    UNION ALL SELECT next_attempt_at FROM xdb.state_executions
        WHERE ended_at IS NULL AND next_attempt_at > clock_timestamp() + %s::text::interval
) AS coming"""

# Calls that are not answered. The engine makes none of those that a worker fetches.
_WAITING = """
SELECT w.name, w.url, count(*) FROM xdb.processes AS p JOIN xdb.state_executions AS s USING (execution_id)
    JOIN xdb.process_types AS t USING (process_type) JOIN xdb.workers AS w ON w.name = t.worker
WHERE p.status = 'RUNNING' AND s.status IN ('WAIT_UNTIL', 'EXECUTE') GROUP BY 1, 2 ORDER BY 1"""

_FAILURES = """
SELECT process_id, state_execution_id, attempt, error_type, detail FROM xdb.failures
ORDER BY failed_at DESC LIMIT 5"""


class NotSettled(AssertionError):
    """The engine is still at work, or a process waits for something that time does not bring."""


class Clock:
    """Moves the time of processes on. Made by the fixture `xdb_db`; `connect` gives a superuser's connection of psycopg."""

    def __init__(self, connect: Callable[[], Any], client: Client) -> None:
        self._connect = connect
        self._client = client
        self._offset = timedelta()

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Moves on by so much. What comes due on the way is done, each at its time, so that what it begins counts from there.

        What is due before is done before: a timer of a process that was just started counts from its start.
        """
        self.settle()
        ends = self._offset + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        for _ in range(ROUNDS):
            left = self._until_next()
            if left is None or self._offset + left > ends:
                self._set(ends)
                self.settle()
                return
            self._move_by(left)
        raise NotSettled(f"more than {ROUNDS} due times lie within this step: advance in smaller steps, or with fewer processes")

    def to_next_timer(self) -> None:
        """Moves on to whatever comes next: a timer, a timeout, a start that was put off, a next attempt. Raises if nothing does."""
        if not self._to_next():
            raise NotSettled(f"no timer, timeout, late start or next attempt is left to go to.{self._waiting()}")

    def _to_next(self) -> bool:
        self.settle()
        left = self._until_next()
        if left is None:
            return False
        self._move_by(left)
        return True

    def _until_next(self) -> timedelta | None:
        with self._connect() as conn:
            (left,) = conn.execute(_NEXT, (self._text(), self._text())).fetchone()
        found: timedelta | None = left
        return found

    def _move_by(self, left: timedelta) -> None:
        if left > timedelta():
            self._set(self._offset + left)
        self.settle()

    def run_until_closed(self, process_id: str) -> Outcome:
        """Moves on from one timer to the next until the process has closed, and gives its outcome."""
        waits = True
        for _ in range(ROUNDS):
            self.settle()
            outcome = self._client._run(wait_statement(process_id, 0.0, None), None)
            if not outcome.timed_out:
                return outcome
            waited, waits = waits, self._to_next()
            # Twice: time goes on by itself too, and what the process waited for may have come between the two looks.
            if not waited and not waits:
                raise NotSettled(f"{process_id} waits for no time: {self._client.describe(process_id)}.{self._waiting()}")
        raise NotSettled(f"{process_id} has not closed after {ROUNDS} timers. {self._failures()}")

    def settle(self) -> None:
        """Waits until the engine has nothing to do at the present time: calls that are due are answered, messages are taken in.

        `NotSettled` after 30 seconds; it says what is left, and at which worker.
        """
        deadline = time.monotonic() + SETTLES_WITHIN
        with self._connect() as conn:
            while True:
                state, reason, *busy = conn.execute(_BUSY, (self._text(),)).fetchone()
                if state == "running" and not any(busy):
                    return
                if time.monotonic() > deadline:
                    calls, timers, messages = busy
                    raise NotSettled(
                        f"the engine is {state} ({reason}) with {calls} calls, {timers} timers that are due and "
                        f"{messages} new messages.{self._waiting()} {self._failures()}"
                    )
                time.sleep(0.01)

    def reset(self) -> None:
        """Back to the real time."""
        if self._offset:
            self._set(timedelta())

    def _set(self, offset: timedelta) -> None:
        setting = f"{offset // _MICROSECOND} us" if offset else ""
        with self._connect() as conn:
            conn.execute(f"ALTER SYSTEM SET xdb.now = '{setting}'")
            conn.execute("SELECT pg_reload_conf()")
        self._offset = offset
        # A session that begins has the settings of the server's first process, whose clock is everybody's.
        deadline = time.monotonic() + SETTLES_WITHIN
        while True:
            with self._connect() as conn:
                if conn.execute("SHOW xdb.now").fetchone()[0] == setting:
                    return
            if time.monotonic() > deadline:
                raise NotSettled(f"the server has not taken xdb.now = '{setting}'")
            time.sleep(0.01)

    def _text(self) -> str:
        return f"{self._offset // _MICROSECOND} microseconds"

    def _waiting(self) -> str:
        with self._connect() as conn:
            found = conn.execute(_WAITING).fetchall()
        workers = [
            f"worker {name} at {url}: {calls}" if url is not None else f"worker {name}, which fetches its calls; does it run? {calls}"
            for name, url, calls in found
        ]
        return f" Calls that are not answered, of {'; of '.join(workers)}." if workers else ""

    def _failures(self) -> str:
        with self._connect() as conn:
            failures = conn.execute(_FAILURES).fetchall()
        return "What failed last: " + ("; ".join(map(str, failures)) or "nothing")
