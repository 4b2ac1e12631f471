"""What is done once, or by operators: registering workers and process types, pausing, purging."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import codec, errors
from .client.connections import Execute, sync_execute
from .client.definitions import differences, normal
from .client.outcome import moment
from .client.sources import source_of
from .client.statements import Seconds, interval, type_name
from .fetching import served_by
from .health import NotAsked, types_at

if TYPE_CHECKING:
    from . import AsyncPullWorker, Process, PullWorker, Worker

# Of pg_advisory_xact_lock: two that register at once would each judge by what the other changes.
_LOCK = 0x78646272656769
_AT_MOST = 10_000  # what the server counts


@dataclass(frozen=True)
class Change:
    """What registering does to a worker or a process type. `details` are empty where nothing changes."""

    kind: str
    name: str
    is_new: bool
    details: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.is_new or bool(self.details)

    def __str__(self) -> str:
        if not self:
            return f"{self.kind} {self.name} is registered as it is"
        head = f"{self.kind} {self.name} {'is new' if self.is_new else 'changes'}"
        return head + "".join(f"\n    {detail}" for detail in self.details)


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


@dataclass(frozen=True)
class Status:
    """How the engine of this database is doing; `raw` has every column of `xdb.status()`.

    Figures are those of all processes: they are None for who is neither an operator nor a member of `pg_monitor`.
    """

    state: str
    reason: str | None
    in_flight: int | None
    backlog: int | None
    oldest_due: datetime | None
    last_error: str | None
    raw: Mapping[str, Any]


class Stranding(Exception):
    """Registering is refused: executions that run are where the new code has nothing. `findings` says where and how many."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


class Admin:
    """Administration, over connections as `Client` takes them; each call takes `conn=` too."""

    def __init__(self, connections: Any = "") -> None:
        self._source = source_of(connections)

    def close(self) -> None:
        """Closes its own connections."""
        self._source.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- registering

    def register_worker(
        self,
        name: str,
        url: str | None,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_concurrency: int | None = None,
        role: str | None = None,
        conn: Any = None,
    ) -> None:
        """Registers a worker, or changes the one of this name. Without a secret its calls are not signed.

        With `url=None` it fetches its calls, and members of `role` may do that.
        """
        with self._transaction(conn) as execute:
            _register_worker(execute, _Served(name, url, secret, headers, max_concurrency, role))

    def register(
        self,
        worker: Worker | PullWorker | AsyncPullWorker,
        *,
        name: str,
        url: str | None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_concurrency: int | None = None,
        role: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        conn: Any = None,
    ) -> list[Change]:
        """Registers a worker and its process types, in one transaction, and gives what that changes.

        What is registered as it is stays untouched. A secret and headers can't be compared: they are registered again where
        they are given. Where the worker is new or changes, and no secret is given, it is the worker's own: it would refuse calls
        that are not signed. With `url=None`, as for an `xdb.PullWorker`, members of `role` fetch its calls. `Stranding` if executions
        that run would have no code any more, unless `force`.
        """
        worker = _without_url(worker, url)
        with self._transaction(conn) as execute:
            execute("SELECT pg_advisory_xact_lock(%s::text::bigint)", (str(_LOCK),))
            if not force:
                stranding = [finding for finding in _findings(execute, worker) if finding.strands]
                if stranding:
                    raise Stranding(stranding)
            if max_concurrency is None:
                max_concurrency = _registered_concurrency(execute, name)
            own = next(iter(worker._secrets), None) if url is not None else None
            served = _Served(name, url, own if secret is None else secret, headers, max_concurrency, role)
            changes = [_worker_change(execute, served, secret is not None)]
            changes += [_type_change(execute, process, name) for process in worker.types.values()]
            if dry_run:
                return changes
            if changes[0]:
                _register_worker(execute, served)
            for process, change in zip(worker.types.values(), changes[1:], strict=True):
                if change:
                    _register_type(execute, process, name)
        return changes

    def check(self, worker: Worker | PullWorker | AsyncPullWorker, *, conn: Any = None) -> list[Finding]:
        """What is registered, and what runs, beside the code: nothing where it fits."""
        with self._transaction(conn) as execute:
            return _findings(execute, served_by(worker))

    def ask_workers(self, worker: Worker | PullWorker | AsyncPullWorker, *, conn: Any = None) -> list[Finding]:
        """What the registered workers of these processes say that they run, beside the code: nothing where it fits.

        One that can't be reached from here is a note. Workers that fetch their calls, and those of which one may not see the URL,
        are not asked.
        """
        with self._transaction(conn) as execute:
            places = _places(execute, served_by(worker))
        asked: dict[str, Mapping[str, str] | NotAsked] = {}
        findings = []
        for process, name, url in places:
            if url not in asked:
                try:
                    asked[url] = types_at(url)
                except NotAsked as error:
                    asked[url] = error
            finding = _served_finding(process, f"worker {name} at {url}", asked[url])
            findings += [] if finding is None else [finding]
        return findings

    # --- operating

    def pause(self, *, conn: Any = None) -> None:
        """Stops the engine from claiming new work."""
        self._call("SELECT xdb.pause()", (), conn)

    def resume(self, *, conn: Any = None) -> None:
        """Lets a paused engine go on."""
        self._call("SELECT xdb.resume()", (), conn)

    def status(self, *, conn: Any = None) -> Status:
        """How the engine of this database is doing."""
        sql = """SELECT to_jsonb(s)::text, (extract(epoch FROM s.oldest_due) * 1000000)::bigint FROM xdb.status() AS s"""
        text, oldest_due = self._call(sql, (), conn)[0]
        raw: dict[str, Any] = json.loads(text)
        return Status(
            raw["state"], raw["reason"], raw["in_flight"], raw["backlog"], moment(oldest_due), raw["last_error"], raw
        )

    def purge(self, older_than: Seconds, *, conn: Any = None) -> int:
        """Deletes executions that closed so long ago, and gives how many."""
        sql = "SELECT xdb.purge(older_than => %s::text::interval)"
        return int(self._call(sql, (interval(older_than),), conn)[0][0])

    def grant_usage(
        self, role: str, *, admin: bool = False, operator: bool = False, deployer: bool = False, conn: Any = None
    ) -> None:
        """Lets a role use XDB. `role` is the name as it is, without quotes."""
        sql = """SELECT xdb.grant_usage(role => quote_ident(%s::text)::regrole, admin => %s::text::boolean,
            operator => %s::text::boolean, deployer => %s::text::boolean)"""
        self._call(sql, (role, _boolean(admin), _boolean(operator), _boolean(deployer)), conn)

    def adopt(self, *, conn: Any = None) -> None:
        """Makes the processes of a copied or restored database its own, so that they run."""
        self._call("SELECT xdb.adopt()", (), conn)

    def _call(self, sql: str, params: tuple[str | None, ...], conn: Any) -> list[tuple[Any, ...]]:
        with self._transaction(conn) as execute:
            return execute(sql, params)

    @contextmanager
    def _transaction(self, conn: Any) -> Iterator[Execute]:
        with errors.translated():
            if conn is not None:
                yield sync_execute(conn)
            else:
                with self._source.open(block=True) as execute:
                    yield execute


