"""Makes the definition of a process type from its class. Errors name the file and the line.

This runs when the class is made. Whether the definition fits the tables is checked by the server when it is registered.
"""

from __future__ import annotations

import copy
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, TypeGuard

from . import codec
from .codec import CodecError
from .decisions import Decision
from .functions import Function
from .hints import type_written
from .live import MISSING, Attribute
from .locks import Lock, locks_as_json
from .queues import GlobalQueue, Queue
from .states import Handler, Loading, Member, OnFailure, Rpc, State, call_options, find_state, timeout_seconds
from .waits import Combined, Commands, Leaf, Wait, WaitError, as_wait, commands


class DefinitionError(TypeError):
    """A class can't be a process type, or a row. The message has the file, the line and what to change."""


@dataclass(frozen=True)
class Local:
    """A local attribute. `default` is `live.MISSING` if the class gives none."""

    annotation: Any
    default: Any = MISSING


@dataclass(frozen=True)
class Description:
    """All that a class says about its process type. Written once, when the class is made.

    States, RPCs and queues are keyed by their names in the definition, rows and local attributes by those of their attributes.
    """

    name: str
    states: Mapping[str, State[Any]]
    rpcs: Mapping[str, Rpc[Any, Any]]
    queues: Mapping[str, Queue[Any]]
    global_queues: Mapping[str, GlobalQueue[Any]]
    functions: Mapping[str, Function[Any]]
    rows: Mapping[str, type[Any]]
    local: Mapping[str, Local]
    # The commands of fixed waits (not functions), by state.
    waits: Mapping[str, Commands]
    # The local attributes that a call does not load, by the method's name.
    not_loaded: Mapping[str, frozenset[str]]
    definition: Mapping[str, Any]


@dataclass(frozen=True)
class ProcessOptions:
    """The keyword arguments of a process class, as in `class Order(xdb.Process, timeout=...)`. See `Process`."""

    timeout: timedelta | None
    history: str | int
    retention: timedelta | None
    priority: int
    locks: Sequence[Lock]
    changes: str | None
    guards: Sequence[str | State[Any]]


class _Place:
    """Where a class is made: its file and line for errors, and the names that its annotations may use."""

    def __init__(self, cls: type) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and (
            frame.f_code.co_name == "__init_subclass__" or frame.f_globals.get("__name__") == __name__
        ):
            frame = frame.f_back
        self.cls = cls
        self.file, self.line = ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        self.names = {} if frame is None else dict(frame.f_locals)
        self.names.update(_types_of(cls))

    def refuse(self, problem: str, fn: Callable[..., Any] | None = None) -> NoReturn:
        """Raises `DefinitionError`, with the line of `fn` if it is given, else of the class."""
        file, line, name = self.file, self.line, self.cls.__name__
        code = getattr(fn, "__code__", None)
        if code is not None and fn is not None:
            file, line, name = code.co_filename, code.co_firstlineno, f"{name}.{fn.__name__}"
        raise DefinitionError(f"{file}:{line}: {name}: {problem}") from None

    def hints(self, what: Any, fn: Callable[..., Any] | None = None) -> dict[str, Any]:
        """The annotations of the class, or of a function."""
        try:
            return typing.get_type_hints(what, localns=self.names)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            self.refuse(_UNREADABLE.format(error), fn)

    def evaluated(self, text: str) -> Any:
        """The type of an annotation that is a string, evaluated as Python does."""
        try:
            return eval(text, vars(sys.modules[self.cls.__module__]), self.names)
        except (NameError, AttributeError, TypeError, SyntaxError, KeyError) as error:
            self.refuse(_UNREADABLE.format(error))

    def check(self, annotation: Any, what: str, fn: Callable[..., Any] | None = None) -> None:
        """Refuses an annotation whose values can't become JSON."""
        try:
            codec.check(annotation)
        except CodecError as error:
            self.refuse(f"{what}: {error}", fn)


_UNREADABLE = (
    "an annotation can't be read: {}. Define or import the name before the class; an import below `if TYPE_CHECKING:` does not run"
)


