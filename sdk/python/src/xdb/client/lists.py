"""The statements of `incidents` and `list`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast, get_args
from uuid import UUID

from .connections import Rows
from .outcome import Incident, Summary, moment
from .statements import AnyExecution, Query, type_or_name, uuid_of, word_of

if TYPE_CHECKING:
    from .. import Process

Status = Literal["RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED"]

PAGE = 500  # executions in one page of `list`

_STATUS = {status: status for status in get_args(Status)}


def incidents(process: type[Process] | str | None, process_id: str | None) -> Query[list[Incident]]:
    """The statement of `Client.incidents`."""
    where: list[tuple[str, str]] = []
    if process is not None:
        of_type = "i.execution_id IN (SELECT execution_id FROM xdb.processes WHERE process_type = %s::text AND status = 'RUNNING')"
        where.append((of_type, type_or_name(process)))
    if process_id is not None:
        where.append(("i.process_id = %s::text", process_id))
    conditions = " AND ".join(condition for condition, _ in where) or "true"
    sql = f"""SELECT process_id, execution_id::text AS execution, state_execution_id, api, attempt::text AS attempt,
        {_micros("raised_at")}, http_status::text AS http_status,
        error_type, detail, sql_state, table_name, constraint_name
        FROM xdb.incidents AS i WHERE {conditions} ORDER BY i.raised_at, i.execution_id, i.state_execution_id"""

    def read(rows: Rows) -> list[Incident]:
        return [
            Incident(p, UUID(e), s, api, int(n), cast(datetime, _moment(at)), None if http is None else int(http), *failure)
            for p, e, s, api, n, at, http, *failure in rows
        ]

    return Query(sql, tuple(value for _, value in where), read)


@dataclass(frozen=True)
class Listing:
    """The conditions of `Client.list`."""

    status: Status | None = None
    process: type[Process] | str | None = None
    prefix: str | None = None

    def page(self, before: AnyExecution) -> Query[list[Summary]]:
        """The next page below an execution. Ids of executions grow with time, so they are also the cursor."""
        where: list[tuple[str, str | None]] = []
        if self.status is not None:
            where.append(("status = %s::text", word_of(_STATUS, "status", self.status)))
        if self.process is not None:
            where.append(("process_type = %s::text", type_or_name(self.process)))
        if self.prefix is not None:
            # LIKE would find no index behind the view.
            where.append(("process_id ^@ %s::text", self.prefix))
        if before is not None:
            where.append(("execution_id < %s::text::uuid", uuid_of(before)))
        conditions = " AND ".join(condition for condition, _ in where) or "true"
        sql = f"""SELECT process_id, execution_id::text AS execution, process_type, owner::text AS owner, status,
            {_micros("started_at")}, {_micros("timeout_at")}, {_micros("closed_at")}, reason, live_threads::text AS threads, is_latest::text AS latest
            FROM xdb.processes WHERE {conditions} ORDER BY execution_id DESC LIMIT {PAGE}"""
        return Query(sql, tuple(value for _, value in where), _summaries)


def _micros(column: str) -> str:
    return f"(extract(epoch FROM {column}) * 1000000)::bigint::text AS {column}"


def _moment(micros: str | None) -> datetime | None:
    return moment(None if micros is None else int(micros))


def _summaries(rows: Rows) -> list[Summary]:
    return [
        Summary(
            p, UUID(e), t, owner, status, cast(datetime, _moment(s)), _moment(out), _moment(c), reason, int(threads), latest == "true"
        )
        for p, e, t, owner, status, s, out, c, reason, threads, latest in rows
    ]
