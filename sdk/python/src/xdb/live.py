"""The data of one call: loaded attributes, received messages, and what the handler writes, publishes and decides.

A `Live` is made for each call by request.py, and read again when the answer is made. Attributes and queues of `self` use it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from .call import Call
from .codec import JSON, CodecError, decode, dumps, encode, is_immutable, name_of
from .decisions import Decision

T = TypeVar("T")


class NullAttribute(ValueError):
    """An attribute is null, but its annotation does not allow None."""


class NotLoaded(LookupError):
    """This call has not loaded the attribute, or the attribute has no value yet."""


class CallOver(RuntimeError):
    """The handler has returned or timed out: it is too late to write attributes or publish messages."""


# The most names of `xdb.abort` in one answer.
MOST_ABORTED = 1000


class _Missing:
    def __repr__(self) -> str:
        return "no default"


MISSING: Any = _Missing()


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of a process: a column of a row (global), or a local attribute. A descriptor that reads and writes `Live`."""

    owner: str
    name: str
    annotation: Any
    is_global: bool
    column: str = ""
    default: Any = MISSING

    @property
    def place(self) -> str:
        """The attribute, as messages name it: `User.status`."""
        return f"{self.owner}.{self.name}"

    @property
    def key(self) -> tuple[bool, str]:
        """A key that is unique in the process: a column and a local attribute may have the same name."""
        return self.is_global, self.name

    @property
    def takes_null(self) -> bool:
        """Whether its annotation allows null."""
        try:
            decode(None, self.annotation)
        except CodecError:
            return False
        return True

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else obj._live.read(self)

    def __set__(self, obj: Any, value: object) -> None:
        obj._live.write(self, value)


@dataclass(frozen=True)
class Message(Generic[T]):
    """A message of a global queue. `key` and `message_id` are those that it was published with."""

    payload: T
    key: str | None = None
    message_id: str | None = None


@dataclass
class _Cell:
    """An attribute that the handler has read or assigned. Written by `Live.read` and `Live.write`, read by `Live.effects`."""

    attribute: Attribute
    value: Any
    # The JSON of a mutable value when it was first read.
    baseline: bytes | None = None
    assigned: bool = False
    # Instead of the baseline, for a value that can be read but not written: the value, read a second time.
    twin: Any = None

    def has_changed(self) -> bool:
        if self.assigned or is_immutable(self.value):
            return self.assigned
        if self.baseline is None:
            return bool(self.value != self.twin)
        return dumps(encode(self.value, self.attribute.annotation, self.attribute.place)) != self.baseline


