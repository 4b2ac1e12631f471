"""The methods of a process that the engine calls: states and RPCs, their decorators and their options."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, Union, overload

from .codec import encode
from .decisions import Decision
from .live import live
from .waits import Wait, Waitable, when

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
Options = TypeVar("Options")

Lock = Literal["share", "exclusive"]
Answer = Union[Decision, Awaitable[Decision]]
_NOTHING: Any = object()


@dataclass(frozen=True)
class Retry:
    """When a failed call is retried.

    - `attempts`: the most attempts, 0 for no limit (the default).
    - `initial`, `factor`, `maximum`: the time before the second attempt, by what it grows each time, and its upper bound.
    - `give_up_after`: no attempt begins later than this after the first one. Default: no limit.

    Raises `TypeError` or `ValueError` for values that are no retry policy.
    """

    attempts: int = 0
    initial: timedelta = timedelta(seconds=1)
    factor: float = 2
    maximum: timedelta = timedelta(seconds=100)
    give_up_after: timedelta | None = None

    def __post_init__(self) -> None:
        times = [self.initial, self.maximum, *(() if self.give_up_after is None else (self.give_up_after,))]
        if type(self.attempts) is not int or not all(isinstance(each, timedelta) for each in times):
            raise TypeError(f"{self!r}: attempts must be an int, and its times timedeltas, as in timedelta(seconds=5)")
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)) or not math.isfinite(self.factor):
            raise TypeError(f"factor={self.factor!r} of a Retry is not a finite number")
        if self.attempts < 0 or self.factor < 1 or min(times) < timedelta(0):
            raise ValueError(f"{self!r}: attempts and times must not be negative, and factor must be 1 or more")
        if self.give_up_after == timedelta(0):
            raise ValueError("give_up_after=0 leaves no time for a retry: give attempts=1 for a single attempt, or None for no limit")
        if self.initial > self.maximum:
            raise ValueError(f"initial={self.initial} of a Retry is longer than maximum={self.maximum}: give a larger maximum=")

    def options(self) -> dict[str, Any]:
        """The `RetryPolicy` of a definition, without values that are the engine's defaults."""
        policy: dict[str, Any] = {}
        if self.attempts:
            policy["maximumAttempts"] = self.attempts
        if self.initial != timedelta(seconds=1):
            policy["initialIntervalSeconds"] = self.initial.total_seconds()
        if self.factor != 2:
            policy["backoffCoefficient"] = self.factor
        if self.maximum != timedelta(seconds=100):
            policy["maximumIntervalSeconds"] = self.maximum.total_seconds()
        if self.give_up_after is not None:
            policy["maximumAttemptsDurationSeconds"] = self.give_up_after.total_seconds()
        return policy


class OnFailure(Enum):
    """What happens to a state whose retries are spent, other than to move to another state. See `RAISE_INCIDENT`."""

    RAISE_INCIDENT = "RAISE_INCIDENT"
    COMPENSATE = "COMPENSATE_PROCESS"


#: The step stays where it is, as an incident, until `client.retry_now()`.
RAISE_INCIDENT: Final = OnFailure.RAISE_INCIDENT

#: What completed steps did is undone by the states of their `compensate=`, and then the process fails.
COMPENSATE: Final = OnFailure.COMPENSATE


@dataclass(frozen=True)
class StateOptions:
    """The options of `@xdb.state`; see `state` for what they mean. Written by the decorator, read when the class is made."""

    start: bool = False
    name: str | None = None
    wait: Wait | Waitable | Callable[..., Any] | None = None
    retry: Retry | None = None
    wait_retry: Retry | None = None
    timeout: timedelta | None = None
    wait_timeout: timedelta | None = None
    on_failure: str | State[Any] | OnFailure | None = None
    guards: Sequence[str | State[Any]] = ()
    interrupting: bool = True
    compensate: str | State[Any] | None = None
    load: Iterable[str] | None = None
    lock: Lock | None = None


@dataclass(frozen=True)
class RpcOptions:
    """The options of `@xdb.rpc`; see `rpc` for what they mean. Written by the decorator, read when the class is made."""

    name: str | None = None
    timeout: timedelta | None = None
    load: Iterable[str] | None = None
    lock: Lock | None = None


def _known_options(kind: Callable[..., Options], given: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """The options of a decorator, and the names of unknown ones. Those are refused later, when the class and its line are known."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names if name in given}), [name for name in given if name not in names]


@dataclass(frozen=True)
class Handler:
    """A function, and what its signature says. `parameter` is the name of its input, or None. Made by definition.py."""

    fn: Callable[..., Any]
    parameter: str | None = None
    input_type: Any = None
    output_type: Any = Any

    @property
    def is_async(self) -> bool:
        """Whether the handler is `async def`."""
        return inspect.iscoroutinefunction(self.fn)


class Member:
    """What states and RPCs have in common.

    `name` is the name in the definition, `attribute` that of the method. definition.py writes `process` and `handler` when the class is
    made.
    """

    name: str
    process: Any
    options: Any
    unknown_options: Sequence[str] = ()

    def __init__(self, fn: Callable[..., Any], name: str | None, load: Iterable[str] | None, lock: Lock | None) -> None:
        self.fn, self.lock = fn, lock
        self.load = load if load is None or isinstance(load, str) else tuple(load)
        self.given_name = name
        self.name = name or fn.__name__
        self.attribute = fn.__name__
        self.handler = Handler(fn)
        self.process = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute, self.name = name, self.given_name or name

    @property
    def input_type(self) -> Any:
        """The annotation of the input; None if the handler takes none."""
        return self.handler.input_type

    @property
    def takes_input(self) -> bool:
        """Whether the handler has a parameter for an input."""
        return self.handler.parameter is not None

    @property
    def input_place(self) -> str:
        """The input, as messages name it: `Order.pay(amount)`."""
        return f"{self.label}({self.handler.parameter})"

    @property
    def label(self) -> str:
        """The handler, as messages name it: `Order.pay`."""
        return f"{self.process.__name__}.{self.attribute}" if self.process else self.attribute


class State(Member, Generic[I]):
    """A state of a process. Calling it makes a movement to it, which a handler returns: `return self.verify()`.

    The call raises `TypeError` for a missing or surplus input, and `CodecError` for one that does not fit.
    """

    config: Mapping[str, Any] | None
    begin: Mapping[str, Any]

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.options, unknown = _known_options(StateOptions, options)
        super().__init__(fn, self.options.name, self.options.load, self.options.lock)
        self.unknown_options = unknown
        self.config = None
        self.begin = {}

    @overload
    def __call__(self: State[None]) -> Decision: ...
    @overload
    def __call__(self, input: I) -> Decision: ...
    def __call__(self, input: Any = _NOTHING) -> Decision:
        running = live.get(None)
        if running is not None:
            self._refuse_super(running.process)
        movement: dict[str, Any] = {"stateId": self.name}
        if self.takes_input:
            if input is _NOTHING:
                raise TypeError(f"{self.label} needs its input: write self.{self.attribute}({self.handler.parameter})")
            movement["stateInput"] = encode(input, self.input_type, self.input_place)
        elif input is not _NOTHING and input is not None:
            raise TypeError(f"{self.label} takes no input: remove it, or add a parameter to the method")
        if self.config is not None:
            movement["stateConfig"] = dict(self.config)
        movement.update(self.begin)
        if running is not None:
            running.movements.append((self.attribute, movement))
        return Decision({"nextStates": [movement]})

    def _refuse_super(self, process: Any) -> None:
        """Refuses `super().pack()`: it looks like a call of the base class's method, and would be a movement to the overriding state."""
        if process is None or (self.process is not None and not issubclass(process, self.process)):
            return
        own = process._xdb.states.get(self.name)
        if own is not None and own.fn is not self.fn:
            raise TypeError(
                f"{process.__name__} overrides {self.label}, so super().{self.attribute}() would be a movement to {own.label}: "
                "put the common code into an ordinary method, and call that"
            )

    def later(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        at: datetime | None = None,
    ) -> State[I]:
        """The same state, but its step begins after a delay, or not before the time `at`: `self.remind.later(days=3)(order)`.

        `at` needs a time zone. Raises `WaitError` for a negative delay, for both a delay and `at`, or for a time without a zone.
        """
        delay, moment = when(f"{self.label}.later()", days=days, hours=hours, minutes=minutes, seconds=seconds, at=at)
        other = copy.copy(self)
        other.begin = {"delayInSeconds": delay} if moment is None else {"startAt": moment}
        return other

    def with_config(
        self,
        *,
        retry: Retry | None = None,
        wait_retry: Retry | None = None,
        timeout: timedelta | None = None,
        wait_timeout: timedelta | None = None,
        on_failure: str | State[Any] | OnFailure | None = None,
    ) -> State[I]:
        """The same state with other options for one movement: `self.bill.with_config(retry=...)(order)`.

        The options mean the same as those of `state`. Raises `ValueError` for values that don't fit.
        """
        given = StateOptions(
            retry=retry, wait_retry=wait_retry, timeout=timeout, wait_timeout=wait_timeout, on_failure=on_failure
        )
        other = copy.copy(self)
        states = self.process._xdb.states if self.process else {}
        other.config = {**(self.config or {}), **call_options(given, states)}
        return other


def call_options(options: StateOptions, states: Mapping[str, State[Any]]) -> dict[str, Any]:
    """The part of a `StateConfig` for retries, timeouts and failures. Raises `ValueError`."""
    config: dict[str, Any] = {}
    for key, policy in (("executeApiRetryPolicy", options.retry), ("waitUntilApiRetryPolicy", options.wait_retry)):
        if policy is not None:
            if not isinstance(policy, Retry):
                raise ValueError(f"{policy!r} is not a retry policy: give an xdb.Retry, as in xdb.Retry(attempts=5)")
            config[key] = policy.options()
    if options.timeout is not None:
        config["executeApiTimeoutSeconds"] = timeout_seconds("timeout", options.timeout)
    if options.wait_timeout is not None:
        config["waitUntilApiTimeoutSeconds"] = timeout_seconds("wait_timeout", options.wait_timeout)
    if isinstance(options.on_failure, OnFailure):
        config["stateFailureRecoveryOptions"] = {"policy": options.on_failure.value}
    elif options.on_failure is not None:
        config["stateFailureRecoveryOptions"] = {
            "policy": "PROCEED_TO_CONFIGURED_STATE",
            "stateFailureProceedStateId": find_state("on_failure", options.on_failure, states).name,
        }
    return config


def timeout_seconds(option: str, time: object) -> float:
    """A timeout in seconds. Raises `ValueError` for anything but a positive timedelta."""
    if not isinstance(time, timedelta):
        raise ValueError(f"{option}={time!r} is not a timedelta: write timedelta(seconds=...)")
    if time <= timedelta(0):
        raise ValueError(f"{option}={time!r} is not positive: give a longer time")
    return time.total_seconds()


def find_state(option: str, wanted: str | State[Any], states: Mapping[str, State[Any]]) -> State[Any]:
    """The state that an option names: by the state itself, its method's name, or its id. Raises `ValueError`."""
    for state in states.values():
        if isinstance(wanted, State):
            if state.fn is wanted.fn:
                return state
        elif wanted in (state.attribute, state.name):
            return state
    name = wanted.attribute if isinstance(wanted, State) else wanted
    raise ValueError(f"{option}={name!r} is not a state of the process; its states are {', '.join(states) or 'none'}")


class Rpc(Member, Generic[I, O]):
    """A method that applications call with `client.rpc(SignUp.confirm, ...)`. On an instance it is an ordinary method."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.options, unknown = _known_options(RpcOptions, options)
        super().__init__(fn, self.options.name, self.options.load, self.options.lock)
        self.unknown_options = unknown

    @property
    def output_type(self) -> Any:
        """The annotation of the return value."""
        return self.handler.output_type

    @overload
    def __get__(self, obj: None, owner: Any) -> Rpc[I, O]: ...
    @overload
    def __get__(self, obj: object, owner: Any) -> Callable[..., O]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else functools.partial(self.fn, obj)


class _StateDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Any], Answer], /) -> State[None]: ...
    @overload
    def __call__(self, fn: Callable[[Any, I], Answer], /) -> State[I]: ...


@overload
def state(fn: Callable[[Any], Answer], /) -> State[None]: ...
@overload
def state(fn: Callable[[Any, I], Answer], /) -> State[I]: ...
@overload
def state(
    *,
    start: bool = ...,
    name: str | None = ...,
    wait: Waitable | Callable[..., Waitable] | None = ...,
    retry: Retry | None = ...,
    wait_retry: Retry | None = ...,
    timeout: timedelta | None = ...,
    wait_timeout: timedelta | None = ...,
    on_failure: str | State[Any] | OnFailure | None = ...,
    guards: Sequence[str | State[Any]] = ...,
    interrupting: bool = ...,
    compensate: str | State[Any] | None = ...,
    load: Iterable[str] | None = ...,
    lock: Lock | None = ...,
) -> _StateDecorator: ...
def state(fn: Any = None, /, **options: Any) -> Any:
    """Makes a method a state: `@xdb.state`, or with options `@xdb.state(start=True, wait=...)`.

    - `start`: the process begins here. At most one state of a class.
    - `name`: the state's id in the definition. Default: the method's name. Keep it when you rename the method.
    - `wait`: what to wait for before the method is called: a queue, `xdb.timer()`, `xdb.any_of()`, `xdb.all_of()`, or a function that
      returns one of these. Default: nothing.
    - `retry`, `wait_retry`: the retry policy of the method's calls, and of the calls of a function in `wait=`.
    - `timeout`, `wait_timeout`: how long one such call may take. Default: 10 seconds.
    - `on_failure`: what happens when the retries are spent: a state to move to, `xdb.RAISE_INCIDENT`, or `xdb.COMPENSATE`. Default:
      the process fails.
    - `guards`: states that wait beside this one, each with a `wait=` that is no function. When the wait of a guard ends, it ends this
      state. With `interrupting=False`, a guard leaves what it guards running.
    - `compensate`: the state that undoes what a completed step of this one did.
    - `load`: names of the attributes and rows that the call loads. Default: all.
    - `lock`: `"share"` or `"exclusive"`, to lock the loaded attributes during the call. Default: no lock.

    Mistakes raise `DefinitionError` when the class is made.
    """
    return State(fn) if fn is not None else lambda function: State(function, **options)


class _RpcDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Any], Awaitable[O]], /) -> Rpc[None, O]: ...
    @overload
    def __call__(self, fn: Callable[[Any, I], Awaitable[O]], /) -> Rpc[I, O]: ...
    @overload
    def __call__(self, fn: Callable[[Any], O], /) -> Rpc[None, O]: ...
    @overload
    def __call__(self, fn: Callable[[Any, I], O], /) -> Rpc[I, O]: ...


@overload
def rpc(fn: Callable[[Any], Awaitable[O]], /) -> Rpc[None, O]: ...
@overload
def rpc(fn: Callable[[Any, I], Awaitable[O]], /) -> Rpc[I, O]: ...
@overload
def rpc(fn: Callable[[Any], O], /) -> Rpc[None, O]: ...
@overload
def rpc(fn: Callable[[Any, I], O], /) -> Rpc[I, O]: ...
@overload
def rpc(
    *,
    name: str | None = ...,
    timeout: timedelta | None = ...,
    load: Iterable[str] | None = ...,
    lock: Lock | None = ...,
) -> _RpcDecorator: ...
def rpc(fn: Any = None, /, **options: Any) -> Any:
    """Makes a method an RPC: `@xdb.rpc`, or with options `@xdb.rpc(lock="exclusive")`. It runs in the transaction of its caller.

    `name`, `load` and `lock` are as for `state`. `timeout` is how long a call may take, unless the caller gives a time.
    Mistakes raise `DefinitionError` when the class is made.
    """
    return Rpc(fn) if fn is not None else lambda function: Rpc(function, **options)


@dataclass(frozen=True)
class Loading:
    """Which attributes a call loads (None: all), and with which lock."""

    names: frozenset[str] | None = None
    lock: Lock | None = None

    def options(self, names: Iterable[str]) -> dict[str, Any] | None:
        """The `Loading` of a definition for the attributes in `names`. None: the engine's default, which loads all."""
        chosen = None if self.names is None else sorted(self.names.intersection(names))
        if chosen is not None and not chosen:
            return {"policy": "NONE"}
        loading: dict[str, Any] = {"policy": "ALL"} if chosen is None else {"policy": "PARTIAL", "names": chosen}
        if self.lock is not None:
            loading["lockType"] = f"{self.lock.upper()}_LOCK"
        elif chosen is None:
            return None
        return loading

    def unlocked(self) -> Loading:
        """The same without its lock."""
        return replace(self, lock=None)
