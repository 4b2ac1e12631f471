"""Every statement of both clients: its SQL, its parameters, and how its rows are read. Each function is named after a client's method.

All parameters are texts, named and cast. All columns come back as text, so that nothing depends on a driver's conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, get_args
from uuid import UUID

from .. import codec
from ..decisions import Decision
from ..errors import of_row
from ..functions import StartCall
from ..live import movements_of
from ..locks import Lock, locks_as_json
from ..process import RowStart, view
from ..queues import GlobalQueue, Queue
from ..states import Member, Rpc, State
from . import start_rows
from .connections import Rows
from .outcome import Description, Done, Execution, Outcome, StateOutcome, description_of, failure_text, outcome_of, state_outcome_of

if TYPE_CHECKING:
    from .. import Process

R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P", bound="Process")
Seconds = Union[float, timedelta]
AnyExecution = Union[Execution, UUID, str, None]
IdReuse = Literal["allow_if_no_running", "allow_if_previous_exit_abnormally", "disallow_reuse", "terminate_if_running"]
Conflict = Literal["override", "ignore", "error"]

# Seconds of one slice of a wait, in which it keeps its connection; and the shortest limit of a statement with which a wait makes sense.
LONGEST_SLICE, SHORTEST_LIMIT = 30.0, 0.01

_ID_REUSE = {policy: policy.upper() for policy in get_args(IdReuse)}
_CONFLICT = {
    "override": "OVERRIDE_ON_CONFLICT",
    "ignore": "IGNORE_CONFLICT",
    "error": "RETURN_ERROR_ON_CONFLICT",
}


@dataclass(frozen=True)
class Query(Generic[R_co]):
    """A statement with its parameters, and the function that reads its rows."""

    sql: str
    params: tuple[str | None, ...]
    read: Callable[[Rows], R_co]


@dataclass(frozen=True)
class Merge:
    """How a start is merged into an earlier one of the same class and `correlation_key` that has not begun.

    - `input`: "keep" (the default) the earlier input, "replace" it, "merge" both JSON objects, or the name of a function of the database,
      with its schema, that gets both and returns the input.
    - `start_at`: when the merged start is due: "keep" (the default) the earlier time, "replace" it, or the "earliest" or "latest" of both.
    - `within`: merge only if the new start is due less than this after the earlier one. In seconds or a timedelta.
    - `at_most`: with "replace" and "latest", the start is due at most this long after the first start was made.
    """

    input: str = "keep"
    start_at: Literal["keep", "replace", "earliest", "latest"] = "keep"
    within: Seconds | None = None
    at_most: Seconds | None = None

    def options(self) -> dict[str, Any]:
        """The option `merge` of `xdb.start_process`. Raises `ValueError` for an unknown word."""
        options: dict[str, Any] = {
            "input": self.input.upper() if self.input in ("keep", "replace", "merge") else self.input,
            "startAt": word_of(_MERGED_START, "start_at", self.start_at),
        }
        if self.within is not None:
            options["withinSeconds"] = seconds_of(self.within)
        if self.at_most is not None:
            options["atMostSeconds"] = seconds_of(self.at_most)
        return options


_MERGED_START = {word: word.upper() for word in ("keep", "replace", "earliest", "latest")}


@dataclass(frozen=True)
class Start:
    """The arguments of one `Client.start`, for `start_many`."""

    process: type[Process]
    process_id: str | None
    input: object = None
    rows: Sequence[RowStart] = ()
    local: Mapping[str, object] | None = None
    id_reuse: IdReuse = "allow_if_no_running"
    timeout: Seconds | None = None
    start_at: datetime | None = None
    conflict: Conflict = "override"
    idempotency_key: str | None = None
    traceparent: str | None = None
    starting_state: State[Any] | None = None
    shard_key: str | None = None
    correlation_key: str | None = None
    merge: Merge | None = None
    priority: int | None = None
    locks: Sequence[Lock] = ()
    calls: Sequence[StartCall] = ()

    def arguments(self, traceparent: str | None = None) -> dict[str, Any]:
        """The arguments of `xdb.start_process`, checked, as JSON, without absent ones. `traceparent` is the default of that field."""
        process_type = type_name(self.process)
        global_attributes, options = start_rows.values_and_keys(self.process, self.rows)
        if self.conflict != "override":
            options["globalAttributeConflictMode"] = word_of(_CONFLICT, "conflict", self.conflict)
        if self.idempotency_key is not None:
            options["requestId"] = self.idempotency_key
        if self.traceparent is not None or traceparent is not None:
            options["traceparent"] = traceparent if self.traceparent is None else self.traceparent
        if self.starting_state is not None:
            options["startingState"] = _state_of(self.process, self.starting_state).name
        if self.shard_key is not None:
            options["shardKey"] = self.shard_key
        if self.correlation_key is not None:
            options["correlationKey"] = self.correlation_key
        if self.merge is not None:
            options["merge"] = self.merge.options()
        if self.priority is not None:
            options["priority"] = self.priority
        if self.locks:
            options["locks"] = locks_as_json(self.locks)
        if self.calls:
            options["callFunctions"] = [_function_call(self.process, call) for call in self.calls]
        arguments = {
            "process_id": self.process_id,
            "process_type": process_type,
            "input": _start_input(self.process, self.input, self.starting_state),
            "global_attributes": global_attributes or None,
            "local_attributes": locals_of(self.process, self.local) if self.local else None,
            "id_reuse_policy": word_of(_ID_REUSE, "id_reuse", self.id_reuse),
            "timeout": None if self.timeout is None else interval(self.timeout),
            "start_at": None if self.start_at is None else aware(self.start_at),
            "options": options or None,
        }
        start_rows.refuse_missing(self.process, self.rows)
        return {name: value for name, value in arguments.items() if value is not None}


# --- starting


def start(one: Start, traceparent: str | None) -> Query[Execution]:
    given = one.arguments(traceparent)
    sql = """SELECT xdb.start_process(process_id => %s::text, process_type => %s::text, input => %s::text::jsonb,
        global_attributes => %s::text::jsonb, local_attributes => %s::text::jsonb, id_reuse_policy => %s::text,
        timeout => %s::text::interval, start_at => %s::text::timestamptz, options => %s::text::jsonb)::text"""
    params = (
        given.get("process_id"),
        given["process_type"],
        _json(given.get("input")),
        _json(given.get("global_attributes")),
        _json(given.get("local_attributes")),
        given["id_reuse_policy"],
        given.get("timeout"),
        given.get("start_at"),
        _json(given.get("options")),
    )
    return Query(sql, params, lambda rows: _started(one, rows[0][0]))


def start_many(many: Sequence[Start], traceparent: str | None) -> Query[list[Execution]]:
    sql = "SELECT started::text FROM xdb.start_processes(processes => %s::text::jsonb) AS started"

    def read(rows: Rows) -> list[Execution]:
        return [_started(one, row[0]) for one, row in zip(many, rows, strict=True)]

    return Query(sql, (_json([one.arguments(traceparent) for one in many]),), read)


def _started(one: Start, execution_id: str) -> Execution:
    """The execution of a start. Without a process id, the execution's id is the process id."""
    return Execution(execution_id if one.process_id is None else one.process_id, UUID(execution_id))


def schedule(name: str, cron: str, one: Start, timezone: str) -> Query[Execution]:
    sql = "SELECT xdb.schedule(name => %s::text, cron => %s::text, start => %s::text::jsonb, timezone => %s::text)::text"
    return Query(sql, (name, cron, _json(one.arguments()), timezone), lambda rows: Execution(name, UUID(rows[0][0])))


# --- RPCs and messages


def rpc(
    rpc: Rpc[Any, Any],
    process_id: str,
    input: object,
    idempotency_key: str | None,
    timeout: Seconds | None,
    execution: AnyExecution,
    traceparent: str | None,
) -> Query[Any]:
    _refuse_other(rpc, Rpc, "an RPC", "confirm")
    sql = """SELECT xdb.invoke_rpc(process_id => %s::text, rpc_name => %s::text, input => %s::text::jsonb,
        timeout => %s::text::interval, idempotency_key => %s::text, execution_id => %s::text::uuid)::text"""
    params: tuple[str | None, ...] = (
        process_id,
        rpc.name,
        _json(input_of(rpc, input)),
        None if timeout is None else interval(timeout),
        idempotency_key,
        uuid_of(execution),
    )
    if traceparent is not None:
        # Set in the same statement, so that it also works through a pooler. It ends with the transaction.
        sql, params = f"{sql} FROM set_config('xdb.traceparent', %s::text, true)", (*params, traceparent)
    return Query(sql, params, lambda rows: codec.decode(_loaded(rows), rpc.output_type, f"output of the RPC {rpc.name}"))


def publish(
    queue: Queue[Any], process_id: str, message: object, message_id: str | None, execution: AnyExecution
) -> Query[None]:
    _refuse_other(queue, Queue, "a queue", "verified")
    sql = """SELECT xdb.publish(process_id => %s::text, queue_name => %s::text, message => %s::text::jsonb,
        message_id => %s::text, execution_id => %s::text::uuid)"""
    message = codec.encode(message, queue.message_type, queue.name)
    return Query(sql, (process_id, queue.name, _json(message), message_id, uuid_of(execution)), _nothing)


def publish_global(
    queue: GlobalQueue[Any], message: object, key: str | None, message_id: str | None, ttl: Seconds | None
) -> Query[None]:
    _refuse_other(queue, GlobalQueue, "a global queue", "prices")
    sql = """SELECT xdb.publish_global(queue_name => %s::text, message => %s::text::jsonb, key => %s::text,
        message_id => %s::text, ttl => %s::text::interval)"""
    message = codec.encode(message, queue.message_type, queue.name)
    return Query(sql, (queue.name, _json(message), key, message_id, None if ttl is None else interval(ttl)), _nothing)


# --- waiting
#
# Besides the call, these statements contain only immutable expressions. So the server holds no snapshot for them while they wait, which
# would block vacuum. A cast to interval is not immutable.


# The shorter of the session's two limits for a statement, as an interval, or null. `transaction_timeout` exists from Postgres 17 on.
LIMIT = """least(nullif(current_setting('statement_timeout'), '0')::interval,
    nullif(current_setting('transaction_timeout', true), '0')::interval)"""


def limit() -> Query[float | None]:
    """The session's limit for a statement, in seconds. None: no limit."""

    def read(rows: Rows) -> float | None:
        return None if rows[0][0] is None else float(rows[0][0])

    return Query(f"SELECT extract(epoch FROM {LIMIT})::text", (), read)


def shorter(slice: float, limit: float | None) -> float | None:
    """The next slice of a wait after one was cancelled by a limit. None: the session has no limit, or one that is too short for a wait."""
    return None if limit is None or min(limit, slice) < SHORTEST_LIMIT else min(limit, slice) / 2


def wait(process_id: str, seconds: float, execution: AnyExecution) -> Query[Outcome]:
    sql = """SELECT xdb.wait_for_process(process_id => %s::text, timeout => %s::text::float8 * interval '1 second',
        execution_id => %s::text::uuid)::text"""
    return Query(sql, (process_id, repr(seconds), uuid_of(execution)), lambda rows: outcome_of(process_id, _loaded(rows)))


def last_failure(process_id: str, execution: AnyExecution) -> Query[str | None]:
    """What failed last in an execution, by default the latest one."""
    sql = """SELECT state_execution_id, attempt::text, error_type, detail FROM xdb.failures
        WHERE process_id = %s::text AND execution_id = COALESCE(%s::text::uuid,
            (SELECT p.execution_id FROM xdb.processes AS p WHERE p.process_id = %s::text AND p.is_latest))
        ORDER BY failed_at DESC NULLS FIRST LIMIT 1"""
    return Query(sql, (process_id, uuid_of(execution), process_id), lambda rows: failure_text(*rows[0]) if rows else None)


