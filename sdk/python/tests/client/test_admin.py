"""Registering, checking and operating, and the command line of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shop import Delivery, Idle, Order, ProtocolWorker, answers, start_row, wait_until

import xdb
from xdb import admin, cli, errors
from xdb.client.definitions import differences

EVERYTHING = xdb.Worker(Order, Delivery, Idle)


class Changed(xdb.Process, name="Idle"):
    """`Idle` without its state and its queue, and with another state."""

    note: str

    @xdb.state(start=True)
    def sleep(self) -> xdb.Decision:
        return xdb.complete()


def versions(shop: Any) -> list[Any]:
    with psycopg.connect(shop.superuser_dsn) as conn:
        return conn.execute("SELECT process_type, version FROM xdb.process_types ORDER BY 1").fetchall()


def test_the_same_twice_changes_nothing(shop: Any, worker: ProtocolWorker) -> None:
    before = versions(shop)
    changes = shop.admin.register(EVERYTHING, name="shop", url=worker.url)
    assert [bool(change) for change in changes] == [False] * 4
    assert "does not change" in str(changes[0])
    assert versions(shop) == before
    assert shop.admin.check(EVERYTHING) == []


def test_a_registration_reports_its_changes(shop: Any, worker: ProtocolWorker) -> None:
    other = worker.url.replace("127.0.0.1", "localhost")
    planned = shop.admin.register(xdb.Worker(Changed), name="shop", url=other, max_concurrency=7, no_secret=True, dry_run=True)
    assert "url: " in str(planned[0]) and "max_concurrency: 64 -> 7" in str(planned[0])
    text = str(planned[1])
    for line in ("states.rest was removed", "states.sleep is new", "startingState: rest -> sleep", "localQueues: paid was removed"):
        assert line in text
    assert shop.admin.check(EVERYTHING) == []  # nothing was done
    done = shop.admin.register(xdb.Worker(Changed), name="shop", url=other, max_concurrency=7, no_secret=True)
    assert done == planned
    assert shop.admin.check(xdb.Worker(Changed)) == []
    assert shop.execute("SELECT url FROM xdb.workers") == [(None,)]  # another role's
    assert not shop.admin.register(xdb.Worker(Changed, threads=7), name="shop", url=other)[0]
    # A secret can't be read back, so a change is always reported.
    moved = str(shop.admin.register(xdb.Worker(Changed, threads=7), name="shop", url=worker.url, no_secret=True)[0])
    assert "calls will not be signed" in moved and "max_concurrency" not in moved


def test_a_worker_gets_as_many_calls_as_it_has_threads(shop: Any) -> None:
    """Where nothing else is said. One whose handlers are all async has no bound, and stays as it is registered."""

    class Quick(xdb.Process, name="Idle"):
        @xdb.state(start=True)
        async def rest(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.rpc
        def say(self) -> str:  # RPCs do not count
            return "hello"

    class Mixed(xdb.Process, name="Idle"):
        @xdb.state(start=True, wait=lambda self: xdb.timer())
        async def rest(self) -> xdb.Decision:
            return xdb.complete()

    def registered(worker: xdb.Worker, **how: Any) -> int:
        shop.admin.register(worker, name="mine", url=shop_url, no_secret=True, **how)
        with psycopg.connect(shop.superuser_dsn) as conn:
            rows = conn.execute("SELECT max_concurrency FROM xdb.workers WHERE name = 'mine'").fetchall()
        return int(rows[0][0])

    shop_url = "http://127.0.0.1:1"
    assert xdb.Worker(Quick).concurrency is None and registered(xdb.Worker(Quick)) == 96
    assert registered(xdb.Worker(Idle)) == 64
    assert registered(xdb.Worker(Idle, threads=5)) == 5
    assert registered(xdb.Worker(Mixed, threads=6)) == 6
    assert registered(xdb.Worker(Idle, threads=5), max_concurrency=200) == 200
    assert registered(xdb.Worker(Quick)) == 200
    assert "max_concurrency => 5" in xdb.Worker(Idle, threads=5).sql("mine", shop_url)
    assert "max_concurrency" not in xdb.Worker(Quick).sql("mine", shop_url)
    with psycopg.connect(shop.superuser_dsn) as conn:
        [change, _] = xdb.Worker(Idle, threads=5).register(conn, worker_name="mine", url=shop_url, no_secret=True)
        assert str(change).startswith("worker mine changes\n    max_concurrency: 200 -> 5")
        [change, _] = xdb.Worker(Idle, threads=5).register(conn, worker_name="mine", url=shop_url, max_concurrency=10, no_secret=True)
        assert "max_concurrency: 5 -> 10" in str(change)


def test_a_signature_is_not_dropped_by_the_way(shop: Any, worker: ProtocolWorker) -> None:
    """Whether calls are signed can't be seen, so a change of the worker without a secret has to be meant."""
    signed, other = "SELECT count(*) FROM xdb.worker_secret", worker.url.replace("127.0.0.1", "localhost")

    def secrets() -> int:
        with psycopg.connect(shop.superuser_dsn) as conn:
            return int(conn.execute(signed).fetchall()[0][0])

    shop.admin.register(EVERYTHING, name="shop", url=worker.url, secret="s3cret")
    for change in ({"url": other}, {"url": worker.url, "max_concurrency": 3}, {"url": worker.url, "headers": {"x-a": "b"}}):
        with pytest.raises(admin.SignatureLost, match="may be signed"):
            shop.admin.register(EVERYTHING, name="shop", **change)
        assert secrets() == 1
    assert not shop.admin.register(EVERYTHING, name="shop", url=worker.url)[0]  # nothing changes, and nothing is lost
    shop.admin.register(EVERYTHING, name="new", url=worker.url)
    shop.admin.register(EVERYTHING, name="shop", url=other, secret="s3cret")
    assert secrets() == 1
    shop.admin.register(EVERYTHING, name="shop", url=worker.url, no_secret=True)
    assert secrets() == 0


# --- what is stored


class Stored(xdb.Process):
    note: int = 1
    lines = xdb.Queue[int]()
    prices = xdb.GlobalQueue[int]("prices")

    @xdb.state(start=True, wait=xdb.timer(days=1))
    def keep(self, given: int) -> xdb.Decision:
        return xdb.complete()


class Retyped(xdb.Process, name="Stored"):
    note: dict[str, int]
    lines = xdb.Queue[list[int]]()
    prices = xdb.GlobalQueue[str]("prices")

    @xdb.state(start=True, wait=xdb.timer(days=1))
    def keep(self, given: str) -> xdb.Decision:
        return xdb.complete()


class Widened(xdb.Process, name="Stored"):
    note: int | None = None
    lines = xdb.Queue[int | str]()
    prices = xdb.GlobalQueue[float]("prices")

    @xdb.state(start=True, wait=xdb.timer(days=1))
    def keep(self, given: int | None) -> xdb.Decision:
        return xdb.complete()


def test_stored_values_that_can_not_be_read_are_found(xdb_db: Any) -> None:
    xdb_db.serve(Stored)
    for n in range(2):
        xdb_db.client.start(Stored, f"s-{n}", n, local={"note": n})
        xdb_db.client.publish(Stored.lines, f"s-{n}", n)
    xdb_db.client.publish_global(Stored.prices, 5)
    xdb_db.client.start(Stored, "over", 1)
    xdb_db.client.stop("over")
    xdb_db.clock.settle()
    assert xdb_db.admin.check(xdb.Worker(Stored)) == []
    assert xdb_db.admin.check(xdb.Worker(Widened)) == []
    found = [str(each) for each in xdb_db.admin.check(xdb.Worker(Retyped))]
    assert [text.partition(" can't be read by the code: ")[0] for text in found] == [
        "Stored: the input of state keep",
        "Stored: local attribute note",
        "Stored: a message of queue lines",
        "Stored: a message of global queue prices",
    ]
    assert "is not str (in s-" in found[0] and all(", and 1 more" in text for text in found[:3])
    for n in range(2):
        xdb_db.client.stop(f"s-{n}")
    assert len(xdb_db.admin.check(xdb.Worker(Retyped))) == 1  # the global queue has no end


