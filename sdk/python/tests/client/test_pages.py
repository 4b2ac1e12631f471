"""The Python blocks of the pages that `scripts/docs-test` does not run, as they stand. Each gets the names that its page has introduced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import signup
import transfer
from signup import SignUp, User
from transfer import MoneyTransfer

import xdb

ROOT = Path(__file__).parents[2]
PAGES = ROOT.parents[1] / "docs"

# "A whole process in memory" is run by test_readme.py.
SECTIONS = {
    "python.md": ["Serving"],
    "python-client.md": ["In your own transaction", "Errors"],
    "python-testing.md": ["One handler", "A whole process in memory", "On a real server"],
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the heading above it."""
    found = []
    for section in (PAGES / page).read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        found += [(heading, block) for block in re.findall(r"^```python,skip\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    return found


def block(page: str, heading: str) -> str:
    [found] = [text for at, text in blocks(page) if at == heading]
    return found


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def run(text: str, **names: Any) -> dict[str, Any]:
    """Runs a block with these names, and gives what it has defined."""
    names = {"xdb": xdb, **names}
    exec(compile(text, "<the page>", "exec"), names)
    return names


@pytest.mark.parametrize("page", SECTIONS)
def test_no_block_is_left_out(page: str) -> None:
    assert [heading for heading, _ in blocks(page)] == SECTIONS[page]


def test_serving() -> None:
    text = replaced(block("python.md", "Serving"), "port=8080", "port=0")
    prelude = "import os\nimport xdb\nfrom signup import SignUp\nfrom transfer import MoneyTransfer\n"
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests" / "typing")))
    environment = {**os.environ, "PYTHONPATH": path, "XDB_WORKER_SECRET": "a secret"}
    command = [sys.executable, "-c", prelude + text + "print('served')\n"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as served:
        try:
            assert served.stderr is not None
            listening = served.stderr.readline()
            if "listening on http://127.0.0.1:" not in listening or "for UserSignup, MoneyTransfer" not in listening:
                served.kill()
                pytest.fail(listening + served.stderr.read())
            served.send_signal(signal.SIGTERM)
            out, _ = served.communicate(timeout=60)
        finally:
            served.kill()
    assert (served.returncode, out) == (0, "served\n")


def test_testing_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(signup, "send_email", lambda to, text: sent.append(text))
    ran = run(block("python-testing.md", "One handler"), SignUp=SignUp, User=User, F=signup.Form("Alice", "a@x"))
    assert isinstance(ran["result"], xdb.testing.Result) and len(sent) == 1


def test_in_your_own_transaction(xdb_db: Any) -> None:
    xdb_db.execute("CREATE TABLE accounts (account_id text PRIMARY KEY, balance numeric)")
    xdb_db.execute("CREATE TABLE transfers (transfer_id text PRIMARY KEY, to_account text, amount numeric, status text)")
    xdb_db.execute("INSERT INTO accounts VALUES ('acc-1', 100)")
    xdb_db.serve(MoneyTransfer)
    text = replaced(block("python-client.md", "In your own transaction"), '"dbname=shop"', repr(xdb_db.dsn))
    names = {"Decimal": Decimal, "psycopg": psycopg, "MoneyTransfer": MoneyTransfer}
    with run(text, **names, Account=transfer.Account, Transfer=transfer.Transfer)["client"]:
        xdb_db.clock.settle()
    assert xdb_db.execute("SELECT status, (SELECT balance FROM accounts) FROM transfers") == [("debited", Decimal("87.70"))]
    assert xdb_db.client.describe("transfer-7").status == "RUNNING"


def test_errors(xdb_db: Any) -> None:
    shipped: list[str] = []

    class Order(xdb.Process):
        @xdb.rpc
        def ship(self, address: str) -> None:
            shipped.append(address)
            raise xdb.Fatal("OutOfStock", "no more red ones")

    xdb_db.serve(Order)
    xdb_db.client.start(Order, "order-5")
    text = replaced(block("python-client.md", "Errors"), "        ...\n", "        told = error\n")
    ran = run(text, client=xdb_db.client, Order=Order, address="Main Street 1")
    assert ran["told"].detail.endswith("OutOfStock: no more red ones.") and shipped == ["Main Street 1"]


def test_tests_with_a_real_server(xdb_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where annotations of a class are read, its module has to be there.
    hello = type(sys)("hello")
    monkeypatch.setitem(sys.modules, "hello", hello)
    quick_start = (PAGES / "quick-start-python.md").read_text(encoding="utf-8")
    [definition] = re.findall(r"^```python,file\n(# hello\.py\n.*?)^```$", quick_start, re.MULTILINE | re.DOTALL)
    exec(definition, vars(hello))
    text = block("python-testing.md", "On a real server")
    run(text, Hello=vars(hello)["Hello"], Guest=vars(hello)["Guest"])["test_nobody_answers"](xdb_db)