def sql(
    worker: Worker | PullWorker | AsyncPullWorker,
    *,
    name: str,
    url: str | None,
    secret: str | None = None,
    max_concurrency: int | None = None,
    role: str | None = None,
) -> str:
    """A script that registers a worker and its process types: the same text for the same code, for migrations.

    `secret` may only be a reference, `env:NAME` or `file:NAME`, which the server follows.
    """
    worker = _without_url(worker, url)
    if secret is not None and not secret.startswith(("env:", "file:")):
        raise ValueError("a script is no place for a secret: give a reference, env:NAME or file:NAME")
    arguments = {"name": name, "url": url, "secret": secret, "role": role}
    given = [f"{key} => {_literal(value)}" for key, value in arguments.items() if value is not None]
    if url is None:
        given.insert(1, "url => NULL")
    if max_concurrency is not None:
        given.append(f"max_concurrency => {int(max_concurrency)}")
    lines = []
    if secret is None and url is not None:
        refused = " This worker has one, and refuses them: give a reference." if worker._secrets else ""
        lines.append(f"-- Without a secret calls are not signed, also if they were before.{refused}")
    lines.append(f"SELECT xdb.register_worker({', '.join(given)});")
    for process in sorted(worker.types.values(), key=type_name):
        text = json.dumps(_definition(process), sort_keys=True, indent=2, ensure_ascii=False)
        lines.append(
            f"SELECT xdb.register_process_type(process_type => {_literal(type_name(process))}, "
            f"worker => {_literal(name)}, definition => {_literal(text)});"
        )
    return "\n".join(lines) + "\n"


# --- what is registered


def _without_url(worker: Worker | PullWorker | AsyncPullWorker, url: str | None) -> Worker:
    """What has its processes. One that fetches its calls is never called."""
    served = served_by(worker)
    if served is not worker and url is not None:
        raise ValueError(f"an xdb.{type(worker).__name__} fetches its calls: register it with url=None, and the role that may")
    return served


def _definition(process: type[Process]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(codec.dumps(process.definition()))
    return made


@dataclass(frozen=True)
class _Served:
    """A worker as it is to be registered."""

    name: str
    url: str | None
    secret: str | None
    headers: Mapping[str, str] | None
    max_concurrency: int | None
    role: str | None = None

    @property
    def place(self) -> str:
        """Where its calls go, for people."""
        return self.url or f"none, {self.role} fetches its calls"


def _register_worker(execute: Execute, worker: _Served) -> None:
    given: list[tuple[str, str | None]] = [
        ("name => %s::text", worker.name),
        ("url => %s::text", worker.url),
        ("secret => %s::text", worker.secret),
        ("headers => %s::text::jsonb", None if worker.headers is None else json.dumps(dict(worker.headers))),
    ]
    if worker.role is not None:
        given.append(("role => %s::text", worker.role))
    if worker.max_concurrency is not None:
        given.append(("max_concurrency => %s::text::int", str(worker.max_concurrency)))
    arguments = ", ".join(argument for argument, _ in given)
    execute(f"SELECT xdb.register_worker({arguments})", tuple(value for _, value in given))


def _register_type(execute: Execute, process: type[Process], worker: str) -> None:
    text = codec.dumps(process.definition()).decode()
    execute(
        "SELECT xdb.register_process_type(process_type => %s::text, worker => %s::text, definition => %s::text::jsonb)",
        (type_name(process), worker, text),
    )


def _registered_concurrency(execute: Execute, name: str) -> int | None:
    """Registering again without it would bring the default back."""
    rows = execute("SELECT max_concurrency FROM xdb.workers WHERE name = %s::text", (name,))
    return rows[0][0] if rows else None


def _worker_change(execute: Execute, worker: _Served, secret_is_given: bool) -> Change:
    # An older server has no roles of workers.
    rows = execute(
        """SELECT url, max_concurrency, to_jsonb(w) ->> 'role', registered_at IS NOT NULL
        FROM xdb.workers AS w WHERE name = %s::text""",
        (worker.name,),
    )
    if not rows:
        return Change("worker", worker.name, True, (f"url: {worker.place}",))
    details = []
    ((old_url, old_concurrency, old_role, is_seen),) = rows
    old = _Served(worker.name, old_url, None, None, old_concurrency, old_role)
    if not is_seen:
        details.append("what is registered can't be seen: the worker belongs to another role")
    elif old.place != worker.place:
        details.append(f"url: {old.place} -> {worker.place}")
    if worker.url is None:
        return Change("worker", worker.name, False, tuple(details))
    if worker.max_concurrency is not None and old_concurrency not in (None, worker.max_concurrency):
        details.append(f"max_concurrency: {old_concurrency} -> {worker.max_concurrency}")
    if secret_is_given:
        details.append("secret: registered again, since what is registered can't be read")
    elif details and worker.secret is not None:
        details.append("secret: none is given, so it is the worker's own")
    elif details:
        details.append("secret: none is given, so calls are not signed any more if they were")
    if details and worker.headers is None:
        details.append("headers: none are given, so none are sent any more if there were some")
    if worker.headers is not None:
        details.append("headers: registered again, since what is registered can't be read")
    return Change("worker", worker.name, False, tuple(details))


@dataclass(frozen=True)
class _Registered:
    """A process type as the server shows it. No definition: it belongs to a role whose types one may not see."""

    worker: str
    owner: str | None
    definition: dict[str, Any] | None


def _registered(execute: Execute, process: type[Process]) -> _Registered | None:
    rows = execute(
        "SELECT worker, owner::text, definition::text FROM xdb.process_types WHERE process_type = %s::text",
        (type_name(process),),
    )
    if not rows:
        return None
    worker, owner, definition = rows[0]
    return _Registered(worker, owner, None if definition is None else json.loads(definition))


def _type_change(execute: Execute, process: type[Process], worker: str) -> Change:
    name = type_name(process)
    if not _there_is(execute, "relation", "process_types"):
        return Change("process type", name, False, ("registered again: this server does not show what is registered",))
    found = _registered(execute, process)
    if found is None:
        return Change("process type", name, True, ())
    if found.definition is None:
        return Change("process type", name, False, (_not_seen(found),))
    details = differences(found.definition, _definition(process))
    if found.worker != worker:
        details.insert(0, f"worker: {found.worker} -> {worker}")
    return Change("process type", name, False, tuple(details))


def _not_seen(found: _Registered) -> str:
    return f"what is registered can't be seen: it belongs to {found.owner or 'nobody'}"


# --- what workers say


def _places(execute: Execute, worker: Worker) -> list[tuple[type[Process], str, str]]:
    """The processes that are registered, with the names and URLs of their workers."""
    if not _there_is(execute, "relation", "process_types"):
        return []
    sql = """SELECT t.process_type, w.name, w.url FROM xdb.process_types AS t JOIN xdb.workers AS w ON w.name = t.worker
        WHERE w.url IS NOT NULL"""
    found = {process_type: (name, url) for process_type, name, url in execute(sql, ())}
    types = worker.types.values()
    return [(process, *found[type_name(process)]) for process in types if type_name(process) in found]


def _served_finding(process: type[Process], place: str, said: Mapping[str, str] | NotAsked) -> Finding | None:
    name, ours = type_name(process), f"sha256:{process.definition_hash()}"
    if isinstance(said, NotAsked):
        return Finding(name, f"{place} can't be asked from here: {said}", is_note=True)
    if name not in said:
        return Finding(name, f"{place} does not have it; it has {', '.join(said) or 'none'}")
    if said[name] != ours:
        return Finding(name, f"{place} runs other code: its definition is {said[name]} there, and {ours} here")
    return None


# --- what runs


def _findings(execute: Execute, worker: Worker) -> list[Finding]:
    if not _there_is(execute, "relation", "process_types"):
        text = "this server does not show what is registered (XDB 0.3.0 does)"
        return [Finding(type_name(process), text) for process in worker.types.values()]
    return [finding for process in worker.types.values() for finding in _findings_of(execute, process)]


def _findings_of(execute: Execute, process: type[Process]) -> Iterator[Finding]:
    name = type_name(process)
    found = _registered(execute, process)
    if found is None:
        yield Finding(name, "is not registered")
        return
    definition = _definition(process)
    coded = normal(definition)
    if found.definition is None:
        yield Finding(name, _not_seen(found))
    else:
        for difference in differences(found.definition, definition):
            yield Finding(name, difference)
    yield from _stranded(execute, name, coded, sees_all=found.definition is not None)
    if found.definition is not None:
        yield from _rpcs_gone(execute, name, found.definition, coded)


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
    if sees_all and _there_is(execute, "function", "process_type_usage"):
        rows = execute("SELECT kind, name, live FROM xdb.process_type_usage(process_type => %s::text)", (name,))
        return [(kind.lower(), what, live) for kind, what, live in rows], ""
    rows = execute(
        f"""SELECT 'state', s.state_id, count(*) FROM (
            SELECT s.state_id FROM xdb.processes AS p JOIN xdb.state_executions AS s USING (execution_id)
            WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND s.ended_at IS NULL LIMIT {_AT_MOST}) AS s GROUP BY 2
        UNION ALL SELECT w.kind, w.queue_name, count(*) FROM (
            SELECT lower(w.kind) AS kind, w.queue_name FROM xdb.processes AS p JOIN xdb.waits AS w USING (execution_id)
            WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND w.queue_name IS NOT NULL LIMIT {_AT_MOST}) AS w
        GROUP BY 1, 2""",
        (name, name),
    )
    return [(kind, what, live) for kind, what, live in rows], " (of those that you may see)"


def _rpcs_gone(
    execute: Execute, name: str, registered: Mapping[str, Any], coded: Mapping[str, Any]
) -> Iterator[Finding]:
    gone = [rpc for rpc in registered.get("rpcs") or {} if rpc not in coded.get("rpcs", {rpc})]
    if not gone:
        return
    sql = f"""SELECT count(*) FROM (SELECT FROM xdb.processes
        WHERE process_type = %s::text AND status = 'RUNNING' LIMIT {_AT_MOST}) AS p"""
    ((live,),) = execute(sql, (name,))
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


def _there_is(execute: Execute, kind: str, name: str) -> bool:
    """Whether this server's XDB has it: an error would end the transaction."""
    catalog = {"relation": ("pg_class", "relname", "relnamespace"), "function": ("pg_proc", "proname", "pronamespace")}
    table, column, schema = catalog[kind]
    sql = f"""SELECT count(*) FROM pg_catalog.{table} AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.{schema}
        WHERE n.nspname = 'xdb' AND c.{column} = %s::text"""
    ((count,),) = execute(sql, (name,))
    return bool(count)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _literal(text: str) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    # Right under every setting of standard_conforming_strings.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted
