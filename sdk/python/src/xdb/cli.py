"""`python -m xdb`: registers what a module defines, says what that changes, and serves it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Union, cast

from . import admin
from .fetching import Fetching, served_by
from .pull import AsyncPullWorker, PullWorker
from .serve import serve
from .worker import Worker

AnyWorker = Union[Worker, PullWorker, AsyncPullWorker]

NOTHING, FOUND, WRONG = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and gives its exit status: 1 where `check` or `register` finds something in the way, 2 for errors."""
    given = _parser().parse_args(arguments)
    # As for `python -m module`: what is asked for is most often in this directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        status: int = given.command(given, _load(given.worker))
        return status
    except admin.Stranding as refused:
        print(f"not registered: executions that run would have no code any more.\n{refused}", file=sys.stderr)
        print("Keep the code until they have ended, or use --force.", file=sys.stderr)
        return FOUND
    except admin.SignatureLost as refused:
        print(f"not registered: {refused}.", file=sys.stderr)
        print("Use --secret-env, or --no-secret.", file=sys.stderr)
        return FOUND
    except Exception as error:
        if given.debug:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if getattr(error, "sqlstate", None) == "42501":
            print(
                "Registering takes xdb.grant_usage(role, deployer => true) and, for what is registered already, "
                "the privileges of the role that it belongs to.",
                file=sys.stderr,
            )
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m xdb", description="Registers workers and process types of XDB.")
    parser.add_argument("--debug", action="store_true", help="errors with their tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    register = _command(commands, "register", _register, "registers a worker and its process types, in one transaction")
    _names_worker(register)
    _connects(register)
    register.add_argument("--secret-env", metavar="NAME", help="the environment variable that has the worker's secret")
    register.add_argument("--no-secret", action="store_true", help="calls are not signed, also if they were")
    register.add_argument("--force", action="store_true", help="also if executions that run would be stranded")
    register.add_argument("--dry-run", action="store_true", help="only prints what would change")

    check = _command(commands, "check", _check, "compares what is registered, what runs and what workers say with the code")
    _connects(check)

    sql = _command(commands, "sql", _sql, "prints SQL that registers the same, for migrations")
    _names_worker(sql)
    sql.add_argument("--secret", metavar="REFERENCE", help="env:NAME or file:NAME, which the server follows")

    serve = _command(commands, "serve", _serve, "serves the worker until SIGTERM, by Python's own HTTP server")
    serve.add_argument("--host", default="127.0.0.1", help="by default 127.0.0.1")
    serve.add_argument("--port", type=int, default=8080, help="by default 8080")
    serve.add_argument("--grace", type=float, default=30, metavar="SECONDS", help="for calls that run at the end; 30")

    _command(commands, "definition", _definition, "prints the definitions as JSON")
    return parser


def _command(commands: Any, name: str, run: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    parser.add_argument("worker", metavar="MODULE:WORKER", help="where the xdb.Worker or xdb.PullWorker is, e.g. app:worker")
    parser.set_defaults(command=run, wrong=parser.error)
    return parser


def _names_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="the worker's name in the database; an xdb.PullWorker has one")
    parser.add_argument("--url", help="where the server calls it, e.g. http://10.0.0.5:8080")
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="the most calls at one time; by default the worker's threads")
    parser.add_argument("--role", help="in place of these two, of an xdb.PullWorker: whose members fetch its calls")


def _connects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", default="", help="conninfo of libpq; by default that of the environment")


def _place(given: argparse.Namespace, worker: AnyWorker) -> dict[str, Any]:
    """How the worker is called, and where its calls go. Which arguments that takes, only the worker says."""
    if isinstance(worker, Fetching):
        needed, foreign, name = ["role"], ["url", "max_concurrency", "secret", "secret_env"], given.name or worker.name
    else:
        needed, foreign, name = ["name", "url"], ["role"], given.name
    missing = [each for each in needed if getattr(given, each) is None]
    if missing:
        given.wrong(f"a {type(worker).__name__} needs {_options(missing)}")
    refused = [each for each in foreign if getattr(given, each, None) is not None]
    if refused:
        given.wrong(f"a {type(worker).__name__} does not take {_options(refused)}")
    return {"name": name, "url": given.url, "max_concurrency": given.max_concurrency, "role": given.role}


def _options(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _load(place: str) -> AnyWorker:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in (path or "worker").split("."):
        found = getattr(found, name)
    if not isinstance(found, (Worker, PullWorker, AsyncPullWorker)):
        raise TypeError(f"{place} is no xdb.Worker and no xdb.PullWorker")
    return found


def _register(given: argparse.Namespace, worker: AnyWorker) -> int:
    place, secret = _place(given, worker), None
    if given.secret_env is not None:
        secret = os.environ.get(given.secret_env)
        if not secret:
            raise ValueError(f"the environment variable {given.secret_env} has no secret")
    with admin.Admin(given.dsn) as connected:
        changes = connected.register(
            worker, **place, secret=secret, no_secret=given.no_secret, force=given.force, dry_run=given.dry_run
        )
    made = [str(change) for change in changes if change]
    print("\n".join(made) or f"nothing changes: {place['name']} is registered as it is")
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
    # It says of a worker that can't be served what to do instead.
    serve(cast(Worker, worker), host=given.host, port=given.port, grace=given.grace)
    return NOTHING


def _definition(_given: argparse.Namespace, worker: AnyWorker) -> int:
    made = {name: process.definition() for name, process in served_by(worker).types.items()}
    print(json.dumps(made, sort_keys=True, indent=2, ensure_ascii=False))
    return NOTHING