def _types_of(cls: type) -> dict[str, Any]:
    """The types that a class and its base classes define inside themselves.

    Other attributes are left out, so that they hide no type: in `date: date | None = None` the type is that of the module.
    """
    return {
        name: value
        for each in reversed(cls.__mro__)
        for name, value in vars(each).items()
        if isinstance(value, type) or typing.get_origin(value) is not None
    }


def _annotated(cls: type, base: type) -> list[str]:
    """The names that the class and its base classes below `base` annotate."""
    names: dict[str, None] = {}
    for each in reversed(cls.__mro__):
        if each not in base.__mro__:
            names.update(dict.fromkeys(inspect.get_annotations(each)))
    return list(names)


# --- rows ------------------------------------------------------------------------------------------------------------


def columns(cls: Any, base: type) -> dict[str, Attribute]:
    """The attributes of a row class, checked."""
    place = _Place(cls)
    key = (cls._key,) if isinstance(cls._key, str) else cls._key
    if not isinstance(key, (tuple, list)) or not key or not all(isinstance(each, str) and each for each in (cls._table, *key)):
        place.refuse("a row needs table= and key=, as str: key= is the column, or the tuple of columns, of a unique key")
    hints, attributes = place.hints(cls), {}
    for name in _annotated(cls, base):
        annotation = hints[name]
        if typing.get_origin(annotation) is ClassVar or annotation is ClassVar:
            continue
        if hasattr(base, name):
            place.refuse(f"the name {name!r} is reserved: choose another one, and map it with columns={{...: {name!r}}}")
        if not isinstance(inspect.getattr_static(cls, name, None), (Attribute, type(None))):
            place.refuse(f"{name} has a default, but the table sets the defaults of columns: pass values to {cls.__name__}.row()")
        place.check(annotation, name)
        attributes[name] = Attribute(cls.__name__, name, annotation, True, cls._columns.get(name, name))
    for name in cls._columns:
        if name not in attributes:
            place.refuse(f"columns= maps {name!r}, which is not annotated: annotate it in the class")
    seen: dict[str, str] = {}
    for name, attribute in attributes.items():
        if attribute.column in key:
            place.refuse(f"{name}: the key column {attribute.column!r} can't be an attribute: remove it")
        if attribute.column in seen:
            place.refuse(f"column {attribute.column!r} is mapped twice, as {seen[attribute.column]} and {name}: remove one")
        seen[attribute.column] = name
    return attributes


# --- processes -------------------------------------------------------------------------------------------------------

# Names of `Process` that a class must not redefine.
_RESERVED = frozenset({"call", "definition", "definition_hash", "start_child"})


def describe(
    cls: Any,
    base: type,
    row_base: type,
    name: str,
    options: ProcessOptions,
) -> Description:
    """Reads a process class. Members of its base classes are copied, because each member refers to its process."""
    place = _Place(cls)
    members = _members(cls, base, place)
    states = _by_name(State, members, place)
    rpcs = _by_name(Rpc, members, place)
    queues = _by_name(Queue, members, place)
    global_queues = _by_name(GlobalQueue, members, place)
    functions = _by_name(Function, members, place)
    rows, local = _attributes(cls, base, row_base, members, place)
    global_names = _global_names(rows, place)
    callable_members: list[Member] = [*states.values(), *rpcs.values()]
    for member in callable_members:
        member.process = cls
        member.handler = _handler(member, place)
    waits = {state.name: found for state in states.values() if (found := _wait(state, place)) is not None}
    loading = {
        member.attribute: _loading(member, rows, [*global_names, *local], place)
        for member in callable_members
    }
    definition: dict[str, Any] = {}
    starts = [state for state in states.values() if state.options.start]
    if len(starts) > 1:
        place.refuse(f"{starts[0].attribute} has start=True too: only one state can start the process", starts[1].fn)
    if starts:
        definition["startingState"] = starts[0].name
    definition["states"] = {
        id: _state_config(state, states, waits, loading[state.attribute], global_names, local, place)
        for id, state in states.items()
    }
    guards = _guards(options.guards, states, waits, place)
    if guards:
        definition["guards"] = guards
    definition["globalAttributes"] = [_table(row) for row in rows.values()]
    definition["localAttributes"] = sorted(local)
    definition["localQueues"] = sorted(queues)
    definition["globalQueues"] = sorted(global_queues)
    definition["rpcs"] = {
        id: _rpc_config(rpc, loading[rpc.attribute], global_names, local, place) for id, rpc in rpcs.items()
    }
    if functions:
        definition["functions"] = {name: function.sql_name for name, function in functions.items()}
    _process_options(definition, options, place)
    not_loaded = {
        attribute: frozenset() if each.names is None else frozenset(local) - each.names
        for attribute, each in loading.items()
    }
    return Description(
        name, states, rpcs, queues, global_queues, functions, rows, local, waits, not_loaded, definition
    )