@dataclass(frozen=True)
class TimerResult:
    """The result of a timer: whether it fired, or was skipped by `skip_timer`. `fire_at` is the tick of an `xdb.cron()`, in UTC."""

    fired: bool
    skipped: bool
    fire_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether the timer has completed, in either way."""
        return self.fired or self.skipped


@dataclass(frozen=True)
class QueueResult:
    """The result of a command on a queue: whether it completed, and the messages that it consumed."""

    completed: bool
    messages: list[Any]


@dataclass(frozen=True)
class Results:
    """The results of a wait, by the ids of its commands. Default ids are `timer`, and the name of the queue."""

    timers: Mapping[str, TimerResult]
    queues: Mapping[str, QueueResult]

    def timer(self, id: str = "timer") -> TimerResult:
        """The result of the timer with this id. Raises `LookupError` if the wait has none."""
        return _known(self.timers, id, "timer")

    def queue(self, id: str) -> QueueResult:
        """The result of the command on a queue with this id. Raises `LookupError` if the wait has none."""
        return _known(self.queues, id, "command on a queue")


def _known(found: Mapping[str, T], id: str, what: str) -> T:
    if id not in found:
        raise LookupError(f"the wait has no {what} with id {id!r}; the ids are {', '.join(map(repr, found)) or 'none'}")
    return found[id]


@dataclass
class Live:
    """The data of one call. Values are decoded when they are first read."""

    # From the request; None outside of calls, for `client.local`.
    call: Call | None
    # Loaded attributes and command results, as in the request.
    raw_global: Mapping[str, JSON] = field(default_factory=dict)
    raw_local: Mapping[str, JSON] = field(default_factory=dict)
    commands: Mapping[str, Any] = field(default_factory=dict)
    # The types of messages, by queue, or by the id of a command that names its queue as text.
    message_types: Mapping[str, Any] = field(default_factory=dict)
    # Local attributes that the definition does not load for this call.
    not_loaded: frozenset[str] = frozenset()
    # What the handler has used, published and called. Written by it, read by `effects`.
    cells: dict[tuple[bool, str], _Cell] = field(default_factory=dict)
    rows: dict[type, Any] = field(default_factory=dict)
    local_messages: list[dict[str, JSON]] = field(default_factory=list)
    global_messages: list[dict[str, JSON]] = field(default_factory=list)
    children: list[dict[str, JSON]] = field(default_factory=list)
    function_calls: list[dict[str, JSON]] = field(default_factory=list)
    # The names of states and steps whose threads the answer ends. `"*"` stands for all others, whatever else is in the list.
    aborted: list[str] = field(default_factory=list)
    received: dict[str, list[Any]] = field(default_factory=dict)
    # The decision of an RPC, written by `then`.
    decision: Decision | None = None
    # The class whose handler runs, and its API: `wait-until`, `execute` or `rpc`.
    process: Any = None
    api: str = ""
    # Each movement that the handler has made, with the state's name. request.py checks that all of them were returned.
    movements: list[tuple[str, Mapping[str, JSON]]] = field(default_factory=list)
    # Why the call is over. Written by `close`, read by `check_open`.
    closed: str | None = None
    # Held from the check that the call is open until the change is stored, so that no other thread closes the call in between.
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, attribute: Attribute) -> Any:
        """The value of an attribute. Raises `NotLoaded`, `NullAttribute` or `CodecError`."""
        cell = self.cells.get(attribute.key)
        if cell is None:
            value = self._decoded(attribute)
            cell = _Cell(attribute, value)
            if not is_immutable(value):
                try:
                    cell.baseline = dumps(encode(value, attribute.annotation))
                except CodecError:
                    cell.twin = self._decoded(attribute)
            self.cells[attribute.key] = cell
        return cell.value

    def _decoded(self, attribute: Attribute) -> Any:
        given = self.raw_global if attribute.is_global else self.raw_local
        raw = given.get(attribute.name, MISSING)
        if raw is MISSING:
            if attribute.is_global and self.call is None:
                raise NotLoaded(f"{attribute.place} is a column, and only local attributes can be read here: read it from its table")
            if attribute.is_global or attribute.name in self.not_loaded:
                raise NotLoaded(f"{attribute.place} was not loaded for this call: add it to load=")
            raw = self._default(attribute)
        if raw is None and not attribute.takes_null:
            hint = f"annotate it `{name_of(attribute.annotation)} | None`"
            raise NullAttribute(
                f"{attribute.place} is null, or its row was deleted: {hint}" if attribute.is_global else f"{attribute.place} is null: {hint}"
            )
        return decode(raw, attribute.annotation, attribute.place)

    def _default(self, attribute: Attribute) -> JSON:
        if attribute.default is not MISSING:
            return encode(attribute.default, attribute.annotation)
        if attribute.takes_null:
            return None
        raise NotLoaded(
            f"{attribute.place} has no value yet: give it a default in the class (`{attribute.name}: "
            f"{name_of(attribute.annotation)} = ...`), or a value with local= when the process starts"
        )

    def write(self, attribute: Attribute, value: object) -> None:
        """Assigns an attribute. Raises `CodecError` at once for a value that does not fit, and `CallOver`."""
        encode(value, attribute.annotation, attribute.place)
        with self.guard:
            self.check_open(f"can't write {attribute.place}")
            self.cells[attribute.key] = _Cell(attribute, value, assigned=True)

    def publish(self, messages: list[dict[str, JSON]], message: dict[str, JSON]) -> None:
        """Adds a message to the answer. `messages` is one of the two lists of this object. Raises `CallOver`."""
        with self.guard:
            self.check_open(f"can't publish to {message['queueName']}")
            messages.append({key: value for key, value in message.items() if value is not None})

    def call_function(self, call: dict[str, JSON]) -> None:
        """Adds a call of a function of the database to the answer. Raises `CallOver`."""
        with self.guard:
            self.check_open(f"can't call {call['function']}")
            self.function_calls.append(call)

    def abort(self, names: Iterable[str]) -> None:
        """Adds states and steps to abort to the answer. Raises `CallOver`, and `ValueError` for more than the limit."""
        with self.guard:
            self.check_open("can't abort threads")
            together = list(dict.fromkeys([*self.aborted, *names]))
            if len(together) > MOST_ABORTED:
                raise ValueError(
                    f"xdb.abort() would name {len(together)} states and steps; the limit is {MOST_ABORTED}: name a state, "
                    'which stands for all of its steps, or "*"'
                )
            self.aborted = together

    def close(self, why: str) -> None:
        """Ends the call: from now on, writing and publishing raise `CallOver` with this reason. The first reason stays."""
        with self.guard:
            self.closed = self.closed or why

    def check_open(self, what: str) -> None:
        """Raises `CallOver` if the call is over."""
        if self.closed is not None:
            raise CallOver(f"{what}: {self.closed}")

    def messages(self, queue: str, is_global: bool, message_type: Any) -> list[Any]:
        """The messages that the wait has consumed from a queue."""
        kind = "globalQueueResults" if is_global else "localQueueResults"
        known = f"{kind}/{queue}"
        if known not in self.received:
            results = [each for each in self.commands.get(kind) or () if each["queueName"] == queue]
            self.received[known] = [
                one for each in results for one in _messages(each, is_global, message_type, f"{queue}")
            ]
        return self.received[known]

    def results(self) -> Results:
        """The results of the wait, by the ids of its commands."""
        timers = {each["commandId"]: _timer(each) for each in self.commands.get("timerResults") or ()}
        queues = {}
        for kind in ("localQueueResults", "globalQueueResults"):
            for each in self.commands.get(kind) or ():
                id = each["commandId"]
                message_type = self.message_types.get(id, self.message_types.get(each["queueName"], Any))
                messages = _messages(each, kind == "globalQueueResults", message_type, id)
                queues[id] = QueueResult(each["status"] == "COMPLETED_COMMAND", messages)
        return Results(timers, queues)

    def effects(self) -> dict[str, JSON]:
        """The fields of the answer besides its decision or output."""
        written: dict[bool, dict[str, JSON]] = {True: {}, False: {}}
        for (is_global, name), cell in self.cells.items():
            if cell.has_changed():
                written[is_global][name] = encode(cell.value, cell.attribute.annotation, cell.attribute.place)
        answer: dict[str, JSON] = {
            "writeToGlobalAttributes": written[True],
            "writeToLocalAttributes": written[False],
            "publishToLocalQueue": self.local_messages,
            "publishToGlobalQueue": self.global_messages,
            "startProcesses": self.children,
            "callFunctions": self.function_calls,
            "abortStates": ["*"] if "*" in self.aborted else self.aborted,
        }
        return {key: value for key, value in answer.items() if value}


def _timer(result: Mapping[str, Any]) -> TimerResult:
    status, tick = result["status"], result.get("fireAt")
    return TimerResult(status == "COMPLETED_COMMAND", status == "SKIPPED_COMMAND", None if tick is None else decode(tick, datetime))


def _messages(result: Mapping[str, Any], is_global: bool, message_type: Any, place: str) -> list[Any]:
    payloads = []
    for number, each in enumerate(result.get("messages") or ()):
        payload = decode(each.get("payload"), message_type, f"{place}[{number}]")
        if is_global:
            payload = Message(payload, each.get("key"), each.get("messageId"))
        payloads.append(payload)
    return payloads


live: ContextVar[Live] = ContextVar("xdb_live")


def live_of(what: str) -> Live:
    """The data of the call that is being answered, for the function `what`. Raises `LookupError` outside of handlers."""
    found = live.get(None)
    if found is None:
        raise LookupError(f"there is no call here: {what} works within handlers")
    return found


def results() -> Results:
    """The results of the wait, by the ids of its commands. Use it to see which timer fired, or for queues given by name.

    Raises `LookupError` outside of handlers.
    """
    return live_of("xdb.results()").results()


def then(decision: Decision) -> None:
    """In an RPC: also start threads, as in `xdb.then(self.ship())`, or close the process. At most once in a call.

    Raises `TypeError` in a state, for a second decision, or for anything but a movement or a close; `LookupError` outside of handlers.
    """
    found = live_of("xdb.then()")
    if found.call is not None and found.call.rpc is None:
        raise TypeError("xdb.then() is for RPCs: a state returns its decision")
    if not isinstance(decision, Decision) or "conditionalClose" in decision.body:
        raise TypeError("xdb.then() takes a movement, as in xdb.then(self.ship()), or a close, as in xdb.then(xdb.complete())")
    if found.decision is not None:
        raise TypeError("xdb.then() was called twice: add movements, as in xdb.then(self.ship() + self.bill())")
    found.check_open("can't decide")
    found.decision = decision


def movements_of(next_states: Iterable[Decision]) -> list[Mapping[str, JSON]]:
    """The next states of movements, for `move_state`. Raises `TypeError` for anything but a list of movements.

    A movement that a handler makes for another process is used here, and not by its own decision.
    """
    if isinstance(next_states, (Decision, str)) or not isinstance(next_states, Iterable):
        raise TypeError(f"next_states={next_states!r} is not a list of movements: write [Order.refund(...)], or [] to end the thread")
    made: list[Mapping[str, JSON]] = []
    for each in next_states:
        if not isinstance(each, Decision) or set(each.body) != {"nextStates"}:
            raise TypeError(f"next_states= contains {each!r}, which is not a movement: call a state, as in [Order.refund(...)]")
        made += each.body["nextStates"]
    running = live.get(None)
    if running is not None:
        running.movements = [(name, one) for name, one in running.movements if not any(one is used for used in made)]
    return made
