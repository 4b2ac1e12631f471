"""The settings of a role are for the queries of its application: clients and pull workers run under all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import psycopg
import pytest
from bills import ONCE, Bill, attempts, billing, register
from psycopg_pool import ConnectionPool
from shop import HOSTILE, SERIALIZABLE, TEXTS, repeated, set_for_role, wait_until

import xdb
from xdb.client import AsyncClient, Client

SEEN = "SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('transaction_isolation'), current_setting('DateStyle'))"


class Long(xdb.Process):
    """Works for longer than the role lets a transaction be idle, or run, and says what its own queries see."""

    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        seen = xdb.connection().execute(SEEN).fetchone()[0]
        time.sleep(1)
        return xdb.complete(seen)


class AsyncLong(xdb.Process):
    @xdb.state(start=True)
    async def only(self) -> xdb.Decision:
        seen = (await (await xdb.connection().execute(SEEN)).fetchone())[0]
        await asyncio.sleep(1)
        return xdb.complete(seen)


class Writes(xdb.Process):
    bill: Bill

    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        self.bill.status = "sent"
        return xdb.complete()


class Stages(xdb.Process):
    """Its calls go over HTTP, or are claimed."""

    bill: Bill
    paid = xdb.Queue[str]()

    @xdb.state(start=True, wait=paid)
    def only(self) -> xdb.Decision:
        before, self.bill.status = self.bill.status, self.paid.message
        return xdb.complete(f"{before}, {self.paid.message}")

    @xdb.rpc
    def mark(self, status: str) -> str | None:
        before, self.bill.status = self.bill.status, status
        return before


ROLES: dict[str, tuple[dict[str, str], str]] = {
    "idle": ({"idle_in_transaction_session_timeout": "300ms"}, "0 read committed ISO, MDY"),
    "statement": ({"statement_timeout": "600ms"}, "600ms read committed ISO, MDY"),
    "lock": ({"lock_timeout": "200ms"}, "0 read committed ISO, MDY"),
    "session": ({"idle_session_timeout": "200ms"}, "0 read committed ISO, MDY"),
    "repeatable": ({"default_transaction_isolation": "repeatable read"}, "0 repeatable read ISO, MDY"),
    "serializable": (SERIALIZABLE, "0 serializable ISO, MDY"),
    "read only": ({"default_transaction_read_only": "on"}, "0 read committed ISO, MDY"),
    "texts": (TEXTS, "0 read committed German, DMY"),
    "all": (
        {
            "idle_in_transaction_session_timeout": "300ms",
            "statement_timeout": "600ms",
            "lock_timeout": "200ms",
            "idle_session_timeout": "200ms",
            "default_transaction_isolation": "serializable",
            "default_transaction_read_only": "on",
            "default_transaction_deferrable": "on",
            "search_path": "",
        },
        "600ms serializable ISO, MDY",
    ),
    "transactions": (
        {
            "idle_in_transaction_session_timeout": "300ms",
            "statement_timeout": "600ms",
            "default_transaction_isolation": "repeatable read",
            "default_transaction_read_only": "on",
        },
        "600ms repeatable read ISO, MDY",
    ),
    "transaction": ({"transaction_timeout": "500ms"}, "0 read committed ISO, MDY"),
}


def furnished(billing: Any, role: str) -> str:
    settings, seen = ROLES[role]
    if "transaction_timeout" in settings and psycopg.connect(billing.dsn).info.server_version < 170000:
        pytest.skip("Postgres 17 has transaction_timeout")
    register(billing, Long, AsyncLong, Writes)
    set_for_role(billing, **settings)
    return seen


def starts(billing: Any, process: Any, id: str, **arguments: Any) -> None:
    with psycopg.connect(billing.superuser_dsn) as conn:
        conn.execute("SET ROLE app")
        billing.client.start(process, id, conn=conn, **arguments)


def result_of(billing: Any, id: str) -> Any:
    """Looked at as an operator, whom no limit of the role's meets."""
    with psycopg.connect(billing.superuser_dsn, autocommit=True) as conn:
        client = Client("host=/nowhere")
        wait_until(f"{id} has ended", lambda: client.describe(id, conn=conn).status != "RUNNING")
        return client.describe(id, conn=conn).results[0].output


def test_a_worker_runs_under_the_settings_of_its_role(billing: Any, caplog: Any) -> None:
    """A pool's connections are in a transaction already when a worker gets them."""
    seen = furnished(billing, "transactions")
    with ConnectionPool(billing.dsn, open=True) as pool:
        with xdb.PullWorker(Long, name="billing", connections=pool, wait=5):
            starts(billing, Long, "long")
            assert result_of(billing, "long") == seen
    assert attempts(billing_as_operator(billing), "long") == 0 and "trying again" not in caplog.text


class billing_as_operator:
    def __init__(self, billing: Any) -> None:
        self._dsn = billing.superuser_dsn

    def execute(self, sql: str, *params: Any) -> Any:
        with psycopg.connect(self._dsn) as conn:
            return conn.execute(sql, params).fetchall()


@pytest.mark.parametrize("role", ROLES)
def test_threads(billing: Any, role: str, caplog: Any) -> None:
    seen = furnished(billing, role)
    worker = xdb.PullWorker(Long, name="billing", connections=billing.dsn, wait=1)
    claimed, claim = list[float](), worker._claim_calls

    def noted(wait: float) -> Any:
        claimed.append(wait)
        return claim(wait)

    worker._claim_calls = noted  # type: ignore[method-assign]
    with worker:
        # A limit of the role's would have ended the first wait by then.
        wait_until("it waits for calls", lambda: len(claimed) > (2 if "statement_timeout" in ROLES[role][0] else 0))
        starts(billing, Long, "long")
        assert result_of(billing, "long") == seen
    worker.close()
    assert attempts(billing_as_operator(billing), "long") == 0 and "trying again" not in caplog.text


@pytest.mark.parametrize("role", ROLES)
def test_coroutines(billing: Any, role: str, caplog: Any) -> None:
    seen = furnished(billing, role)

    async def run() -> None:
        worker = xdb.AsyncPullWorker(AsyncLong, name="billing", connections=billing.dsn, concurrency=2, wait=1)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(starts, billing, AsyncLong, "long")
        try:
            assert await asyncio.to_thread(result_of, billing, "long") == seen
        finally:
            worker.stop()
            await running
            await worker.close()

    asyncio.run(run())
    assert attempts(billing_as_operator(billing), "long") == 0 and "trying again" not in caplog.text


def test_an_answer_waits_for_a_row_as_long_as_it_has_to(billing: Any) -> None:
    """The row is locked for longer than the role gives a statement, or a lock."""
    register(billing, Writes)
    set_for_role(billing, statement_timeout="500ms", lock_timeout="200ms")
    billing.client.start(Writes, "w", rows=[Bill.row("w", status="new")])
    waits = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%complete_call%' AND wait_event_type = 'Lock' AND query_start < now() - interval '1 s'"
    with psycopg.connect(billing.superuser_dsn) as other, psycopg.connect(billing.superuser_dsn, autocommit=True) as looks:
        other.execute("SELECT FROM bills WHERE id = 'w' FOR UPDATE")
        with xdb.PullWorker(Writes, name="billing", connections=billing.dsn, wait=0.2):
            wait_until("its answer has waited", lambda: looks.execute(waits).fetchone() is not None)
            other.commit()
            assert billing.client.wait(Writes, "w").status == "COMPLETED"
    assert attempts(billing, "w") == 0


@pytest.mark.parametrize("kind", ["http", "pull"])
def test_a_client_runs_under_the_settings_of_its_role(billing: Any, kind: str) -> None:
    set_for_role(billing, **HOSTILE)
    seen = "SELECT current_setting('transaction_isolation'), current_setting('search_path')"
    assert billing.execute(seen) == [("serializable", '""')]
    if kind == "http":
        billing.serve(Stages)
    else:
        billing.serve(xdb.PullWorker(Stages, name="stages", wait=1))
    with Client(billing.dsn) as client:
        rows = [Bill.row("s", status="new")]
        started = client.start(Stages, "s", rows=rows, idempotency_key="k")
        assert repeated(lambda: client.start(Stages, "s", rows=rows, idempotency_key="k")) == started
        if kind == "http":  # which RPCs need
            for _ in range(2):
                assert repeated(lambda: client.rpc(Stages.mark, "s", "marked", idempotency_key="r")) == "new"
        assert client.wait(Stages, "s", 0.1).timed_out
        repeated(lambda: client.publish(Stages.paid, "s", "cash"))
        assert client.wait_for_state(Stages.only, "s").status == "COMPLETED"
        assert client.wait(Stages, "s").result == ("marked, cash" if kind == "http" else "new, cash")
        assert client.check("s") == []
    assert billing.execute("SELECT id, status FROM public.bills") == [("s", "cash")]
    assert attempts(billing, "s") == 0


@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout"])
def test_a_client_waits_in_slices_below_its_limits(billing: Any, name: str) -> None:
    if name == "transaction_timeout" and psycopg.connect(billing.dsn).info.server_version < 170000:
        pytest.skip("Postgres 17 has transaction_timeout")
    register(billing, Long)
    set_for_role(billing, **{name: "400ms"})
    starts(billing, Long, "long")
    client = Client(billing.dsn)
    assert client.wait(Long, "long", 1).timed_out and client._longest_slice <= 0.2
    assert client.wait_for_state(Long.only, "long", timeout=0.5).timed_out

    async def run() -> Any:
        async with AsyncClient(billing.dsn) as waiting:
            assert (await waiting.wait(Long, "long", 1)).timed_out
            thread.start()
            return (await waiting.wait(Long, "long")).result

    worker = xdb.PullWorker(Long, name="billing", connections=billing.superuser_dsn)
    thread = threading.Thread(target=worker.work)
    assert str(asyncio.run(run())).startswith("0 ")
    thread.join()
    worker.close()
    client.close()


def test_a_wait_that_another_session_cancels_is_cancelled(billing: Any) -> None:
    register(billing, Long)
    billing.client.start(Long, "long")
    client = Client(billing.dsn)
    raised: list[BaseException] = []

    def waits() -> None:
        try:
            client.wait(Long, "long")
        except psycopg.errors.QueryCanceled as error:
            raised.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%wait_for_process%' AND pid <> pg_backend_pid()"
    with psycopg.connect(billing.superuser_dsn, autocommit=True) as conn:
        wait_until("it waits", lambda: conn.execute(cancel).fetchone() is not None)
    thread.join(30)
    assert len(raised) == 1
    client.close()
    billing.client.stop("long")


SETS = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
LEVEL = "SELECT current_setting('transaction_isolation')"


class Isolated(xdb.Process):
    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        conn = xdb.connection()
        conn.execute(SETS)
        return xdb.complete(conn.execute(LEVEL).fetchone()[0])


class AsyncIsolated(xdb.Process):
    @xdb.state(start=True)
    async def only(self) -> xdb.Decision:
        conn = xdb.connection()
        await conn.execute(SETS)
        return xdb.complete((await (await conn.execute(LEVEL)).fetchone())[0])


async def works_with_coroutines(billing: Any, process: Any) -> int:
    worker = xdb.AsyncPullWorker(process, name="billing", connections=billing.dsn)
    try:
        return await worker.work()
    finally:
        await worker.close()


@pytest.mark.parametrize("process", [Isolated, AsyncIsolated])
@pytest.mark.parametrize("settings", [{}, {"idle_in_transaction_session_timeout": "1min"}, {"default_transaction_read_only": "on"}])
def test_a_handler_sets_the_isolation_level(billing: Any, settings: dict[str, str], process: Any) -> None:
    """Its first statement is the first one of its transaction that sees anything."""
    register(billing, Isolated, AsyncIsolated)
    set_for_role(billing, **settings)
    starts(billing, process, "i")
    if process is AsyncIsolated:
        assert asyncio.run(works_with_coroutines(billing, process)) == 1
    else:
        with contextlib.closing(xdb.PullWorker(process, name="billing", connections=billing.dsn)) as worker:
            assert worker.work() == 1
    assert result_of(billing, "i") == "repeatable read"


WAITS = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app' AND wait_event_type = 'Lock'
    AND clock_timestamp() - query_start > interval '500 ms'"""


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_a_failure_is_reported_although_its_execution_is_locked(billing: Any, limit: str, kind: str) -> None:
    begun, locked = threading.Event(), threading.Event()

    class Failing(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        def only(self) -> xdb.Decision:
            begun.set()
            assert locked.wait(60)
            raise ValueError("no")

    def work() -> None:
        if kind == "coroutines":
            asyncio.run(works_with_coroutines(billing, Failing))
        else:
            with contextlib.closing(xdb.PullWorker(Failing, name="billing", connections=billing.dsn)) as worker:
                worker.work()

    register(billing, Failing)
    set_for_role(billing, **{limit: "200ms"})
    starts(billing, Failing, "f")
    working = threading.Thread(target=work)
    working.start()
    assert begun.wait(60)
    with psycopg.connect(billing.superuser_dsn) as conn:
        conn.execute("SELECT FROM xdb.process_execution FOR UPDATE")
        locked.set()
        operator = billing_as_operator(billing)
        wait_until("the worker waits for the lock", lambda: operator.execute(WAITS) == [(1,)] or not working.is_alive())
    working.join(60)
    assert operator.execute("SELECT status FROM xdb.processes") == [("FAILED",)] and not working.is_alive()


@pytest.mark.parametrize("process", [Isolated, AsyncIsolated])
@pytest.mark.parametrize("cut_short", [{5.0}, {5.0, 0}])
def test_a_wait_that_is_cut_short_has_found_nothing(process: Any, cut_short: set[float]) -> None:
    """If a claim that waits for nothing is cut short as well, that is an error, which the log tells."""
    asked = list[float]()

    def claim(wait: float) -> Any:
        asked.append(wait)
        if wait in cut_short:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return []

    async def claim_as_coroutine(wait: float) -> Any:
        return claim(wait)

    worker: Any = (xdb.PullWorker if process is Isolated else xdb.AsyncPullWorker)(process, name="billing", wait=5)
    worker._claim_calls = claim if process is Isolated else claim_as_coroutine
    with pytest.raises(psycopg.errors.QueryCanceled) if 0 in cut_short else contextlib.nullcontext():
        assert (worker._next() if process is Isolated else asyncio.run(worker._next())) == []
    assert asked == [5, 0]
