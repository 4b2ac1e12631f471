from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import signup
import transfer
from support import EXECUTION, PATHS, headers, post, request

import xdb
import xdb.testing
from xdb import codec
from xdb.live import Live
from xdb.request import Job

FORM = {"name": "Alice", "email": "a@x"}


@pytest.fixture(autouse=True)
def _no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signup, "send_email", lambda to, text: None)


@dataclass
class Line:
    sku: str
    amount: int


class Basket(xdb.Row, table="baskets", key="id"):
    lines: list[Line]
    total: Decimal | None
    note: str | None


class Order(xdb.Process):
    basket: Basket
    tries: int = 0
    tags: list[str] = []
    due: str
    parts = xdb.Queue[Line]()
    prices = xdb.GlobalQueue[Decimal]("prices")

    @xdb.state
    def nothing(self) -> xdb.Decision:
        self.tries += 1
        return None  # type: ignore

    @xdb.state
    def foreign(self) -> xdb.Decision:
        return {"nextStates": []}  # type: ignore

    @xdb.state
    def uncalled(self) -> xdb.Decision:
        return self.nothing  # type: ignore

    @xdb.state
    def raises(self) -> xdb.Decision:
        self.parts.publish(Line("a", 1))
        raise LookupError("not in stock")

    @xdb.state
    def exits(self) -> xdb.Decision:
        raise SystemExit(3)

    @xdb.state
    async def cancelled(self) -> xdb.Decision:
        raise asyncio.CancelledError("inner")

    @xdb.state
    def fatal(self) -> xdb.Decision:
        raise xdb.Fatal("OutOfStock", "no more red ones")

    @xdb.state
    def odd(self, kind: str) -> xdb.Decision:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        errors: dict[str, Exception] = {
            "surrogate": xdb.Fatal("\ud800", "\ud800"),
            "nul": xdb.Fatal("a\0b", "c\0d"),
            "number": xdb.Fatal(5, "x"),  # type: ignore[arg-type]
            "mute": Mute(),
            "long": ValueError("x" * 100_000),
        }
        raise errors[kind]

    @xdb.state
    def retryable(self) -> xdb.Decision:
        raise xdb.Retryable("Busy")

    @xdb.state(timeout=timedelta(milliseconds=20))
    def sleeps(self) -> xdb.Decision:
        time.sleep(0.05)
        return xdb.complete()

    @xdb.state(timeout=timedelta(milliseconds=20))
    async def sleeps_async(self) -> xdb.Decision:
        await asyncio.sleep(30)
        return xdb.complete()

    @xdb.state
    async def quick_async(self, n: int) -> xdb.Decision:
        await asyncio.sleep(0)
        return xdb.complete(n + 1)

    @xdb.state
    def line(self, line: Line) -> xdb.Decision:
        return xdb.complete(line)

    @xdb.state
    def reads(self) -> xdb.Decision:
        return xdb.complete([self.basket.lines, self.basket.total, self.tags, self.tries])

    @xdb.state
    def changes(self) -> xdb.Decision:
        self.basket.lines.append(Line("b", 2))
        self.tags.append("changed")
        self.basket.total = Decimal("2.50")
        return self.line(Line("c", 3)) + self.nothing.with_config(timeout=timedelta(seconds=5))()

    @xdb.state
    def publishes(self) -> xdb.Decision:
        self.parts.publish(Line("a", 1), message_id="m1")
        self.prices.publish(Decimal("1.10"), key="EUR", ttl=timedelta(hours=1))
        self.prices.publish(Decimal("1.20"), ttl=90)
        return xdb.complete_if_empty(self.parts, result="empty", otherwise=self.reads())

    @xdb.state(
        wait=xdb.any_of(xdb.all_of(parts.take(2, id="two"), xdb.timer(seconds=1, id="soon")), prices.take(key="EUR"))
    )
    def waits(self) -> xdb.Decision:
        results = xdb.results()
        prices = [(each.payload, each.key, each.message_id) for each in self.prices.messages]
        return xdb.complete([self.parts.messages, prices, results.timer("soon").fired, results.queue("two").completed])

    @xdb.state(wait=lambda self: xdb.all_of(self.parts.take(self.tries), xdb.timer(seconds=self.tries)))
    def waits_by_function(self) -> xdb.Decision:
        return xdb.complete(self.parts.message)

    @xdb.state(wait=lambda self: None)
    def waits_for_nothing(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state(load=("note",))
    def partial(self) -> xdb.Decision:
        return xdb.complete(self.tries)

    @xdb.state
    def recovers(self, line: Line | None) -> xdb.Decision:
        call = self.call
        assert call == xdb.current()
        assert call.recovered_from is not None and call.database_error is not None
        return xdb.complete([call.recovered_from.state, call.recovered_from.detail, call.database_error.sqlstate])

    @xdb.rpc
    def ask(self, amount: int) -> Line:
        return Line("asked", amount)

    @xdb.rpc
    def wrong_output(self) -> int:
        return "x"  # type: ignore

    @xdb.rpc
    def starts(self) -> None:
        xdb.then(self.reads())


WORKER = xdb.Worker(Order, signup.SignUp, transfer.MoneyTransfer)
NO_ROW = {"lines": None, "total": None, "note": None}


def execute(name: str, **fields: Any) -> tuple[int, Any]:
    return post(WORKER, "Order", name, **{"rows": NO_ROW, **fields})


# --- what handlers do ------------------------------------------------------------------------------------------------


def test_the_examples_go_through() -> None:
    rows = {"form": FORM, "status": "waiting", "source": None}
    status, answer = post(WORKER, "UserSignup", "submit", rows=rows)
    assert (status, answer) == (200, {"stateDecision": {"nextStates": [{"stateId": "verify"}]}})
    status, answer = post(WORKER, "UserSignup", "verify", "wait-until")
    assert answer == {
        "commandRequest": {
            "waitingType": "AnyOfCompletion",
            "localQueueCommands": [{"commandId": "verified", "queueName": "verified", "count": 1}],
            "timerCommands": [{"commandId": "timer", "delayInSeconds": 86400.0}],
        }
    }
    status, answer = post(WORKER, "UserSignup", "verify", rows=rows, local={"reminders": 2})
    assert answer["writeToLocalAttributes"] == {"reminders": 3}
    status, answer = post(WORKER, "UserSignup", "confirm", "rpc", rows=rows, input="link")
    assert answer == {
        "output": "done",
        "writeToGlobalAttributes": {"status": "verified", "source": "link"},
        "publishToLocalQueue": [{"queueName": "verified", "payload": "link"}],
    }


def test_decimals_have_all_their_digits() -> None:
    body = request("MoneyTransfer", "debit", rows={"balance": 0, "amount": 1, "status": "new", "to_account": "x"})
    body = body.replace(b'"balance":0', b'"balance":100000000000000000001.10')
    reply = WORKER.handle("POST", PATHS["execute"], headers(body), body)
    written: Any = codec.loads(reply.body)
    assert written["writeToGlobalAttributes"]["balance"] == "100000000000000000000.10"


def test_an_attribute_that_is_only_read_is_not_written() -> None:
    # Another spelling of the same value: 1.0 for 1, a missing default.
    rows = {"lines": [{"sku": "a", "amount": 1.0}], "total": 1, "note": None}
    status, answer = execute("reads", rows=rows, local={"tags": ["x"]})
    assert status == 200 and set(answer) == {"stateDecision"}


def test_an_assigned_or_changed_attribute_is_written() -> None:
    status, answer = execute("changes", rows={"lines": [], "total": "1", "note": "n"})
    assert status == 200
    assert answer["writeToGlobalAttributes"] == {"lines": [{"sku": "b", "amount": 2}], "total": "2.50"}
    assert answer["writeToLocalAttributes"] == {"tags": ["changed"]}
    assert answer["stateDecision"]["nextStates"] == [
        {"stateId": "line", "stateInput": {"sku": "c", "amount": 3}},
        {"stateId": "nothing", "stateConfig": {"executeApiTimeoutSeconds": 5.0}},
    ]
    # The default of the class is its own each time.
    assert execute("reads", rows={"lines": [], "total": None, "note": None})[1]["stateDecision"] == {
        "threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": [[], None, [], 0]}
    }


def test_messages_go_out_with_the_answer() -> None:
    status, answer = execute("publishes")
    assert answer["publishToLocalQueue"] == [
        {"queueName": "parts", "messageId": "m1", "payload": {"sku": "a", "amount": 1}}
    ]
    assert answer["publishToGlobalQueue"] == [
        {"queueName": "prices", "key": "EUR", "payload": "1.10", "ttlSeconds": 3600.0},
        {"queueName": "prices", "payload": "1.20", "ttlSeconds": 90},
    ]
    assert answer["stateDecision"] == {
        "conditionalClose": {
            "closeType": "GRACEFUL_COMPLETE_PROCESS",
            "closeInput": "empty",
            "whenLocalQueuesEmpty": ["parts"],
        },
        "nextStates": [{"stateId": "reads"}],
    }


def test_a_nested_wait_and_its_results() -> None:
    status, answer = post(WORKER, "Order", "waits", "wait-until")
    assert answer["commandRequest"] == {
        "waitingType": "AnyOfCombination",
        "combinations": [["soon", "two"], ["prices"]],
        "timerCommands": [{"commandId": "soon", "delayInSeconds": 1.0}],
        "localQueueCommands": [{"commandId": "two", "queueName": "parts", "count": 2}],
        "globalQueueCommands": [{"commandId": "prices", "queueName": "prices", "count": 1, "key": "EUR"}],
    }
    lines = [{"sku": "a", "amount": 1}, {"sku": "a", "amount": 2}]
    results = {
        "timerResults": [{"commandId": "soon", "status": "COMPLETED_COMMAND"}],
        "localQueueResults": [
            {
                "commandId": "two",
                "queueName": "parts",
                "status": "COMPLETED_COMMAND",
                "messages": [{"messageId": None, "payload": line} for line in lines],
            }
        ],
        "globalQueueResults": [
            {
                "commandId": "prices",
                "queueName": "prices",
                "status": "COMPLETED_COMMAND",
                "messages": [{"messageId": "m", "key": "EUR", "payload": "1.10"}],
            }
        ],
    }
    status, answer = execute("waits", commandResults=results)
    assert answer["stateDecision"]["threadCloseDecision"]["closeInput"] == [lines, [["1.10", "EUR", "m"]], True, True]


def test_a_wait_that_is_worked_out() -> None:
    status, answer = post(WORKER, "Order", "waits_by_function", "wait-until", rows=NO_ROW, local={"tries": 3})
    assert answer["commandRequest"] == {
        "waitingType": "AllOfCompletion",
        "timerCommands": [{"commandId": "timer", "delayInSeconds": 3.0}],
        "localQueueCommands": [{"commandId": "parts", "queueName": "parts", "count": 3}],
    }
    status, answer = execute("waits_by_function")
    assert answer["detail"] == "no message of parts was received: check parts.received first"
    status, answer = post(WORKER, "Order", "waits_for_nothing", "wait-until")
    assert answer["errorType"] == "NoDecision" and "return what to wait for" in answer["detail"]


def test_a_state_that_waits_no_more_is_not_called_too_early() -> None:
    """The engine has the definition of before: in it the state waits."""
    assert post(WORKER, "Order", "raises", "wait-until")[1] == {"commandRequest": {"waitingType": "EmptyCommand"}}
    with pytest.raises(LookupError):
        xdb.testing.call(Order.raises)


def test_rpcs() -> None:
    assert post(WORKER, "Order", "ask", "rpc", input=3)[1] == {"output": {"sku": "asked", "amount": 3}}
    assert post(WORKER, "Order", "starts", "rpc")[1] == {
        "output": None,
        "stateDecision": {"nextStates": [{"stateId": "reads"}]},
    }
    status, answer = post(WORKER, "Order", "wrong_output", "rpc")
    assert (status, answer["detail"]) == (500, "Order.wrong_output() returned: str 'x' is not int")
    status, answer = post(WORKER, "Order", "ask", "rpc", input="three")
    assert answer["detail"] == "Order.ask(amount): str 'three' is not int"


def test_recovery_and_errors_of_the_database() -> None:
    context = {
        "recoverFromStateExecutionId": "credit-card-2",
        "recoverFromApi": "EXECUTE_API",
        "recoverFromError": {"status": 500, "errorType": "Busy", "detail": "no"},
    }
    refused = {"sqlState": "23514", "message": "m", "table": None, "constraint": "c"}
    status, answer = execute("recovers", context=context, appDatabaseError=refused)
    assert answer["stateDecision"]["threadCloseDecision"]["closeInput"] == ["credit-card", "no", "23514"]


def test_an_async_handler_has_a_loop_in_the_pure_core() -> None:
    assert execute("quick_async", input=1)[1]["stateDecision"]["threadCloseDecision"]["closeInput"] == 2


# --- what goes wrong in handlers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, error_type, detail",
    [
        ("nothing", "NoDecision", "Order.nothing returned nothing: return a decision on every path"),
        ("foreign", "NoDecision", "Order.foreign returned dict {'nextStates': []}, which is not a decision"),
        ("uncalled", "NoDecision", "Order.uncalled returned the state nothing itself: call it, self.nothing()"),
        ("raises", "LookupError", "not in stock"),
        ("exits", "SystemExit", "3"),
        ("fatal", "OutOfStock", "no more red ones"),
        ("retryable", "Busy", "Busy"),
        ("sleeps", "DeadlineExceeded", "Order.sleeps took longer than 0.02 s, and the engine has given up"),
        ("reads", "NullAttribute", "Basket.lines is null, or its row was deleted: annotate it `list[test_worker.Line] | None`"),
        ("line", "CodecError", "Order.line(line): null is not Line"),
    ],
)
def test_a_failed_handler_reports_the_reason(name: str, error_type: str, detail: str) -> None:
    status, answer = execute(name)
    assert (status, answer["errorType"]) == (500, error_type)
    assert answer["detail"].startswith(detail)
    assert answer.get("final") is (True if name == "fatal" else None)
    assert set(answer) <= {"errorType", "detail", "final"}


@pytest.mark.parametrize(
    "kind, error_type, detail",
    [
        ("surrogate", "?", "?"),
        ("nul", "a\ufffdb", "c\ufffdd"),
        ("number", "5", "x"),
        ("mute", "Mute", "its message can't be read: RuntimeError"),
        ("long", "ValueError", "x" * 1000),
    ],
)
def test_an_odd_exception_is_a_failed_attempt_like_any_other(
    caplog: pytest.LogCaptureFixture, kind: str, error_type: str, detail: str
) -> None:
    # Half of a surrogate pair in the log can't be sent to the process that reports on the tests.
    caplog.set_level(logging.CRITICAL + 1)
    status, answer = execute("odd", input=kind)
    assert (status, answer["errorType"], answer["detail"]) == (500, error_type, detail)


def test_an_async_handler_is_tested_from_an_async_test_too() -> None:
    async def test() -> Any:
        assert execute("quick_async", input=1)[0] == 200
        return xdb.testing.call(Order.quick_async, 1).decision

    assert asyncio.run(test()) == xdb.complete(2)


def test_an_async_handler_past_its_deadline_is_cancelled_in_the_pure_core_too() -> None:
    began = time.monotonic()
    assert execute("sleeps_async")[1]["errorType"] == "DeadlineExceeded"
    assert time.monotonic() - began < 10


def test_an_async_handler_that_was_cancelled_inside_has_failed() -> None:
    reply = asyncio.run(opened("cancelled").run_async())
    assert reply.status == 500 and b'"errorType":"CancelledError"' in reply.body


def test_a_column_and_a_local_attribute_may_have_one_name() -> None:
    class Same(xdb.Process):
        basket: Basket
        note: str = "local"

        @xdb.state
        def swaps(self) -> xdb.Decision:
            self.note, self.basket.note = str(self.basket.note), self.note
            return xdb.complete()

    status, answer = post(xdb.Worker(Same), "Same", "swaps", rows={**NO_ROW, "note": "global"})
    assert answer["writeToGlobalAttributes"] == {"note": "local"}
    assert answer["writeToLocalAttributes"] == {"note": "global"}


def test_the_deadline_is_that_of_the_request_if_it_has_one() -> None:
    assert execute("sleeps", context={"timeoutSeconds": 5})[0] == 200


def test_payloads_that_do_not_fit_name_the_place() -> None:
    assert execute("line", input={"sku": "a"})[1]["detail"] == "Order.line(line).amount: is missing"
    rows = {"lines": [{"sku": "a", "amount": "x"}], "total": None, "note": None}
    assert execute("reads", rows=rows)[1]["detail"] == "Basket.lines[0].amount: str 'x' is not int"
    result = {"commandId": "two", "queueName": "parts", "status": "COMPLETED_COMMAND", "messages": [{"payload": 1}]}
    commands = {"timerResults": [], "localQueueResults": [result], "globalQueueResults": []}
    assert execute("waits_by_function", commandResults=commands)[1]["detail"] == "parts[0]: int 1 is not Line"


def test_an_attribute_that_was_not_loaded_can_not_be_read() -> None:
    status, answer = execute("partial", rows={"note": None})
    assert answer["detail"] == "Order.tries was not loaded for this call: add it to load="
    status, answer = post(WORKER, "UserSignup", "submit", rows={})
    assert answer["detail"] == "User.form was not loaded for this call: add it to load="


def opened(name: str, **fields: Any) -> Job:
    body = request("Order", name, **{"rows": NO_ROW, **fields})
    job = WORKER.open("POST", PATHS["execute"], headers(body), body)
    assert isinstance(job, Job)
    return job


def test_after_the_handler_has_returned_nothing_is_lost_in_silence() -> None:
    job = opened("publishes")
    order: Any = job.instance
    assert job.run().status == 200
    with pytest.raises(xdb.CallOver, match="can't publish to parts: the handler has returned"):
        order.parts.publish(Line("late", 1))
    with pytest.raises(xdb.CallOver, match="can't write Order.tries: the handler has returned"):
        order.tries = 4
    with pytest.raises(xdb.CallOver):
        order.basket.note = "late"


def test_nothing_is_lost_while_the_answer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that goes on publishes while what the handler has left is encoded: it gets an error."""
    job = opened("publishes")
    order: Any = job.instance
    refused: list[BaseException] = []
    effects = Live.effects

    def slowly(live: Live) -> Any:
        made = effects(live)
        with pytest.raises(xdb.CallOver) as raised:
            order.parts.publish(Line("late", 1))
        refused.append(raised.value)
        return made

    monkeypatch.setattr(Live, "effects", slowly)
    assert job.run().status == 200 and len(refused) == 1


def test_a_value_that_can_not_be_stored_can_not_be_assigned() -> None:
    order: Any = opened("reads").instance
    with pytest.raises(AttributeError, match="Order has no attribute 'tires' that can be assigned: annotate it"):
        order.tires = 1
    with pytest.raises(AttributeError, match="Basket has no attribute 'nte'; its attributes are lines, total, note"):
        order.basket.nte = 1
    with pytest.raises(AttributeError, match="can't be replaced"):
        order.basket = None
    with pytest.raises(xdb.CodecError, match="Order.tries: str 'x' is not int"):
        order.tries = "x"
    with pytest.raises(xdb.NotLoaded, match="Order.due has no value yet: give it a default in the class"):
        order.due
    with pytest.raises(TypeError, match=r"Order.line needs its input: write self.line\(line\)"):
        order.line()
    with pytest.raises(TypeError, match="Order.reads takes no input"):
        order.reads(3)
    with pytest.raises(TypeError, match="takes only movements to states"):
        order.reads() + xdb.complete()


def test_a_result_that_has_no_json_names_the_place() -> None:
    with pytest.raises(xdb.CodecError, match=r"result\['a'\]\[1\]: object can't become JSON"):
        xdb.complete({"a": [1, object()]})
    with pytest.raises(ValueError, match="of a message for prices is not positive"):
        opened("publishes").instance.prices.publish(Decimal(1), ttl=0)  # type: ignore[attr-defined]


def test_attributes_of_a_process_can_be_looked_at_without_a_call() -> None:
    from xdb.process import view

    order = view(Order, {"tries": 3})
    assert (order.tries, order.tags) == (3, [])
    with pytest.raises(xdb.CallOver, match="can't write Order.tries: this is a copy of the attributes, outside of a call"):
        order.tries = 4


def test_outside_of_a_call_there_is_none() -> None:
    asked: list[Any] = [xdb.current, xdb.results, lambda: xdb.then(xdb.complete())]
    for ask in asked:
        with pytest.raises(LookupError, match="there is no call here"):
            ask()


def test_debug_gives_the_traceback() -> None:
    worker = xdb.Worker(Order, debug=True)
    assert "in raises" in post(worker, "Order", "raises", rows=NO_ROW)[1]["detail"]


# --- logging ---------------------------------------------------------------------------------------------------------


def test_lines_have_the_ids_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    from xdb.logging import install

    install(caplog.handler)
    with caplog.at_level(logging.INFO):
        execute("raises", context={"attempt": 3})
        logging.getLogger("mine").info("outside")
    failed, outside = (caplog.records[0], caplog.records[-1])
    assert failed.name == "xdb.worker" and failed.exc_info
    assert failed.getMessage() == "Order.raises failed in attempt 3: LookupError: not in stock"
    ids = [getattr(failed, name) for name in ("process_id", "execution_id", "state", "attempt", "call_id")]
    assert ids == ["p-1", EXECUTION, "raises", 3, f"{EXECUTION}/raises-1/execute"]
    assert getattr(outside, "process_id") == "-"


def test_an_open_worker_without_a_secret_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    worker = xdb.Worker(Order)
    for host in ("127.0.0.1", "localhost", "::1", "/tmp/socket", None):
        worker.warn_if_open(host)
    assert not caplog.records
    worker.warn_if_open("0.0.0.0")
    worker.warn_if_open("0.0.0.0")
    assert [each.getMessage() for each in caplog.records] == [
        "calls are not signed, and other machines can reach 0.0.0.0: give the worker a secret"
    ]
