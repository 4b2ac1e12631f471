"""What is registered, what runs and what workers say, beside the code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import codec
from .client.connections import Execute
from .client.definitions import differences, normal
from .client.statements import type_name
from .fetching import NOT_REGISTERED
from .health import NotAsked, NotAWorker
from .stored import unreadable

if TYPE_CHECKING:
    from . import Process, Worker

_AT_MOST = 10_000  # what the server counts


@dataclass(frozen=True)
class Finding:
    """Where what is registered, or what runs, does not fit the code. `strands`: executions that run would fail.

    `is_note`: it may fit, and could not be looked at.
    """

    process_type: str
    text: str
    strands: bool = False
    is_note: bool = False

    def __str__(self) -> str:
        return f"{self.process_type}: {self.text}"


# --- what is registered


def definition_of(process: type[Process]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(codec.dumps(process.definition()))
    return made


@dataclass(frozen=True)
class Registered:
    """A process type as the server shows it. No definition: it belongs to a role whose types one may not see."""

    worker: str
    owner: str | None
    definition: dict[str, Any] | None


def registered(execute: Execute, process: type[Process]) -> Registered | None:
    rows = execute(
        "SELECT worker, owner::text, definition::text FROM xdb.process_types WHERE process_type = %s::text",
        (type_name(process),),
    )
    if not rows:
        return None
    worker, owner, definition = rows[0]
    return Registered(worker, owner, None if definition is None else json.loads(definition))


def not_seen(found: Registered) -> str:
    return f"what is registered can't be seen: it belongs to {found.owner or 'nobody'}"


# --- what workers say


def places(execute: Execute, worker: Worker) -> list[tuple[type[Process], str, str]]:
    """The processes that are registered, with the names and URLs of their workers."""
    if not there_is(execute, "relation", "process_types"):
        return []
    sql = """SELECT t.process_type, w.name, w.url FROM xdb.process_types AS t JOIN xdb.workers AS w ON w.name = t.worker
        WHERE w.url IS NOT NULL"""
    found = {process_type: (name, url) for process_type, name, url in execute(sql, ())}
    types = worker.types.values()
    return [(process, *found[type_name(process)]) for process in types if type_name(process) in found]


def served_finding(process: type[Process], place: str, said: Mapping[str, str] | NotAsked) -> Finding | None:
    name, ours = type_name(process), f"sha256:{process.definition_hash()}"
    if isinstance(said, NotAWorker):
        return Finding(name, f"{place} does not answer as a worker: {said}. Check the path of its URL.")
    if isinstance(said, NotAsked):
        return Finding(name, f"{place} can't be asked from here: {said}", is_note=True)
    if name not in said:
        return Finding(name, f"{place} does not have it; it has {', '.join(said) or 'none'}")
    if said[name] != ours:
        return Finding(name, f"{place} runs other code: its definition is {said[name]} there, and {ours} here")
    return None


# --- what runs


def findings(execute: Execute, worker: Worker) -> list[Finding]:
    if not there_is(execute, "relation", "process_types"):
        text = "this server does not show what is registered (XDB 0.3.0 does)"
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


# Of calls that are made again and again: those that do not come to a handler.
_REFUSED = f"""SELECT f.why, min(f.detail) AS detail, count(*)::text AS calls
    FROM xdb.processes AS p JOIN (
        SELECT execution_id, detail, next_attempt_at, CASE WHEN error_type = '{NOT_REGISTERED}' THEN error_type ELSE http_status::text END AS why
        FROM xdb.failures) AS f USING (execution_id)
    WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND f.next_attempt_at IS NOT NULL
        AND f.why IN ('401', '403', '404', '{NOT_REGISTERED}')
    GROUP BY 1 ORDER BY 1"""


def obstacles(execute: Execute, process: type[Process]) -> Iterator[Finding]:
    """What keeps processes of a type from going on, though the code fits what is registered."""
    name = type_name(process)
    if not there_is(execute, "relation", "process_types") or not there_is(execute, "relation", "queue_messages"):
        return
    sql = """SELECT to_jsonb(t) ->> 'pause_mode' AS mode, to_jsonb(t) ->> 'pause_reason' AS reason
        FROM xdb.process_types AS t WHERE process_type = %s::text"""
    for mode, reason in execute(sql, (name,)):
        if mode is not None:
            why = f": {reason}" if reason else ""
            yield Finding(name, f"is paused ({mode}){why}; xdb.resume_process_type() lets it go on")
    for why, detail, count in execute(_REFUSED, (name,)):
        calls = "1 call" if count == "1" else f"{count} calls"
        if why == NOT_REGISTERED:
            yield Finding(name, f"what is registered and its worker are of different versions, which keeps {calls} waiting: {detail}")
        else:
            said = "has no handler for" if why == "404" else "refuses the signature of"
            yield Finding(name, f"its worker {said} {calls}, with status {why}: {detail}")
    for text in unreadable(execute, process):
        yield Finding(name, text)


def _stranded(execute: Execute, name: str, coded: Mapping[str, Any], sees_all: bool) -> Iterator[Finding]:
    """States and queues that executions are at, and that the code does not have."""
    usage, seen = _usage(execute, name, sees_all)
    for kind, what, live in sorted(usage, key=lambda each: (each[0] != "state", each[1])):
        if kind == "state" and what not in coded["states"]:
            at = _live(live, "is in it", "are in it")
            yield Finding(name, f"state {what} is gone, but {at}{seen}", strands=True)
        elif kind == "local_queue" and what not in coded.get("localQueues", [what]):
            at = _live(live, "waits for it", "wait for it")
            yield Finding(name, f"queue {what} is gone, but {at}{seen}", strands=True)
        elif kind == "global_queue" and not {what, "*"} & set(coded["globalQueues"]):
            at = _live(live, "waits for it", "wait for it")
            yield Finding(name, f"global queue {what} is gone, but {at}{seen}", strands=True)


def _usage(execute: Execute, name: str, sees_all: bool) -> tuple[list[tuple[str, str, int]], str]:
    """What live executions of a type are at, and whether that is only of those that one may see.

    The server tells all of it to those who may see the definition too.
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
    return [(kind, what, int(live)) for kind, what, live in rows], " (of those that you may see)"


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
            run = _live(live, "runs that had it", "run that had it")
            text = f"RPC {rpc} is gone, but {run} (of those that you may see)"
            yield Finding(name, text, strands=True)


def _live(live: int, one: str, many: str) -> str:
    if live == 1:
        return f"1 execution {one}"
    number = f"{_AT_MOST} or more" if live >= _AT_MOST else str(live)
    return f"{number} executions {many}"


def there_is(execute: Execute, kind: str, name: str) -> bool:
    """Whether this server's XDB has it: an error would end the transaction."""
    catalog = {"relation": ("pg_class", "relname", "relnamespace"), "function": ("pg_proc", "proname", "pronamespace")}
    table, column, schema = catalog[kind]
    sql = f"""SELECT count(*)::text FROM pg_catalog.{table} AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.{schema}
        WHERE n.nspname = 'xdb' AND c.{column} = %s::text"""
    ((count,),) = execute(sql, (name,))
    return bool(int(count))
