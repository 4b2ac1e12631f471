"""Compares the code of process types with what is registered, what runs, and what workers serve: `Admin.check` and `register`.

Limitations: rows of the application's tables are not read (stored.py reads inputs, local attributes and messages), and at most 10,000
executions of a type are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import codec
from .client.connections import Execute
from .client.definitions import differences, normal
from .client.statements import type_name
from .claiming import NOT_REGISTERED
from .health import NotAsked, NotAWorker
from .stored import unreadable

if TYPE_CHECKING:
    from . import Process, Worker

_AT_MOST = 10_000  # executions that the server counts


@dataclass(frozen=True)
class Finding:
    """One difference between the code and what is registered or runs.

    `strands`: running executions would fail. `is_note`: it could not be checked, and may fit.
    """

    process_type: str
    text: str
    strands: bool = False
    is_note: bool = False

    def __str__(self) -> str:
        return f"{self.process_type}: {self.text}"


# --- what is registered


def definition_of(process: type[Process]) -> dict[str, Any]:
    """The definition as the server gets it: through the text, so that tuples are lists."""
    made: dict[str, Any] = json.loads(codec.dumps(process.definition()))
    return made


@dataclass(frozen=True)
class Registered:
    """A process type as the server shows it. `definition` is None if the session may not see the types of its owner."""

    worker: str
    owner: str | None
    definition: dict[str, Any] | None


def registered(execute: Execute, process: type[Process]) -> Registered | None:
    """The registered process type, or None."""
    rows = execute(
        "SELECT worker, owner::text, definition::text FROM xdb.process_types WHERE process_type = %s::text",
        (type_name(process),),
    )
    if not rows:
        return None
    worker, owner, definition = rows[0]
    return Registered(worker, owner, None if definition is None else json.loads(definition))


def not_seen(found: Registered) -> str:
    """The text of a finding for a process type whose definition the session may not see."""
    return f"the registered definition can't be seen: it belongs to {found.owner or 'an unknown role'}"


# --- what workers say


def places(execute: Execute, worker: Worker) -> list[tuple[type[Process], str, str]]:
    """The worker's process types that are registered at an HTTP worker, with its name and URL."""
    if not there_is(execute, "relation", "process_types"):
        return []
    sql = """SELECT t.process_type, w.name, w.url FROM xdb.process_types AS t JOIN xdb.workers AS w ON w.name = t.worker
        WHERE w.url IS NOT NULL"""
    found = {process_type: (name, url) for process_type, name, url in execute(sql, ())}
    types = worker.types.values()
    return [(process, *found[type_name(process)]) for process in types if type_name(process) in found]


def served_finding(process: type[Process], place: str, said: Mapping[str, str] | NotAsked) -> Finding | None:
    """Compares the definition that a worker serves with that of the code. `place` names the worker and its URL."""
    name, ours = type_name(process), f"sha256:{process.definition_hash()}"
    if isinstance(said, NotAWorker):
        return Finding(name, f"{place} does not answer as a worker ({said}): check the path of its URL")
    if isinstance(said, NotAsked):
        return Finding(name, f"{place} can't be asked from here: {said}", is_note=True)
    if name not in said:
        return Finding(name, f"{place} does not serve this process type; it serves {', '.join(said) or 'none'}")
    if said[name] != ours:
        return Finding(name, f"{place} runs other code: its definition is {said[name]}, and the code's is {ours}")
    return None


# --- what runs


def findings(execute: Execute, worker: Worker) -> list[Finding]:
    """Compares the code with the registered definitions, and with the states, queues and RPCs that running executions need."""
    if not there_is(execute, "relation", "process_types"):
        text = "this server does not show registered definitions: they need XDB 0.3.0 or later"
        return [Finding(type_name(process), text) for process in worker.types.values()]
    return [finding for process in worker.types.values() for finding in _findings_of(execute, process)]


def _findings_of(execute: Execute, process: type[Process]) -> Iterator[Finding]:
    name = type_name(process)
    found = registered(execute, process)
    if found is None:
        yield Finding(name, "is not registered")
        return
    definition = definition_of(process)
    coded = normal(definition)
    if found.definition is None:
        yield Finding(name, not_seen(found))
    else:
        for difference in differences(found.definition, definition):
            yield Finding(name, difference)
    yield from _stranded(execute, name, coded, sees_all=found.definition is not None)
    if found.definition is not None:
        yield from _rpcs_gone(execute, name, found.definition, coded)


# Calls that are retried and never reach a handler, counted by the reason.
_REFUSED = f"""SELECT f.why, min(f.detail) AS detail, count(*)::text AS calls
    FROM xdb.processes AS p JOIN (
        SELECT execution_id, detail, next_attempt_at, CASE WHEN error_type = '{NOT_REGISTERED}' THEN error_type ELSE http_status::text END AS why
        FROM xdb.failures) AS f USING (execution_id)
    WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND f.next_attempt_at IS NOT NULL
        AND f.why IN ('401', '403', '404', '{NOT_REGISTERED}')
    GROUP BY 1 ORDER BY 1"""


def obstacles(execute: Execute, process: type[Process]) -> Iterator[Finding]:
    """What stops processes of a type although the code matches the registered definition: pauses, refusing workers, unreadable values."""
    name = type_name(process)
    if not there_is(execute, "relation", "process_types") or not there_is(execute, "relation", "queue_messages"):
        return
    sql = """SELECT to_jsonb(t) ->> 'pause_mode' AS mode, to_jsonb(t) ->> 'pause_reason' AS reason
        FROM xdb.process_types AS t WHERE process_type = %s::text"""
    for mode, reason in execute(sql, (name,)):
        if mode is not None:
            why = f": {reason}" if reason else ""
            yield Finding(name, f"is paused ({mode}){why}; xdb.resume_process_type() ends the pause")
    for why, detail, count in execute(_REFUSED, (name,)):
        calls = "1 call" if count == "1" else f"{count} calls"
        if why == NOT_REGISTERED:
            yield Finding(name, f"its worker and the registered definition are of different versions, so {calls} can't proceed: {detail}")
        else:
            said = "has no handler for" if why == "404" else "refuses the signature of"
            yield Finding(name, f"its worker {said} {calls} (HTTP status {why}): {detail}")
    for text in unreadable(execute, process):
        yield Finding(name, text)


def _stranded(execute: Execute, name: str, coded: Mapping[str, Any], sees_all: bool) -> Iterator[Finding]:
    """States and queues that running executions need, and that the code lacks."""
    usage, seen = _usage(execute, name, sees_all)
    for kind, what, live in sorted(usage, key=lambda each: (each[0] != "state", each[1])):
        if kind == "state" and what not in coded["states"]:
            at = _live(live, "is in it", "are in it")
            yield Finding(name, f"state {what} was removed, but {at}{seen}", strands=True)
        elif kind == "local_queue" and what not in coded.get("localQueues", [what]):
            at = _live(live, "waits for it", "wait for it")
            yield Finding(name, f"queue {what} was removed, but {at}{seen}", strands=True)
        elif kind == "global_queue" and not {what, "*"} & set(coded["globalQueues"]):
            at = _live(live, "waits for it", "wait for it")
            yield Finding(name, f"global queue {what} was removed, but {at}{seen}", strands=True)


def _usage(execute: Execute, name: str, sees_all: bool) -> tuple[list[tuple[str, str, int]], str]:
    """Kind, name and number of running executions of each state and queue that is in use, and a note if only visible ones are counted.

    The server counts all executions if the session may see the definition.
    """
    if sees_all and there_is(execute, "function", "process_type_usage"):
        rows = execute("SELECT kind, name, live::text FROM xdb.process_type_usage(process_type => %s::text)", (name,))
        return [(kind.lower(), what, int(live)) for kind, what, live in rows], ""
    rows = execute(
        f"""SELECT 'state' AS kind, s.state_id, count(*)::text AS live FROM (
            SELECT s.state_id FROM xdb.processes AS p JOIN xdb.state_executions AS s USING (execution_id)
            WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND s.ended_at IS NULL LIMIT {_AT_MOST}) AS s GROUP BY 2
        UNION ALL SELECT w.kind, w.queue_name, count(*)::text FROM (
            SELECT lower(w.kind) AS kind, w.queue_name FROM xdb.processes AS p JOIN xdb.waits AS w USING (execution_id)
            WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND w.queue_name IS NOT NULL LIMIT {_AT_MOST}) AS w
        GROUP BY 1, 2""",
        (name, name),
    )
    return [(kind, what, int(live)) for kind, what, live in rows], _VISIBLE


_VISIBLE = " (counting executions that you may see)"


def _rpcs_gone(
    execute: Execute, name: str, registered: Mapping[str, Any], coded: Mapping[str, Any]
) -> Iterator[Finding]:
    gone = [rpc for rpc in registered.get("rpcs") or {} if rpc not in coded.get("rpcs", {rpc})]
    if not gone:
        return
    sql = f"""SELECT count(*)::text FROM (SELECT FROM xdb.processes
        WHERE process_type = %s::text AND status = 'RUNNING' LIMIT {_AT_MOST}) AS p"""
    ((count,),) = execute(sql, (name,))
    live = int(count)
    if live:
        for rpc in gone:
            run = _live(live, "that had it is running", "that had it are running")
            text = f"RPC {rpc} was removed, but {run}{_VISIBLE}"
            yield Finding(name, text, strands=True)


def _live(live: int, one: str, many: str) -> str:
    if live == 1:
        return f"1 execution {one}"
    number = f"{_AT_MOST} or more" if live >= _AT_MOST else str(live)
    return f"{number} executions {many}"


def there_is(execute: Execute, kind: str, name: str) -> bool:
    """Whether this server's XDB has a view or function. It is looked up, because an error would end the transaction."""
    catalog = {"relation": ("pg_class", "relname", "relnamespace"), "function": ("pg_proc", "proname", "pronamespace")}
    table, column, schema = catalog[kind]
    sql = f"""SELECT count(*)::text FROM pg_catalog.{table} AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.{schema}
        WHERE n.nspname = 'xdb' AND c.{column} = %s::text"""
    ((count,),) = execute(sql, (name,))
    return bool(int(count))