def wait_for_state(
    state: State[Any], process_id: str, number: int, seconds: float, execution: AnyExecution
) -> Query[StateOutcome]:
    sql = """SELECT xdb.wait_for_state(process_id => %s::text, state_execution_id => %s::text,
        timeout => %s::text::float8 * interval '1 second', execution_id => %s::text::uuid)::text"""
    params = (process_id, _state_execution(state, number), repr(seconds), uuid_of(execution))
    return Query(sql, params, lambda rows: state_outcome_of(_loaded(rows)))


# --- reading and operating


def stop(process_id: str, reason: str | None, fail: bool, execution: AnyExecution) -> Query[None]:
    sql = """SELECT xdb.stop_process(process_id => %s::text, stop_type => %s::text, reason => %s::text,
        execution_id => %s::text::uuid)"""
    return Query(sql, (process_id, "FAIL" if fail else "TERMINATE", reason, uuid_of(execution)), _nothing)


def describe(process_id: str, execution: AnyExecution) -> Query[Description]:
    sql = "SELECT xdb.describe_process(process_id => %s::text, execution_id => %s::text::uuid)::text"
    return Query(sql, (process_id, uuid_of(execution)), lambda rows: description_of(_loaded(rows)))


def check(process_id: str, execution: AnyExecution) -> Query[list[str]]:
    sql = "SELECT problem::text FROM xdb.check_process(process_id => %s::text, execution_id => %s::text::uuid)"
    return Query(sql, (process_id, uuid_of(execution)), lambda rows: [row[0] for row in rows])


def local(process: type[P], process_id: str, execution: AnyExecution) -> Query[P]:
    sql = "SELECT xdb.get_local_attributes(process_id => %s::text, execution_id => %s::text::uuid)::text"

    def read(rows: Rows) -> P:
        return view(process, _loaded(rows))

    return Query(sql, (process_id, uuid_of(execution)), read)


def set_local(
    process: type[Process], process_id: str, values: Mapping[str, object], execution: AnyExecution
) -> Query[None]:
    sql = """SELECT xdb.set_local_attributes(process_id => %s::text, attributes => %s::text::jsonb,
        execution_id => %s::text::uuid)"""
    return Query(sql, (process_id, _json(locals_of(process, values)), uuid_of(execution)), _nothing)


def skip_timer(
    state: State[Any], process_id: str, number: int, timer_id: str | None, execution: AnyExecution
) -> Query[None]:
    sql = """SELECT xdb.skip_timer(process_id => %s::text, state_execution_id => %s::text, command_id => %s::text,
        execution_id => %s::text::uuid)"""
    return Query(sql, (process_id, _state_execution(state, number), timer_id, uuid_of(execution)), _nothing)


def _one_or_all(state: State[Any] | None, number: int | None) -> str | None:
    if (state is None) != (number is None):
        raise TypeError("state= and number= name a step together: give both or none")
    return None if state is None or number is None else _state_execution(state, number)


def retry_now(process_id: str, state: State[Any] | None, number: int | None, execution: AnyExecution) -> Query[int]:
    which = _one_or_all(state, number)
    sql = """SELECT xdb.retry_now(process_id => %s::text, state_execution_id => %s::text,
        execution_id => %s::text::uuid)::text"""
    return Query(sql, (process_id, which, uuid_of(execution)), lambda rows: int(rows[0][0]))


def move_state(
    process_id: str, step: str, next_states: Iterable[Decision], reason: str | None, execution: AnyExecution
) -> Query[None]:
    sql = """SELECT xdb.move_state(process_id => %s::text, state_execution_id => %s::text, next_states => %s::text::jsonb,
        reason => %s::text, execution_id => %s::text::uuid)"""
    return Query(sql, (process_id, step_of(step), _json(movements_of(next_states)), reason, uuid_of(execution)), _nothing)


# --- the same for many processes

_IDS = "ARRAY(SELECT jsonb_array_elements_text(%s::text::jsonb))"


def stop_many(process_ids: Iterable[str], reason: str | None, fail: bool) -> Query[list[Done]]:
    sql = f"""SELECT process_id, stopped::int::text AS count, error_code, error
        FROM xdb.stop_process(process_ids => {_IDS}, stop_type => %s::text, reason => %s::text)"""
    return Query(sql, (_ids(process_ids), "FAIL" if fail else "TERMINATE", reason), _done)


def skip_timer_many(state: State[Any], process_ids: Iterable[str], number: int, timer_id: str | None) -> Query[list[Done]]:
    sql = f"""SELECT process_id, skipped::int::text AS count, error_code, error
        FROM xdb.skip_timer(process_ids => {_IDS}, state_execution_id => %s::text, command_id => %s::text)"""
    return Query(sql, (_ids(process_ids), _state_execution(state, number), timer_id), _done)


def retry_now_many(process_ids: Iterable[str], state: State[Any] | None, number: int | None) -> Query[list[Done]]:
    sql = f"""SELECT process_id, retried::text AS count, error_code, error
        FROM xdb.retry_now(process_ids => {_IDS}, state_execution_id => %s::text)"""
    return Query(sql, (_ids(process_ids), _one_or_all(state, number)), _done)


def _ids(process_ids: Iterable[str]) -> str:
    if isinstance(process_ids, str):
        raise TypeError(f"process_ids is the str {process_ids!r}: give a list")
    return codec.dumps(list(process_ids)).decode()


def _done(rows: Rows) -> list[Done]:
    return [Done(process_id, int(count), of_row(code, message)) for process_id, count, code, message in rows]


def pause(
    process_id: str, reject: bool, until: datetime | None, reason: str | None, execution: AnyExecution
) -> Query[None]:
    sql = """SELECT xdb.pause_process(process_id => %s::text, mode => %s::text, until => %s::text::timestamptz,
        reason => %s::text, execution_id => %s::text::uuid)"""
    at = None if until is None else aware(until)
    return Query(sql, (process_id, "REJECT" if reject else "WAIT", at, reason, uuid_of(execution)), _nothing)


def resume(process_id: str, execution: AnyExecution) -> Query[None]:
    sql = "SELECT xdb.resume_process(process_id => %s::text, execution_id => %s::text::uuid)"
    return Query(sql, (process_id, uuid_of(execution)), _nothing)


def pause_type(process: type[Process] | str, reject: bool, until: datetime | None, reason: str | None) -> Query[None]:
    sql = """SELECT xdb.pause_process_type(process_type => %s::text, mode => %s::text, until => %s::text::timestamptz,
        reason => %s::text)"""
    at = None if until is None else aware(until)
    return Query(sql, (type_or_name(process), "REJECT" if reject else "WAIT", at, reason), _nothing)


def resume_type(process: type[Process] | str) -> Query[None]:
    return Query("SELECT xdb.resume_process_type(process_type => %s::text)", (type_or_name(process),), _nothing)


# --- values


def type_name(process: type[Process]) -> str:
    """The name of the process type."""
    try:
        return process._xdb.name
    except AttributeError:
        raise TypeError(f"{process!r} is not a subclass of xdb.Process") from None


def type_or_name(process: type[Process] | str) -> str:
    """The name of a process type that is given by its class or its name."""
    return process if isinstance(process, str) else type_name(process)


def interval(time: Seconds) -> str:
    """An interval as text that means the same under every setting of the session."""
    micros = round(time * 1_000_000) if isinstance(time, (int, float)) else time // timedelta(microseconds=1)
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    return f"{sign}{micros // 1_000_000}.{micros % 1_000_000:06} seconds"


def seconds_of(time: Seconds) -> float:
    """A length of time in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


def aware(time: datetime) -> str:
    """A time as text with its offset. Without an offset it would be read in the session's time zone, so that raises `ValueError`."""
    if time.utcoffset() is None:
        raise ValueError(f"{time!r} has no time zone: give one with tzinfo=")
    return time.isoformat()


