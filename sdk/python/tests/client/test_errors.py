"""Every SQLSTATE that the documentation lists has a class."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import xdb
from xdb import errors

DOCS = Path(__file__).parents[4] / "docs" / "errors.md"


def test_every_documented_sqlstate_has_a_class() -> None:
    documented = re.findall(r"^\| `(XD\d{3})` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(documented) > 20
    assert [sqlstate for sqlstate in documented if sqlstate not in errors.BY_SQLSTATE] == []


def test_every_class_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", DOCS.read_text(encoding="utf-8").partition("These have no SQLSTATE")[2], re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    exceptions = {name for name, kind in vars(xdb).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    assert documented == exceptions - {"XdbError"}


def test_the_table_of_classes_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(XD\d{3})` \| `(\w+)`( \(retryable\))? \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {sqlstate: (name, bool(retryable)) for sqlstate, name, retryable in rows}
    coded = {sqlstate: (kind.__name__, kind.retryable) for sqlstate, kind in errors.BY_SQLSTATE.items()}
    of_later_servers = {"XD028"}
    of_postgres = {"40001", "40P01"}
    assert documented == {at: kind for at, kind in coded.items() if at not in of_later_servers | of_postgres}


def test_no_two_classes_share_one() -> None:
    kinds = errors.XdbError.__subclasses__()
    assert len({kind.sqlstate for kind in kinds}) == len(kinds)
    assert all(kind.__doc__ for kind in kinds)


class Driver(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("it says")
        self.sqlstate = sqlstate


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_transient_errors_are_retryable(sqlstate: str) -> None:
    with pytest.raises(errors.SerializationFailure) as raised, errors.translated():
        raise Driver(sqlstate)
    assert raised.value.sqlstate == sqlstate and raised.value.retryable
    assert str(raised.value) == "it says"


def test_an_error_of_a_later_server() -> None:
    made = errors.from_driver(Driver("XD999"))
    assert type(made) is errors.XdbError and made.sqlstate == "XD999"


def test_other_exceptions_pass_unchanged() -> None:
    for other in (Driver("23505"), ValueError("x"), errors.NotRunning("x")):
        assert errors.from_driver(other) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_a_role_without_grants_gets_a_hint() -> None:
    def notes(sqlstate: str, message: str, wrapped: bool = False) -> list[str]:
        error: Exception = Driver(sqlstate)
        error.args = (message,)
        if wrapped:
            outer = RuntimeError(f"(Driver) {message}")
            outer.__cause__ = error
            error = outer
        with pytest.raises(type(error)), errors.translated():
            raise error
        return getattr(error, "__notes__", [])

    denied = "permission denied for schema xdb"
    for wrapped in (False, True):
        [note] = notes("42501", denied, wrapped)
        assert "xdb.grant_usage" in note
    assert notes("42501", "permission denied for table xdb") == notes("42P01", denied) == notes("42501", "no") == []


def test_an_exception_that_wraps_a_drivers_error_is_translated() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = Driver("XD007")
    made = errors.from_driver(outer)
    assert isinstance(made, errors.NotRunning) and made.message == "it says"


class Diagnostics:
    message_primary, message_detail, message_hint, datatype_name = "RPC failed", "OutOfStock", "repeat it", "OutOfStock"


def test_the_workers_word_for_its_error() -> None:
    of_psycopg = Driver("XD010")
    of_psycopg.diag = Diagnostics()  # type: ignore[attr-defined]
    made = errors.from_driver(of_psycopg)
    assert isinstance(made, errors.WorkerFailed)
    assert (made.error_type, made.detail, made.hint) == ("OutOfStock", "OutOfStock", "repeat it")
    assert str(made) == "RPC failed\nDETAIL: OutOfStock\nHINT: repeat it"

    of_asyncpg = Driver("XD010")
    of_asyncpg.detail, of_asyncpg.hint, of_asyncpg.data_type_name = "d", None, "Broken"  # type: ignore[attr-defined]
    made = errors.from_driver(of_asyncpg)
    assert isinstance(made, errors.WorkerFailed) and (made.error_type, made.detail) == ("Broken", "d")

    of_an_older_server = errors.from_driver(Driver("XD010"))
    assert isinstance(of_an_older_server, errors.WorkerFailed) and of_an_older_server.error_type is None
