"""Each call of the client, on a real server."""

from __future__ import annotations

import asyncio
import threading
import uuid
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from shop import Delivery, Idle, Order, Orders, ProtocolWorker, Stock, answers, start_row, wait_until

import xdb
from xdb import errors
from xdb.admin import Admin
from xdb.client import AsyncClient, Client, Execution, Start


def waits(shop: Any, process_id: str) -> None:
    wait_until(
        f"{process_id} waits",
        lambda: shop.execute("SELECT count(*) FROM xdb.waits WHERE process_id = %s", process_id) != [(0,)],
    )


def test_a_process_from_its_start_to_its_end(shop: Any) -> None:
    started = shop.client.start(Order, "o-1", "soon", rows=start_row("1", total=Decimal("1.10")), local={"note": "ü\n'"})
    assert isinstance(started, Execution) and started.execution_id.version == 7
    assert shop.execute("SELECT * FROM orders") == [("1", "new", Decimal("1.10"))]
    waits(shop, "o-1")
    still = shop.client.wait(Order, "o-1", timeout=0.01)
    assert still.timed_out and still.status == "RUNNING" and still.results == ()
    with pytest.raises(TimeoutError, match="process 'o-1' is still RUNNING and has no result yet: give wait"):
        _ = still.result
    shop.client.publish(Order.paid, "o-1", "cash", message_id="m")
    outcome = shop.client.wait(Order, "o-1")
    assert (outcome.status, outcome.result, outcome.timed_out) == ("COMPLETED", ["cash"], False)
    assert outcome.results[0].state_execution_id == "pay-1"
    assert shop.client.check("o-1") == []


def test_keys_of_several_columns_and_tables(shop: Any) -> None:
    rows = [Orders.row("7", status="packed"), Stock.row({"article": "tea", "place": "A"}, amount=4)]
    shop.client.start(Delivery, "d-1", rows=rows)
    assert shop.execute("SELECT * FROM stock") == [("tea", "A", 4)]
    assert shop.execute("SELECT status FROM orders") == [("packed",)]
    with pytest.raises(ValueError, match="rows= has two rows of table public.orders"):
        shop.client.start(Delivery, "d-2", rows=[Orders.row("1"), Orders.row("2")])