# The types whose instances are members of a class, and the arguments that they need.
_CALLED: dict[Any, str] = {Queue: "", GlobalQueue: '"name"', Function: '"schema.name"'}


def _missing_call(value: Any) -> str | None:
    """The missing call as source text: `xdb.Queue[str]()` for `xdb.Queue[str]`. None for any other value."""
    kind = typing.get_origin(value) or value
    return f"{type_written(value)}({_CALLED[kind]})" if isinstance(kind, type) and kind in _CALLED else None


def _members(cls: Any, base: type, place: _Place) -> dict[str, Any]:
    """The states, RPCs, queues and functions of a class by the name of the attribute, those of base classes first."""
    members: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        if each in base.__mro__:
            continue
        for name, value in vars(each).items():
            if name in _RESERVED or name in ("_live", "_xdb"):
                if name != "_xdb":
                    place.refuse(f"the name {name!r} is reserved: choose another one")
            elif isinstance(value, (State, Rpc, Queue, GlobalQueue, Function)):
                if each is not cls:
                    value = copy.copy(value)
                members[name] = value
            elif (call := _missing_call(value)) is not None:
                place.refuse(f"{name} is a type that was not called: write {name} = {call}")
            else:
                members.pop(name, None)
    for name, value in members.items():
        if vars(cls).get(name) is not value:
            setattr(cls, name, value)
        if isinstance(value, (Queue, GlobalQueue)):
            value.message_type = _written_type(name, value, place)
            if not value.name:
                place.refuse(f"the queue {name} has an empty name: give it another one")
        if isinstance(value, Function):
            value.argument_type = _written_type(name, value, place)
    return members


def _written_type(name: str, member: Any, place: _Place) -> Any:
    """The type in the brackets of `xdb.Queue[...]()`, or of its annotation. `Any` without brackets."""
    written = getattr(member, "__orig_class__", None)
    if written is None and name in inspect.get_annotations(place.cls):
        written = place.hints(place.cls)[name]
    args = typing.get_args(written)
    if args:
        annotation = args[0]
        if isinstance(annotation, typing.ForwardRef):
            annotation = place.evaluated(annotation.__forward_arg__)
        place.check(annotation, name)
        return annotation
    return Any