def test_a_type_that_is_paused(shop: Any) -> None:
    shop.admin.grant_usage("app", operator=True)
    shop.client.pause_type(Idle, reason="the bank is closed")
    assert [str(each) for each in shop.admin.check(EVERYTHING)] == [
        "Idle: is paused (WAIT): the bank is closed; xdb.resume_process_type() ends the pause"
    ]
    shop.client.resume_type(Idle)
    assert shop.admin.check(EVERYTHING) == []


@pytest.mark.parametrize(
    "status, said",
    [(401, "refuses the signature of"), (403, "refuses the signature of"), (404, "has no handler for")],
)
def test_a_worker_that_refuses_its_calls(shop: Any, worker: ProtocolWorker, status: int, said: str) -> None:
    worker.answer = lambda call, request: (status, {"errorType": "No", "detail": "not by me"})
    shop.client.start(Idle, "i")
    wait_until("it is refused", lambda: shop.admin.check(EVERYTHING) != [])
    assert [str(each) for each in shop.admin.check(EVERYTHING)] == [f"Idle: its worker {said} 1 call (HTTP status {status}): not by me"]
    worker.answer = answers
    shop.client.retry_now("i")
    wait_until("it goes on", lambda: shop.execute("SELECT count(*) FROM xdb.waits") == [(2,)])
    assert shop.admin.check(EVERYTHING) == []


def test_an_answer_names_an_unregistered_state(shop: Any, worker: ProtocolWorker) -> None:
    asked = {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"commandId": "c", "queueName": "nowhere"}]}
    worker.answer = lambda call, request: (200, {"commandRequest": asked, "stateDecision": {"nextStates": [{"stateId": "nowhere"}]}})
    shop.client.start(Idle, "i")
    wait_until("it is refused", lambda: shop.admin.check(EVERYTHING) != [])
    [finding] = shop.admin.check(EVERYTHING)
    assert str(finding).startswith("Idle: its worker and the registered definition are of different versions, so 1 call can't proceed: unknown")
    assert '"nowhere"' in finding.text
    worker.answer = answers
    shop.client.retry_now("i")
    wait_until("it goes on", lambda: shop.execute("SELECT count(*) FROM xdb.waits") == [(2,)])
    assert shop.admin.check(EVERYTHING) == []


def test_a_secret_is_registered_whenever_it_is_given(shop: Any, worker: ProtocolWorker) -> None:
    for _ in range(2):
        changes = shop.admin.register(EVERYTHING, name="shop", url=worker.url, secret="s3cret", headers={"x-a": "b"})
        assert "secret: registered again" in str(changes[0]) and "s3cret" not in str(changes)
    with psycopg.connect(shop.superuser_dsn) as conn:
        assert conn.execute("SELECT headers FROM xdb.worker").fetchone() == ({"x-a": "b"},)


def test_a_type_without_a_starting_state_is_reported(shop: Any, worker: ProtocolWorker) -> None:
    class Adrift(xdb.Process):
        @xdb.state
        def pack(self) -> xdb.Decision:
            return xdb.complete()

    class Later(xdb.Process, name="Adrift"):
        pack = Adrift.pack
        paid = xdb.Queue[str]()

    note = "note: no state has start=True, so its processes begin without a step"
    for process, expected in ((Adrift, (note,)), (Adrift, ()), (Later, ("localQueues: paid is new", note))):
        changes = shop.admin.register(xdb.Worker(process), name="shop", url=worker.url)
        assert changes[1].details == expected


def test_executions_that_would_be_stranded(shop: Any, worker: ProtocolWorker) -> None:
    for n in range(3):
        shop.client.start(Idle, f"i-{n}")
    new = xdb.Worker(Changed)
    waiting = "SELECT count(*) FROM xdb.waits"
    wait_until("all wait, each for a timer and a queue", lambda: shop.execute(waiting) == [(6,)])
    texts = [str(finding) for finding in shop.admin.check(new) if finding.strands]
    assert texts[0].startswith("Idle: state rest was removed, but 3 executions are in it")
    assert texts[1].startswith("Idle: queue paid was removed, but 3 executions wait for it")
    with pytest.raises(admin.Stranding, match="state rest was removed"):
        shop.admin.register(new, name="shop", url=worker.url)
    assert shop.admin.check(EVERYTHING) == []
    shop.admin.register(new, name="shop", url=worker.url, force=True)
    for n in range(3):
        shop.client.stop(f"i-{n}")
    assert shop.admin.check(new) == []


