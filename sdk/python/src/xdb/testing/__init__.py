"""Tests of an application's processes. This module tests one handler without an engine, with `call` and `wait`.

`testing.simulator` runs whole processes in memory. The fixtures `xdb_db` and `xdb_server` (pytest_plugin.py) use a real server.
Limitations of `call`: rows are given and returned as values, and no table checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from ..client.statements import input_of, locals_of
from ..codec import decode, dumps, encode, loads
from ..decisions import Decision
from ..live import Message
from ..process import Process, Row
from ..queues import GlobalQueue, Queue
from ..request import Job, read, waits_by_function
from ..states import Member, Rpc, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["CalledFunction", "Context", "Published", "Result", "call", "wait"]

EXECUTION = "00000000-0000-7000-8000-000000000000"


class Context(TypedDict, total=False):
    """Fields of a request's context, with their names in the protocol, for `call` and `wait`."""

    processId: str
    processExecutionId: str
    owner: str
    database: str
    processStartedTimestamp: float
    stateExecutionId: str
    attempt: int
    firstAttemptTimestamp: float
    callId: str
    timeoutSeconds: float
    parent: Mapping[str, Any]
    guards: str
    compensates: str
    recoverFromStateExecutionId: str
    recoverFromApi: str
    recoverFromError: Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A message that a handler has published."""

    queue: str
    message: Any
    key: str | None = None
    message_id: str | None = None
    ttl: timedelta | None = None


@dataclass(frozen=True)
class CalledFunction:
    """A function of the database that a handler has called."""

    function: str
    argument: Any = None


@dataclass(frozen=True)
class Result:
    """What a handler has done. `local` and `rows` contain only attributes that were written. `output` is that of an RPC.

    `aborted` has the names of the states and steps that it aborts, or `"*"`. `children` has the starts of `start_child`, as in the protocol.
    """

    decision: Decision | None = None
    output: Any = None
    local: dict[str, Any] = field(default_factory=dict)
    rows: dict[type[Row], dict[str, Any]] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    called: list[CalledFunction] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    children: list[dict[str, Any]] = field(default_factory=list)


def call(
    member: State[Any] | Rpc[Any, Any],
    input: object = None,
    *,
    rows: Mapping[type[Row], Mapping[str, Any] | None] | None = None,
    local: Mapping[str, Any] | None = None,
    received: Mapping[Any, Iterable[Any]] | None = None,
    fired: Iterable[str] = (),
    skipped: Iterable[str] = (),
    **context: Unpack[Context],
) -> Result:
    """Calls one handler, with JSON as over the wire, and returns what it has done. Raises what the handler raises.

    - `rows`: the columns of each row, by row class. None: the row was deleted.
    - `local`: local attributes that were written before.
    - `received`: the messages that the wait has consumed, by queue. Those of a global queue may be `xdb.Message`.
    - `fired`, `skipped`: ids of timers.
    - any other argument: a field of the request's context, for instance `attempt=2`; see `Context`.

    Raises `TypeError` for queues, timers, rows or attributes that the class or its wait lacks.
    """
    job = _job(member, "rpc" if isinstance(member, Rpc) else "execute", input, rows, local, context)
    job.live.commands = _results(member, received or {}, set(fired), set(skipped))
    answer = _answer(job)
    process = member.process
    output = decode(answer.get("output"), member.output_type) if isinstance(member, Rpc) else None
    decision = answer.get("stateDecision")
    return Result(
        Decision(decision) if decision is not None else None,
        output,
        _written(answer.get("writeToLocalAttributes") or {}, process),
        _written_rows(answer.get("writeToGlobalAttributes") or {}, process),
        _published(answer, process),
        [_called(each, process) for each in answer.get("callFunctions") or ()],
        answer.get("abortStates") or [],
        answer.get("startProcesses") or [],
    )


def wait(
    member: State[Any],
    input: object = None,
    *,
    rows: Mapping[type[Row], Mapping[str, Any] | None] | None = None,
    local: Mapping[str, Any] | None = None,
    **context: Unpack[Context],
) -> dict[str, Any]:
    """Returns what a state would wait for: the `commandRequest` of the protocol. Arguments as for `call`."""
    request: dict[str, Any] = _answer(_job(member, "wait-until", input, rows, local, context))["commandRequest"]
    return request


def _job(
    member: Member,
    api: str,
    input: object,
    rows: Mapping[type[Row], Mapping[str, Any] | None] | None,
    local: Mapping[str, Any] | None,
    context: Context,
) -> Job:
    for name in context:
        if name not in Context.__annotations__:
            fields = ", ".join(Context.__annotations__)
            raise TypeError(f"{name}= is neither an argument nor a field of the request's context; the fields are {fields}")
    process: type[Process] = member.process
    is_rpc = isinstance(member, Rpc)
    call_id = f"{EXECUTION}/rpc/{member.name}/test" if is_rpc else f"{EXECUTION}/{member.name}-1/{api}"
    request = {
        "context": {
            "processId": "test",
            "processExecutionId": EXECUTION,
            "processStartedTimestamp": 0,
            "firstAttemptTimestamp": 0,
            "attempt": 1,
            "callId": call_id,
            **({} if is_rpc else {"stateExecutionId": f"{member.name}-1"}),
            **context,
        },
        "processType": process._xdb.name,
        "rpcName" if is_rpc else "stateId": member.name,
        "input" if is_rpc else "stateInput": input_of(member, input),
        "loadedGlobalAttributes": _global(process, rows or {}),
        "loadedLocalAttributes": locals_of(process, local or {}),
    }
    # Through the JSON text, as over the wire.
    job = read(api, loads(dumps(request)), f"{call_id}/0", None, {process._xdb.name: process})
    job.ends_at = None
    return job


def _answer(job: Job) -> dict[str, Any]:
    with job.current():
        answer = loads(job.perform().body)
    assert isinstance(answer, dict)
    return answer


def _global(process: type[Process], rows: Mapping[type[Row], Mapping[str, Any] | None]) -> dict[str, Any]:
    """The columns of all rows. Columns that are not given are null."""
    known = list(process._xdb.rows.values())
    for row in rows:
        if row not in known:
            raise TypeError(f"{process.__name__} has no row {row.__name__}; its rows are {', '.join(each.__name__ for each in known) or 'none'}")
    loaded: dict[str, Any] = {}
    for row in known:
        given = rows.get(row) or {}
        for name, value in given.items():
            if name not in row._attributes:
                raise TypeError(f"{row.__name__} has no attribute {name!r}; its attributes are {', '.join(row._attributes)}")
            if value is not None:
                attribute = row._attributes[name]
                loaded[name] = encode(value, attribute.annotation, attribute.place)
        loaded.update((name, None) for name in row._attributes if name not in loaded)
    return loaded


def _results(
    member: Member, received: Mapping[Any, Iterable[Any]], fired: set[str], skipped: set[str]
) -> dict[str, list[dict[str, Any]]]:
    """The `commandResults` of the request. A function in `wait=` is not called: what is given here is what it waited for."""
    results: dict[str, list[dict[str, Any]]] = {"timerResults": [], "localQueueResults": [], "globalQueueResults": []}
    for queue in received:
        _refuse_foreign(queue, member.process)
    left = {queue if isinstance(queue, str) else queue.name: _messages(queue, of) for queue, of in received.items()}
    in_process = {queue if isinstance(queue, str) else queue.name for queue in received if not isinstance(queue, GlobalQueue)}
    known = member.process._xdb.waits.get(member.name) if isinstance(member, State) else None
    leaves = known.leaves if known is not None else {}
    for id, leaf in leaves.items():
        if leaf.kind != "timer":
            messages = left.pop(leaf.queue_name, [])
            kind = "globalQueueResults" if leaf.kind == "global" else "localQueueResults"
            results[kind].append(_queue_result(id, leaf.queue_name, messages))
    for name, messages in left.items():
        is_local = name in in_process and name in member.process._xdb.queues
        results["localQueueResults" if is_local else "globalQueueResults"].append(_queue_result(name, name, messages))
    if not waits_by_function(member):
        waited = [id for id, leaf in leaves.items() if leaf.kind == "timer"]
        for id in sorted(fired | skipped):
            if id not in waited:
                raise TypeError(f"{member.label} waits for no timer {id!r}; its timers are {', '.join(waited) or 'none'}")
    timers = dict.fromkeys([*(id for id, leaf in leaves.items() if leaf.kind == "timer"), *sorted(fired | skipped)])
    for id in timers:
        status = "COMPLETED" if id in fired else "SKIPPED" if id in skipped else "WAITING"
        results["timerResults"].append({"commandId": id, "status": f"{status}_COMMAND"})
    return results


def _refuse_foreign(queue: Any, process: type[Process]) -> None:
    """Raises `TypeError` for a queue that the process does not have."""
    described = process._xdb
    if isinstance(queue, Queue):
        # A subclass has copies of its base classes' queues, so base classes are searched too.
        known = any(value is queue for each in process.__mro__ for value in vars(each).values())
    elif isinstance(queue, GlobalQueue):
        known = queue.name in described.global_queues
    else:
        known = queue in described.queues or queue in described.global_queues
    if not known:
        name = queue.name if isinstance(queue, (Queue, GlobalQueue)) else queue
        has = ", ".join([*described.queues, *described.global_queues]) or "none"
        raise TypeError(f"{process.__name__} has no queue {name!r}; its queues are {has}")


def _messages(queue: Any, messages: Iterable[Any]) -> list[dict[str, Any]]:
    message_type, name = (Any, queue) if isinstance(queue, str) else (queue.message_type, queue.name)
    made = []
    for each in messages:
        payload, key, message_id = (
            (each.payload, each.key, each.message_id) if isinstance(each, Message) else (each, None, None)
        )
        made.append({"payload": encode(payload, message_type, name), "key": key, "messageId": message_id})
    found: list[dict[str, Any]] = loads(dumps(made))  # type: ignore[assignment]
    return found


def _queue_result(id: str, name: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    status = "COMPLETED_COMMAND" if messages else "WAITING_COMMAND"
    return {"commandId": id, "queueName": name, "status": status, "messages": messages}


def _written(raw: Mapping[str, Any], process: type[Process]) -> dict[str, Any]:
    return {name: decode(value, process._xdb.local[name].annotation, name) for name, value in raw.items()}


def _written_rows(raw: Mapping[str, Any], process: type[Process]) -> dict[type[Row], dict[str, Any]]:
    rows: dict[type[Row], dict[str, Any]] = {}
    for row in process._xdb.rows.values():
        found = {
            name: decode(raw[name], attribute.annotation, attribute.place)
            for name, attribute in row._attributes.items()
            if name in raw
        }
        if found:
            rows[row] = found
    return rows


def _called(call: Mapping[str, Any], process: type[Process]) -> CalledFunction:
    name = call["function"]
    return CalledFunction(name, decode(call.get("argument"), process._xdb.functions[name].argument_type, name))


def _published(answer: Mapping[str, Any], process: type[Process]) -> list[Published]:
    made = []
    for key, queues in (
        ("publishToLocalQueue", process._xdb.queues),
        ("publishToGlobalQueue", process._xdb.global_queues),
    ):
        for each in answer.get(key) or ():
            message_type = queues[each["queueName"]].message_type
            ttl = timedelta(seconds=each["ttlSeconds"]) if "ttlSeconds" in each else None
            message = decode(each.get("payload"), message_type, each["queueName"])
            made.append(Published(each["queueName"], message, each.get("key"), each.get("messageId"), ttl))
    return made
