"""Ends other threads of the process, beside a decision: `xdb.abort`."""

from __future__ import annotations

import re
from typing import Any

from .decisions import Decision
from .live import live_of
from .states import State

# The name of a step: the id of its state, and its number.
_STEP = re.compile(r"(.+)-[1-9][0-9]*", re.DOTALL)


def abort(*steps: State[Any] | str) -> None:
    """Ends other threads of the process: `xdb.abort(self.pay, "pack-2")`, beside the decision that the handler returns.

    - a state, or its id: all live steps of the state.
    - the name of a step: this one.
    - `"*"`: all other threads.

    The engine ends them when it applies the answer, after what the handler has written and published, and before the decision. The step
    of this handler goes on. Steps that have ended, or never began, are passed over. For states and RPCs, not for a function of `wait=`.

    Raises `ValueError` for a state or step that the process does not have, `TypeError` for anything else, `LookupError` outside of handlers,
    and `CallOver`.
    """
    found = live_of("xdb.abort()")
    if found.api == "wait-until":
        raise TypeError("xdb.abort() is for states and RPCs: a function of wait= only says what to wait for")
    if not steps:
        raise TypeError('xdb.abort() names nothing: write xdb.abort(self.pay), or xdb.abort("*") for all other threads')
    found.abort([_name_of(each, found.process) for each in steps])


def _name_of(given: object, process: Any) -> str:
    """The name of a state or step in the protocol."""
    states: dict[str, State[Any]] = process._xdb.states
    error: type[Exception] = TypeError
    if isinstance(given, State):
        for own in states.values():
            if own.fn is given.fn:
                return own.name
        error, what = ValueError, f"{given.label}, which is not a state of {process.__name__}"
    elif isinstance(given, str):
        step = _STEP.fullmatch(given)
        if given == "*" or given in states or (step is not None and step[1] in states):
            return given
        error, what = ValueError, f"{given!r}, which is neither a state nor a step of {process.__name__}"
    elif isinstance(given, Decision):
        what = "a decision, because a state was called"
    else:
        what = repr(given)
    known = ", ".join(f"self.{each.attribute}" for each in states.values()) or "none"
    step_name = next((f"{name}-1" for name in states), "pay-1")
    raise error(f'xdb.abort() got {what}: give a state ({known}), the name of a step such as "{step_name}", or "*" for all other threads')
