"""Classes that are no process, or no row: each error says what to change, with file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import signup
import transfer
from test_definition import Stock, User

import xdb


@dataclass
class Bad:
    what: complex

def _row(annotations: dict[str, Any], **options: Any) -> Any:
    given = {"table": "t", "key": "id", **options}
    return type(xdb.Row)("R", (xdb.Row,), {"__annotations__": annotations, "__module__": __name__}, **given)


WRONG_ROWS: list[tuple[str, Any]] = [
    ("column 'c' is mapped twice, as a and b", lambda: _row({"a": int, "b": int}, columns={"a": "c", "b": "c"})),
    ("the key column 'id' can't be an attribute", lambda: _row({"id": int})),
    ("columns= maps 'z', which is not annotated", lambda: _row({"a": int}, columns={"z": "a"})),
    ("a: complex can't become JSON: use a dataclass", lambda: _row({"a": complex})),
    ("a: what: complex can't become JSON", lambda: _row({"a": Bad})),
    ("a row needs table= and key=", lambda: _row({"a": int}, key=())),
    ("a row needs table= and key=, as str", lambda: _row({"a": int}, key=5)),
    ("a row needs table= and key=, as str", lambda: _row({"a": int}, table=_row)),
    ("'row' is reserved", lambda: _row({"row": int})),
    ("an annotation can't be read: name 'Nowhere' is not defined", lambda: _row({"a": "Nowhere"})),
]


@pytest.mark.parametrize("message, make", WRONG_ROWS, ids=[each[0] for each in WRONG_ROWS])
def test_a_row_that_is_none_is_refused_with_file_and_line(message: str, make: Any) -> None:
    with pytest.raises(xdb.DefinitionError) as raised:
        make()
    assert message in str(raised.value)
    assert re.match(r".*test_definition_refused\.py:\d+: R: ", str(raised.value))


def _two_starts() -> None:
    class P(xdb.Process):
        @xdb.state(start=True)
        def a(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.state(start=True)
        def b(self) -> xdb.Decision:
            return xdb.complete()


def _unknown_failure_state() -> None:
    class P(xdb.Process):
        @xdb.state(on_failure="nowhere")
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _failure_state_without_its_input() -> None:
    class P(xdb.Process):
        @xdb.state(on_failure="b")
        def a(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.state
        def b(self, why: str) -> xdb.Decision:
            return xdb.complete()


def _input_with_default() -> None:
    class P(xdb.Process):
        @xdb.state
        def a(self, n: int = 3) -> xdb.Decision:
            return xdb.complete()


def _two_inputs() -> None:
    class P(xdb.Process):
        @xdb.rpc
        def a(self, n, m):  # type: ignore
            return None


def _input_without_json() -> None:
    class P(xdb.Process):
        @xdb.state
        def a(self, n: complex) -> xdb.Decision:
            return xdb.complete()


def _output_without_json() -> None:
    class P(xdb.Process):
        @xdb.rpc
        def a(self) -> complex:
            return 1j


def _attribute_without_json() -> None:
    class P(xdb.Process):
        a: complex


def _message_without_json() -> None:
    class P(xdb.Process):
        a = xdb.Queue[complex]()


def _unknown_message_type() -> None:
    class P(xdb.Process):
        a = xdb.Queue["Nowhere"]()  # type: ignore  # noqa


def _wrong_default() -> None:
    class P(xdb.Process):
        a: int = "x"  # type: ignore


def _reserved() -> None:
    class P(xdb.Process):
        call: int  # type: ignore


def _same_name() -> None:
    class P(xdb.Process):
        @xdb.state
        def a(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.state(name="a")
        def b(self) -> xdb.Decision:
            return xdb.complete()


def _wait_with_many_combinations() -> None:
    class P(xdb.Process):
        q = xdb.Queue[str]()

        @xdb.state(
            wait=xdb.all_of(*(xdb.any_of(xdb.timer(seconds=n), xdb.timer(hours=n)) for n in range(1, 8)), q),
        )
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _wait_for_another_class() -> None:
    class P(xdb.Process):
        @xdb.state(wait=signup.SignUp.verified)
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _wait_options_without_wait() -> None:
    class P(xdb.Process):
        @xdb.state(wait_timeout=timedelta(seconds=1))
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _timeout_without_a_unit() -> None:
    class P(xdb.Process):
        @xdb.state(timeout=30)  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _timeout_of_a_wait_without_a_unit() -> None:
    class P(xdb.Process):
        @xdb.state(wait=xdb.timer(days=1), wait_timeout=3)  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _no_time() -> None:
    class P(xdb.Process):
        @xdb.rpc(timeout=timedelta(0))
        def a(self) -> None:
            return None


def _timeout_of_an_rpc_without_a_unit() -> None:
    class P(xdb.Process):
        @xdb.rpc(timeout=5)  # type: ignore
        def a(self) -> None:
            return None


def _timeout_of_the_process_without_a_unit() -> None:
    class P(xdb.Process, timeout=3600):  # type: ignore
        pass


def _retry_as_a_number() -> None:
    class P(xdb.Process):
        @xdb.state(retry=5)  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _wait_function_with_more() -> None:
    class P(xdb.Process):
        @xdb.state(wait=lambda self, input: xdb.timer(days=1))
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _wait_function_with_much_more() -> None:
    class P(xdb.Process):
        @xdb.state(wait=lambda self, input, more: xdb.timer(days=1))
        def a(self, n: int) -> xdb.Decision:
            return xdb.complete()


def _generator() -> None:
    class P(xdb.Process):
        @xdb.state
        def a(self) -> xdb.Decision:  # type: ignore
            yield xdb.complete()


def _wait_for_nothing() -> None:
    class P(xdb.Process):
        @xdb.state(wait=5)  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _unknown_load() -> None:
    class P(xdb.Process):
        note: str = ""

        @xdb.state(load=("nope",))
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _load_of_letters() -> None:
    class P(xdb.Process):
        @xdb.state(load="note")
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _lock() -> None:
    class P(xdb.Process):
        @xdb.state(lock="all")  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _attribute_in_two_rows() -> None:
    class P(xdb.Process):
        user: User
        other: transfer.Transfer


def _row_twice() -> None:
    class P(xdb.Process):
        user: User
        other: User


def _row_or_none() -> None:
    class P(xdb.Process):
        user: User | None


def _queue_only_annotated() -> None:
    class P(xdb.Process):
        q: xdb.Queue[str]


def _history() -> None:
    class P(xdb.Process, history="some"):
        pass


WRONG: list[tuple[str, Any, str]] = [
    ("a has start=True too: only one state can start the process", _two_starts, "P.b"),
    ("on_failure='nowhere' is not a state of the process; its states are a", _unknown_failure_state, "P.a"),
    ("this state has no input to pass on, but b needs one: null is not str", _failure_state_without_its_input, "P.a"),
    ("its input n has a default", _input_with_default, "P.a"),
    ("a handler takes at most one input, and this one takes n, m: put them into a dataclass", _two_inputs, "P.a"),
    ("its input n: complex can't become JSON", _input_without_json, "P.a"),
    ("its output: complex can't become JSON", _output_without_json, "P.a"),
    ("a: complex can't become JSON", _attribute_without_json, "P"),
    ("a: complex can't become JSON", _message_without_json, "P"),
    ("an annotation can't be read: name 'Nowhere' is not defined", _unknown_message_type, "P"),
    ("the default of a: str 'x' is not int", _wrong_default, "P"),
    ("'call' is reserved", _reserved, "P"),
    ("the name 'a' is used twice: give b another name=", _same_name, "P.b"),
    ("the wait has more than 64 combinations", _wait_with_many_combinations, "P.a"),
    ("it waits for queue 'verified', which the class does not have", _wait_for_another_class, "P.a"),
    ("wait_retry= and wait_timeout= need wait=", _wait_options_without_wait, "P.a"),
    ("5 can't be waited for: use a queue", _wait_for_nothing, "P.a"),
    ("timeout=30 is not a timedelta: write timedelta(seconds=...)", _timeout_without_a_unit, "P.a"),
    ("wait_timeout=3 is not a timedelta", _timeout_of_a_wait_without_a_unit, "P.a"),
    ("timeout=datetime.timedelta(0) is not positive", _no_time, "P.a"),
    ("timeout=5 is not a timedelta", _timeout_of_an_rpc_without_a_unit, "P.a"),
    ("timeout=3600 is not a timedelta", _timeout_of_the_process_without_a_unit, "P"),
    ("5 is not a retry policy: give an xdb.Retry, as in xdb.Retry(attempts=5)", _retry_as_a_number, "P.a"),
    ("the function of wait= takes only self", _wait_function_with_more, "P.a"),
    ("the function of wait= takes only self and the input of the state", _wait_function_with_much_more, "P.a"),
    ("a handler can't `yield`", _generator, "P.a"),
    ("load= names 'nope', which is not an attribute; the attributes are note", _unknown_load, "P.a"),
    ("load='note' is a str, not a tuple: write load=('note',)", _load_of_letters, "P.a"),
    ("lock='all' is not a lock", _lock, "P.a"),
    ("attribute 'status' is in User and in Transfer", _attribute_in_two_rows, "P"),
    ("a row class is annotated twice", _row_twice, "P"),
    ("annotate the row class alone", _row_or_none, "P"),
    ("q is only annotated as a queue: write q = xdb.Queue[...]()", _queue_only_annotated, "P"),
    ("history='some' is not", _history, "P"),
]


@pytest.mark.parametrize("message, make, where", WRONG, ids=[each[1].__name__ for each in WRONG])
def test_a_process_that_is_none_is_refused_with_file_and_line(message: str, make: Any, where: str) -> None:
    with pytest.raises(xdb.DefinitionError) as raised:
        make()
    first = make.__code__.co_firstlineno
    found = re.match(r"(.*test_definition_refused\.py):(\d+): ([\w.]+): (.*)", str(raised.value))
    assert found and message in found[4], raised.value
    assert found[3] == where and first < int(found[2]) <= first + 12


def test_rows_are_checked_before_any_sql() -> None:
    start = User.row("alice", mail="a@x", status=None)
    assert (start.table, start.key_columns) == ("public.users", {"user_id": "alice"})
    assert start.values_encoded == {"mail": "a@x", "status": None}
    assert Stock.row({"shop": 1, "sku": Decimal("2.0")}).key_columns == {"shop": 1, "sku": "2.0"}
    with pytest.raises(TypeError, match="User has no attribute 'email'; its attributes are mail, status"):
        User.row("alice", email="a@x")
    with pytest.raises(xdb.CodecError, match="User.mail: null is not str"):
        User.row("alice", mail=None)
    with pytest.raises(TypeError, match="'x' is not a key of Stock: give a dict with shop, sku"):
        Stock.row("x")
    with pytest.raises(xdb.CodecError, match="User.user_id: None can't be a key"):
        User.row(None)


def test_a_first_pause_that_is_longer_than_the_longest() -> None:
    with pytest.raises(ValueError, match="initial=6:00:00 of a Retry is longer than maximum=0:01:40"):
        xdb.Retry(initial=timedelta(hours=6))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"initial": 5}, "its times timedeltas, as in timedelta"),
        ({"give_up_after": 3}, "its times timedeltas"),
        ({"attempts": 2.5}, "attempts must be an int"),
        ({"attempts": -1}, "attempts and times must not be negative"),
        ({"give_up_after": timedelta(-1)}, "attempts and times must not be negative"),
        ({"give_up_after": timedelta(0)}, "give_up_after=0 leaves no time for a retry: give attempts=1"),
        ({"attempts": True}, "attempts must be an int"),
        ({"factor": float("nan")}, "factor=nan of a Retry is not a finite number"),
        ({"factor": float("inf")}, "factor=inf of a Retry is not a finite number"),
        ({"factor": "2"}, "factor='2' of a Retry is not a finite number"),
        ({"factor": 0.5}, "factor must be 1 or more"),
    ],
    ids=str,
)
def test_a_retry_that_is_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        xdb.Retry(**options)
