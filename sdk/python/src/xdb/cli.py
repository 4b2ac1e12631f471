"""The commands of `python -m xdb`: register the worker of a module, check it, print its SQL, serve it, print its definitions.

Limitations: `serve` uses Python's own HTTP server, and does not run pull workers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Union, cast

from . import admin
from .claiming import Claiming, served_by
from .pull import AsyncPullWorker, PullWorker
from .serve import serve
from .worker import Worker

AnyWorker = Union[Worker, PullWorker, AsyncPullWorker]

# Exit statuses: done; `check` or `register` has findings; any other error.
NOTHING, FOUND, WRONG = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, 1 if `check` has findings or `register` refuses, 2 for other errors.

    `arguments` are those after the program's name; by default those of `sys.argv`.
    """
    given = _parser().parse_args(arguments)
    # The worker's module is usually in the current directory, which an installed script does not have in its path.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        status: int = given.command(given, _load(given.worker))
        return status
    except admin.Stranding as refused:
        print(f"not registered: running executions would lose their code\n{refused}", file=sys.stderr)
        print("Keep the code until these executions have closed, or use --force.", file=sys.stderr)
        return FOUND
    except admin.SignatureLost as refused:
        print(f"not registered: {refused}", file=sys.stderr)
        print("Name the secret with --secret-env NAME, or use --no-secret.", file=sys.stderr)
        return FOUND
    except Exception as error:
        if given.debug:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if getattr(error, "sqlstate", None) == "42501":
            print(
                "To register, your role must be a deployer: xdb.grant_usage(role, deployer => true). "
                "To change an existing worker or process type, it also needs the privileges of its owner.",
                file=sys.stderr,
            )
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m xdb", description="Registers workers and process types of XDB.")
    parser.add_argument("--debug", action="store_true", help="print errors with their tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    register = _command(commands, "register", _register, "register a worker and its process types, in one transaction")
    _names_worker(register)
    _connects(register)
    register.add_argument("--secret-env", metavar="NAME", help="environment variable that holds the worker's secret")
    register.add_argument("--no-secret", action="store_true", help="do not sign calls, even if the registered worker has a secret")
    register.add_argument("--force", action="store_true", help="register even if running executions would lose their code")
    register.add_argument("--dry-run", action="store_true", help="only print what would change")

    check = _command(commands, "check", _check, "compare the code with what is registered, what runs and what workers serve")
    _connects(check)

    sql = _command(commands, "sql", _sql, "print the SQL that `register` would run, for migrations")
    _names_worker(sql)
    sql.add_argument("--secret", metavar="REFERENCE", help="env:NAME or file:NAME; the Postgres server reads the secret there")

    serve = _command(commands, "serve", _serve, "serve the worker with Python's own HTTP server, until SIGTERM or SIGINT")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8080, help="port to listen on (default 8080)")
    serve.add_argument("--grace", type=float, default=30, metavar="SECONDS", help="when stopping, wait this long for running calls (default 30)")

    _command(commands, "definition", _definition, "print the definitions of the process types as JSON")
    return parser


def _command(commands: Any, name: str, run: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    parser.add_argument("worker", metavar="MODULE:WORKER", help="the xdb.Worker or xdb.PullWorker, for instance app:worker")
    parser.set_defaults(command=run, wrong=parser.error)
    return parser


def _names_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="name of the worker in the database (default for an xdb.PullWorker: its own name)")
    parser.add_argument("--url", help="URL at which the engine calls the worker, for instance http://10.0.0.5:8080")
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="most calls at one time (default: the worker's threads)")
    parser.add_argument("--role", help="for an xdb.PullWorker, instead of --url: the role whose members may claim its calls")


def _connects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", default="", help="conninfo of libpq (default: PGHOST, PGUSER and so on)")


def _place(given: argparse.Namespace, worker: AnyWorker) -> dict[str, Any]:
    """The worker's name, and its URL or role. Exits with status 2 if arguments don't fit the kind of worker."""
    if isinstance(worker, Claiming):
        needed, foreign, name = ["role"], ["url", "max_concurrency", "secret", "secret_env"], given.name or worker.name
    else:
        needed, foreign, name = ["name", "url"], ["role"], given.name
    missing = [each for each in needed if getattr(given, each) is None]
    if missing:
        given.wrong(f"a {type(worker).__name__} needs {_options(missing)}")
    refused = [each for each in foreign if getattr(given, each, None) is not None]
    if refused:
        given.wrong(f"a {type(worker).__name__} has no {_options(refused)}")
    return {"name": name, "url": given.url, "max_concurrency": given.max_concurrency, "role": given.role}


def _options(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _load(place: str) -> AnyWorker:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in (path or "worker").split("."):
        found = getattr(found, name)
    if not isinstance(found, (Worker, PullWorker, AsyncPullWorker)):
        raise TypeError(f"{place} is a {type(found).__name__}: name an xdb.Worker or xdb.PullWorker")
    return found


def _register(given: argparse.Namespace, worker: AnyWorker) -> int:
    place, secret = _place(given, worker), None
    if given.secret_env is not None:
        secret = os.environ.get(given.secret_env)
        if not secret:
            raise ValueError(f"the environment variable {given.secret_env} is not set or empty: set it to the worker's secret")
    with admin.Admin(given.dsn) as connected:
        changes = connected.register(
            worker, **place, secret=secret, no_secret=given.no_secret, force=given.force, dry_run=given.dry_run
        )
    made = [str(change) for change in changes if change]
    print("\n".join(made) or f"nothing changes: worker {place['name']} and its process types are registered already")
    return NOTHING


def _check(given: argparse.Namespace, worker: AnyWorker) -> int:
    with admin.Admin(given.dsn) as connected:
        findings = connected.check(worker) + connected.ask_workers(worker)
    for finding in findings:
        print(f"note: {finding}" if finding.is_note else finding)
    if not findings:
        print(f"all is well: {', '.join(served_by(worker).types)}")
    return NOTHING if all(finding.is_note for finding in findings) else FOUND


def _sql(given: argparse.Namespace, worker: AnyWorker) -> int:
    sys.stdout.write(admin.sql(worker, **_place(given, worker), secret=given.secret))
    return NOTHING


def _serve(given: argparse.Namespace, worker: AnyWorker) -> int:
    # For a pull worker, serve() raises an error that says how to run it.
    serve(cast(Worker, worker), host=given.host, port=given.port, grace=given.grace)
    return NOTHING


def _definition(_given: argparse.Namespace, worker: AnyWorker) -> int:
    made = {name: process.definition() for name, process in served_by(worker).types.items()}
    print(json.dumps(made, sort_keys=True, indent=2, ensure_ascii=False))
    return NOTHING
