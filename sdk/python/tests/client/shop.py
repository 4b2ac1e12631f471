"""The process of these tests, and a worker that answers by the protocol alone: what is tested here is the calling side."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import psycopg
import psycopg.sql

import xdb

T = TypeVar("T")

TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new', total numeric);
CREATE TABLE stock (article text, place text, amount int NOT NULL DEFAULT 0, PRIMARY KEY (article, place))
"""


class Orders(xdb.Row, table="public.orders", key="order_id"):
    status: str
    total: Decimal | None


class Stock(xdb.Row, table="public.stock", key=("article", "place")):
    amount: int


class Order(xdb.Process):
    """Waits for a message that says it is paid."""

    order: Orders
    note: str
    tries: int = 0
    paid = xdb.Queue[str]()
    parcels = xdb.GlobalQueue[str]("parcels")

    @xdb.state(start=True, wait=lambda self: self.paid)
    def pay(self, hint: str | None) -> xdb.Decision:
        return xdb.complete("paid")

    @xdb.rpc
    def price(self, factor: int) -> Decimal:
        return Decimal(factor)

    @xdb.rpc
    def ping(self) -> str:
        return "pong"


class Delivery(xdb.Process):
    """Has two rows, and no state: it waits for RPCs."""

    order: Orders
    stock: Stock


class Idle(xdb.Process):
    """Has no rows, and waits for a day."""

    paid = xdb.Queue[str]()

    @xdb.state(start=True, wait=lambda self: self.paid)
    def rest(self) -> xdb.Decision:
        return xdb.complete()


def start_row(order_id: str, **values: Any) -> Any:
    return [Orders.row(order_id, **values)]


def wait_until(what: str, condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def repeated(call: Callable[[], T]) -> T:
    """Repeats a call while it fails to serialize."""
    given = list[T]()

    def was_made() -> bool:
        with contextlib.suppress(xdb.errors.SerializationFailure):
            given.append(call())
        return bool(given)

    wait_until("a call serializes", was_made)
    return given[0]


# What a role may be set to, besides limits of time.
SERIALIZABLE = {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"}
TEXTS = {"search_path": "", "DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kathmandu", "extra_float_digits": "0"}
HOSTILE = {**SERIALIZABLE, **TEXTS}


def set_for_role(database: Any, **settings: str) -> None:
    """For the database of this test alone, and sessions that begin after this."""
    with psycopg.connect(database.superuser_dsn, autocommit=True) as conn:
        for name, value in settings.items():
            sql = psycopg.sql.SQL("ALTER ROLE app IN DATABASE {} SET {} = {}")
            place, setting = psycopg.sql.Identifier(conn.info.dbname), psycopg.sql.SQL(name)
            conn.execute(sql.format(place, setting, psycopg.sql.Literal(value) if value else psycopg.sql.SQL("''")))


Answer = Callable[[str, dict[str, Any]], "tuple[int, dict[str, Any]]"]


def answers(call: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """What the worker says unless a test says otherwise."""
    if call == "wait-until":
        return 200, {
            "commandRequest": {
                "waitingType": "AnyOfCompletion",
                "timerCommands": [{"commandId": "day", "delayInSeconds": 86400}],
                "localQueueCommands": [{"commandId": "paid", "queueName": "paid"}],
            }
        }
    if call == "execute":
        [result] = request["commandResults"]["localQueueResults"]
        messages = [message["payload"] for message in result.get("messages") or ()]
        close = {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": messages or None}
        return 200, {"stateDecision": {"threadCloseDecision": close}}
    if request["rpcName"] == "price":
        return 200, {"output": str(Decimal("12.30") * request["input"])}
    return 200, {"output": "pong"}


class ProtocolWorker:
    """An HTTP server in a thread; `answer` may be changed at any time. `calls` are the requests that came."""

    def __init__(self) -> None:
        self.answer: Answer = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                call = self.path.rsplit("/", 1)[1]
                outer.calls.append((call, request))
                status, answer = outer.answer(call, request)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
