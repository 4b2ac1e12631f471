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
from .checking import Finding, definition_of, findings, not_seen, obstacles, places, registered, served_finding, there_is
from .client.connections import Execute, sync_execute
from .client.definitions import differences
from .client.outcome import moment
from .client.sources import source_of
from .client.statements import Seconds, interval, type_name
from .fetching import served_by
from .health import NotAsked, refuses_signature, types_at

if TYPE_CHECKING:
    from . import AsyncPullWorker, Process, PullWorker, Worker

# Of pg_advisory_xact_lock: two that register at once would each judge by what the other changes.
_LOCK = 0x78646272656769


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


class SignatureLost(Exception):
    """Registering is refused: calls to the worker may be signed, and no secret is given for new calls. `change` is what it would change."""

    def __init__(self, change: Change) -> None:
        super().__init__(
            f"{change}\nIts calls may be signed, and this change would end that: give its secret, or say that there is none"
        )
        self.change = change


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
        no_secret: bool = False,
        dry_run: bool = False,
        conn: Any = None,
    ) -> list[Change]:
        """Registers a worker and its process types, in one transaction, and gives what that changes.

        What is registered as it is stays untouched. A secret and headers can't be compared: they are registered again where
        they are given. Where the worker is new or changes, and no secret is given, it is the worker's own: it would refuse calls
        that are not signed. If it has none either, a worker that is there is changed with `no_secret` only: its calls would not be
        signed any more if they were. `max_concurrency` is how many calls the worker takes at a time, its `threads`, if nothing is
        said; several instances behind one address take more. With `url=None`, as for an `xdb.PullWorker`, members of `role` fetch its
        calls. `Stranding` if executions that run would have no code any more, unless `force`.
        """
        worker = _without_url(worker, url)
        with self._transaction(conn) as execute:
            execute("SELECT pg_advisory_xact_lock(%s::text::bigint)", (str(_LOCK),))
            if not force:
                stranding = [finding for finding in findings(execute, worker) if finding.strands]
                if stranding:
                    raise Stranding(stranding)
            if max_concurrency is None and url is not None:
                max_concurrency = worker.concurrency or _registered_concurrency(execute, name)
            own = next(iter(worker._secrets), None) if url is not None else None
            served = _Served(name, url, own if secret is None else secret, headers, max_concurrency, role)
            changes = [_worker_change(execute, served, secret is not None)]
            if url is not None and served.secret is None and not no_secret and _may_lose_signature(changes[0]):
                raise SignatureLost(changes[0])
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
        """What is registered, what runs and what is stored, beside the code; and types that are paused, or whose calls their worker
        refuses. Nothing where it fits.
        """
        with self._transaction(conn) as execute:
            served = served_by(worker)
            return findings(execute, served) + [each for process in served.types.values() for each in obstacles(execute, process)]

    def ask_workers(self, worker: Worker | PullWorker | AsyncPullWorker, *, conn: Any = None) -> list[Finding]:
        """What the registered workers of these processes say that they run, beside the code: nothing where it fits.

        One that can't be reached from here is a note. If the code has a secret, they are asked whether they take what it signs.
        Workers that fetch their calls, and those of which one may not see the URL, are not asked.
        """
        with self._transaction(conn) as execute:
            registered_at = places(execute, served_by(worker))
        secret = next(iter(served_by(worker)._secrets), None)
        asked: dict[str, Mapping[str, str] | NotAsked] = {}
        found: list[Finding] = []
        for process, name, url in registered_at:
            if url not in asked:
                try:
                    asked[url] = types_at(url)
                except NotAsked as error:
                    asked[url] = error
            finding = served_finding(process, f"worker {name} at {url}", asked[url])
            found += [] if finding is None else [finding]
        if secret is not None:
            for name, url in dict.fromkeys((name, url) for _, name, url in registered_at):
                if not isinstance(asked[url], NotAsked) and refuses_signature(url, secret):
                    text = f"worker {name} at {url} refuses what is signed with the secret of the code"
                    found += [Finding(type_name(process), text) for process, other, _ in registered_at if other == name]
        return found

    # --- operating

    def pause_engine(self, *, conn: Any = None) -> None:
        """Stops the engine from claiming new work."""
        self._call("SELECT xdb.pause_engine()", (), conn)

    def resume_engine(self, *, conn: Any = None) -> None:
        """Lets a paused engine go on."""
        self._call("SELECT xdb.resume_engine()", (), conn)

    def status(self, *, conn: Any = None) -> Status:
        """How the engine of this database is doing."""
        sql = """SELECT to_jsonb(s)::text, (extract(epoch FROM s.oldest_due) * 1000000)::bigint::text AS due FROM xdb.status() AS s"""
        text, oldest_due = self._call(sql, (), conn)[0]
        raw: dict[str, Any] = json.loads(text)
        return Status(
            raw["state"], raw["reason"], raw["in_flight"], raw["backlog"], moment(None if oldest_due is None else int(oldest_due)), raw["last_error"], raw
        )

    def purge(self, older_than: Seconds, *, conn: Any = None) -> int:
        """Deletes executions that closed so long ago, and gives how many."""
        sql = "SELECT xdb.purge(older_than => %s::text::interval)::text"
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
    if max_concurrency is None and url is not None:
        max_concurrency = worker.concurrency
    if max_concurrency is not None:
        given.append(f"max_concurrency => {int(max_concurrency)}")
    lines = []
    if secret is None and url is not None:
        refused = " This worker has one, and refuses them: give a reference." if worker._secrets else ""
        lines.append(f"-- Without a secret calls are not signed, also if they were before.{refused}")
    lines.append(f"SELECT xdb.register_worker({', '.join(given)});")
    for process in sorted(worker.types.values(), key=type_name):
        text = json.dumps(definition_of(process), sort_keys=True, indent=2, ensure_ascii=False)
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
    rows = execute("SELECT max_concurrency::text FROM xdb.workers WHERE name = %s::text", (name,))
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


# Registering it will be refused.
_OF_ANOTHER_ROLE = "what is registered can't be seen: the worker belongs to another role"


def _worker_change(execute: Execute, worker: _Served, secret_is_given: bool) -> Change:
    # An older server has no roles of workers.
    rows = execute(
        """SELECT url, max_concurrency::text AS max_concurrency, to_jsonb(w) ->> 'role' AS role, (registered_at IS NOT NULL)::text AS is_seen
        FROM xdb.workers AS w WHERE name = %s::text""",
        (worker.name,),
    )
    if not rows:
        return Change("worker", worker.name, True, (f"url: {worker.place}",))
    details = []
    ((old_url, old_concurrency, old_role, is_seen),) = rows
    old = _Served(worker.name, old_url, None, None, None if old_concurrency is None else int(old_concurrency), old_role)
    if is_seen == "false":
        details.append(_OF_ANOTHER_ROLE)
    elif old.place != worker.place:
        details.append(f"url: {old.place} -> {worker.place}")
    if worker.url is None:
        return Change("worker", worker.name, False, tuple(details))
    if worker.max_concurrency is not None and old.max_concurrency not in (None, worker.max_concurrency):
        details.append(f"max_concurrency: {old.max_concurrency} -> {worker.max_concurrency}")
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


def _may_lose_signature(change: Change) -> bool:
    """Whether it registers a worker again, whose calls may be signed."""
    return bool(change) and not change.is_new and _OF_ANOTHER_ROLE not in change.details


def _type_change(execute: Execute, process: type[Process], worker: str) -> Change:
    name = type_name(process)
    if not there_is(execute, "relation", "process_types"):
        return Change("process type", name, False, ("registered again: this server does not show what is registered",))
    found = registered(execute, process)
    if found is None:
        return Change("process type", name, True, ())
    if found.definition is None:
        return Change("process type", name, False, (not_seen(found),))
    details = differences(found.definition, definition_of(process))
    if found.worker != worker:
        details.insert(0, f"worker: {found.worker} -> {worker}")
    return Change("process type", name, False, tuple(details))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _literal(text: str) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    # Right under every setting of standard_conforming_strings.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted
