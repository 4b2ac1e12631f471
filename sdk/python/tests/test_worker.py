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
from support import BASE, EXECUTION, PATHS, SECRET, headers, post, request

import xdb
from xdb import codec
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


def test_what_is_only_read_is_not_written() -> None:
    # Another spelling of the same value: 1.0 for 1, a missing default.
    rows = {"lines": [{"sku": "a", "amount": 1.0}], "total": 1, "note": None}
    status, answer = execute("reads", rows=rows, local={"tags": ["x"]})
    assert status == 200 and set(answer) == {"stateDecision"}


def test_what_is_assigned_or_has_changed_is_written() -> None:
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
        {"queueName": "prices", "key": "EUR", "payload": "1.10", "ttlSeconds": 3600.0}
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
    assert answer["detail"] == "no message of parts was received: ask parts.received first"
    status, answer = post(WORKER, "Order", "waits_for_nothing", "wait-until")
    assert answer["errorType"] == "NoDecision" and "it returns what to wait for" in answer["detail"]


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


def test_recovery_and_what_the_database_said() -> None:
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
        ("nothing", "NoDecision", "Order.nothing returned nothing: each way through it ends with a decision"),
        ("foreign", "NoDecision", "Order.foreign returned dict {'nextStates': []}, which is no decision"),
        ("uncalled", "NoDecision", "Order.uncalled returned the state nothing itself: call it, self.nothing()"),
        ("raises", "LookupError", "not in stock"),
        ("exits", "SystemExit", "3"),
        ("fatal", "OutOfStock", "no more red ones"),
        ("retryable", "Busy", "Busy"),
        ("sleeps", "DeadlineExceeded", "Order.sleeps took longer than 0.02 s, and the engine has given up"),
        ("reads", "NullAttribute", "Basket.lines is null: its row is gone, or annotate it `list[test_worker.Line] | None`"),
        ("line", "CodecError", "Order.line(line): null is not Line"),
    ],
)
def test_a_failed_handler_says_why(name: str, error_type: str, detail: str) -> None:
    status, answer = execute(name)
    assert (status, answer["errorType"]) == (500, error_type)
    assert answer["detail"].startswith(detail)
    assert answer.get("final") is (True if name == "fatal" else None)
    assert set(answer) <= {"errorType", "detail", "final"}


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


def test_the_deadline_is_that_of_the_request_where_it_says_it() -> None:
    assert execute("sleeps", context={"timeoutSeconds": 5})[0] == 200


def test_payloads_that_do_not_fit_name_the_place() -> None:
    assert execute("line", input={"sku": "a"})[1]["detail"] == "Order.line(line).amount: is missing"
    rows = {"lines": [{"sku": "a", "amount": "x"}], "total": None, "note": None}
    assert execute("reads", rows=rows)[1]["detail"] == "Basket.lines[0].amount: str 'x' is not int"
    result = {"commandId": "two", "queueName": "parts", "status": "COMPLETED_COMMAND", "messages": [{"payload": 1}]}
    commands = {"timerResults": [], "localQueueResults": [result], "globalQueueResults": []}
    assert execute("waits_by_function", commandResults=commands)[1]["detail"] == "parts[0]: int 1 is not Line"


def test_what_was_not_loaded_can_not_be_read() -> None:
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
    with pytest.raises(xdb.CallOver, match="nothing can be published to parts: its handler has returned"):
        order.parts.publish(Line("late", 1))
    with pytest.raises(xdb.CallOver, match="Order.tries can't be written: its handler has returned"):
        order.tries = 4
    with pytest.raises(xdb.CallOver):
        order.basket.note = "late"


def test_what_can_not_be_kept_can_not_be_assigned() -> None:
    order: Any = opened("reads").instance
    with pytest.raises(AttributeError, match="Order has no attribute 'tires' that can be assigned: annotate it"):
        order.tires = 1
    with pytest.raises(AttributeError, match="Basket has no attribute 'nte'; it has lines, total, note"):
        order.basket.nte = 1
    with pytest.raises(AttributeError, match="a row is not replaced"):
        order.basket = None
    with pytest.raises(xdb.CodecError, match="Order.tries: str 'x' is not int"):
        order.tries = "x"
    with pytest.raises(xdb.NotLoaded, match="Order.due has no value yet: give it one in the class"):
        order.due
    with pytest.raises(TypeError, match=r"Order.line takes an input: self.line\(line\)"):
        order.line()
    with pytest.raises(TypeError, match="Order.reads takes no input"):
        order.reads(3)
    with pytest.raises(TypeError, match="only movements to states can be added"):
        order.reads() + xdb.complete()


def test_attributes_of_a_process_can_be_looked_at_without_a_call() -> None:
    from xdb.process import view

    order = view(Order, {"tries": 3})
    assert (order.tries, order.tags) == (3, [])
    with pytest.raises(xdb.CallOver, match="Order.tries can't be written: this is what the attributes were"):
        order.tries = 4


def test_outside_of_a_call_there_is_none() -> None:
    asked: list[Any] = [xdb.current, xdb.results, lambda: xdb.then(xdb.complete())]
    for ask in asked:
        with pytest.raises(LookupError, match="no call is being answered here"):
            ask()


def test_debug_gives_the_traceback() -> None:
    worker = xdb.Worker(Order, debug=True)
    assert "in raises" in post(worker, "Order", "raises", rows=NO_ROW)[1]["detail"]


# --- what goes wrong before them -------------------------------------------------------------------------------------


def test_who_is_not_here() -> None:
    status, answer = execute("nowhere")
    assert (status, answer["errorType"]) == (404, "UnknownState")
    assert answer["detail"].startswith("Order has no state 'nowhere' here, only nothing, foreign")
    assert post(WORKER, "Order", "nowhere", "rpc")[1]["errorType"] == "UnknownRpc"
    assert post(WORKER, "Nobody", "x")[1]["errorType"] == "UnknownProcessType"


