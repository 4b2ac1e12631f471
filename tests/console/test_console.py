"""The console in a real Chromium. What raw HTTP shows as well is in crates/xdb/tests/console.rs."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from conftest import BIG, FAILS, HOSTILE, PASSWORD, WAITS, Console, ids, log_in, person, prepare, register, until
from playwright.sync_api import Page, expect
from psycopg.types.json import Jsonb

from xdb.testing.pytest_plugin import new_database

PAGES = ("", "failing", "workers", "queues", "schedules", "locks")


def start(db: Any, process: str, process_type: str = "Mailbox", role: str = "app", **options: Any) -> None:
    named = "".join(f", {name} => %s" for name in options)
    with psycopg.connect(db.superuser_dsn, autocommit=True, user=role, password=PASSWORD) as conn:
        conn.execute(f"SELECT xdb.start_process(%s, %s{named})", (process, process_type, *options.values()))


def seen(db: Any, query: str, *params: Any) -> list[Any]:
    """As the superuser sees it."""
    with psycopg.connect(db.superuser_dsn, autocommit=True) as conn:
        return conn.execute(query, params).fetchall()


def waits(db: Any, process: str) -> None:
    until(lambda: seen(db, "SELECT true FROM xdb.waits WHERE process_id = %s", process), f"{process} waits")


def fails(db: Any, process: str) -> None:
    until(lambda: db.execute("SELECT true FROM xdb.failures WHERE process_id = %s", process), f"{process} has failed")


def status(db: Any, process: str) -> str:
    [[text]] = db.execute("SELECT status FROM xdb.processes WHERE process_id = %s ORDER BY execution_id DESC LIMIT 1", process)
    return str(text)


def is_whole(page: Page) -> None:
    """No text has become an element."""
    assert page.locator("img, iframe, object, base").count() == 0
    assert page.locator("script").evaluate_all("all => all.map((one) => one.getAttribute('src'))") == ["xdb.js"]
    assert page.locator("[style]").count() == 0


def test_a_role_sees_its_own_processes_and_no_others(db, consoles, visitors) -> None:
    start(db, "of-alice", role="alice")
    start(db, "of-bob", role="bob")
    console = consoles(db, "--login")
    alice, bob = visitors.new(), visitors.new()
    for page, role in ((alice, "alice"), (bob, "bob")):
        log_in(page, console, role)
        expect(page.get_by_role("heading", name="Processes")).to_be_visible()
        assert ids(page) == [f"of-{role}"]
        expect(page.get_by_text(f"role {role}")).to_be_visible()
    visitors.expected.append("status of 404")
    answer = bob.goto(console.at("process", id="of-alice"))
    assert answer is not None and answer.status == 404
    expect(bob.get_by_role("alert")).to_contain_text("of-alice")
    # Neither is an operator: no figures of the engine.
    assert alice.locator("svg").count() == 0


@pytest.fixture(scope="module")
def hostile(module_db):
    """Names and texts of an application that would be markup, wherever an application has a say."""
    db = module_db
    with psycopg.connect(db.superuser_dsn, autocommit=True) as conn:
        person(conn, HOSTILE)
        conn.execute("SELECT xdb.register_worker(%s, 'http://127.0.0.1:1')", (HOSTILE,))
    mailbox = {"startingState": HOSTILE, "states": {HOSTILE: WAITS}, "localQueues": [HOSTILE, "box"], "globalQueues": [HOSTILE]}
    register(db, HOSTILE, mailbox)
    incident = {"executeApiRetryPolicy": {"maximumAttempts": 1}, "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}}
    register(db, "Incident", {"startingState": HOSTILE, "states": {HOSTILE: {**FAILS, **incident}}})
    schedule = {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}
    register(db, "Schedule", {"startingState": "Tick", "states": {"Tick": schedule}})
    options = Jsonb({"locks": [HOSTILE]})
    value = Jsonb({HOSTILE: HOSTILE})
    start(db, HOSTILE, HOSTILE, role=HOSTILE, input=value, local_attributes=value, options=options)
    start(db, "waits for the lock", HOSTILE, role=HOSTILE, options=options)
    start(db, f"fails {HOSTILE}", "Broken", role=HOSTILE)
    start(db, f"incident {HOSTILE}", "Incident", role=HOSTILE)
    with psycopg.connect(db.superuser_dsn, autocommit=True, user=HOSTILE, password=PASSWORD) as conn:
        conn.execute("SELECT xdb.publish(%s, %s, %s::jsonb, message_id => %s)", (HOSTILE, HOSTILE, value, HOSTILE))
        conn.execute("SELECT xdb.publish_global(%s, %s::jsonb)", (HOSTILE, value))
        conn.execute(
            "SELECT xdb.schedule(%s, '0 3 * * *', jsonb_build_object('process_type', 'Mailbox', 'process_id', %s::text))",
            (f"schedule {HOSTILE}", HOSTILE),
        )
        conn.execute("SELECT xdb.pause_process(%s, reason => %s)", (HOSTILE, HOSTILE))
        until(lambda: conn.execute("SELECT true FROM xdb.incidents").fetchone(), "there is an incident")
        until(lambda: conn.execute("SELECT true FROM xdb.failures").fetchone(), "there is a failure")
    return db


def test_no_text_of_an_application_becomes_markup(hostile, consoles, visitors) -> None:
    console = consoles(hostile, "--login")
    page = visitors.new()
    log_in(page, console, HOSTILE)
    expect(page.get_by_text(f"role {HOSTILE}")).to_be_visible()
    addresses = [console.at(name) for name in PAGES] + [
        console.at("process", id=HOSTILE),
        console.at("process", id=f"fails {HOSTILE}"),
        console.at("process", id=f"incident {HOSTILE}"),
        console.at("process", id=f"schedule {HOSTILE}"),
        console.at("queues", id=HOSTILE),
        console.at("queues", queue=HOSTILE),
        console.at("locks", name=HOSTILE),
        console.at("", id=HOSTILE, type=HOSTILE, owner=HOSTILE),
    ]
    for address in addresses:
        page.goto(address)
        assert page.get_by_role("alert").count() == 0, f"{address}: {page.get_by_role('alert').all_inner_texts()}"
        if address != console.at("queues"):
            expect(page.locator("main")).to_contain_text("onerror=alert(1)")
        is_whole(page)
    # What a visitor types comes back as text.
    visitors.expected.append("status of 4")
    page.goto(console.at("process", id=f"{HOSTILE} is none"))
    expect(page.get_by_role("alert")).to_contain_text("onerror")
    is_whole(page)
    page.goto(console.at("process", id=HOSTILE))
    action = page.locator("form", has=page.get_by_role("button", name="Publish"))
    action.get_by_label("queue").fill(HOSTILE)
    action.get_by_label("message").fill(f"{{{HOSTILE}")
    action.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid input syntax for type json")
    is_whole(page)
    page.get_by_role("button", name="Log out").click()
    log_in(page, console, HOSTILE + " is none")
    expect(page.get_by_role("alert")).to_contain_text("does not exist")
    is_whole(page)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], address: str = "127.0.0.1") -> Iterator[int]:
    """An HTTP server of a test: its port."""
    server = ThreadingHTTPServer((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_another_site_can_neither_read_nor_act(db, consoles, visitors) -> None:
    start(db, "mine")
    [[execution]] = db.execute("SELECT execution_id::text FROM xdb.processes")
    console = consoles(db)
    page = visitors.new()
    page.goto(console.opening)
    fields = {"action": "stop", "id": "mine", "execution": execution, "confirm": "mine"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    form = f'<!doctype html><title>evil</title><form method="post" action="{console.base}action">{inputs}<button>go</button></form>'

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(form.encode())

        def log_message(self, *_: Any) -> None:
            pass

    # What a browser says of a refusal, and of the icon that it asks for besides.
    visitors.expected += ["status of 403", "blocked by CORS policy", "net::ERR_FAILED", "status of 404"]
    with serving(Evil) as port:
        # The first one is of the same site as the console, for browsers: another port. The second one is not.
        for host in ("127.0.0.1", "evil.example"):
            page.goto(f"http://{host}:{port}/")
            with page.expect_navigation() as navigation:
                page.get_by_role("button", name="go").click()
            assert navigation.value.status == 403
            page.goto(f"http://{host}:{port}/")
            read = "(url) => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')"
            assert page.evaluate(read, console.base) == "refused"
            with page.expect_popup() as popup:
                page.evaluate("(url) => { window.opened = window.open(url); }", console.base)
            expect(popup.value).to_have_url(console.base)
            expect(popup.value.get_by_role("heading", level=1)).to_be_visible()
            look = "() => { try { return window.opened.document.title } catch (error) { return error.name } }"
            assert page.evaluate(look) == "SecurityError"
            popup.value.close()
    # A name that leads here, as after DNS rebinding: the browser takes the console for a page of that site.
    answer = page.goto(f"http://evil.example:{console.authority.split(':')[1]}/")
    assert answer is not None and answer.status == 403
    expect(page.locator("body")).to_contain_text("This host is not known")
    assert status(db, "mine") == "RUNNING"


def test_a_read_only_console_has_nothing_that_changes_something(db, consoles, visitors) -> None:
    start(db, "mine")
    waits(db, "mine")
    page = visitors.new()
    console = consoles(db, "--read-only")
    page.goto(console.opening)
    for address in [*map(console.at, PAGES), console.at("process", id="mine")]:
        page.goto(address)
        labels = page.locator("form[method=post] button").all_inner_texts()
        assert labels == ["Log out"], address
    visitors.expected.append("status of 405")
    post = "fetch('action', {method: 'POST', body: new URLSearchParams({action: 'stop', id: 'mine', confirm: 'mine'})})"
    assert page.evaluate(f"{post}.then((answer) => answer.status)") == 405
    assert status(db, "mine") == "RUNNING"


def acts(page: Page, console: Console, process: str, label: str, **fields: str) -> str:
    """Takes an action by its form. Returns the statement that the page shows."""
    page.goto(console.at("process", id=process))
    form = page.locator("form", has=page.get_by_role("button", name=label, exact=True))
    for name, value in fields.items():
        form.locator(f"input[name={name}]").fill(value)
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", name="Action")).to_be_visible()
    assert page.get_by_role("alert").count() == 0, page.get_by_role("alert").all_inner_texts()
    expect(page.get_by_text("Done.")).to_be_visible()
    return page.locator("pre").inner_text()


@pytest.mark.parametrize("with_script", [True, False])
def test_each_action_has_its_effect_and_shows_its_statement(db, consoles, visitors, with_script) -> None:
    for process in ("letter", "skipped", "stopped"):
        start(db, process, input=Jsonb(process))
    start(db, "broken", "Broken")
    for process in ("letter", "skipped", "stopped"):
        waits(db, process)
    fails(db, "broken")
    page = visitors.new(java_script_enabled=with_script)
    console = consoles(db)
    page.goto(console.opening)
    assert ids(page) == ["broken", "stopped", "skipped", "letter"]
    page.get_by_role("link", name="broken").click()
    expect(page.get_by_text("AC001").first).to_be_visible()

    def described(process: str, path: str) -> Any:
        [[value]] = db.execute(f"SELECT xdb.describe_process(%s) #> '{path}'", process)
        return value

    attempt = described("broken", "{threads,0,attempt}")
    assert acts(page, console, "broken", "Retry now").startswith("SELECT xdb.retry_now('broken', execution_id => '")
    until(lambda: described("broken", "{threads,0,attempt}") > attempt, "a further attempt was made")
    assert "xdb.pause_process('letter', reason => 'it''s late'" in acts(page, console, "letter", "Pause", reason="it's late")
    assert described("letter", "{pause,reason}") == "it's late"
    expect_why(page, console, "letter", "it's late")
    acts(page, console, "letter", "Resume")
    assert described("letter", "{pause}") is None
    # No digit is lost between the form, the database and the page.
    assert f"'{BIG}'::jsonb" in acts(page, console, "letter", "Publish", queue="other", payload=BIG)
    page.goto(console.at("queues", id="letter"))
    expect(page.get_by_role("cell", name=BIG)).to_be_visible()
    acts(page, console, "letter", "Publish", queue="box", payload='"hello"')
    until(lambda: status(db, "letter") == "COMPLETED", "the message was consumed")
    acts(page, console, "skipped", "Skip timer", step="Wait-1", command="patience")
    until(lambda: status(db, "skipped") == "COMPLETED", "the timer was skipped")
    assert "xdb.stop_process('stopped'" in acts(page, console, "stopped", "Stop", confirm="stopped", reason="enough")
    assert status(db, "stopped") == "TERMINATED"
    page.get_by_role("link", name="stopped").click()
    expect(page.locator("main")).to_contain_text("TERMINATED")
    assert page.locator("form[method=post] button").all_inner_texts() == ["Log out"]


def expect_why(page: Page, console: Console, process: str, part: str) -> None:
    page.goto(console.at("process", id=process))
    expect(page.get_by_role("region", name="Why is it where it is?")).to_contain_text(part)


def test_the_keyboard_is_enough(db, consoles, visitors) -> None:
    start(db, "mine", role="alice")
    waits(db, "mine")
    console = consoles(db, "--login")
    page = visitors.new()
    page.goto(console.base)

    def focus(name: str, role: str | None = None) -> None:
        """Presses Tab until the element with this label or text has the focus."""
        words = "(e) => [(e.labels && e.labels[0] ? e.labels[0] : e).innerText.trim(), getComputedStyle(e).outlineStyle]"
        for _ in range(60):
            page.keyboard.press("Tab")
            text, outline = page.locator(":focus").evaluate(words) if page.locator(":focus").count() else ("", "")
            if text == name:
                assert outline != "none", f"{name}: the focus is not visible"
                return
        raise AssertionError(f"{name} is not reached")

    for label, text in (("Role", "alice"), ("Password", PASSWORD)):
        focus(label)
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Processes")).to_be_visible()
    focus("mine")
    # The list is read again meanwhile: the focus stays where it is.
    start(db, "other", role="alice")
    with page.expect_response(lambda answer: answer.url == console.base):
        pass
    assert page.locator(":focus").inner_text() == "mine"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="mine")).to_be_visible()
    focus("type the process id")
    page.keyboard.type("mine")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Done.")).to_be_visible()
    assert seen(db, "SELECT status FROM xdb.processes WHERE process_id = 'mine'") == [("TERMINATED",)]


def test_an_open_page_follows_the_database(db, consoles, visitors, server) -> None:
    start(db, "first", input=Jsonb(1))
    waits(db, "first")
    console = consoles(db)
    page, away, process = visitors.new(), visitors.new(), None
    page.goto(console.opening)
    process = page.context.new_page()
    process.goto(console.at("process", id="first"))
    start(db, "second")
    expect(page.get_by_role("link", name="second")).to_be_visible()
    page.get_by_label("Owner").fill("half-typed")
    visitors.expected.append("status of 503")
    server.halt()
    try:
        for shown in (page, process):
            expect(shown.get_by_role("status")).to_contain_text("not connected")
        # What was shown stays.
        expect(page.get_by_role("link", name="second")).to_be_visible()
        lost = page.context.new_page()
        answer = lost.goto(console.at("process", id="first"))
        assert answer is not None and answer.status == 503
        expect(lost.get_by_role("alert")).to_contain_text("not connected")
    finally:
        server.launch()
    for shown in (page, process):
        expect(shown.get_by_role("status")).to_be_hidden()
    expect(lost.get_by_role("heading", name="first")).to_be_visible()
    start(db, "third")
    expect(page.get_by_role("link", name="third")).to_be_visible()
    assert page.get_by_label("Owner").input_value() == "half-typed"
    # The console itself has ended.
    visitors.expected.append("ERR_")
    console.stop()
    expect(page.get_by_role("status")).to_contain_text("the console does not answer")


def test_the_end_of_a_visit_ends_its_open_pages(db, consoles, visitors) -> None:
    start(db, "mine", role="alice")
    console = consoles(db, "--login")
    page = visitors.new()
    log_in(page, console, "alice")
    # An open page without a person does not make the visit longer.
    with page.expect_request(lambda request: "xdb-read-again" in request.headers):
        pass
    other = page.context.new_page()
    other.goto(console.at("process", id="mine"))
    page.get_by_role("button", name="Log out").click()
    expect(other.get_by_label("Password")).to_be_visible()
    other.go_back()
    assert "mine" not in other.content()
    # A console that was started again knows no visit.
    log_in(page, console, "alice")
    expect(page.get_by_role("link", name="mine")).to_be_visible()
    console.stop()
    visitors.expected.append("ERR_")
    consoles(db, "--login", "--listen", console.authority)
    expect(page.get_by_label("Password")).to_be_visible()


def test_five_wrong_passwords_are_enough(db, consoles, visitors) -> None:
    console = consoles(db, "--login")
    page = visitors.new()
    for _ in range(5):
        log_in(page, console, "alice", "wrong")
        expect(page.get_by_role("alert")).to_contain_text("password authentication failed")
    log_in(page, console, "alice")
    expect(page.get_by_role("alert")).to_contain_text("Too many failed logins: wait for a minute.")


def test_a_proxy_can_have_it_below_a_path(db, consoles, visitors) -> None:
    start(db, "mine", role="alice")
    waits(db, "mine")
    places: dict[str, str] = {}

    class Proxy(BaseHTTPRequestHandler):
        """Passes /tools/xdb on as it is, like `location /tools/xdb { proxy_pass http://…; proxy_set_header Host $http_host; }`."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/tools/xdb"):
                self.send_error(404)
                return
            upstream = http.client.HTTPConnection(places["console"])
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Proxy) as port:
        host = f"localhost:{port}"
        console = consoles(db, "--login", "--base-path", "/tools/xdb", "--host", host)
        places["console"] = console.authority
        console.base = f"http://{host}/tools/xdb/"
        page = visitors.new()
        page.goto(f"http://{host}/tools/xdb")
        expect(page).to_have_url(console.base)
        log_in(page, console, "alice")
        for name in ("Failing", "Workers and types", "Queues", "Schedules", "Locks", "Processes"):
            page.get_by_role("navigation").get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(name)
            assert page.url.startswith(console.base)
        page.get_by_role("link", name="mine").click()
        with page.expect_response(re.compile("process")):
            pass
        assert "xdb.pause_process('mine'" in acts(page, console, "mine", "Pause")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Password")).to_be_visible()
        expect(page).to_have_url(console.base)


def test_a_list_in_pages_shows_each_process_once(db, consoles, visitors) -> None:
    db.execute("SELECT xdb.start_process('p' || n, 'Mailbox') FROM generate_series(1, 120) AS n")
    console = consoles(db)
    # With it, the first page shows newer processes before the next one is opened.
    page = visitors.new(java_script_enabled=False)
    page.goto(console.opening)
    seen: list[str] = []
    for number in range(3):
        seen += ids(page)
        start(db, f"new{number}")
        if number < 2:
            page.get_by_role("link", name="Next page").click()
            expect(page).to_have_url(re.compile("before="))
            until(lambda: ids(page)[0] != seen[-50], "the next page is there")
    assert sorted(seen) == sorted(f"p{number}" for number in range(1, 121))
    assert page.get_by_role("link", name="Next page").count() == 0
    page.get_by_label("Process id begins with").fill("p11")
    page.keyboard.press("Enter")
    expect(page.get_by_text("11 shown")).to_be_visible()
    assert sorted(ids(page)) == sorted(["p11", *(f"p11{digit}" for digit in range(10))])


def test_a_process_with_many_events_is_shown_in_pages(db, consoles, visitors) -> None:
    start(db, "busy", "Long", input=Jsonb(150))
    waits(db, "busy")
    console = consoles(db)
    page = visitors.new()
    page.goto(console.opening)
    page.goto(console.at("process", id="busy"))
    numbers: list[int] = []
    events = page.locator("table", has=page.get_by_role("columnheader", name="Event"))
    first = events.locator("tbody td:first-child").first
    while True:
        shown = [int(number) for number in events.locator("tbody td:first-child").all_inner_texts()]
        assert len(shown) <= 200
        numbers += shown
        older = page.get_by_role("link", name="Older events")
        if older.count() == 0:
            break
        older.click()
        until(lambda: first.inner_text() != str(shown[0]), "the next page is there")
    [[last]] = db.execute("SELECT max(event_id) FROM xdb.history WHERE process_id = 'busy'")
    assert numbers == list(range(last, 0, -1)) and last > 200
    page.get_by_role("link", name="states", exact=True).click()
    expect(events.locator("tbody tr").first).to_contain_text("StateStarted")
    db.execute("SELECT count(xdb.publish('busy', 'other', to_jsonb(n))) FROM generate_series(1, 12) AS n")
    page.goto(console.at("queues", id="busy"))
    assert page.locator("tbody td:nth-child(4)").all_inner_texts() == [str(n) for n in range(1, 13)]


def test_figures_are_drawn_for_roles_that_may_read_them(db, consoles, visitors) -> None:
    with psycopg.connect(db.superuser_dsn, autocommit=True) as conn:
        conn.execute("SELECT xdb.grant_usage('bob', operator => true)")
    start(db, "mine", role="alice")
    console = consoles(db, "--login")
    bob = visitors.new()
    log_in(bob, console, "bob")
    section = bob.get_by_role("region", name="Figures")
    # After the second sample, five seconds later.
    expect(section.locator("polyline").first).to_be_attached()
    pictures = section.get_by_role("img")
    assert pictures.count() == 3
    calls = section.get_by_role("img", name="Calls per second, last 1 min", exact=True)
    expect(calls.locator("desc")).to_have_text(re.compile(r"^Now [0-9.]+, at most [0-9.]+\.$"))
    section.get_by_text("Highest figures").click()
    expect(section.get_by_role("row")).to_have_count(13)
    # It stays open while the page is read again.
    with bob.expect_response(console.base):
        pass
    expect(section.get_by_role("table")).to_be_visible()
    bob.emulate_media(media="print")
    expect(pictures.last).to_be_visible()
    alice = visitors.new()
    log_in(alice, console, "alice")
    expect(alice.get_by_role("link", name="mine")).to_be_visible()
    assert alice.locator("svg, [aria-label='Figures']").count() == 0
    alice.get_by_role("link", name="mine").click()
    expect(alice.locator("svg.bar rect")).to_have_count(1)
    # The bars are there on paper too.
    alice.emulate_media(media="print")
    expect(alice.locator("svg.bar").first).to_be_visible()
    expect(alice.get_by_role("navigation")).to_be_hidden()


