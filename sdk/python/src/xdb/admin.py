"""What deployers and operators do: register workers and process types, check them, pause the engine, purge, grant usage.

Limitations: no async version. The command line (cli.py) is made of this.
"""

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
from .claiming import served_by
from .health import NotAsked, refuses_signature, types_at

if TYPE_CHECKING:
    from . import AsyncPullWorker, Process, PullWorker, Worker

# The key of pg_advisory_xact_lock that `register` takes: two registrations at once would each compare with what the other changes.
_LOCK = 0x78646272656769


@dataclass(frozen=True)
class Change:
    """What `register` changes of one worker or process type. A change is true if it changes something.

    `kind` is `worker` or `process type`. `details` has one line for each difference.
    """

    kind: str
    name: str
    is_new: bool
    details: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.is_new or bool(self.details)

    def __str__(self) -> str:
        if not self:
            return f"{self.kind} {self.name} does not change"
        head = f"{self.kind} {self.name} {'is new' if self.is_new else 'changes'}"
        return head + "".join(f"\n    {detail}" for detail in self.details)


@dataclass(frozen=True)
class Status:
    """State of the engine of this database. `raw` has every column of `xdb.status()`.

    The numbers count the processes of all roles. They are None unless the session is an operator or a member of `pg_monitor`.
    """

    state: str
    reason: str | None
    in_flight: int | None
    backlog: int | None
    oldest_due: datetime | None
    last_error: str | None
    raw: Mapping[str, Any]


class Stranding(Exception):
    """`register` refuses: running executions need states, queues or RPCs that the new code lacks. `findings` lists them."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


class SignatureLost(Exception):
    """`register` refuses: calls to the worker may be signed, and no secret is given. `change` is what it would change."""

    def __init__(self, change: Change) -> None:
        super().__init__(
            f"{change}\nthe worker's calls may be signed, and this change would end that: pass its secret, or no_secret"
        )
        self.change = change


class Admin:
    """Registers workers and process types, and operates the engine.

    `connections` is what `Client` takes: a conninfo, a pool, or a function. Each method also takes `conn=`, and then is part of that
    connection's transaction.
    """

    def __init__(self, connections: Any = "") -> None:
        self._source = source_of(connections)

    def close(self) -> None:
        """Closes the connections that this object has opened."""
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
        """Registers a worker, or changes the one with this name. Without `secret`, its calls are not signed.

        With `url=None` it is a pull worker, and members of `role` may claim its calls.
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
        """Registers a worker and its process types in one transaction. Returns what that changes; unchanged parts are not written.

        - `url`: where the engine calls the worker. None for a pull worker; then members of `role` may claim its calls.
        - `secret`: signs the calls. By default the worker's own first secret. Registered secrets and headers can't be read back, so they
          are written whenever they are given.
        - `no_secret`: without it, `SignatureLost` is raised if a registered worker would change and there is no secret: its calls may be
          signed.
        - `max_concurrency`: how many calls the engine makes at a time. By default the worker's `threads`; raise it if several instances
          share one address.
        - `force`: without it, `Stranding` is raised if running executions need code that this worker lacks.
        - `dry_run`: only returns what would change.
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
        """Compares the code with what is registered, what runs and what is stored. Returns the differences.

        It also reports process types that are paused, and types whose calls their worker refuses.
        """
        with self._transaction(conn) as execute:
            served = served_by(worker)
            return findings(execute, served) + [each for process in served.types.values() for each in obstacles(execute, process)]

    def ask_workers(self, worker: Worker | PullWorker | AsyncPullWorker, *, conn: Any = None) -> list[Finding]:
        """Asks the registered HTTP workers of these processes which definitions they serve. Returns the differences from the code.

        A worker that can't be reached from here is a note. If the code has a secret, each worker is also asked whether it accepts a
        signature made with it. Pull workers are not asked, nor are workers whose URL the session may not see.
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
                    text = f"worker {name} at {url} refuses calls that are signed with the secret of the code"
                    found += [Finding(type_name(process), text) for process, other, _ in registered_at if other == name]
        return found

    # --- operating

    def pause_engine(self, *, conn: Any = None) -> None:
        """Pauses the engine of this database: it claims no more calls. For operators."""
        self._call("SELECT xdb.pause_engine()", (), conn)

    def resume_engine(self, *, conn: Any = None) -> None:
        """Resumes a paused engine. For operators."""
        self._call("SELECT xdb.resume_engine()", (), conn)

    def status(self, *, conn: Any = None) -> Status:
        """Returns the state of the engine of this database."""
        sql = """SELECT to_jsonb(s)::text, (extract(epoch FROM s.oldest_due) * 1000000)::bigint::text AS due FROM xdb.status() AS s"""
        text, oldest_due = self._call(sql, (), conn)[0]
        raw: dict[str, Any] = json.loads(text)
        return Status(
            raw["state"], raw["reason"], raw["in_flight"], raw["backlog"], moment(None if oldest_due is None else int(oldest_due)), raw["last_error"], raw
        )

    def purge(self, older_than: Seconds, *, conn: Any = None) -> int:
        """Deletes executions that closed more than `older_than` ago. Returns how many."""
        sql = "SELECT xdb.purge(older_than => %s::text::interval)::text"
        return int(self._call(sql, (interval(older_than),), conn)[0][0])

    def grant_usage(
        self, role: str, *, admin: bool = False, operator: bool = False, deployer: bool = False, conn: Any = None
    ) -> None:
        """Lets a role use XDB. With `operator` or `deployer` it also becomes one of these, with `admin` both. Adds to earlier grants.

        `role` is the name itself, without quotes. For superusers and the owner of the extension.
        """
        sql = """SELECT xdb.grant_usage(role => quote_ident(%s::text)::regrole, admin => %s::text::boolean,
            operator => %s::text::boolean, deployer => %s::text::boolean)"""
        self._call(sql, (role, _boolean(admin), _boolean(operator), _boolean(deployer)), conn)

    def adopt(self, *, conn: Any = None) -> None:
        """Starts processing in a copied or restored database, by `xdb.adopt()`."""
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
    """Returns an SQL script that registers a worker and its process types, for migrations. The same code gives the same text.

    `secret` must be a reference, `env:NAME` or `file:NAME`: the Postgres server reads the secret there. Other arguments as for
    `Admin.register`. Raises `ValueError` for a secret itself.
    """
    worker = _without_url(worker, url)
    if secret is not None and not secret.startswith(("env:", "file:")):
        raise ValueError("secret= is a secret, which must not be in a script: pass a reference, env:NAME or file:NAME")
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
        refused = " This worker has a secret, and refuses such calls: pass a reference." if worker._secrets else ""
        lines.append(f"-- No secret is given: calls are not signed, even if they were before.{refused}")
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
    """The `Worker` with its processes. Raises `ValueError` for a pull worker with a URL: the engine never calls it."""
    served = served_by(worker)
    if served is not worker and url is not None:
        raise ValueError(f"an xdb.{type(worker).__name__} claims its calls: register it with url=None, and the role= that may claim them")
    return served


