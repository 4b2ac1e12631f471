"""A server, consoles of `xdb console`, and Chromium for the tests of the console: see scripts/console-tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from psycopg import sql

from xdb.testing.pytest_plugin import Database, TestServer, new_database
from xdb.testing.server import Server

expect.set_options(timeout=30_000)

XDB = os.environ["XDB_PROGRAM"]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"

# A browser that reaches this machine alone. Each *.example is a name of this machine, as after DNS rebinding.
ARGUMENTS = [
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-gpu",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
]

PASSWORD = "correct horse"
HOSTILE = "\"><img src=x onerror=alert(1)><script>alert(2)</script>"
BIG = "1234567890123456789012345678901234567890"

# What the processes of these tests are made of. Functions answer all calls. `app` may register types.
SCHEMA = f"""
CREATE FUNCTION public.await_box(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('commandRequest',
    jsonb_build_object('waitingType', 'AnyOfCompletion',
        'timerCommands', '[{{"commandId": "patience", "delayInSeconds": 86400}}]'::jsonb,
        'localQueueCommands', jsonb_build_array(jsonb_build_object('commandId', 'letter', 'queueName', 'box')))) $$;
CREATE FUNCTION public.done(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('stateDecision',
    jsonb_build_object('threadCloseDecision', jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS',
        'closeInput', request -> 'stateInput'))) $$;
CREATE FUNCTION public.again(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('stateDecision',
    jsonb_build_object('nextStates', jsonb_build_array(CASE WHEN (request -> 'stateInput')::int > 0
        THEN jsonb_build_object('stateId', 'Again', 'stateInput', (request -> 'stateInput')::int - 1)
        ELSE '{{"stateId": "Wait"}}' END))) $$;
CREATE FUNCTION public.fail(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION USING MESSAGE = $m${HOSTILE}$m$, ERRCODE = 'AC001';
END $$;
"""
WAITS = {"waitUntilFunction": "public.await_box", "executeFunction": "public.done"}
FAILS = {"skipWaitUntil": True, "executeFunction": "public.fail"}
TYPES: dict[str, dict[str, Any]] = {
    "Mailbox": {"startingState": "Wait", "states": {"Wait": WAITS}, "localQueues": ["box", "other"]},
    "Long": {"startingState": "Again", "states": {
        "Again": {"skipWaitUntil": True, "executeFunction": "public.again"}, "Wait": WAITS}, "localQueues": ["box", "other"]},
    "Broken": {"startingState": "Fail", "states": {
        "Fail": {**FAILS, "executeApiRetryPolicy": {"initialIntervalSeconds": 3600, "maximumIntervalSeconds": 3600}}}},
}


class RestartableServer(Server):
    """A server that asks members of the role `people` for a password."""

    def _configure(self, settings: Any) -> None:
        super()._configure(settings)
        lines = "local all +people scram-sha-256\nlocal all all trust\n"
        (self.directory / "data" / "pg_hba.conf").write_text(lines)

    def halt(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        self._server.wait(30)

    def launch(self) -> None:
        self._start()


@pytest.fixture(scope="session")
def server() -> Iterator[RestartableServer]:
    made = RestartableServer()
    try:
        with psycopg.connect(made.dsn, autocommit=True) as conn:
            conn.execute("CREATE ROLE people NOLOGIN")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def xdb_server(server: RestartableServer) -> TestServer:
    return TestServer(server.dsn)


def prepare(database: Database) -> None:
    """The types of these tests, and the roles alice and bob, which have a password."""
    with psycopg.connect(database.superuser_dsn, autocommit=True) as conn:
        conn.execute(SCHEMA)
        for role in ("alice", "bob"):
            person(conn, role)
        conn.execute("SELECT xdb.grant_usage('app', deployer => true)")
    for name, definition in TYPES.items():
        register(database, name, definition)


def person(conn: psycopg.Connection[Any], role: str) -> None:
    """A role that logs in with a password, and may use XDB."""
    name = sql.Identifier(role)
    if conn.execute("SELECT true FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE people").format(name, PASSWORD))
    conn.execute("SELECT xdb.grant_usage(quote_ident(%s)::regrole)", (role,))


def register(database: Database, name: str, definition: dict[str, Any]) -> None:
    database.execute("SELECT xdb.register_process_type(%s, NULL, %s::jsonb)", name, json.dumps(definition))


def until(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what} within {seconds} s"
        time.sleep(0.05)


@pytest.fixture
def db(xdb_db: Database) -> Database:
    prepare(xdb_db)
    return xdb_db


@pytest.fixture(scope="module")
def module_db(xdb_server: TestServer) -> Iterator[Database]:
    with new_database(xdb_server) as database:
        prepare(database)
        yield database


class Console:
    """A running `xdb console`."""

    def __init__(self, server: Server, database: str, *arguments: str, role: str = "app") -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment |= {"PGHOST": str(server.directory), "PGPORT": "5432", "PGDATABASE": database, "PGUSER": role}
        command = [XDB, "console", "--listen", "127.0.0.1:0", *arguments]
        if "--listen" in arguments:
            del command[2:4]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        # With the token, if there is one.
        self.opening = self.process.stdout.readline().strip()
        assert self.opening.startswith("http://127.0.0.1:"), self.opening
        self.base = self.opening.split("?")[0]
        self.authority = self.base.split("/")[2]

    def at(self, page: str, **fields: str) -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())
        return f"{self.base}{page}?{query}" if query else f"{self.base}{page}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def consoles(server: RestartableServer) -> Iterator[Callable[..., Console]]:
    made: list[Console] = []

    def start(database: Database | str, *arguments: str, **options: str) -> Console:
        made.append(Console(server, getattr(database, "name", database), *arguments, **options))
        return made[-1]

    yield start
    for console in made:
        console.stop()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    arguments = [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else ARGUMENTS
    launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
    yield launched
    launched.close()


class Visitors:
    """Browsers of visitors. At the end of the test, none of their pages may have had an error, a violation of the policy for
    contents, or a dialog: text of an application has then become a script."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.findings: list[str] = []
        # Parts of findings that the test is about. The login form has the status 401.
        self.expected = ["status of 401"]

    def new(self, **options: Any) -> Page:
        """A page of a browser without cookies."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(30_000)
        self._contexts.append(context)
        context.on("page", self._watch)
        context.add_init_script(
            "document.addEventListener('securitypolicyviolation', (e) => console.error(`violation of ${e.violatedDirective}`))"
        )
        return context.new_page()

    def _watch(self, page: Page) -> None:
        page.on("console", lambda message: self._note(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self._note(str(error)))

        def dialog(shown: Any) -> None:
            self._note(f"a dialog: {shown.message}")
            shown.dismiss()

        page.on("dialog", dialog)

    def _note(self, finding: str) -> None:
        self.findings.append(finding)

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        unexpected = [finding for finding in self.findings if not any(part in finding for part in self.expected)]
        assert not unexpected, unexpected


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Visitors]:
    made = Visitors(browser)
    yield made
    made.close()


def log_in(page: Page, console: Console, role: str, password: str = PASSWORD) -> None:
    page.goto(console.base)
    page.get_by_label("Role").fill(role)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def ids(page: Page) -> list[str]:
    """The processes of a list, from its first row on."""
    return page.locator("tbody tr td:first-child a").all_inner_texts()
