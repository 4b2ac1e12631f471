"""Turns `rows=` of a start into arguments of `xdb.start_process`, and refuses rows that are missing or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..process import RowStart

if TYPE_CHECKING:
    from .. import Process


def values_and_keys(process: type[Process], rows: Sequence[RowStart]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the rows by attribute, and the options of the start with their keys."""
    values: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    mapped = {row._table: row.__name__ for row in process._xdb.rows.values()}
    for row in rows:
        if not isinstance(row, RowStart):
            raise TypeError(f"rows= contains {row!r}: write {getattr(row, '__name__', 'User')}.row(key)")
        if row.table not in mapped:
            known = ", ".join(mapped.values()) or "none"
            raise TypeError(f"{process.__name__} maps no row of table {row.table}; its rows are {known}")
        if row.table in keys:
            raise ValueError(f"rows= has two rows of table {row.table}: give one")
        keys[row.table] = row.key_columns
        values.update(row.values_encoded)
    return values, {"globalAttributeKeys": keys} if keys else {}


def refuse_missing(process: type[Process], rows: Sequence[RowStart]) -> None:
    """Refuses a start that lacks the key of one of its rows."""
    given = [row.table for row in rows]
    missing = [row for row in process._xdb.rows.values() if row._table not in given]
    if missing:
        example = ", ".join(f"{row.__name__}.row(key)" for row in missing)
        raise TypeError(f"rows= lacks rows that {process.__name__} maps: give rows=[{example}]")