@dataclass(frozen=True)
class _Served:
    """The arguments of `xdb.register_worker` for one worker."""

    name: str
    url: str | None
    secret: str | None
    headers: Mapping[str, str] | None
    max_concurrency: int | None
    role: str | None = None

    @property
    def place(self) -> str:
        """Where its calls go, as `register` prints it."""
        return self.url or f"none, members of {self.role} claim its calls"


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
    """The registered `max_concurrency`. Registering without it would reset it to the default."""
    rows = execute("SELECT max_concurrency::text FROM xdb.workers WHERE name = %s::text", (name,))
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


# Postgres will refuse to register this worker.
_OF_ANOTHER_ROLE = "the registered worker can't be seen: it belongs to another role"


def _worker_change(execute: Execute, worker: _Served, secret_is_given: bool) -> Change:
    # By to_jsonb, because the view of an older server has no column `role`.
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
        details.append("secret: registered again, because the registered one can't be compared")
    elif details and worker.secret is not None:
        details.append("secret: none is given, so the worker's own is registered")
    elif details:
        details.append("secret: none is given, so calls will not be signed")
    if details and worker.headers is None:
        details.append("headers: none are given, so none will be sent")
    if worker.headers is not None:
        details.append("headers: registered again, because the registered ones can't be compared")
    return Change("worker", worker.name, False, tuple(details))


def _may_lose_signature(change: Change) -> bool:
    """Whether the change registers an existing worker again, whose calls may be signed."""
    return bool(change) and not change.is_new and _OF_ANOTHER_ROLE not in change.details


def _type_change(execute: Execute, process: type[Process], worker: str) -> Change:
    name = type_name(process)
    if not there_is(execute, "relation", "process_types"):
        return Change("process type", name, False, ("registered again: this server does not show registered definitions",))
    found = registered(execute, process)
    notes = _notes(process)
    if found is None:
        return Change("process type", name, True, notes)
    if found.definition is None:
        return Change("process type", name, False, (not_seen(found),))
    details = differences(found.definition, definition_of(process))
    if found.worker != worker:
        details.insert(0, f"worker: {found.worker} -> {worker}")
    return Change("process type", name, False, (*details, *notes) if details else ())


def _notes(process: type[Process]) -> tuple[str, ...]:
    """What a registration of this class should say, though it is no error."""
    definition = process.definition()
    if definition.get("states") and "startingState" not in definition:
        return ("note: no state has start=True, so its processes begin without a step",)
    return ()


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _literal(text: str) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    # With a backslash, E'...' means the same under every setting of standard_conforming_strings.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted
