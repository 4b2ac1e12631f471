"""Takes the pictures of docs/console.md: the sign-ups of examples/python/sign_up.py, some of whose mails can't be delivered.

See scripts/console-screenshots.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psycopg
from conftest import ARGUMENTS, CHROMIUM, Console, RestartableServer, until
from playwright.sync_api import Page, sync_playwright

from xdb import Worker
from xdb.admin import Admin
from xdb.serve import Server as WorkerServer

# Seconds, in place of a day.
os.environ["REMINDER_SECONDS"] = "7"

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "examples" / "python"))

import sign_up  # noqa: E402

USERS = "victor alice bob carol dave erin frank grace heidi ivan judy mallory niaj olivia peggy rupert sybil trent walter".split()


class MailboxUnavailable(Exception):
    pass


def send_email(to: str, text: str) -> None:
    if "mallory" in to or "victor" in to and "Reminder 2" in text:
        raise MailboxUnavailable(f"550 5.1.1 {to}: no such user")


def sign_ups(conn: psycopg.Connection, page: Page) -> None:
    """What the application does when a user signs up: see examples/signup/start.sql."""
    for user in USERS:
        conn.execute(
            "SELECT xdb.start_process('signup-' || %(user)s, 'UserSignup', global_attribute_pk => %(user)s, "
            "global_attributes => jsonb_build_object('form', jsonb_build_object('name', %(user)s, 'email', %(user)s || '@example.com')), "
            "local_attributes => '{\"reminders\": 0}')",
            {"user": user},
        )
        # The page is open meanwhile, so the console has samples.
        page.wait_for_timeout(1_500)


def settled(conn: psycopg.Connection) -> bool:
    return conn.execute("SELECT count(*) >= 2 FROM xdb.failures").fetchone() == (True,)


def take(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / f"{name}.png")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    sign_up.send_email = send_email
    server = RestartableServer()
    try:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
        with psycopg.connect(server.dsn + " dbname=shop", autocommit=True) as conn:
            conn.execute("CREATE EXTENSION xdb")
            conn.execute("CREATE ROLE app LOGIN")
            conn.execute("SELECT xdb.grant_usage('app', operator => true)")
            conn.execute((ROOT / "examples" / "signup" / "tables.sql").read_text())
        worker = WorkerServer(Worker(sign_up.SignUp), port=0).start()
        Admin(server.dsn + " dbname=shop").register(worker.worker, name="signup", url=worker.url, no_secret=True)
        console = Console(server, "shop")
        with psycopg.connect(server.dsn + " dbname=shop user=app", autocommit=True) as conn, sync_playwright() as playwright:
            arguments = [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else ARGUMENTS
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
            page = browser.new_page(viewport={"width": 1180, "height": 720}, color_scheme="light")
            page.goto(console.opening)
            sign_ups(conn, page)
            until(lambda: settled(conn), "two mails could not be delivered")
            for user in ("alice", "carol", "heidi", "niaj"):
                conn.execute("SELECT xdb.invoke_rpc('signup-' || %s, 'confirm', '\"link\"')", (user,))
            page.wait_for_timeout(8_000)
            take(page, "console-list")
            page.goto(console.at("process", id="signup-victor"))
            take(page, "console-process")
            page.goto(console.at("failing"))
            take(page, "console-failing")
            browser.close()
        console.stop()
        worker.stop(grace=1)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