def test_the_conflict_option_decides_about_an_existing_row(shop: Any) -> None:
    shop.execute("INSERT INTO orders VALUES ('1', 'old', 1)")
    shop.client.start(Order, "a", rows=start_row("1", status="ignored"), conflict="ignore")
    assert shop.execute("SELECT status FROM orders") == [("old",)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        shop.client.start(Order, "b", rows=start_row("1", status="refused"), conflict="error")
    shop.client.start(Order, "c", rows=start_row("1", status="written"))
    assert shop.execute("SELECT status FROM orders") == [("written",)]


def test_a_row_that_is_there_is_not_made_again(shop: Any) -> None:
    shop.execute("INSERT INTO orders VALUES ('1', 'old', 1)")
    shop.execute("ALTER TABLE orders ADD customer text NOT NULL DEFAULT 'ada'")
    shop.execute("ALTER TABLE orders ALTER customer DROP DEFAULT")
    shop.client.start(Order, "a", rows=start_row("1", status="written"))
    shop.client.start_many([Start(Order, "b", rows=start_row("1", status="again"))])
    shop.client.start(Order, "c", rows=start_row("1", status="ignored"), conflict="ignore")
    assert shop.execute("SELECT status, customer FROM orders") == [("again", "ada")]
    with pytest.raises(psycopg.errors.UniqueViolation) as there:
        shop.client.start(Order, "d", rows=start_row("1", status="refused"), conflict="error")
    assert there.value.diag.constraint_name == "orders_pkey"
    with pytest.raises(psycopg.errors.NotNullViolation):
        shop.client.start(Order, "e", rows=start_row("2", status="new"))


def test_id_reuse_and_idempotency_keys(shop: Any) -> None:
    first = shop.client.start(Idle, "i", idempotency_key="k")
    assert shop.client.start(Idle, "i", idempotency_key="k") == first
    with pytest.raises(errors.AlreadyStarted) as refused:
        shop.client.start(Idle, "i")
    assert refused.value.sqlstate == "XD006" and not refused.value.retryable
    assert isinstance(refused.value.__cause__, psycopg.Error)
    second = shop.client.start(Idle, "i", id_reuse="terminate_if_running")
    assert second != first
    assert shop.client.describe("i", execution=first).status == "TERMINATED"
    with pytest.raises(ValueError, match="id_reuse=.sometimes. is unknown"):
        shop.client.start(Idle, "i", id_reuse="sometimes")


def test_times(shop: Any) -> None:
    later = datetime.now(timezone.utc) + timedelta(days=3)
    traceparent = f"00-{'1' * 32}-{'2' * 16}-01"
    shop.client.start(Idle, "later", start_at=later, timeout=timedelta(hours=1.5), traceparent=traceparent)
    described = shop.client.describe("later")
    assert described.timeout_at is not None
    assert described.timeout_at - later == timedelta(hours=1.5)
    assert described.threads[0]["stateExecutionId"] == "rest-1"
    with pytest.raises(ValueError, match="has no time zone"):
        shop.client.start(Idle, "naive", start_at=datetime(2030, 1, 1))
    shop.execute("ALTER ROLE app IN DATABASE " + shop.name + " SET TimeZone = 'America/Caracas'")
    with Client(shop.dsn) as elsewhere:
        assert elsewhere.describe("later").started_at == described.started_at


def test_many_at_once(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from xdb.client import client

    monkeypatch.setattr(client, "CHUNK", 3)
    starts = [Start(Order, f"o-{n}", rows=start_row(str(n), total=Decimal(n))) for n in range(7)]
    started = shop.client.start_many(iter(starts))
    assert [one.process_id for one in started] == [f"o-{n}" for n in range(7)]
    assert len({row for row in shop.execute("SELECT xmin::text FROM orders")}) == 3
    assert [shop.client.describe(one.process_id).execution_id for one in started] == [one.execution_id for one in started]
    assert shop.client.start_many([]) == []
    # In the caller's transaction it is one statement: all, or none.
    with psycopg.connect(shop.dsn, autocommit=True) as conn, pytest.raises(errors.AlreadyStarted):
        shop.client.start_many([Start(Idle, "x-1"), Start(Idle, "x-2"), Start(Idle, "x-3"), Start(Idle, "x-1")], conn=conn)
    assert list(shop.client.list(prefix="x-")) == []


def test_rpcs(shop: Any, worker: ProtocolWorker) -> None:
    shop.client.start(Order, "o", rows=start_row("1"))
    assert shop.client.rpc(Order.price, "o", 3, idempotency_key="k") == Decimal("36.90")
    assert shop.client.rpc(Order.price, "o", 3, idempotency_key="k") == Decimal("36.90")
    with pytest.raises(errors.IdempotencyKeyReused):
        shop.client.rpc(Order.price, "o", 5, idempotency_key="k")
    assert shop.client.rpc(Order.ping, "o", timeout=timedelta(seconds=5)) == "pong"
    with pytest.raises(TypeError, match="takes no input"):
        shop.client.rpc(Order.ping, "o", "input")
    # The engine asks for the state's wait meanwhile.
    called = [call for call, _ in worker.calls if call == "rpc"]
    with pytest.raises(ValueError):
        shop.client.rpc(Order.price, "o", "three")
    assert [call for call, _ in worker.calls if call == "rpc"] == called == ["rpc"] * 2

    worker.answer = lambda call, request: (500, {"errorType": "OutOfStock", "detail": "no more red ones"})
    with pytest.raises(errors.WorkerFailed) as failed:
        shop.client.rpc(Order.ping, "o")
    assert failed.value.retryable and "OutOfStock" in (failed.value.detail or "")
    assert failed.value.error_type == "OutOfStock"


def test_an_output_of_another_type_names_its_place(shop: Any, worker: ProtocolWorker) -> None:
    shop.client.start(Order, "o", rows=start_row("1"))
    worker.answer = lambda call, request: (200, {"output": {"no": "number"}})
    with pytest.raises(Exception, match="price|Decimal"):
        shop.client.rpc(Order.price, "o", 1)


def test_global_messages(shop: Any) -> None:
    shop.client.publish_global(Order.parcels, "p", key="k", message_id="m", ttl=60)
    shop.client.publish_global(Order.parcels, "p", key="k", message_id="m", ttl=60)
    assert shop.execute("SELECT queue_name, key, payload FROM xdb.queue_messages") == [("parcels", "k", "p")]


def test_local_attributes(shop: Any) -> None:
    shop.client.start(Order, "o", rows=start_row("1"))
    read = shop.client.local(Order, "o")
    assert read.tries == 0
    with pytest.raises(LookupError, match="note has no value yet"):
        read.note
    shop.client.set_local(Order, "o", tries=2, note="n")
    read = shop.client.local(Order, "o")
    assert (read.tries, read.note) == (2, "n")
    with pytest.raises(RuntimeError, match="can't write"):
        read.tries = 3
    with pytest.raises(AttributeError):
        read.other
    with pytest.raises(TypeError, match="no local attribute other"):
        shop.client.set_local(Order, "o", other=1)


def test_helping_along(shop: Any, worker: ProtocolWorker) -> None:
    shop.client.start(Order, "timer", rows=start_row("1"))
    waits(shop, "timer")
    with pytest.raises(errors.NoSuchTimer):
        shop.client.skip_timer(Order.pay, "timer", timer_id="another")
    shop.client.skip_timer(Order.pay, "timer")
    assert shop.client.wait_for_state(Order.pay, "timer").status == "COMPLETED"
    assert shop.client.wait(Order, "timer").result is None

    shop.client.start(Order, "paused", rows=start_row("3"))
    waits(shop, "paused")
    until = datetime.now(timezone.utc) + timedelta(days=1)
    shop.client.pause("paused", reject=True, until=until, reason="an audit")
    with pytest.raises(errors.Paused, match="is paused") as refused:
        shop.client.publish(Order.paid, "paused", "hello")
    assert refused.value.retryable
    shop.client.pause("paused")
    shop.client.resume("paused")
    shop.client.resume("paused")
    shop.client.stop("paused")

    shop.client.start(Order, "moved", rows=start_row("4"))
    waits(shop, "moved")
    shop.client.move_state("moved", "pay-1", [Order.pay("again")], "it was not paid")
    with pytest.raises(errors.UnknownState):
        shop.client.move_state("moved", "pay-1", [])
    shop.client.move_state("moved", "pay-2", [])
    told = "SELECT details -> 'reason' FROM xdb.history WHERE process_id = 'moved' AND event_type = 'StateAborted' ORDER BY event_id"
    assert shop.execute(told) == [("it was not paid",), ("moved by hand",)]
    assert shop.client.describe("moved").threads == ()
    shop.client.stop("moved")

    worker.answer = lambda call, request: (500, {"errorType": "Broken"})
    shop.client.start(Order, "broken", rows=start_row("2"))
    wait_until("it has failed", lambda: shop.client.describe("broken").threads[0].get("lastFailure"))
    waiting = shop.client.wait_for_state(Order.pay, "broken", 1, timeout=0.01)
    assert waiting.timed_out and waiting.process_status == "RUNNING"
    with pytest.raises(TypeError, match="give both or none"):
        shop.client.retry_now("broken", Order.pay)
    assert shop.client.retry_now("broken", Order.pay, 1) in (0, 1)
    worker.answer = answers
    shop.client.stop("broken", "enough", fail=True)
    described = shop.client.describe("broken")
    assert (described.status, described.reason) == ("FAILED", "enough")
    with pytest.raises(errors.NotRunning):
        shop.client.stop("broken")


class Fragile(xdb.Process, priority=-2):
    """Notes that it was started, and stays where it is when it fails."""

    note = xdb.Function[str]("public.note_start")

    @xdb.state(start=True, retry=xdb.Retry(attempts=1), on_failure=xdb.RAISE_INCIDENT)
    def send(self) -> xdb.Decision:
        return xdb.complete("sent")


def fragile(shop: Any, worker: ProtocolWorker) -> None:
    shop.execute("CREATE TABLE notes (process text, note text)")
    shop.execute(
        """CREATE FUNCTION note_start(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS
        $$ INSERT INTO public.notes VALUES (context ->> 'processId', argument #>> '{}') $$"""
    )
    shop.admin.register(xdb.Worker(Fragile), name="shop", url=worker.url)
    worker.answer = lambda call, request: (422, {"errorType": "NoAddress", "detail": "where to?"})


def sends(call: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    close = {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "sent"}
    return 200, {"stateDecision": {"threadCloseDecision": close}}


def test_a_start_has_a_priority_and_calls_functions(shop: Any, worker: ProtocolWorker) -> None:
    fragile(shop, worker)
    worker.answer = sends
    shop.client.start(Fragile, "own", priority=5, calls=[Fragile.note.on_start("begun"), Fragile.note.on_start("twice")])
    [one] = shop.client.start_many([Start(Fragile, "class", calls=[Fragile.note.on_start("ü")])])
    assert shop.execute("SELECT process, note FROM notes ORDER BY 1, 2") == [("class", "ü"), ("own", "begun"), ("own", "twice")]
    assert (shop.client.describe("own").raw["priority"], shop.client.describe(one.process_id).raw["priority"]) == (5, -2)
    assert shop.client.wait(Fragile, "own").result == "sent"
    with pytest.raises(errors.InvalidArgument, match="priority must be a whole number"):
        shop.client.start(Fragile, "wrong", priority=11)


def test_incidents(shop: Any, worker: ProtocolWorker) -> None:
    fragile(shop, worker)
    started = shop.client.start(Fragile, "first")
    wait_until("it stays", lambda: len(shop.client.incidents()) == 1)
    shop.client.start(Fragile, "second")
    wait_until("both stay", lambda: len(shop.client.incidents(Fragile)) == 2)
    [first, second] = shop.client.incidents()
    assert (first.process_id, first.execution_id, second.process_id) == ("first", started.execution_id, "second")
    assert (first.state_execution_id, first.api, first.attempt, first.http_status) == ("send-1", "EXECUTE_API", 1, 422)
    assert (first.error_type, first.detail, first.sql_state, first.table_name) == ("NoAddress", "where to?", None, None)
    assert first.raised_at < second.raised_at and first.raised_at.utcoffset() is not None
    assert shop.client.incidents(Idle) == [] and shop.client.incidents("Fragile", process_id="second") == [second]
    worker.answer = sends
    with psycopg.connect(shop.dsn) as conn:
        for each in shop.client.incidents(Fragile, conn=conn):
            assert shop.client.retry_now(each.process_id, conn=conn) == 1
        assert shop.client.incidents(conn=conn) == []
    assert shop.client.wait(Fragile, "first").result == shop.client.wait(Fragile, "second").result == "sent"


def test_many_are_stopped_retried_and_skipped_at_once(shop: Any, worker: ProtocolWorker) -> None:
    fragile(shop, worker)
    ids = ["m-1", "m-2", "m-'3"]
    shop.client.start_many([Start(Fragile, each) for each in ids])
    wait_until("all stay", lambda: len(shop.client.incidents()) == 3)
    shop.client.stop("m-2")
    worker.answer = sends
    retried = shop.client.retry_now_many([*ids, "nothing"])
    assert [(one.process_id, one.count, type(one.error)) for one in retried] == [
        ("m-1", 1, type(None)), ("m-2", 0, errors.NotRunning), ("m-'3", 1, type(None)), ("nothing", 0, errors.ProcessNotFound),
    ]
    assert retried[1].error is not None and retried[1].error.sqlstate == "XD007" and "m-2" in str(retried[1].error)
    assert shop.client.wait(Fragile, "m-1").result == shop.client.wait(Fragile, "m-'3").result == "sent"
    shop.client.start_many([Start(Idle, "i-1"), Start(Idle, "i-2")])
    assert [type(one.error) for one in shop.client.skip_timer_many(Idle.rest, ["i-1", "i-3"], timer_id="none")] == [
        errors.NoSuchTimer, errors.ProcessNotFound,
    ]
    with psycopg.connect(shop.dsn) as conn:
        assert [one.count for one in shop.client.stop_many(iter(["i-2", "i-1", "i-2"]), "enough", fail=True, conn=conn)] == [1, 1, 1]
        conn.rollback()
    assert [one.count for one in shop.client.stop_many(["i-2", "i-1"], "enough", fail=True)] == [1, 1]
    assert shop.client.describe("i-1").status == "FAILED" and shop.client.stop_many([]) == []
    with pytest.raises(xdb.NotCompleted, match=r"process 'i-1' has not completed: FAILED \(enough\)$"):
        _ = shop.client.wait(Idle, "i-1").result
    with pytest.raises(TypeError, match="a list"):
        shop.client.stop_many("i-1")
    with pytest.raises(TypeError, match="together"):
        shop.client.retry_now_many(["i-1"], number=1)


def test_a_type_is_paused_and_resumed(shop: Any) -> None:
    until = datetime.now(timezone.utc) + timedelta(days=1)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.client.pause_type(Idle)
    with Client(shop.superuser_dsn) as operator:
        operator.pause_type(Idle, reject=True, until=until, reason="a migration")
        with pytest.raises(errors.Paused, match="is paused"):
            shop.client.start(Idle, "refused")
        operator.pause_type("Idle")
        shop.client.start(Idle, "held")
        wait_until("its call is held", lambda: shop.admin.status().backlog == 0)
        assert shop.client.describe("held").raw["typePause"] == {"mode": "WAIT"}
        assert not shop.client.describe("held").threads[0].get("waitingFor")
        operator.resume_type(Idle)
        operator.resume_type("Idle")
        with pytest.raises(errors.UnknownProcessType):
            operator.resume_type("Another")
    waits(shop, "held")


def test_the_same_by_coroutines(shop: Any, worker: ProtocolWorker) -> None:
    fragile(shop, worker)

    async def run() -> None:
        async with AsyncClient(shop.superuser_dsn) as operator, AsyncClient(shop.dsn) as client:
            await operator.pause_type(Fragile, reject=True)
            with pytest.raises(errors.Paused):
                await client.start(Fragile, "a")
            await operator.resume_type(Fragile)
            await client.start(Fragile, "a", priority=1, calls=[Fragile.note.on_start("async")])
            while not (found := await client.incidents(Fragile)):
                await asyncio.sleep(0.02)
            assert found == await client.incidents("Fragile", process_id="a") and found[0].process_id == "a"
            with pytest.raises(TimeoutError, match="no result yet: attempt 1 of send-1 failed: NoAddress: where to"):
                _ = (await client.wait(Fragile, "a", timeout=0.01)).result
            worker.answer = sends
            assert [one.count for one in await client.retry_now_many(["a"])] == [1]
            assert (await client.wait(Fragile, "a")).result == "sent"
            assert [type(one.error) for one in await client.stop_many(["a"])] == [errors.NotRunning]
            assert [type(one.error) for one in await client.skip_timer_many(Fragile.send, ["a"])] == [errors.NotRunning]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert shop.execute("SELECT * FROM notes") == [("a", "async")]


def test_a_list_in_pages(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from xdb.client import lists

    monkeypatch.setattr(lists, "PAGE", 2)
    started = shop.client.start_many([Start(Idle, f"100%_{n}") for n in range(5)] + [Start(Idle, "100 percent")])
    listed = list(shop.client.list(prefix="100%_", process=Idle, status="RUNNING"))
    assert [one.process_id for one in listed] == [f"100%_{n}" for n in reversed(range(5))]
    assert listed[0].owner == "app" and listed[0].closed_at is None and listed[0].is_latest
    older = list(shop.client.list(before=started[2]))
    assert [one.process_id for one in older] == ["100%_1", "100%_0"]
    assert list(shop.client.list(process="Another")) == []
    assert list(shop.client.list(status="FAILED")) == []


def test_two_sessions_at_once(shop: Any) -> None:
    """A start that is not committed is waited for, and found."""
    outcomes: list[object] = []

    def start() -> None:
        try:
            outcomes.append(shop.client.start(Idle, "same"))
        except errors.AlreadyStarted as error:
            outcomes.append(error)

    with psycopg.connect(shop.dsn) as conn:
        shop.client.start(Idle, "same", conn=conn)
        other = threading.Thread(target=start)
        other.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until("the other one waits", lambda: shop.execute(blocked) == [(1,)])
        assert outcomes == []
        conn.commit()
        other.join(60)
    assert [type(outcome) for outcome in outcomes] == [errors.AlreadyStarted]


def test_threads_share_a_client(shop: Any) -> None:
    shop.client.start(Order, "o", rows=start_row("1"))
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(shop.client.rpc(Order.price, "o", 2))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [Decimal("24.60")] * 12


def test_a_wait_holds_no_snapshot(shop: Any) -> None:
    shop.client.start(Idle, "i")
    waiting = threading.Thread(target=lambda: shop.client.wait(Idle, "i", timeout=60))
    waiting.start()
    held = """SELECT backend_xmin FROM pg_stat_activity WHERE query LIKE '%%wait_for_process%%'
        AND pid <> pg_backend_pid() AND state = 'active' AND wait_event_type IS NOT NULL AND %s = %s"""
    wait_until("it waits, and keeps nothing from vacuum", lambda: shop.execute(held, 1, 1) == [(None,)])
    shop.client.stop("i")
    waiting.join(60)
    assert not waiting.is_alive()


def test_waiting_in_a_transaction_is_refused(shop: Any) -> None:
    with psycopg.connect(shop.dsn) as conn, pytest.raises(errors.WouldWaitForever, match="can't use conn="):
        shop.client.wait(Idle, "i", conn=conn)


def test_a_connection_that_the_server_has_closed_is_not_used_again(shop: Any) -> None:
    shop.client.start(Idle, "i")
    of_the_application = "FROM pg_stat_activity WHERE usename = 'app' AND datname = current_database()"
    with psycopg.connect(shop.superuser_dsn, autocommit=True) as admin:
        admin.execute(f"SELECT pg_terminate_backend(pid) {of_the_application}")
    wait_until("it is deleted", lambda: shop.execute(f"SELECT count(*) {of_the_application}") == [(1,)])
    assert shop.client.describe("i").status == "RUNNING"


def test_wrong_arguments_are_refused_before_any_sql(shop: Any) -> None:
    nowhere = Client("host=/nowhere")
    with pytest.raises(TypeError, match="not a subclass of xdb.Process"):
        nowhere.start("Order", "o")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no local attribute wrong"):
        nowhere.start(Order, "o", rows=start_row("1"), local={"wrong": 1})
    with pytest.raises(ValueError):
        nowhere.start(Order, "o", 5, rows=start_row("1"))
    with pytest.raises(TypeError, match="takes no input"):
        nowhere.start(Idle, "i", "input")
    with pytest.raises(TypeError, match="no starting state"):
        nowhere.start(Delivery, "i", "input")
    with pytest.raises(ValueError):
        nowhere.publish(Order.paid, "o", 5)  # type: ignore[misc]
    with pytest.raises(psycopg.OperationalError):
        nowhere.describe("o")
    with pytest.raises(TypeError, match="a client can't be made with"):
        Client(5)


def test_errors_of_the_server_have_classes(shop: Any, worker: ProtocolWorker) -> None:
    client = shop.client
    with pytest.raises(errors.ProcessNotFound):
        client.describe("missing")
    with pytest.raises(errors.ProcessNotFound):
        client.describe("missing", execution=uuid.uuid4())
    with pytest.raises(errors.InvalidArgument):
        client.start(Idle, "")
    client.start(Idle, "i")
    with pytest.raises(errors.UnknownQueue):
        client.publish(xdb.Queue[str]("unknown"), "i", None)
    with pytest.raises(errors.UnknownState):
        client.skip_timer(Order.pay, "i")
    with Client(shop.superuser_dsn) as superuser, pytest.raises(errors.SuperuserRefused) as refused:
        superuser.start(Idle, "s")
    assert refused.value.hint and "HINT: " in str(refused.value)

    class Unregistered(xdb.Process):
        pass

    with pytest.raises(errors.UnknownProcessType):
        client.start(Unregistered, "u")
    # What is Postgres' own stays the driver's.
    with Admin(shop.dsn) as unprivileged, pytest.raises(psycopg.errors.InsufficientPrivilege):
        unprivileged.pause_engine()
