"""Runs whole processes in memory: with the engine of the extension, a virtual clock, and rows as JSON. No database, no network.

    with Simulator(SignUp) as sim:
        p = sim.start(SignUp, "signup-alice", rows=[User.row("alice", form=form, status="waiting")])
        sim.advance(days=1)
        p.rpc(SignUp.confirm, "link")
        assert p.outcome.result == "done"

It has the methods of `xdb.Client` and of the clock of a test server, so tests run on both. Limitations: no `list`, no `wait_for_state`, no
methods for many processes, no `conn=`; `check` checks all processes; functions of the database are not called; tables check nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from ..client.outcome import Description, Execution, Incident, Outcome, described_failure, description_of
from ..client.statements import (
    AnyExecution,
    Conflict,
    IdReuse,
    Merge,
    Seconds,
    Start,
    aware,
    input_of,
    locals_of,
    seconds_of,
    step_of,
    type_name,
)
from ..codec import decode, dumps, encode
from ..decisions import Decision
from ..functions import StartCall
from ..live import movements_of
from ..locks import Lock
from ..process import Process, Row, RowStart, view
from ..request import Reply
from ..states import Rpc, State
from ..worker import Worker
from .handle import Event, Handle
from .program import Program, SimulatorNotFound

if TYPE_CHECKING:
    from ..queues import GlobalQueue, Queue

__all__ = ["CallKeepsFailing", "Event", "Handle", "NeverRests", "Simulator", "SimulatorNotFound", "Unsound"]

I = TypeVar("I")
O = TypeVar("O")
P = TypeVar("P", bound=Process)
R = TypeVar("R", bound=Row)
T = TypeVar("T")

# The most calls at one time of the clock. A process that makes more loops without a wait.
MOST_AT_ONCE = 10_000
# The most times that `run_until_closed` moves the clock.
MOST_MOMENTS = 10_000


class CallKeepsFailing(AssertionError):
    """A call has failed `max_attempts` times, and would be retried."""


class NeverRests(AssertionError):
    """A process loops without a wait, or waits for something other than a time."""


class Unsound(AssertionError):
    """A process differs from the replay of its history. This is a defect of XDB."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function of the database: its name in the class, and its argument as JSON."""

    process_id: str
    function: str
    argument: Any


@dataclass
class _Fault:
    """The next calls of a handler fail. Written by `fail_calls`, counted down by `_reply`."""

    times: int
    error_type: str
    detail: str


