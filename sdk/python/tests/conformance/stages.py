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
from scenario import History, ScriptedWorker, moment, of_failures

from xdb.errors import ProcessNotFound, XdbError
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
        try:
            found = self._program.ask("history", {"process_id": process_id})
        except ProcessNotFound:
            # A child that was not started yet.
            return []
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
JSON = {"input", "global_attributes", "local_attributes", "options", "message", "attributes", "next_states"}
SECONDS = {"timeout", "ttl"}
OPERATORS = {"pause_process_type", "resume_process_type"}


class OnServer:
    """A database with XDB and a test clock. What answers calls is for those that inherit from it."""

    worker: str | None = "scenario"
    # What can be compared of a failed attempt: there is more that one way of answering alone can say.
    of_failures: tuple[str, ...] | None = None
    # Scenarios whose answers it can't give, and why.
    left_out: Mapping[str, str] = {}

    def __init__(self, database: Database) -> None:
        self._database = database
        self._superuser = psycopg.connect(database.superuser_dsn, autocommit=True)
        self._guard = threading.Lock()

    def close(self) -> None:
        self._superuser.close()

    def serve(self, worker: ScriptedWorker) -> None:
        """Answers calls from now on."""
        raise NotImplementedError

    def definition(self, of_scenario: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a process type is registered with."""
        return of_scenario

    def register(self, scenario: Mapping[str, Any], worker: ScriptedWorker) -> None:
        for table in scenario.get("tables", ()):
            self._database.execute(table)
        self.serve(worker)
        for name, definition in scenario["types"].items():
            sql = "SELECT xdb.register_process_type(%s, worker => %s, definition => %s::jsonb)"
            self._superuser.execute(sql, (name, self.worker, json.dumps(self.definition(definition))))

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
            raise XdbError(str(error), sqlstate=self.sqlstate(error)) from error
        # A function that gives nothing gives an empty text here.
        return None if command == "start" or result == "" else result

    def sqlstate(self, error: psycopg.Error) -> str | None:
        return error.sqlstate

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


class OverHttp(OnServer):
    """The engine calls the worker."""

    def serve(self, worker: ScriptedWorker) -> None:
        self._http = _serve(worker, self.history)
        self._superuser.execute("SELECT xdb.register_worker('scenario', %s)", (f"http://127.0.0.1:{self._http.server_port}",))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        super().close()


class ByFunctions(OnServer):
    """Functions of the database answer, from a table of the scenario's answers. What counts them outlasts an answer that is undone."""

    worker: str | None = None
    states = True
    of_failures: tuple[str, ...] | None = ()
    left_out = {
        "a_worker_that_is_full": "a function can't say that it is full",
        "final_failure": "nor that an error is final, or when to try again",
    }

    SCRIPT = """
        CREATE SCHEMA script;
        CREATE TABLE script.answers (name text PRIMARY KEY, number int, answers jsonb);
        CREATE FUNCTION script.take(names text[], request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ DECLARE
            of_call script.answers;
            answer jsonb;
        BEGIN
            SELECT a.* INTO of_call FROM script.answers a JOIN unnest(names) WITH ORDINALITY AS n(name, place) USING (name)
                ORDER BY place LIMIT 1;
            IF NOT FOUND THEN RAISE 'there is no answer to %', names[1]; END IF;
            answer := of_call.answers -> (least(nextval('script.used_' || of_call.number), jsonb_array_length(of_call.answers)) - 1)::int;
            IF NOT request @> coalesce(answer -> 'request', '{}') THEN RAISE 'the request % is %', of_call.name, request; END IF;
            IF answer ? 'status' THEN RAISE '%', coalesce(answer -> 'answer' ->> 'detail', ''); END IF;
            RETURN answer -> 'answer';
        END $$;
        CREATE FUNCTION script.of_state(request jsonb, api text) RETURNS jsonb RETURN script.take(array(
            SELECT process || name FROM unnest(ARRAY[request #>> '{context,processId}' || ':', '']) process, unnest(ARRAY[
                concat_ws('/', request #>> '{context,stateExecutionId}', api, request #>> '{context,attempt}'),
                concat_ws('/', request #>> '{context,stateExecutionId}', api),
                concat_ws('/', request ->> 'stateId', api)]) name), request);
        CREATE FUNCTION script.wait_until(request jsonb) RETURNS jsonb RETURN script.of_state(request, 'wait-until');
        CREATE FUNCTION script.execute(request jsonb) RETURNS jsonb RETURN script.of_state(request, 'execute');
        CREATE FUNCTION script.rpc(request jsonb) RETURNS jsonb RETURN script.take(ARRAY[
            request #>> '{context,processId}' || ':' || (request ->> 'rpcName') || '/rpc', request ->> 'rpcName' || '/rpc'], request);
    """

    def serve(self, worker: ScriptedWorker) -> None:
        self._database.execute(self.SCRIPT)
        handed_over = worker.hand_over(lambda name: self.states or name.endswith("/rpc"))
        for number, (name, answers) in enumerate(handed_over.items()):
            listed = answers if isinstance(answers, list) else [answers]
            self._database.execute("INSERT INTO script.answers VALUES (%s, %s, %s::jsonb)", name, number, json.dumps(of_failures(listed, self.of_failures)))
            self._database.execute(f"CREATE SEQUENCE script.used_{number}")

    def definition(self, of_scenario: Mapping[str, Any]) -> Mapping[str, Any]:
        made: dict[str, Any] = json.loads(json.dumps(of_scenario))
        for name, options in made.get("states", {}).items() if self.states else ():
            options = made["states"][name] = options or {}
            options["executeFunction"] = "script.execute"
            if not options.get("skipWaitUntil") and "commandRequest" not in options:
                options["waitUntilFunction"] = "script.wait_until"
        for name, options in made.get("rpcs", {}).items():
            made["rpcs"][name] = {**(options or {}), "function": "script.rpc"}
        return made

    def sqlstate(self, error: psycopg.Error) -> str | None:
        # The error of an RPC's function is its caller's; that of a worker is XD010.
        return "XD010" if error.sqlstate == "P0001" else super().sqlstate(error)

    def problems(self) -> list[str]:
        used = self._database.execute("SELECT name, jsonb_array_length(answers), number FROM script.answers")
        counts = [(name, wanted, self._database.execute(f"SELECT last_value, is_called FROM script.used_{number}")) for name, wanted, number in used]
        unused = [f"no call has got the answer {name}" for name, wanted, [(last, called)] in counts if not called or last < wanted]
        return super().problems() + unused


class ByFetching(ByFunctions):
    """A pull worker claims the calls of states. Functions answer RPCs, since nothing calls this worker."""

    worker = "scenario"
    states = False
    of_failures = ("errorType",)
    left_out = {
        "a_worker_that_is_full": "it claims no more than it takes",
        "attributes": "an error of a table is its own, and its next attempt gets none",
    }

    def serve(self, worker: ScriptedWorker) -> None:
        super().serve(worker)
        worker.compare_failures(self.of_failures)
        self._superuser.execute("SELECT xdb.register_worker('scenario', NULL, role => 'app')")
        self._ends = threading.Event()
        self._pulling = threading.Thread(target=self._pull, args=(worker,))
        self._pulling.start()

    def close(self) -> None:
        self._ends.set()
        self._pulling.join()
        super().close()

    def _pull(self, worker: ScriptedWorker) -> None:
        waiting: deque[tuple[str, Mapping[str, Any]]] = deque()
        with psycopg.connect(self._database.dsn, autocommit=True) as session:
            while not self._ends.is_set():
                claim = "SELECT token, api::text, request FROM xdb.claim_calls('scenario', max_calls => 100, wait => %s)"
                for token, api, request in session.execute(claim, (timedelta(seconds=0.01 if waiting else 0.2),)).fetchall():
                    waiting.append((token, worker.take(API_PATHS[api], request)))
                for _ in range(len(waiting)):
                    token, found = waiting.popleft()
                    if not has_happened(found, self.history):
                        waiting.append((token, found))
                        continue
                    what = "complete_call" if found.get("status", 200) == 200 else "fail_call"
                    said = json.dumps(found["answer"])
                    try:
                        session.execute(f"SELECT xdb.{what}(%s, %s::jsonb)", (token, said))
                    except psycopg.Error as error:
                        self._cannot_be_applied(session, token, error)

    def _cannot_be_applied(self, session: psycopg.Connection[Any], token: str, error: psycopg.Error) -> None:
        """A worker says what was wrong with its answer; a call that is lost is over."""
        if error.sqlstate != "XD025":
            failure = {"errorType": error.diag.datatype_name or "InvalidAnswer", "detail": error.diag.message_primary}
            session.execute("SELECT xdb.fail_call(%s, %s::jsonb)", (token, json.dumps(failure)))


API_PATHS = {"EXECUTE_API": "/execute", "WAIT_UNTIL_API": "/wait-until"}


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