def test_a_removed_rpc_is_found(shop: Any) -> None:
    class Less(xdb.Process, name="Order"):
        pass

    shop.client.start(Order, "o", rows=start_row("1"))
    found = [str(finding) for finding in shop.admin.check(xdb.Worker(Less)) if finding.strands]
    assert any(text.startswith("Order: RPC price was removed, but 1 execution that had it is running") for text in found)


def test_two_that_register_at_once(shop: Any, worker: ProtocolWorker) -> None:
    failed: list[BaseException] = []

    def register() -> None:
        try:
            shop.admin.register(EVERYTHING, name="second", url=worker.url)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert [version for _, version in versions(shop)] == [2, 2, 2]


def test_in_a_transaction_of_the_caller(shop: Any, worker: ProtocolWorker) -> None:
    before = versions(shop)
    with psycopg.connect(shop.superuser_dsn) as conn:
        shop.admin.register(xdb.Worker(Changed), name="shop", url=worker.url, conn=conn)
        conn.rollback()
    assert versions(shop) == before


def test_a_worker_registers_itself(shop: Any, worker: ProtocolWorker) -> None:
    mine = xdb.Worker(Changed, secret=["the new one", "the old one"])
    assert mine.processes == (Changed,)
    with psycopg.connect(shop.superuser_dsn) as conn:
        planned = mine.register(conn, worker_name="mine", url=worker.url, dry_run=True, force=True)
        assert [change.is_new for change in planned] == [True, False]
        signed = "SELECT value FROM xdb.worker_secret"
        assert conn.execute(signed).fetchall() == []
        mine.register(conn, worker_name="mine", url=worker.url)
        assert conn.execute(signed).fetchall() == [("the new one",)]
        conn.rollback()
        conn.execute(mine.sql("mine", worker.url))
    assert shop.admin.check(mine) == []
    assert "secret => 'env:MINE'" in mine.sql("mine", worker.url, secret="env:MINE")
    assert "This worker has a secret, and refuses such calls" in mine.sql("mine", worker.url)
    assert "refuses" not in mine.sql("mine", worker.url, secret="env:MINE") + EVERYTHING.sql("shop", worker.url)


def test_a_worker_that_has_a_secret_is_not_registered_without(shop: Any, worker: ProtocolWorker) -> None:
    """It would refuse each call. What is registered as it is keeps its secret, which may be a reference."""
    signed, mine = "SELECT value FROM xdb.worker_secret", xdb.Worker(Order, Delivery, Idle, secret="its own")

    def registered() -> list[Any]:
        with psycopg.connect(shop.superuser_dsn) as conn:
            return conn.execute(signed).fetchall()

    shop.admin.register(mine, name="mine", url=worker.url)
    assert registered() == [("its own",)]
    shop.admin.register(mine, name="mine", url=worker.url, secret="another")
    assert not shop.admin.register(mine, name="mine", url=worker.url)[0] and registered() == [("another",)]
    moved = str(shop.admin.register(mine, name="mine", url=worker.url.replace("127.0.0.1", "localhost"))[0])
    assert "secret: none is given, so the worker's own is registered" in moved and registered() == [("its own",)]


def test_the_rights_of_operators_and_deployers(shop: Any, worker: ProtocolWorker) -> None:
    mine = admin.Admin(shop.dsn)
    assert "can't be seen: it belongs to postgres" in str(mine.check(EVERYTHING)[0])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mine.register(EVERYTHING, name="shop", url=worker.url)
    shop.admin.grant_usage("app", operator=True, deployer=True)
    mine.pause_engine()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mine.register(xdb.Worker(Changed), name="shop", url=worker.url)
    mine.register_worker("mine", worker.url, max_concurrency=3)
    assert shop.execute("SELECT max_concurrency FROM xdb.workers WHERE name = 'mine'") == [(3,)]
    mine.resume_engine()
    mine.close()


