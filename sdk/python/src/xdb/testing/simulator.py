"""Whole processes in memory: the server's own engine, a virtual clock, and rows as JSON. No database, no network.

    with Simulator(SignUp) as sim:
        p = sim.start(SignUp, "signup-alice", rows=[User.row("alice", form=form, status="waiting")])
        sim.advance(days=1)
        p.rpc(SignUp.confirm, "link")
        assert p.outcome.result == "done"

It has the methods of `xdb.Client` and of the clock of a test server, so what is written for one runs on the other. There are no
`list` and `wait_for_state`, and no calls for many processes; nothing takes `conn=`, and `check` is of all processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

from ..client.outcome import Description, Execution, Incident, Outcome, description_of
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
    type_name,
)
from ..codec import decode, dumps, encode
from ..functions import StartCall
from ..process import Process, Row, RowStart, view
from ..request import Reply
from ..states import Rpc, State
from ..worker import Worker
from .program import Program, SimulatorNotFound

if TYPE_CHECKING:
    from ..queues import GlobalQueue, Queue

__all__ = ["CallKeepsFailing", "Event", "Handle", "NeverRests", "Simulator", "SimulatorNotFound", "Unsound"]

I = TypeVar("I")
O = TypeVar("O")
P = TypeVar("P", bound=Process)
R = TypeVar("R", bound=Row)
T = TypeVar("T")

# Calls at one moment. A process that has made more goes round without a wait.
MOST_AT_ONCE = 10_000
# Moments that `run_until_closed` goes through.
MOST_MOMENTS = 10_000


class CallKeepsFailing(AssertionError):
    """A call has failed `max_attempts` times, and would be made again."""


class NeverRests(AssertionError):
    """A process goes on and on, or waits for something that no time brings."""


class Unsound(AssertionError):
    """A process is not what its history says: a defect of XDB."""


@dataclass(frozen=True)
class Event:
    """An entry of a history."""

    number: int
    at: datetime
    type: str
    details: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class FunctionCall:
    """A function that an answer calls: by its name in the class, with the JSON of its argument."""

    process_id: str
    function: str
    argument: Any


@dataclass
class _Fault:
    """Calls that are to fail."""

    times: int
    error_type: str
    detail: str


class Simulator:
    """Runs processes of these classes. Calls that are due are answered at once, by the code of the classes.

    Time stands still until it is moved: `now` is what it begins with, the present time if nothing is said. A call that has
    failed `max_attempts` times and would be made again raises `CallKeepsFailing`, with what it failed with; None: it is made
    again as its retry policy says.
    """

    def __init__(self, *processes: type[Process], now: datetime | None = None, max_attempts: int | None = 5) -> None:
        self.worker = Worker(*processes)
        self.max_attempts = max_attempts
        self._faults: dict[tuple[str, str, str], _Fault] = {}
        self._executions: list[Execution] = []
        # Calls that were given out.
        self._due: deque[Mapping[str, Any]] = deque()
        self._program = Program(aware(now or datetime.now(timezone.utc)))
        for name, process in self.worker.types.items():
            self._ask("register", process_type=name, definition=process.definition())

    # --- as the fixture of a real server

    @property
    def client(self) -> Simulator:
        """Itself: it has the methods of a client."""
        return self

    @property
    def clock(self) -> Simulator:
        """Itself: it has the methods of a clock."""
        return self

    def close(self) -> None:
        """Ends it."""
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
        calls: Sequence[StartCall] = (),
    ) -> Handle[P]:
        """Starts a process, as `Client.start`, and makes the calls that are due."""
        one = Start(
            process, process_id, input, rows, local, id_reuse, None, start_at, conflict, idempotency_key, traceparent,
            starting_state, shard_key, correlation_key, merge, priority, calls,
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
        """Calls an RPC, and gives its output."""
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
        """Sends a message to a queue of a running process."""
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
        """Sends a message to a global queue."""
        payload = encode(message, queue.message_type, queue.name)
        seconds = None if ttl is None else seconds_of(ttl)
        self._do("publish_global", queue_name=queue.name, message=payload, key=key, message_id=message_id, ttl=seconds)

    def stop(
        self, process_id: str, reason: str | None = None, fail: bool = False, *, execution: AnyExecution = None
    ) -> None:
        """Ends a running process: it is TERMINATED then, or FAILED."""
        kind = "FAIL" if fail else "TERMINATE"
        self._do("stop", process_id=process_id, stop_type=kind, reason=reason, execution_id=_uuid(execution))

    def set_local(
        self, process: type[Process], process_id: str, *, execution: AnyExecution = None, **values: object
    ) -> None:
        """Writes local attributes."""
        attributes = locals_of(process, values)
        self._do("set_local_attributes", process_id=process_id, attributes=attributes, execution_id=_uuid(execution))

    def local(self, process: type[P], process_id: str, *, execution: AnyExecution = None) -> P:
        """The local attributes of a process, to be read."""
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
        """Lets a timer that a state waits for count as fired."""
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
        """Makes calls at once that wait for their next attempt, and says how many."""
        id = None if state is None else f"{state.name}-{number or 1}"
        retried: int = self._do(
            "retry_now", process_id=process_id, state_execution_id=id, execution_id=_uuid(execution)
        )
        return retried

    def pause(
        self,
        process_id: str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        execution: AnyExecution = None,
    ) -> None:
        """Has no call of a process begin until `resume()`, or until that time. RPCs are `errors.Paused`, with `reject` messages too."""
        pause = _pause(reject, until, reason)
        self._do("pause_process", process_id=process_id, execution_id=_uuid(execution), **pause)

    def resume(self, process_id: str, *, execution: AnyExecution = None) -> None:
        """Ends the pause of a process."""
        self._do("resume_process", process_id=process_id, execution_id=_uuid(execution))

    def pause_type(
        self,
        process: type[Process] | str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Has no call of any process of a type begin. With `reject` starts are `errors.Paused` too."""
        self._do("pause_process_type", process_type=_name(process), **_pause(reject, until, reason))

    def resume_type(self, process: type[Process] | str) -> None:
        """Ends the pause of a process type."""
        self._do("resume_process_type", process_type=_name(process))

    # --- looking

    def incidents(self, process: type[Process] | str | None = None, *, process_id: str | None = None) -> list[Incident]:
        """Calls whose retries are spent and that stay where they are: of all, a type, or a process. `retry_now()` resolves them."""
        found = [each for each in map(_incident, self._ask("incidents")) if process_id in (None, each.process_id)]
        if process is not None:
            described = [(each, self.describe(each.process_id, execution=each.execution_id)) for each in found]
            found = [each for each, of in described if of.process_type == _name(process)]
        return sorted(found, key=lambda each: (each.raised_at, each.execution_id, each.state_execution_id))

    def describe(self, process_id: str, *, execution: AnyExecution = None) -> Description:
        """What a process does, what it waits for, and what failed last."""
        return description_of(self._ask("describe", process_id=process_id, execution_id=_uuid(execution)))

    def outcome(self, process_id: str, *, execution: AnyExecution = None) -> Outcome:
        """How far a process is."""
        found = self.describe(process_id, execution=execution)
        result = found.results[0].output if len(found.results) == 1 else None
        return Outcome(process_id, found.status, found.results, found.status == "RUNNING", result)

    def wait(
        self, process: type[Process], process_id: str, timeout: Seconds = 30, *, execution: AnyExecution = None
    ) -> Outcome:
        """How far a process is. There is nothing to wait for: what could happen by now has happened."""
        return self.outcome(process_id, execution=execution)

    def history(self, process_id: str, *, execution: AnyExecution = None) -> list[Event]:
        """What has happened to a process."""
        found = self._ask("history", process_id=process_id, execution_id=_uuid(execution))
        return [Event(e["event_id"], _moment(e["event_time"]), e["event_type"], e["details"]) for e in found]

    def check(self) -> None:
        """Raises `Unsound` if any process is not what its history says."""
        problems = []
        for each in self._executions:
            found = self._ask("check", process_id=each.process_id, execution_id=str(each.execution_id))
            problems += [f"{each.process_id}: {problem}" for problem in found]
        if problems:
            raise Unsound("\n".join(problems))

    # --- rows

    def rows(self, row: type[Row]) -> list[dict[str, Any]]:
        """The rows of a table: the columns of the key, and the attributes with their values."""
        return [_read_row(row, found) for found in self._ask("rows", table=row._table)]

    def row(self, row: type[Row], key: Any) -> dict[str, Any] | None:
        """The row with this key, or None."""
        found = self._ask("rows", table=row._table, key=row.row(key).key_columns)
        return _read_row(row, found[0]) if found else None

    def put_row(self, row: RowStart) -> None:
        """Writes a row, as plain SQL would beside the process: `sim.put_row(User.row("alice", status="blocked"))`."""
        columns = {row.type._columns.get(name, name): value for name, value in row.values_encoded.items()}
        self._do("rows", table=row.table, key=row.key_columns, set=columns)

    def delete_row(self, row: type[Row], key: Any) -> None:
        """Deletes a row, as plain SQL would."""
        self._do("rows", table=row._table, key=row.row(key).key_columns, delete=True)

    # --- functions

    def called_functions(self) -> list[FunctionCall]:
        """The functions that answers have called since this was asked last. There are none here: nothing ran, and none fails."""
        return [FunctionCall(each["process_id"], each["function"], each["argument"]) for each in self._ask("called")]

    # --- faults

    def fail_calls(
        self,
        member: State[Any] | Rpc[Any, Any],
        times: int = 1,
        *,
        wait: bool = False,
        error_type: str = "SimulatedFailure",
        detail: str = "the simulator was told to fail this call",
    ) -> None:
        """Has the next calls of a state or an RPC fail, before its code is reached.

        `wait`: those that ask a state for its wait.
        """
        api = "rpc" if isinstance(member, Rpc) else "wait-until" if wait else "execute"
        self._faults[member.process._xdb.name, member.name, api] = _Fault(times, error_type, detail)

    # --- time

    @property
    def now(self) -> datetime:
        """The time of processes."""
        return _moment(self._ask("advance", by=0)["now"])

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Moves on by so much. What comes due on the way is done, each at its time."""
        until = aware(self.now + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
        while True:
            self._rest()
            if self._ask("advance", until=until)["reached"]:
                break
        self._rest()

    def to_next_timer(self) -> None:
        """Moves on to whatever comes next: a timer, a timeout, a late start, a next attempt. Raises if nothing does."""
        if not self._to_next():
            raise NeverRests("no timer, timeout, late start or next attempt is left to go to")

    def _to_next(self) -> bool:
        self._rest()
        return bool(self._do("advance")["reached"])

    def run_until_closed(self, process_id: str) -> Outcome:
        """Moves on from one moment to the next until the process has closed, and gives its outcome."""
        for _ in range(MOST_MOMENTS):
            outcome = self.outcome(process_id)
            if not outcome.timed_out:
                return outcome
            if not self._to_next():
                raise NeverRests(f"{process_id} waits for no time: {self.describe(process_id)}")
        raise NeverRests(f"{process_id} has not closed after {MOST_MOMENTS} moments: {self.describe(process_id)}")

    def settle(self) -> None:
        """Makes the calls that are due. There are none, unless something was raised in between."""
        self._rest()

    # --- the worker's side

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._program.ask(command, arguments)

    def _do(self, command: str, **arguments: Any) -> Any:
        result = self._ask(command, **arguments)
        self._rest()
        return result

    def _rest(self) -> None:
        """Answers calls until none are due. Where something is raised, it begins with the same call the next time."""
        made = 0
        while self._due or self._ask_for_due():
            call = self._due[0]
            if made >= MOST_AT_ONCE:
                raise NeverRests(f"{call['process_id']} has made {made} calls at one moment, and goes on")
            if self._is_wanted(call):
                state, api = call["state_execution_id"].rpartition("-")[0], call["path"].rpartition("/")[2]
                self._answer(call, self._reply(call, state, api))
            self._due.popleft()
            made += 1

    def _ask_for_due(self) -> bool:
        self._due.extend(self._ask("calls"))
        return bool(self._due)

    def _is_wanted(self, call: Mapping[str, Any]) -> bool:
        """Whether the call is to be made. Raises if it has failed too often; then only the end of its process helps."""
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


class Handle(Generic[P]):
    """A process that was started."""

    def __init__(self, simulator: Simulator, process: type[P], process_id: str, execution_id: str) -> None:
        self._simulator = simulator
        self.process = process
        self.process_id = process_id
        self.execution_id = UUID(execution_id)

    def __repr__(self) -> str:
        return f"<{self.process.__name__} {self.process_id!r}: {self.status}>"

    @overload
    def rpc(self, rpc: Rpc[None, O], *, idempotency_key: str | None = ...) -> O: ...
    @overload
    def rpc(self, rpc: Rpc[I, O], input: I, *, idempotency_key: str | None = ...) -> O: ...
    def rpc(self, rpc: Rpc[Any, Any], input: object = None, *, idempotency_key: str | None = None) -> Any:
        """Calls an RPC, and gives its output."""
        call: Callable[..., Any] = self._simulator.rpc
        return call(rpc, self.process_id, input, idempotency_key=idempotency_key, execution=self.execution_id)

    def publish(self, queue: Queue[T], message: T, *, message_id: str | None = None) -> None:
        """Sends a message to one of its queues."""
        self._simulator.publish(queue, self.process_id, message, message_id=message_id, execution=self.execution_id)

    def stop(self, reason: str | None = None, fail: bool = False) -> None:
        """Ends it."""
        self._simulator.stop(self.process_id, reason, fail, execution=self.execution_id)

    def pause(self, *, reject: bool = False, until: datetime | None = None, reason: str | None = None) -> None:
        """Has none of its calls begin until `resume()`, or until that time."""
        self._simulator.pause(self.process_id, reject=reject, until=until, reason=reason, execution=self.execution_id)

    def resume(self) -> None:
        """Ends its pause."""
        self._simulator.resume(self.process_id, execution=self.execution_id)

    @property
    def status(self) -> str:
        """RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED."""
        return self.outcome.status

    @property
    def outcome(self) -> Outcome:
        """How far it is."""
        return self._simulator.outcome(self.process_id, execution=self.execution_id)

    @property
    def description(self) -> Description:
        """What it does, what it waits for, and what failed last."""
        return self._simulator.describe(self.process_id, execution=self.execution_id)

    @property
    def local(self) -> P:
        """Its local attributes, to be read."""
        return self._simulator.local(self.process, self.process_id, execution=self.execution_id)

    @property
    def history(self) -> list[Event]:
        """What has happened to it."""
        return self._simulator.history(self.process_id, execution=self.execution_id)


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
    """A time as the simulator writes it: with as many digits behind the dot as it takes, which Python 3.10 can't read."""
    seconds, dot, fraction = text.removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction:0<6}+00:00" if dot else f"{seconds}+00:00")


def _read_row(row: type[R], found: Mapping[str, Any]) -> dict[str, Any]:
    keys = (row._key,) if isinstance(row._key, str) else row._key
    read = {key: found.get(key) for key in keys}
    for name, attribute in row._attributes.items():
        raw = found.get(row._columns.get(name, name))
        read[name] = None if raw is None else decode(raw, attribute.annotation, attribute.place)
    return read