def test_other_paths_and_methods() -> None:
    assert WORKER.handle("POST", "/api/v1/xdb/worker/other", {}, b"").status == 404
    assert WORKER.handle("POST", "/", {}, b"").status == 404
    refused = WORKER.handle("GET", PATHS["execute"], {}, b"")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    health: Any = codec.loads(WORKER.handle("GET", "/x" + BASE + "health", {}, b"").body)
    assert health["sdk"] == f"python/{xdb.__version__}"
    assert health["types"]["Order"] == f"sha256:{Order.definition_hash()}"


@pytest.mark.parametrize(
    "body, detail",
    [
        (b"", "the body can't be read as JSON"),
        (b"{", "the body can't be read as JSON"),
        (b"[" * 100000, "the body can't be read as JSON"),
        (b"[]", "this is no call of the engine"),
        (b"{}", "this is no call of the engine: 'context' is missing"),
        (b'{"context": {}, "processType": "Order", "stateId": "reads"}', "'callId' is missing"),
        (b'{"context": {}, "processType": [], "stateId": "reads"}', "this is no call of the engine"),
    ],
    ids=["empty", "half", "deep", "list", "object", "context", "type"],
)
def test_a_body_that_is_no_call(body: bytes, detail: str) -> None:
    reply = WORKER.handle("POST", PATHS["execute"], {}, body)
    answer: Any = codec.loads(reply.body)
    assert reply.status == 400 and detail in answer["detail"]


def test_a_body_that_somebody_has_eaten() -> None:
    body = request("Order", "reads")
    worker = xdb.Worker(Order, secret=SECRET)
    reply = worker.handle("POST", PATHS["execute"], headers(body, SECRET), b"")
    answer: Any = codec.loads(reply.body)
    assert (reply.status, answer["errorType"]) == (500, "RawBodyConsumed")
    assert f"0 of {len(body)} bytes of the body are left: something before XDB has read it" in answer["detail"]
    large = xdb.Worker(Order, max_body=10).handle("POST", PATHS["execute"], headers(body), body)
    assert large.status == 413 and b"raise max_body" in large.body


def test_a_worker_that_is_none() -> None:
    with pytest.raises(TypeError, match="a worker needs its processes"):
        xdb.Worker()
    with pytest.raises(TypeError, match="two of the processes are called 'Order'"):
        xdb.Worker(Order, Order)
    with pytest.raises(ValueError, match="the secret is empty: is the environment variable set"):
        xdb.Worker(Order, secret="")
    with pytest.raises(ValueError, match="not base64"):
        xdb.Worker(Order, secret="whsec_?")
    with pytest.raises(TypeError, match="Order.cancelled, Order.sleeps_async, Order.quick_async: async handlers need worker.asgi"):
        WORKER.wsgi()


# --- signatures ------------------------------------------------------------------------------------------------------


def signed(worker: xdb.Worker, given: dict[str, str], body: bytes) -> tuple[int, str]:
    reply = worker.handle("POST", PATHS["rpc"], given, body)
    answer: Any = codec.loads(reply.body)
    return reply.status, answer.get("detail", "")


def test_signatures() -> None:
    body = request("Order", "ask", "rpc", input=1)
    worker = xdb.Worker(Order, secret=[SECRET, "an old one"])
    assert signed(worker, headers(body, SECRET), body)[0] == 200
    assert signed(worker, headers(body, "an old one"), body)[0] == 200
    # While the engine changes its secret it sends two signatures.
    assert signed(worker, headers(body, "unknown", SECRET), body)[0] == 200
    assert signed(worker, headers(body), body) == (
        401,
        "the call is not signed: register the worker with the secret that it has here",
    )
    status, detail = signed(worker, headers(body, "unknown"), body)
    assert status == 401 and detail.startswith("no signature is right: the worker was registered with another secret")
    assert signed(worker, headers(body, SECRET), body[:-1] + b" ")[0] == 401
    for age, said in ((400, "s old, more than 300 s"), (-400, "in the future")):
        status, detail = signed(worker, headers(body, SECRET, age=age), body)
        assert status == 401 and said in detail and "compare the clocks" in detail
    status, detail = signed(worker, {**headers(body, SECRET), "Idempotency-Key": "other"}, body)
    assert (status, detail) == (401, "webhook-id is not the Idempotency-Key")
    assert signed(worker, {**headers(body, SECRET), "webhook-timestamp": "soon"}, body)[0] == 401
    assert signed(worker, {**headers(body, SECRET), "webhook-signature": "v1,ü v2,x"}, body)[0] == 401


def test_a_signature_of_the_standard() -> None:
    """The example of the specification of Standard Webhooks."""
    from xdb.signatures import key_of, sign, verify

    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body, signature = b'{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body) == signature
    id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    given = {"webhook-id": id, "webhook-timestamp": "1614265330", "idempotency-key": id}
    verify([key], {**given, "webhook-signature": signature}, body, 1614265330, 300)
    assert key_of("whsec_QUI") == key_of("whsec_QUI=") == b"AB"


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


def test_an_open_worker_without_a_secret_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    worker = xdb.Worker(Order)
    for host in ("127.0.0.1", "localhost", "::1", "/tmp/socket", None):
        worker.warn_if_open(host)
    assert not caplog.records
    worker.warn_if_open("0.0.0.0")
    worker.warn_if_open("0.0.0.0")
    assert [each.getMessage() for each in caplog.records] == [
        "calls are not signed, and 0.0.0.0 can be reached from elsewhere: give the worker a secret"
    ]
