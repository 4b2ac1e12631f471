"""What one call has: the attributes that were loaded, what was received, and what becomes of both."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .call import Call
from .codec import JSON, CodecError, decode, dumps, encode, is_immutable, name_of
from .decisions import Decision

T = TypeVar("T")


class NullAttribute(ValueError):
    """An attribute is null where its annotation has no None."""


class NotLoaded(LookupError):
    """An attribute that this call has not loaded, or that has no value yet."""


class CallOver(RuntimeError):
    """The handler has returned, or its time is over: nothing that comes later could be written."""


class _Missing:
    def __repr__(self) -> str:
        return "no default"


MISSING: Any = _Missing()


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of a process: a column of a row, or a local one. It reads and writes what the call has."""

    owner: str
    name: str
    annotation: Any
    is_global: bool
    column: str = ""
    default: Any = MISSING

    @property
    def place(self) -> str:
        """Its name for people."""
        return f"{self.owner}.{self.name}"

    @property
    def key(self) -> tuple[bool, str]:
        """What tells it from others of the process: a column and a local attribute may have the same name."""
        return self.is_global, self.name

    @property
    def takes_null(self) -> bool:
        """Whether null is one of its values."""
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
    """A message of a global queue."""

    payload: T
    key: str | None = None
    message_id: str | None = None


@dataclass
class _Cell:
    """An attribute that was used: its value, and its JSON before anybody could change it."""

    attribute: Attribute
    value: Any
    baseline: bytes | None = None
    assigned: bool = False
    # In place of the baseline, for what can be read and not written: the same value once more.
    twin: Any = None

    def has_changed(self) -> bool:
        if self.assigned or is_immutable(self.value):
            return self.assigned
        if self.baseline is None:
            return bool(self.value != self.twin)
        return dumps(encode(self.value, self.attribute.annotation, self.attribute.place)) != self.baseline


@dataclass(frozen=True)
class TimerResult:
    """What became of a timer."""

    fired: bool
    skipped: bool

    @property
    def done(self) -> bool:
        """Whether it counts as completed."""
        return self.fired or self.skipped


@dataclass(frozen=True)
class QueueResult:
    """What a command on a queue has taken."""

    completed: bool
    messages: list[Any]


@dataclass(frozen=True)
class Results:
    """The results of a wait by the ids of its parts. Ids that were not given: `timer`, or the name of the queue."""

    timers: Mapping[str, TimerResult]
    queues: Mapping[str, QueueResult]

    def timer(self, id: str = "timer") -> TimerResult:
        """The timer of this id."""
        return _known(self.timers, id, "timer")

    def queue(self, id: str) -> QueueResult:
        """The messages of the command of this id."""
        return _known(self.queues, id, "command on a queue")


def _known(found: Mapping[str, T], id: str, what: str) -> T:
    if id not in found:
        raise LookupError(f"the wait has no {what} {id!r}; it has {', '.join(map(repr, found)) or 'none'}")
    return found[id]


@dataclass
class Live:
    """The one of a call. Values are decoded when they are first read."""

    call: Call | None
    raw_global: Mapping[str, JSON] = field(default_factory=dict)
    raw_local: Mapping[str, JSON] = field(default_factory=dict)
    commands: Mapping[str, Any] = field(default_factory=dict)
    # The types of messages by the queue, or by the id of a command that names its queue itself.
    message_types: Mapping[str, Any] = field(default_factory=dict)
    not_loaded: frozenset[str] = frozenset()
    cells: dict[tuple[bool, str], _Cell] = field(default_factory=dict)
    rows: dict[type, Any] = field(default_factory=dict)
    local_messages: list[dict[str, JSON]] = field(default_factory=list)
    global_messages: list[dict[str, JSON]] = field(default_factory=list)
    function_calls: list[dict[str, JSON]] = field(default_factory=list)
    received: dict[str, list[Any]] = field(default_factory=dict)
    decision: Decision | None = None
    # The class whose handler runs, and each movement that was made, with its name: request.py asks whether all of them were used.
    process: Any = None
    movements: list[tuple[str, Mapping[str, JSON]]] = field(default_factory=list)
    closed: str | None = None
    # Between the check that a call is open and what is then kept, another thread may not close it.
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, attribute: Attribute) -> Any:
        """The value of an attribute."""
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
                raise NotLoaded(f"{attribute.place} is a column of a row, and there are the local attributes alone: ask its table")
            if attribute.is_global or attribute.name in self.not_loaded:
                raise NotLoaded(f"{attribute.place} was not loaded for this call: add it to load=")
            raw = self._default(attribute)
        if raw is None and not attribute.takes_null:
            gone = "its row is gone, or " if attribute.is_global else ""
            raise NullAttribute(
                f"{attribute.place} is null: {gone}annotate it `{name_of(attribute.annotation)} | None`"
            )
        return decode(raw, attribute.annotation, attribute.place)

    def _default(self, attribute: Attribute) -> JSON:
        if attribute.default is not MISSING:
            return encode(attribute.default, attribute.annotation)
        if attribute.takes_null:
            return None
        raise NotLoaded(
            f"{attribute.place} has no value yet: give it one in the class (`{attribute.name}: "
            f"{name_of(attribute.annotation)} = ...`) or at the start of the process"
        )

    def write(self, attribute: Attribute, value: object) -> None:
        """Assigns an attribute. A value that does not fit is refused here, where it is assigned."""
        encode(value, attribute.annotation, attribute.place)
        with self.guard:
            self.check_open(f"{attribute.place} can't be written")
            self.cells[attribute.key] = _Cell(attribute, value, assigned=True)

    def publish(self, messages: list[dict[str, JSON]], message: dict[str, JSON]) -> None:
        """Sends a message with the answer."""
        with self.guard:
            self.check_open(f"nothing can be published to {message['queueName']}")
            messages.append({key: value for key, value in message.items() if value is not None})

    def call_function(self, call: dict[str, JSON]) -> None:
        """Has a function of the database called with the answer."""
        with self.guard:
            self.check_open(f"{call['function']} can't be called")
            self.function_calls.append(call)

    def close(self, why: str) -> None:
        """Ends the call: from now on writing and publishing raise. The first reason stays."""
        with self.guard:
            self.closed = self.closed or why

    def check_open(self, what: str) -> None:
        """Raises when the call is over."""
        if self.closed is not None:
            raise CallOver(f"{what}: {self.closed}")

    def messages(self, queue: str, is_global: bool, message_type: Any) -> list[Any]:
        """What the wait took from a queue."""
        kind = "globalQueueResults" if is_global else "localQueueResults"
        known = f"{kind}/{queue}"
        if known not in self.received:
            results = [each for each in self.commands.get(kind) or () if each["queueName"] == queue]
            self.received[known] = [
                one for each in results for one in _messages(each, is_global, message_type, f"{queue}")
            ]
        return self.received[known]

    def results(self) -> Results:
        """The results of the wait by the ids of its parts."""
        timers = {
            each["commandId"]: TimerResult(each["status"] == "COMPLETED_COMMAND", each["status"] == "SKIPPED_COMMAND")
            for each in self.commands.get("timerResults") or ()
        }
        queues = {}
        for kind in ("localQueueResults", "globalQueueResults"):
            for each in self.commands.get(kind) or ():
                id = each["commandId"]
                message_type = self.message_types.get(id, self.message_types.get(each["queueName"], Any))
                messages = _messages(each, kind == "globalQueueResults", message_type, id)
                queues[id] = QueueResult(each["status"] == "COMPLETED_COMMAND", messages)
        return Results(timers, queues)

    def effects(self) -> dict[str, JSON]:
        """What the answer changes besides its decision."""
        written: dict[bool, dict[str, JSON]] = {True: {}, False: {}}
        for (is_global, name), cell in self.cells.items():
            if cell.has_changed():
                written[is_global][name] = encode(cell.value, cell.attribute.annotation, cell.attribute.place)
        answer: dict[str, JSON] = {
            "writeToGlobalAttributes": written[True],
            "writeToLocalAttributes": written[False],
            "publishToLocalQueue": self.local_messages,
            "publishToGlobalQueue": self.global_messages,
            "callFunctions": self.function_calls,
        }
        return {key: value for key, value in answer.items() if value}


def _messages(result: Mapping[str, Any], is_global: bool, message_type: Any, place: str) -> list[Any]:
    payloads = []
    for number, each in enumerate(result.get("messages") or ()):
        payload = decode(each.get("payload"), message_type, f"{place}[{number}]")
        if is_global:
            payload = Message(payload, each.get("key"), each.get("messageId"))
        payloads.append(payload)
    return payloads


live: ContextVar[Live] = ContextVar("xdb_live")


def _running(what: str) -> Live:
    found = live.get(None)
    if found is None:
        raise LookupError(f"no call is being answered here: {what} works within handlers")
    return found


def results() -> Results:
    """The results of the wait by id, for waits that the queues of `self` don't tell enough of."""
    return _running("xdb.results()").results()


def then(decision: Decision) -> None:
    """What an RPC decides besides its output: to start threads, or to end the process."""
    found = _running("xdb.then()")
    if found.call is not None and found.call.rpc is None:
        raise TypeError("a state returns its decision; xdb.then() is for RPCs")
    if not isinstance(decision, Decision) or "conditionalClose" in decision.body:
        raise TypeError("xdb.then() takes a movement, as in xdb.then(self.ship()), or xdb.complete() and its like")
    if found.decision is not None:
        raise TypeError("an RPC decides once: add movements, as in xdb.then(self.ship() + self.bill())")
    found.check_open("nothing can be decided")
    found.decision = decision
