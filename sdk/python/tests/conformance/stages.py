"""Where scenarios are played: the simulator, and a real server."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
from scenario import History, ScriptedWorker, moment

from xdb.errors import XdbError
from xdb.testing.program import Program
from xdb.testing.pytest_plugin import Database

# Real seconds.
WITHIN = 60.0
# Arguments that are a moment: in a scenario, seconds from now.
MOMENTS = {"start_at", "until"}
# Columns of views that say of one run when it was.
OF_ONE_RUN = {"execution_id", "raised_at"}


class OnSimulator:
    """The program xdb-sim, whose commands are those of scenarios."""

    def __init__(self) -> None:
        self._program = Program("2027-01-01T00:00:00Z")
        self._processes: set[str] = set()

    def close(self) -> None:
        self._program.close()

    def register(self, scenario: Mapping[str, Any], worker: ScriptedWorker) -> None:
        self._worker = worker
        for name, definition in scenario["types"].items():
            self._program.ask("register", {"process_type": name, "definition": definition})

    def do(self, command: str, arguments: Mapping[str, Any]) -> Any:
        if command == "advance":
            until = moment(self._now()) + timedelta(seconds=arguments["by"])
            while not self._program.ask("advance", {"until": until.isoformat()})["reached"]:
                self._answer_calls()
            return None
        for name in MOMENTS & arguments.keys():
            later = moment(self._now()) + timedelta(seconds=arguments[name])
            arguments = {**arguments, name: later.isoformat()}
        result = self._program.ask(command, arguments)
        if command == "start":
            self._processes.add(arguments["process_id"])
        if command == "incidents":
            return incidents(result)
        if command == "rpc":
            if "call" in result:
                call = result["call"]
                result = self._answer(call["call"], self._take(call))
            return result["output"]
        return None if command == "start" or arguments.keys() & {"set", "delete"} else result

    def settle(self, arrived: Callable[[], bool]) -> None:
        self._answer_calls()

    def history(self, process_id: str) -> History:
        found = self._program.ask("history", {"process_id": process_id})
        return [(event["event_time"], event["event_type"], event["details"]) for event in found]

    def problems(self) -> list[str]:
        return [problem for each in self._processes for problem in self._program.ask("check", {"process_id": each})]

    def _now(self) -> str:
        now: str = self._program.ask("advance", {"by": 0})["now"]
        return now

    def _answer_calls(self) -> None:
        due: deque[tuple[int, Mapping[str, Any]]] = deque()
        while True:
            for call in self._program.ask("calls", {}):
                due.append((call["call"], self._take(call)))
            if not due:
                return
            # One that has to wait for another's event goes to the end.
            for _ in range(len(due)):
                if has_happened(due[0][1], self.history):
                    break
                due.rotate(-1)
            self._answer(*due.popleft())

    def _take(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._worker.take(call["path"], json.loads(call["body"]))

    def _answer(self, call: int, answer: Mapping[str, Any]) -> Any:
        assert has_happened(answer, self.history), "what this answer waits for does not come"
        status, headers, body = answer.get("status", 200), answer.get("headers", {}), json.dumps(answer["answer"])
        return self._program.ask("answer", {"call": call, "status": status, "headers": headers, "body": body})


# The functions of a client's commands, those of operators, and the arguments that have a type of their own.
FUNCTIONS = {"start": "start_process", "rpc": "invoke_rpc", "stop": "stop_process"}
JSON = {"input", "global_attributes", "local_attributes", "options", "message", "attributes"}
SECONDS = {"timeout", "ttl"}
OPERATORS = {"pause_process_type", "resume_process_type"}


class OnServer:
    """A database with XDB and a test clock, and the worker behind HTTP."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._superuser = psycopg.connect(database.superuser_dsn, autocommit=True)
        self._guard = threading.Lock()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._superuser.close()

    def register(self, scenario: Mapping[str, Any], worker: ScriptedWorker) -> None:
        self._http = _serve(worker, self.history)
        url = f"http://127.0.0.1:{self._http.server_port}"
        for table in scenario.get("tables", ()):
            self._database.execute(table)
        self._superuser.execute("SELECT xdb.register_worker('scenario', %s)", (url,))
        for name, definition in scenario["types"].items():
            sql = "SELECT xdb.register_process_type(%s, worker => 'scenario', definition => %s::jsonb)"
            self._superuser.execute(sql, (name, json.dumps(definition)))

    def do(self, command: str, arguments: Mapping[str, Any]) -> Any:
        if command == "advance":
            self._database.clock.advance(seconds=arguments["by"])
            return None
        if command == "rows":
            return self._rows(**arguments)
        if command == "incidents":
            return incidents([row for [row] in self._database.execute("SELECT to_jsonb(i) FROM xdb.incidents AS i")])
        named = ", ".join(f"{name} => {_placeholder(name)}" for name in arguments)
        sql = f"SELECT to_jsonb(xdb.{FUNCTIONS.get(command, command)}({named}))"
        given = tuple(map(self._argument, arguments.items()))
        try:
            if command in OPERATORS:
                [[result]] = self._superuser.execute(sql, given).fetchall()
            else:
                [[result]] = self._database.execute(sql, *given)
        except psycopg.Error as error:
            raise XdbError(str(error), sqlstate=error.sqlstate) from error
        # A function that gives nothing gives an empty text here.
        return None if command == "start" or result == "" else result

    def settle(self, arrived: Callable[[], bool]) -> None:
        ends = time.monotonic() + WITHIN
        self._database.clock.settle()
        while not arrived() and time.monotonic() < ends:
            time.sleep(0.01)
        # Of what comes with the last of them.
        self._database.clock.settle()

    def history(self, process_id: str) -> History:
        sql = """SELECT to_jsonb(event_time AT TIME ZONE 'UTC') #>> '{}', event_type, details FROM xdb.history
            WHERE process_id = %s ORDER BY event_id"""
        with self._guard:
            return [(f"{at}Z", kind, details) for at, kind, details in self._superuser.execute(sql, (process_id,)).fetchall()]

    def problems(self) -> list[str]:
        return self._database.problems()

    def _rows(
        self, table: str, key: Mapping[str, Any] | None = None, set: Mapping[str, Any] | None = None, delete: bool = False
    ) -> Any:
        if delete:
            self._database.execute(f"DELETE FROM {table} AS t WHERE to_jsonb(t) @> %s::jsonb", json.dumps(key))
            return None
        if set is None:
            rows = self._database.execute(f"SELECT to_jsonb(t) FROM {table} AS t ORDER BY t")
            return [row for [row] in rows if key is None or key.items() <= row.items()]
        whole = json.dumps({**(key or {}), **set})
        self._database.execute(f"INSERT INTO {table} SELECT * FROM jsonb_populate_record(NULL::{table}, %s::jsonb)", whole)
        return None

    def _argument(self, argument: tuple[str, Any]) -> Any:
        name, value = argument
        if name in MOMENTS:
            return datetime.now(timezone.utc) + self._database.clock._offset + timedelta(seconds=value)
        if name in JSON:
            return json.dumps(value)
        return timedelta(seconds=value) if name in SECONDS else value


def _placeholder(name: str) -> str:
    return "%s::jsonb" if name in JSON else "%s"


def incidents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the view, by process: what is the same in every run, and is not null."""
    kept = [{name: value for name, value in row.items() if value is not None and name not in OF_ONE_RUN} for row in rows]
    return sorted(kept, key=lambda row: (row["process_id"], row["state_execution_id"]))


def has_happened(answer: Mapping[str, Any], history: Callable[[str], History]) -> bool:
    """Whether there was what the answer has to come after."""
    after = answer.get("after")
    if after is None:
        return True
    return sum(kind == after["event"] for _, kind, _ in history(after["process"])) >= after.get("times", 1)


def _serve(worker: ScriptedWorker, history: Callable[[str], History]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = worker.take(self.path, request)
            ends = time.monotonic() + WITHIN
            while not has_happened(found, history) and time.monotonic() < ends:
                time.sleep(0.01)
            body = json.dumps(found["answer"]).encode()
            self.send_response(found.get("status", 200))
            for name, value in found.get("headers", {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