def test_operating(shop: Any) -> None:
    shop.client.start(Idle, "i")
    shop.client.stop("i")
    assert shop.admin.purge(timedelta(days=1)) == 0
    # What the engine has locked at that moment stays.
    wait_until("it is purged", lambda: shop.admin.purge(0) == 1)
    with pytest.raises(errors.ProcessNotFound):
        shop.client.describe("i")
    shop.admin.pause_engine()
    wait_until("it is paused", lambda: shop.admin.status().state == "paused")
    status = shop.admin.status()
    assert status.reason and status.backlog == 0 and status.raw["runners"] == 0
    shop.client.start(Idle, "due")
    assert shop.admin.status().oldest_due is not None
    shop.admin.resume_engine()
    shop.admin.adopt()
    with pytest.raises(psycopg.errors.UndefinedObject):
        shop.admin.grant_usage('no"body')


def test_sql_registers_the_same(shop: Any, worker: ProtocolWorker) -> None:
    name = "o'sh\\op"
    text = admin.sql(EVERYTHING, name=name, url=worker.url, max_concurrency=5)
    assert text == admin.sql(xdb.Worker(Idle, Delivery, Order), name=name, url=worker.url, max_concurrency=5)
    with psycopg.connect(shop.superuser_dsn) as conn:
        conn.execute(text)
    assert shop.admin.check(EVERYTHING) == []
    with psycopg.connect(shop.superuser_dsn) as conn:
        registered = conn.execute("SELECT url, max_concurrency FROM xdb.workers WHERE name = %s", (name,)).fetchall()
        assert registered == [(worker.url, 5)]
    with pytest.raises(ValueError, match="must not be in a script"):
        admin.sql(EVERYTHING, name="shop", url=worker.url, secret="s3cret")
    assert "secret => 'env:SHOP'" in admin.sql(EVERYTHING, name="shop", url=worker.url, secret="env:SHOP")


def test_differences() -> None:
    registered = {
        "states": {"a": {"executeApiRetryPolicy": {"maximumAttempts": 3, "initialIntervalSeconds": 1.0}}, "b": {}},
        "globalAttributes": [{"table": "t", "relation": 5, "primaryKey": ["k"], "attributes": {"x": "x"}}],
        "globalQueues": [],
        "history": "full",
    }
    coded: dict[str, Any] = {
        "states": {"a": {"executeApiRetryPolicy": {"maximumAttempts": 3}}, "b": None},
        "globalAttributes": [{"table": "t", "primaryKey": "k", "attributes": {"x": "x"}}],
    }
    assert differences(registered, coded) == []
    coded["globalAttributes"][0]["attributes"] = {"x": "y"}
    coded["timeoutSeconds"] = 5
    coded["rpcs"] = {"r": None}
    assert differences(registered, coded) == [
        "globalAttributes.t.attributes.x: x -> y",
        "rpcs is new: {'r': {}}",
        "timeoutSeconds: 0 -> 5",
    ]


# --- the command line


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sys.modules["shop"], "worker", EVERYTHING, raising=False)
    monkeypatch.setattr(sys.modules["shop"], "changed", xdb.Worker(Changed), raising=False)
    return "shop:worker"