def in_chunks(many: Iterable[Start], size: int) -> Iterable[list[Start]]:
    """The starts in lists of `size`, so that any number of them can be iterated over."""
    chunk: list[Start] = []
    for one in many:
        chunk.append(one)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _json(value: Any) -> str | None:
    return None if value is None else codec.dumps(value).decode()


def _loaded(rows: Rows) -> Any:
    text = rows[0][0]
    return None if text is None else codec.loads(text)


def _nothing(_rows: Rows) -> None:
    return None


def uuid_of(execution: AnyExecution) -> str | None:
    """The id of an execution as text. None: the latest execution."""
    if execution is None:
        return None
    return str(execution.execution_id if isinstance(execution, Execution) else execution)


def word_of(words: Mapping[str, str], name: str, given: str) -> str:
    """The server's word for a word of the SDK. `name` is the argument. Raises `ValueError` for an unknown word."""
    try:
        return words[given]
    except KeyError:
        raise ValueError(f"{name}={given!r} is unknown: give one of {', '.join(map(repr, words))}") from None


def _state_execution(state: State[Any], number: int) -> str:
    _refuse_other(state, State, "a state", "verify")
    return f"{state.name}-{number}"


def step_of(step: object) -> str:
    """The name of a step. Refuses anything but a text, for instance a state, of which there may be several steps."""
    if isinstance(step, str):
        return step
    given, name = (f"the state {step.label}", step.name) if isinstance(step, State) else (repr(step), "charge")
    raise TypeError(f"{given} is not a step: give the name of one, with its number, as in '{name}-1'")


_CALLED = ((State, "the state"), (Rpc, "the RPC"), (Queue, "the queue"), (GlobalQueue, "the global queue"))


def _refuse_other(given: Any, kind: type[Any], what: str, example: str) -> None:
    """Refuses anything but a member of a process class, for instance its name: the types would be unknown."""
    if not isinstance(given, kind):
        called = next((f"{word} {getattr(given, 'label', given.name)}" for each, word in _CALLED if isinstance(given, each)), None)
        raise TypeError(f"{called or repr(given)} is not {what}: give the member of the class, as in SignUp.{example}")


def input_of(member: Member, value: object) -> Any:
    """The JSON of an input of a state or an RPC."""
    if member.takes_input:
        return codec.encode(value, member.input_type, member.input_place)
    if value is not None:
        raise TypeError(f"{member.label} takes no input, and got {type(value).__name__}")
    return None


def _state_of(process: type[Process], state: State[Any]) -> State[Any]:
    _refuse_other(state, State, "a state", "verify")
    for own in process._xdb.states.values():
        if own.fn is state.fn:
            return own
    raise ValueError(f"{state.label} is not a state of {type_name(process)}")


def _start_input(process: type[Process], value: object, starting_state: State[Any] | None) -> Any:
    if starting_state is not None:
        return input_of(_state_of(process, starting_state), value)
    name = process._xdb.definition.get("startingState")
    if name is not None:
        return input_of(process._xdb.states[name], value)
    if value is not None:
        raise TypeError(f"{type_name(process)} has no starting state, so its start takes no input")
    return None


def locals_of(process: type[Process], values: Mapping[str, object]) -> dict[str, Any]:
    """The JSON of local attributes."""
    declared = process._xdb.local
    unknown = [name for name in values if name not in declared]
    if unknown:
        known = ", ".join(declared) or "none"
        raise TypeError(f"{process.__name__} has no local attribute {', '.join(unknown)}; its local attributes are {known}")
    return {
        name: codec.encode(value, declared[name].annotation, f"{process.__name__}.{name}") for name, value in values.items()
    }


def _function_call(process: type[Process], call: StartCall) -> dict[str, Any]:
    own = process._xdb.functions.get(call.name)
    if own is None or own.sql_name != call.sql_name:
        raise ValueError(f"{call.name} ({call.sql_name}) is not a function of {type_name(process)}")
    return {"function": call.name, "argument": call.argument}