class Simulator:
    """Runs processes of these classes. Due calls are answered at once, by the handlers of the classes.

    - `now`: the time at which the clock begins. Default: the present. The clock stands still until it is moved.
    - `max_attempts`: a call that has failed this often and would be retried raises `CallKeepsFailing`. Default 5. None: no limit.

    `with` checks all processes at its end. Raises `SimulatorNotFound` if the program `xdb-sim` is not installed.
    """

    def __init__(self, *processes: type[Process], now: datetime | None = None, max_attempts: int | None = 5) -> None:
        self.worker = Worker(*processes)
        self.max_attempts = max_attempts
        self._faults: dict[tuple[str, str, str], _Fault] = {}
        self._executions: list[Execution] = []
        # Calls that the program has handed out and that are not answered.
        self._due: deque[Mapping[str, Any]] = deque()
        self._program = Program(aware(now or datetime.now(timezone.utc)))
        for name, process in self.worker.types.items():
            self._ask("register", process_type=name, definition=process.definition())

    # --- the attributes of the fixture of a real server

    @property
    def client(self) -> Simulator:
        """The simulator itself, which has the methods of a client."""
        return self

    @property
    def clock(self) -> Simulator:
        """The simulator itself, which has the methods of a clock."""
        return self

    def close(self) -> None:
        """Ends the simulator's program."""
        self._program.close()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.close()

    # --- processes

    def start(
        self,
        process: type[P],
        process_id: str | None,
        input: object = None,
        *,
        rows: Sequence[RowStart] = (),
        local: Mapping[str, object] | None = None,
        id_reuse: IdReuse = "allow_if_no_running",
        timeout: Seconds | None = None,
        start_at: datetime | None = None,
        conflict: Conflict = "override",
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        starting_state: State[Any] | None = None,
        shard_key: str | None = None,
        correlation_key: str | None = None,
        merge: Merge | None = None,
        priority: int | None = None,
        locks: Sequence[Lock] = (),
        calls: Sequence[StartCall] = (),
    ) -> Handle[P]:
        """Starts a process, as `Client.start`, and makes due calls."""
        one = Start(
            process, process_id, input, rows, local, id_reuse, None, start_at, conflict, idempotency_key, traceparent,
            starting_state, shard_key, correlation_key, merge, priority, locks, calls,
        )
        id = self._ask("start", **{**one.arguments(), "timeout": None if timeout is None else seconds_of(timeout)})
        handle = Handle(self, process, id if process_id is None else process_id, id)
        started = Execution(handle.process_id, handle.execution_id)
        if started not in self._executions:
            self._executions.append(started)
        self._rest()
        return handle

    @overload
    def rpc(
        self, rpc: Rpc[None, O], process_id: str, *, idempotency_key: str | None = ..., timeout: Seconds | None = ...,
        execution: AnyExecution = ...,
    ) -> O: ...

    @overload
    def rpc(
        self, rpc: Rpc[I, O], process_id: str, input: I, *, idempotency_key: str | None = ...,
        timeout: Seconds | None = ..., execution: AnyExecution = ...,
    ) -> O: ...

    def rpc(
        self,
        rpc: Rpc[Any, Any],
        process_id: str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        timeout: Seconds | None = None,
        execution: AnyExecution = None,
    ) -> Any:
        """Calls an RPC, and returns its output."""
        begun = self._ask(
            "rpc",
            process_id=process_id,
            rpc_name=rpc.name,
            input=input_of(rpc, input),
            timeout=None if timeout is None else seconds_of(timeout),
            idempotency_key=idempotency_key,
            execution_id=_uuid(execution),
        )
        if "call" in begun:
            begun = self._answer(begun["call"], self._reply(begun["call"], rpc.name, "rpc"))
        self._rest()
        return decode(begun["output"], rpc.output_type, f"output of the RPC {rpc.name}")

    def publish(
        self, queue: Queue[T], process_id: str, message: T, *, message_id: str | None = None, execution: AnyExecution = None
    ) -> None:
        """Publishes a message to a local queue of a running process."""
        self._do(
            "publish",
            process_id=process_id,
            queue_name=queue.name,
            message=encode(message, queue.message_type, queue.name),
            message_id=message_id,
            execution_id=_uuid(execution),
        )

    def publish_global(
        self,
        queue: GlobalQueue[T],
        message: T,
        *,
        key: str | None = None,
        message_id: str | None = None,
        ttl: Seconds | None = None,
    ) -> None:
        """Publishes a message to a global queue."""
        payload = encode(message, queue.message_type, queue.name)
        seconds = None if ttl is None else seconds_of(ttl)
        self._do("publish_global", queue_name=queue.name, message=payload, key=key, message_id=message_id, ttl=seconds)

    def stop(
        self, process_id: str, reason: str | None = None, fail: bool = False, *, execution: AnyExecution = None
    ) -> None:
        """Stops a running process. Its status is then TERMINATED, or with `fail` FAILED."""
        kind = "FAIL" if fail else "TERMINATE"
        self._do("stop", process_id=process_id, stop_type=kind, reason=reason, execution_id=_uuid(execution))

    def set_local(
        self, process: type[Process], process_id: str, *, execution: AnyExecution = None, **values: object
    ) -> None:
        """Writes local attributes. Other attributes keep their values."""
        attributes = locals_of(process, values)
        self._do("set_local_attributes", process_id=process_id, attributes=attributes, execution_id=_uuid(execution))

    def local(self, process: type[P], process_id: str, *, execution: AnyExecution = None) -> P:
        """Returns the local attributes of a process as a read-only instance."""
        return view(process, self._ask("get_local_attributes", process_id=process_id, execution_id=_uuid(execution)))

    def skip_timer(
        self,
        state: State[Any],
        process_id: str,
        number: int = 1,
        timer_id: str | None = None,
        *,
        execution: AnyExecution = None,
    ) -> None:
        """Completes a timer of a step at once: the one with this id, or the one that would fire first."""
        id = f"{state.name}-{number}"
        self._do(
            "skip_timer",
            process_id=process_id,
            state_execution_id=id,
            command_id=timer_id,
            execution_id=_uuid(execution),
        )

    def retry_now(
        self,
        process_id: str,
        state: State[Any] | None = None,
        number: int | None = None,
        *,
        execution: AnyExecution = None,
    ) -> int:
        """Retries calls at once that wait for their next attempt, and incidents. Returns how many."""
        id = None if state is None else f"{state.name}-{number or 1}"
        retried: int = self._do(
            "retry_now", process_id=process_id, state_execution_id=id, execution_id=_uuid(execution)
        )
        return retried

    def move_state(
        self,
        process_id: str,
        step: str,
        next_states: Iterable[Decision],
        reason: str | None = None,
        *,
        execution: AnyExecution = None,
    ) -> None:
        """Ends a live step, and starts other states in its place. `[]` ends its thread only."""
        self._do(
            "move_state",
            process_id=process_id,
            state_execution_id=step_of(step),
            next_states=movements_of(next_states),
            reason=reason,
            execution_id=_uuid(execution),
        )

    def pause(
        self,
        process_id: str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        execution: AnyExecution = None,
    ) -> None:
        """Pauses a process until `resume()`, or until the time `until`. RPCs raise `errors.Paused`, and with `reject` messages do too."""
        pause = _pause(reject, until, reason)
        self._do("pause_process", process_id=process_id, execution_id=_uuid(execution), **pause)

    def resume(self, process_id: str, *, execution: AnyExecution = None) -> None:
        """Ends the pause of a process. Does nothing if it is not paused."""
        self._do("resume_process", process_id=process_id, execution_id=_uuid(execution))

    def pause_type(
        self,
        process: type[Process] | str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Pauses all processes of a type, as `pause`. With `reject`, starts raise `errors.Paused` too."""
        self._do("pause_process_type", process_type=_name(process), **_pause(reject, until, reason))

    def resume_type(self, process: type[Process] | str) -> None:
        """Ends the pause of a process type. Does nothing if it is not paused."""
        self._do("resume_process_type", process_type=_name(process))

    # --- reading

    def incidents(self, process: type[Process] | str | None = None, *, process_id: str | None = None) -> list[Incident]:
        """Returns the incidents of all processes, a type, or one process. `retry_now()` resolves them."""
        found = [each for each in map(_incident, self._ask("incidents")) if process_id in (None, each.process_id)]
        if process is not None:
            described = [(each, self.describe(each.process_id, execution=each.execution_id)) for each in found]
            found = [each for each, of in described if of.process_type == _name(process)]
        return sorted(found, key=lambda each: (each.raised_at, each.execution_id, each.state_execution_id))

    def describe(self, process_id: str, *, execution: AnyExecution = None) -> Description:
        """Returns what a process does, what it waits for, and what failed last."""
        return description_of(self._ask("describe", process_id=process_id, execution_id=_uuid(execution)))

    def outcome(self, process_id: str, *, execution: AnyExecution = None) -> Outcome:
        """Returns the status and results of a process."""
        found = self.describe(process_id, execution=execution)
        result = found.results[0].output if len(found.results) == 1 else None
        failed = described_failure(found)
        return Outcome(process_id, found.status, found.results, found.status == "RUNNING", result, found.reason, failed)

    def wait(
        self, process: type[Process], process_id: str, timeout: Seconds = 30, *, execution: AnyExecution = None
    ) -> Outcome:
        """Like `outcome`. There is nothing to wait for: everything that is due at this time has happened."""
        return self.outcome(process_id, execution=execution)

    def history(self, process_id: str, *, execution: AnyExecution = None) -> list[Event]:
        """Returns the events of a process."""
        found = self._ask("history", process_id=process_id, execution_id=_uuid(execution))
        return [Event(e["event_id"], _moment(e["event_time"]), e["event_type"], e["details"]) for e in found]

    def check(self) -> None:
        """Replays the history of all processes. Raises `Unsound` if one differs."""
        problems = []
        for each in self._executions:
            found = self._ask("check", process_id=each.process_id, execution_id=str(each.execution_id))
            problems += [f"{each.process_id}: {problem}" for problem in found]
        if problems:
            raise Unsound("\n".join(problems))

    # --- rows

    def rows(self, row: type[Row]) -> list[dict[str, Any]]:
        """Returns the rows of a table: the columns of the key, and the values of the attributes."""
        return [_read_row(row, found) for found in self._ask("rows", table=row._table)]

    def row(self, row: type[Row], key: Any) -> dict[str, Any] | None:
        """Returns the row with this key, or None."""
        found = self._ask("rows", table=row._table, key=row.row(key).key_columns)
        return _read_row(row, found[0]) if found else None

    def put_row(self, row: RowStart) -> None:
        """Writes a row, like SQL of the application would: `sim.put_row(User.row("alice", status="blocked"))`."""
        columns = {row.type._columns.get(name, name): value for name, value in row.values_encoded.items()}
        self._do("rows", table=row.table, key=row.key_columns, set=columns)

    def delete_row(self, row: type[Row], key: Any) -> None:
        """Deletes a row, like SQL of the application would."""
        self._do("rows", table=row._table, key=row.row(key).key_columns, delete=True)

    # --- functions

    def called_functions(self) -> list[FunctionCall]:
        """Returns the functions that answers and starts would have called since the last call of this method. None of them has run."""
        return [FunctionCall(each["process_id"], each["function"], each["argument"]) for each in self._ask("called")]

    # --- faults

    def fail_calls(
        self,
        member: State[Any] | Rpc[Any, Any],
        times: int = 1,
        *,
        wait: bool = False,
        error_type: str = "SimulatedFailure",
        detail: str = "fail_calls() made this call fail",
    ) -> None:
        """Makes the next `times` calls of a state or an RPC fail, before its handler runs. With `wait`, the calls of its `wait=` function."""
        api = "rpc" if isinstance(member, Rpc) else "wait-until" if wait else "execute"
        self._faults[member.process._xdb.name, member.name, api] = _Fault(times, error_type, detail)

    # --- time

    @property
    def now(self) -> datetime:
        """The time of the clock."""
        return _moment(self._ask("advance", by=0)["now"])

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Moves the clock on by this length of time. Everything that becomes due on the way happens at its own time."""
        until = aware(self.now + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
        while True:
            self._rest()
            if self._ask("advance", until=until)["reached"]:
                break
        self._rest()

    def to_next_timer(self) -> None:
        """Moves the clock on to the next due time: of a timer, timeout, delayed start or retry. Raises `NeverRests` if there is none."""
        if not self._to_next():
            raise NeverRests("no timer, timeout, delayed start or retry is left")

    def _to_next(self) -> bool:
        self._rest()
        return bool(self._do("advance")["reached"])

    def run_until_closed(self, process_id: str) -> Outcome:
        """Moves the clock from one due time to the next until the process has closed, and returns its outcome. Raises `NeverRests`."""
        for _ in range(MOST_MOMENTS):
            outcome = self.outcome(process_id)
            if not outcome.timed_out:
                return outcome
            if not self._to_next():
                raise NeverRests(f"{process_id} waits for something other than a time: {self.describe(process_id)}")
        raise NeverRests(f"{process_id} has not closed after {MOST_MOMENTS} due times: {self.describe(process_id)}")

    def settle(self) -> None:
        """Makes due calls. There are none, unless a method has raised an error before."""
        self._rest()

    # --- answering calls

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._program.ask(command, arguments)

    def _do(self, command: str, **arguments: Any) -> Any:
        result = self._ask(command, **arguments)
        self._rest()
        return result

    def _rest(self) -> None:
        """Answers calls until none are due. After an error, the next time begins with the same call."""
        made = 0
        while self._due or self._ask_for_due():
            call = self._due[0]
            if made >= MOST_AT_ONCE:
                raise NeverRests(f"{call['process_id']} has made {made} calls at one time of the clock: it loops without a wait")
            if self._is_wanted(call):
                state, api = call["state_execution_id"].rpartition("-")[0], call["path"].rpartition("/")[2]
                self._answer(call, self._reply(call, state, api))
            self._due.popleft()
            made += 1

    def _ask_for_due(self) -> bool:
        self._due.extend(self._ask("calls"))
        return bool(self._due)

    def _is_wanted(self, call: Mapping[str, Any]) -> bool:
        """Whether to make a call. Not if its process has closed. Raises `CallKeepsFailing` if it has failed `max_attempts` times."""
        if self.max_attempts is None or call["attempt"] <= self.max_attempts:
            return True
        found = self.describe(call["process_id"], execution=call["execution_id"])
        if found.status != "RUNNING":
            return False
        failure = (found.last_failure or {}).get("failure", {})
        raise CallKeepsFailing(
            f"{call['state_execution_id']} of {call['process_id']} has failed {call['attempt'] - 1} times, "
            f"the last time with {failure.get('errorType') or 'no errorType'}: {failure.get('detail')}"
        )

    def _reply(self, call: Mapping[str, Any], member: str, api: str) -> Reply:
        fault = self._faults.get((call["process_type"], member, api))
        if fault is not None and fault.times > 0:
            fault.times -= 1
            return Reply(500, dumps({"errorType": fault.error_type, "detail": fault.detail}))
        return self.worker.handle(call["method"], call["path"], call["headers"], call["body"].encode())

    def _answer(self, call: Mapping[str, Any], reply: Reply) -> Any:
        headers, body = dict(reply.headers), reply.body.decode()
        return self._ask("answer", call=call["call"], status=reply.status, headers=headers, body=body)


def _uuid(execution: AnyExecution) -> str | None:
    if execution is None:
        return None
    return str(execution.execution_id if isinstance(execution, Execution) else execution)


def _name(process: type[Process] | str) -> str:
    return process if isinstance(process, str) else type_name(process)


def _pause(reject: bool, until: datetime | None, reason: str | None) -> dict[str, str | None]:
    at = None if until is None else aware(until)
    return {"mode": "REJECT" if reject else "WAIT", "until": at, "reason": reason}


def _incident(raw: Mapping[str, Any]) -> Incident:
    return Incident(**{**raw, "execution_id": UUID(raw["execution_id"]), "raised_at": _moment(raw["raised_at"])})


def _moment(text: str) -> datetime:
    """A time as the simulator writes it, with any number of digits after the dot, which Python 3.10 can't read."""
    seconds, dot, fraction = text.removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction:0<6}+00:00" if dot else f"{seconds}+00:00")


def _read_row(row: type[R], found: Mapping[str, Any]) -> dict[str, Any]:
    keys = (row._key,) if isinstance(row._key, str) else row._key
    read = {key: found.get(key) for key in keys}
    for name, attribute in row._attributes.items():
        raw = found.get(row._columns.get(name, name))
        read[name] = None if raw is None else decode(raw, attribute.annotation, attribute.place)
    return read
