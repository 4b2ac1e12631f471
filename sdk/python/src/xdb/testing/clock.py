"""The clock of a test server: moves the time of processes on, so that days pass in milliseconds.

Limitations: the clock is that of the whole server, with all its databases. Tests that run at the same time need a server each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..client import Client, Outcome
from ..client.statements import wait as wait_statement

# Real seconds that the engine gets to finish its work.
SETTLES_WITHIN = 30.0
# The most due times in one step of the clock.
ROUNDS = 500

_MICROSECOND = timedelta(microseconds=1)

# The state of the engine, its due and running calls, its due timers, and messages that it has not taken in.
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

# Calls that are not answered, by worker. A worker without a URL is a pull worker.
_WAITING = """
SELECT w.name, w.url, count(*) FROM xdb.processes AS p JOIN xdb.state_executions AS s USING (execution_id)
    JOIN xdb.process_types AS t USING (process_type) JOIN xdb.workers AS w ON w.name = t.worker
WHERE p.status = 'RUNNING' AND s.status IN ('WAIT_UNTIL', 'EXECUTE') GROUP BY 1, 2 ORDER BY 1"""

_FAILURES = """
SELECT process_id, state_execution_id, attempt, error_type, detail FROM xdb.failures
ORDER BY failed_at DESC LIMIT 5"""


class NotSettled(AssertionError):
    """The engine has not finished its work, or a process waits for something other than a time."""


class Clock:
    """Moves the time of processes on. Made by the fixture `xdb_db`. `connect` returns a psycopg connection of a superuser."""

    def __init__(self, connect: Callable[[], Any], client: Client) -> None:
        self._connect = connect
        self._client = client
        self._offset = timedelta()

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Moves the clock on by this length of time. Everything that becomes due on the way happens at its own time.

        Work that is due already is done first, so a timer of a process that was just started counts from its start. Raises `NotSettled`.
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
        raise NotSettled(f"this step has more than {ROUNDS} due times: advance in smaller steps, or with fewer processes")

    def to_next_timer(self) -> None:
        """Moves the clock on to the next due time: of a timer, timeout, delayed start or retry. Raises `NotSettled` if there is none."""
        if not self._to_next():
            raise NotSettled(f"no timer, timeout, delayed start or retry is left.{self._waiting()}")

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
        """Moves the clock from one due time to the next until the process has closed, and returns its outcome. Raises `NotSettled`."""
        waits = True
        for _ in range(ROUNDS):
            self.settle()
            outcome = self._client._run(wait_statement(process_id, 0.0, None), None)
            if not outcome.timed_out:
                return outcome
            waited, waits = waits, self._to_next()
            # Only after two rounds: time also passes by itself, and the process may have gone on between two checks.
            if not waited and not waits:
                raise NotSettled(f"{process_id} waits for something other than a time: {self._client.describe(process_id)}.{self._waiting()}")
        raise NotSettled(f"{process_id} has not closed after {ROUNDS} due times. {self._failures()}")

    def settle(self) -> None:
        """Waits until the engine has nothing left to do at this time: due calls are answered, messages are taken in.

        Raises `NotSettled` after 30 seconds, with what is left, and at which worker.
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
                        f"the engine is {state} ({reason}), with {calls} calls, {timers} due timers and "
                        f"{messages} new messages left.{self._waiting()} {self._failures()}"
                    )
                time.sleep(0.01)

    def reset(self) -> None:
        """Returns to the real time."""
        if self._offset:
            self._set(timedelta())

    def _set(self, offset: timedelta) -> None:
        setting = f"{offset // _MICROSECOND} us" if offset else ""
        with self._connect() as conn:
            conn.execute(f"ALTER SYSTEM SET xdb.now = '{setting}'")
            conn.execute("SELECT pg_reload_conf()")
        self._offset = offset
        # A new session has the settings of the postmaster, so it shows when the new time is in effect.
        deadline = time.monotonic() + SETTLES_WITHIN
        while True:
            with self._connect() as conn:
                if conn.execute("SHOW xdb.now").fetchone()[0] == setting:
                    return
            if time.monotonic() > deadline:
                raise NotSettled(f"the server has not applied xdb.now = '{setting}' within {SETTLES_WITHIN:g} s")
            time.sleep(0.01)

    def _text(self) -> str:
        return f"{self._offset // _MICROSECOND} microseconds"

    def _waiting(self) -> str:
        with self._connect() as conn:
            found = conn.execute(_WAITING).fetchall()
        workers = [
            f"{calls} of worker {name} at {url}" if url is not None else f"{calls} of pull worker {name} (check that it runs)"
            for name, url, calls in found
        ]
        return f" Calls without an answer: {'; '.join(workers)}." if workers else ""

    def _failures(self) -> str:
        with self._connect() as conn:
            failures = conn.execute(_FAILURES).fetchall()
        return "Last failures: " + ("; ".join(map(str, failures)) or "none")