def test_the_command_line(shop: Any, worker: ProtocolWorker, module: str, capsys: Any, monkeypatch: Any) -> None:
    dsn = ["--dsn", shop.superuser_dsn]
    assert cli.main(["register", module, "--name", "shop", "--url", worker.url, *dsn]) == 0
    assert capsys.readouterr().out == "nothing changes: worker shop and its process types are registered already\n"
    elsewhere = ["register", module, "--name", "shop", "--url", worker.url.replace("127.0.0.1", "localhost"), *dsn]
    assert cli.main(elsewhere) == 1
    assert "Name the secret with --secret-env NAME, or use --no-secret." in capsys.readouterr().err
    assert cli.main([*elsewhere, "--no-secret"]) == 0
    assert capsys.readouterr().out.startswith("worker shop changes\n    url: ")
    assert cli.main(["register", module, "--name", "shop", "--url", worker.url, "--no-secret", *dsn]) == 0

    shop.client.start(Idle, "i")
    changed = ["register", "shop:changed", "--name", "shop", "--url", worker.url, *dsn]
    assert cli.main(changed) == 1
    assert "Keep the code until these executions have closed, or use --force." in capsys.readouterr().err
    assert cli.main(["check", "shop:changed", *dsn]) == 1
    assert "states.sleep is new" in capsys.readouterr().out
    assert cli.main([*changed, "--force", "--dry-run"]) == 0
    assert cli.main(["check", module, *dsn]) == 0

    assert cli.main(["register", module, "--name", "shop", "--url", worker.url, "--dsn", shop.dsn, "--secret-env", "NONE"]) == 2
    assert "is not set or empty" in capsys.readouterr().err
    monkeypatch.setenv("SHOP_SECRET", "s3cret")
    signed = ["register", module, "--name", "shop", "--url", worker.url, "--secret-env", "SHOP_SECRET"]
    assert cli.main([*signed, "--dsn", shop.dsn]) == 2
    assert "deployer => true" in capsys.readouterr().err
    assert cli.main([*signed, *dsn]) == 0
    assert "s3cret" not in capsys.readouterr().out


def test_the_command_line_without_a_server(module: str, capsys: Any) -> None:
    assert cli.main(["sql", module, "--name", "shop", "--url", "http://shop:1"]) == 0
    assert capsys.readouterr().out == admin.sql(EVERYTHING, name="shop", url="http://shop:1")
    assert cli.main(["definition", module]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"Order", "Delivery", "Idle"}
    assert cli.main(["definition", "nowhere:worker"]) == 2
    assert "ModuleNotFoundError" in capsys.readouterr().err
    assert cli.main(["definition", "shop:TABLES"]) == 2
    assert "name an xdb.Worker or xdb.PullWorker" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["register", module])
    with pytest.raises(psycopg.OperationalError):
        cli.main(["--debug", "check", module, "--dsn", "host=/nowhere"])


def test_serving_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text("import xdb\nclass P(xdb.Process): pass\nworker = xdb.Worker(P)\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(xdb.__file__).parents[1])}
    command = [sys.executable, "-m", "xdb", "serve", "served:worker", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        listening = re.search(r"listening on (http://127\.0\.0\.1:\d+) ", served.stderr.readline())
        assert listening is not None
        with urllib.request.urlopen(f"{listening[1]}/api/v1/xdb/worker/health") as health:
            assert list(json.load(health)["types"]) == ["P"]
        served.terminate()
        assert served.wait(60) == 0


def test_the_counts_of_the_server_are_used(shop: Any) -> None:
    """A later server counts for all roles; what it says is stood in for."""
    with psycopg.connect(shop.superuser_dsn) as conn:
        conn.execute(
            """CREATE OR REPLACE FUNCTION xdb.process_type_usage(process_type text)
            RETURNS TABLE (kind text, name text, live bigint) LANGUAGE sql AS $$
                VALUES ('STATE', 'rest', 10000::bigint), ('LOCAL_QUEUE', 'paid', 1), ('GLOBAL_QUEUE', 'prices', 2) $$"""
        )
        found = [str(finding) for finding in shop.admin.check(xdb.Worker(Changed), conn=conn) if finding.strands]
        conn.rollback()
    assert found == [
        "Idle: state rest was removed, but 10000 or more executions are in it",
        "Idle: queue paid was removed, but 1 execution waits for it",
        "Idle: global queue prices was removed, but 2 executions wait for it",
    ]


def test_an_older_server_is_detected(shop: Any, worker: ProtocolWorker) -> None:
    """Where the view of process types is not there, everything is registered again, and nothing is claimed."""
    with psycopg.connect(shop.superuser_dsn) as conn:
        conn.execute("ALTER VIEW xdb.process_types RENAME TO process_types_of_later")
        [finding, *_] = shop.admin.check(EVERYTHING, conn=conn)
        assert "does not show registered definitions" in str(finding) and not finding.strands
        changes = shop.admin.register(EVERYTHING, name="shop", url=worker.url, conn=conn)
        assert "registered again" in str(changes[1])
        conn.rollback()
