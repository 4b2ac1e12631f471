"""Annotations that are texts, as below `from __future__ import annotations`: where the names in them are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Optional

import pytest

import xdb
from xdb.live import MISSING

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Form:
    """The one of the module: a class within a process hides it."""

    text: str


class Visit(xdb.Process):
    @dataclass
    class Form:
        name: str

    class Guest(xdb.Row, table="guests", key="id"):
        class Note(Form):
            pass

        note: Note | None

    Names = list[Form]

    guest: Guest
    form: Form | None = None
    names: Names
    forms = xdb.Queue["Form"]()

    @xdb.state(start=True)
    def begin(self, form: Form) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc
    def ask(self) -> Form | None:
        return self.form


class Longer(Visit):
    other: Form


def test_a_type_within_the_class_is_found() -> None:
    described = Visit._xdb
    assert described.local["form"].annotation == Optional[Visit.Form]
    assert described.local["names"].annotation == list[Visit.Form]
    assert described.rows == {"guest": Visit.Guest} and Visit.forms.message_type is Visit.Form
    assert Visit.begin.input_type is Visit.Form and Visit.ask.output_type == Optional[Visit.Form]
    assert Visit.Guest._attributes["note"].annotation == Optional[Visit.Guest.Note]
    assert Longer._xdb.local["other"].annotation is Visit.Form


def test_an_attribute_does_not_hide_the_type_that_it_is_named_after() -> None:
    def made() -> Any:
        class Dated(xdb.Process):
            date: date | None = None
            other: date | None

            @xdb.state(start=True)
            def begin(self) -> xdb.Decision:
                return xdb.complete()

        return Dated

    local = made()._xdb.local
    assert local["date"].annotation == local["other"].annotation == Optional[date]
    assert local["date"].default is None and local["other"].default is MISSING


def test_names_that_only_type_checkers_import_are_missing() -> None:
    with pytest.raises(xdb.DefinitionError) as raised:

        class Priced(xdb.Process):
            price: Decimal

    message = "name 'Decimal' is not defined. Define or import the name before the class; "
    assert message + "an import below `if TYPE_CHECKING:` does not run" in str(raised.value)