def _by_name(kind: Any, members: Mapping[str, Any], place: _Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, member in members.items():
        if isinstance(member, kind):
            if member.name in found:
                fn = getattr(member, "fn", None)
                place.refuse(f"the name {member.name!r} is used twice: give {name} another name=", fn)
            found[member.name] = member
    return found


def _attributes(
    cls: Any, base: type, row_base: type, members: Mapping[str, Any], place: _Place
) -> tuple[dict[str, Any], dict[str, Local]]:
    """The rows and local attributes of a class, by name."""
    rows: dict[str, Any] = {}
    local: dict[str, Local] = {}
    hints = place.hints(cls)
    for name in _annotated(cls, base):
        annotation = hints[name]
        if name in members or typing.get_origin(annotation) is ClassVar or annotation is ClassVar:
            continue
        if name in _RESERVED or name in ("_live", "_xdb"):
            place.refuse(f"the name {name!r} is reserved: choose another one")
        if typing.get_origin(annotation) in (Queue, GlobalQueue) or annotation in (Queue, GlobalQueue):
            place.refuse(f"{name} is only annotated as a queue: write {name} = xdb.Queue[...]()")
        if typing.get_origin(annotation) is Function or annotation is Function:
            place.refuse(f'{name} is only annotated as a function: write {name} = xdb.Function[...]("schema.name")')
        if isinstance(annotation, type) and issubclass(annotation, row_base):
            rows[name] = annotation
            continue
        if any(isinstance(each, type) and issubclass(each, row_base) for each in typing.get_args(annotation)):
            place.refuse(f"{name}: annotate the row class alone; if the row was deleted, each of its attributes is null")
        place.check(annotation, name)
        default = inspect.getattr_static(cls, name, MISSING)
        if isinstance(default, Attribute):
            default = default.default
        if default is not MISSING:
            try:
                codec.encode(default, annotation)
            except CodecError as error:
                place.refuse(f"the default of {error.under(name)}")
        local[name] = Local(annotation, default)
    return rows, local


def _global_names(rows: Mapping[str, Any], place: _Place) -> list[str]:
    owners: dict[str, Any] = {}
    for row in rows.values():
        for name, attribute in row._attributes.items():
            owner = owners.setdefault(name, row)
            if owner is not row:
                other = f"{row.__name__.lower()}_{name}"
                place.refuse(
                    f"attribute {name!r} is in {owner.__name__} and in {row.__name__}, but names are unique in a process: "
                    f"rename one, and map it with columns={{{other!r}: {attribute.column!r}}}"
                )
    if len(set(rows.values())) < len(rows):
        place.refuse("a row class is annotated twice: remove one of the annotations")
    tables: dict[str, Any] = {}
    for row in rows.values():
        other_row = tables.setdefault(row._table, row)
        if other_row is not row:
            place.refuse(f"{other_row.__name__} and {row.__name__} map the same table, {row._table}: a process has one row of each table")
    return list(owners)


def _table(row: Any) -> dict[str, Any]:
    return {
        "table": row._table,
        "primaryKey": row._key if isinstance(row._key, str) else list(row._key),
        "attributes": {name: attribute.column for name, attribute in row._attributes.items()},
    }


_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _handler(member: Member, place: _Place) -> Handler:
    """Reads and checks the signature of a state or RPC."""
    fn = member.fn
    if not inspect.isfunction(fn):
        place.refuse(f"{member.attribute} is not a function: put the decorator above a `def`")
    if member.unknown_options:
        known = ", ".join(f"{each.name}=" for each in fields(member.options))
        decorator = "state" if isinstance(member, State) else "rpc"
        place.refuse(f"@xdb.{decorator} has no option {member.unknown_options[0]}=; its options are {known}", fn)
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or any(each.kind not in _PLAIN for each in parameters):
        place.refuse("a handler takes self and at most one input: no *args, no **kwargs, no keyword-only parameters", fn)
    if len(parameters) > 2:
        names = ", ".join(each.name for each in parameters[1:])
        place.refuse(f"a handler takes at most one input, and this one takes {names}: put them into a dataclass", fn)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        place.refuse("a handler can't `yield`: publish messages, or move to the same state again", fn)
    hints = place.hints(fn, fn)
    output = hints.get("return", Any)
    if typing.get_origin(output) in (Awaitable, Coroutine):
        output = typing.get_args(output)[-1]
    if isinstance(member, Rpc):
        if output is Decision:
            place.refuse("an RPC returns its output, not a decision: to start threads, call xdb.then(...), as in xdb.then(self.ship())", fn)
        place.check(output, "its output", fn)
    if len(parameters) == 1:
        return Handler(fn, None, None, output)
    parameter = parameters[1]
    if parameter.default is not inspect.Parameter.empty:
        place.refuse(
            f"its input {parameter.name} has a default, which is never used, because the engine always passes the input: "
            f"annotate it `... | None` if it can be null",
            fn,
        )
    annotation = hints.get(parameter.name, Any)
    place.check(annotation, f"its input {parameter.name}", fn)
    return Handler(fn, parameter.name, annotation, output)


def _wait(state: State[Any], place: _Place) -> Commands | None:
    """The commands of a fixed wait. None if the state does not wait, or if its wait is a function."""
    wait, fn = state.options.wait, state.fn
    if wait is None:
        if state.options.wait_retry is not None or state.options.wait_timeout is not None:
            place.refuse("wait_retry= and wait_timeout= need wait=: they are options of its call", fn)
        return None
    if is_function(wait):
        if inspect.iscoroutinefunction(wait):
            place.refuse("wait= is an async function: give an ordinary one", fn)
        taken, most = list(inspect.signature(wait).parameters.values()), 2 if state.takes_input else 1
        if len(taken) > most or any(each.kind not in _PLAIN for each in taken):
            place.refuse(f"the function of wait= takes only self{' and the input of the state' if state.takes_input else ''}", fn)
        return None
    try:
        made = as_wait(wait)
        _check_queues(made, place, fn)
        return commands(made)
    except WaitError as error:
        place.refuse(str(error), fn)


def _check_queues(wait: Wait, place: _Place, fn: Callable[..., Any]) -> None:
    """Refuses a wait for a queue that the class lacks: no message could be published to it."""
    if isinstance(wait, Combined):
        for part in wait.parts:
            _check_queues(part, place, fn)
    elif isinstance(wait, Leaf) and wait.kind != "timer":
        kind = GlobalQueue if wait.kind == "global" else Queue
        known = [value.name for each in place.cls.__mro__ for value in vars(each).values() if isinstance(value, kind)]
        if wait.queue_name not in known:
            place.refuse(f"it waits for queue {wait.queue_name!r}, which the class does not have: declare it in the class", fn)


def is_function(wait: object) -> TypeGuard[Callable[..., Any]]:
    """Whether a wait is a function that the engine calls when the step begins."""
    return callable(wait) and not isinstance(wait, Wait) and not hasattr(wait, "take")


def _loading(member: Member, rows: Mapping[str, Any], names: Iterable[str], place: _Place) -> Loading:
    if member.lock not in (None, "share", "exclusive"):
        place.refuse(f'lock={member.lock!r} is not a lock: write lock="share" or lock="exclusive"', member.fn)
    if member.load is None:
        return Loading(None, member.lock)
    if isinstance(member.load, str):
        place.refuse(f"load={member.load!r} is a str, not a tuple: write load=({member.load!r},)", member.fn)
    known, chosen = list(names), set()
    for name in member.load:
        if name in rows:
            chosen.update(rows[name]._attributes)
        elif name in known:
            chosen.add(name)
        else:
            place.refuse(f"load= names {name!r}, which is not an attribute; the attributes are {', '.join(known) or 'none'}", member.fn)
    return Loading(frozenset(chosen), member.lock)


def _state_config(
    state: State[Any],
    states: Mapping[str, State[Any]],
    waits: Mapping[str, Commands],
    loading: Loading,
    global_names: Iterable[str],
    local: Iterable[str],
    place: _Place,
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if state.options.wait is None:
        config["skipWaitUntil"] = True
    elif state.name in waits:
        config["commandRequest"] = _static(waits[state.name])
    try:
        config.update(call_options(state.options, states))
        if state.options.compensate is not None:
            config["compensationStateId"] = find_state("compensate", state.options.compensate, states).name
    except ValueError as error:
        place.refuse(str(error), state.fn)
    guards = _guards(state.options.guards, states, waits, place, state.fn)
    if guards:
        config["guards"] = guards
    if not state.options.interrupting:
        config["interrupting"] = False
    on_failure = state.options.on_failure
    if on_failure is not None and not isinstance(on_failure, OnFailure) and not state.takes_input:
        target = find_state("on_failure", on_failure, states)
        try:
            codec.encode(None, target.input_type)
        except CodecError as error:
            place.refuse(
                f"on_failure: this state has no input to pass on, but {target.attribute} needs one: {error}", state.fn
            )
    for key, names in (("LoadGlobalAttributes", global_names), ("LoadLocalAttributes", local)):
        # A fixed wait is not called, so it reads no attributes.
        for api, each in (("waitUntil", loading.unlocked()), ("execute", loading)):
            options = each.options(names)
            if options is not None and (api == "execute" or is_function(state.options.wait)):
                config[api + key] = options
    return config


def _static(wait: Commands) -> Mapping[str, Any]:
    """A fixed wait as an option of its state. A guard waits for any of its commands, so that a wait for one command is one for any."""
    several = sum(len(wait.request.get(key, ())) for key in ("timerCommands", "localQueueCommands", "globalQueueCommands")) > 1
    return wait.request if several else {**wait.request, "waitingType": "AnyOfCompletion"}


def _guards(
    wanted: Iterable[str | State[Any]],
    states: Mapping[str, State[Any]],
    waits: Mapping[str, Commands],
    place: _Place,
    fn: Callable[..., Any] | None = None,
) -> list[str]:
    """The ids of these guards. A guard needs a fixed wait for any of its parts."""
    names = []
    if isinstance(wanted, (str, State)):
        place.refuse("guards= is not a list: write guards=[...]", fn)
    for each in wanted:
        try:
            guard = find_state("guards", each, states)
        except ValueError as error:
            place.refuse(str(error), fn)
        if guard.name not in waits or _static(waits[guard.name])["waitingType"] != "AnyOfCompletion":
            place.refuse(f"{guard.attribute} is a guard, so it needs a wait= that is no function, for any of its parts", fn)
        if guard.options.guards:
            place.refuse(f"{guard.attribute} is a guard, so it can't have guards= itself", fn)
        names.append(guard.name)
    return names


def _rpc_config(
    rpc: Rpc[Any, Any], loading: Loading, global_names: Iterable[str], local: Iterable[str], place: _Place
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if rpc.options.timeout is not None:
        try:
            config["timeoutSeconds"] = timeout_seconds("timeout", rpc.options.timeout)
        except ValueError as error:
            place.refuse(str(error), rpc.fn)
    for key, names in (("loadGlobalAttributes", global_names), ("loadLocalAttributes", local)):
        options = loading.options(names)
        if options is not None:
            config[key] = options
    return config


def _process_options(definition: dict[str, Any], options: ProcessOptions, place: _Place) -> None:
    timeout, history, retention, priority = options.timeout, options.history, options.retention, options.priority
    if timeout is not None:
        try:
            definition["timeoutSeconds"] = timeout_seconds("timeout", timeout)
        except ValueError as error:
            place.refuse(str(error))
    if isinstance(history, int) and not isinstance(history, bool) and history >= 1:
        definition["history"] = {"keepLast": history}
    elif history == "none":
        definition["history"] = "none"
    elif history != "full":
        place.refuse(f'history={history!r} is not "full", "none", or the number of events to keep')
    if retention == timedelta.max:
        definition["retentionSeconds"] = -1
    elif isinstance(retention, timedelta) and retention >= timedelta(0):
        definition["retentionSeconds"] = retention.total_seconds()
    elif retention is not None:
        place.refuse(f"retention={retention!r} is not a timedelta of zero or more: write timedelta(days=...), or timedelta.max for ever")
    if isinstance(priority, bool) or not isinstance(priority, int) or not -10 <= priority <= 10:
        place.refuse(f"priority={priority!r} is not an int from -10 to 10")
    if priority != 0:
        definition["priority"] = priority
    try:
        locks = locks_as_json(options.locks)
    except (TypeError, ValueError) as error:
        place.refuse(str(error))
    if locks:
        definition["locks"] = locks
    if options.changes is not None:
        if not isinstance(options.changes, str) or not options.changes:
            place.refuse(f"changes={options.changes!r} is not the name of a global queue")
        definition["changes"] = options.changes