def test_a_database_without_the_extension_says_so(consoles, visitors) -> None:
    console = consoles("postgres", role="postgres")
    page = visitors.new()
    page.goto(console.opening)
    expect(page.get_by_role("alert")).to_contain_text('relation "xdb.process_execution" does not exist')
    expect(page.locator("main")).to_contain_text('The database "postgres" does not have the extension xdb')
    page.goto(console.at("process", id="mine"))
    expect(page.get_by_role("alert")).to_contain_text('the database "postgres" does not have the extension xdb')


def test_a_standby_has_its_list_and_says_what_it_is(xdb_server, server, consoles, visitors) -> None:
    with new_database(xdb_server) as db:
        prepare(db)
        start(db, "mine")
        waits(db, "mine")
        signal = server.directory / "data" / "standby.signal"
        server.halt()
        signal.touch()
        server.launch()
        try:
            console = consoles(db)
            page = visitors.new()
            page.goto(console.opening)
            expect(page.get_by_role("link", name="mine")).to_be_visible()
            expect(page.locator("header")).to_contain_text("standby")
            page.get_by_role("link", name="mine").click()
            expect(page.get_by_role("alert")).to_contain_text("XD012 this server is a standby")
            expect(page.locator("main")).to_contain_text("Connect to the primary.")
        finally:
            server.halt()
            signal.unlink()
            server.launch()
        until(lambda: db.execute("SELECT state = 'running' FROM xdb.status()") == [(True,)], "the engine runs again")
