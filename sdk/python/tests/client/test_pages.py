"""The blocks of Python in `docs/python-client.md`, and those of `docs/python.md` that its quick start does not have, each as it stands."""

from __future__ import annotations

import os
import re
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import signup
import transfer

import xdb
import xdb.testing

PAGES = Path(__file__).parents[4] / "docs"


def blocks(page: str, heading: str) -> list[str]:
    text = (PAGES / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def block(page: str, heading: str) -> str:
    [only] = blocks(page, heading)
    return only


def test_no_block_is_left_out() -> None:
    all_of = {page: len(re.findall(r"```python\n", (PAGES / page).read_text())) for page in ("python.md", "python-client.md")}
    in_quick_start = len(blocks("python.md", "Quick start"))  # test_quick_start.py has these, and test_readme.py the one in memory
    assert all_of == {"python.md": in_quick_start + 3, "python-client.md": 3}


def test_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Any, int]] = []
    monkeypatch.setattr(xdb, "serve", lambda worker, port: served.append((worker, port)))
    monkeypatch.setenv("XDB_WORKER_SECRET", "a secret")
    names: dict[str, Any] = {"SignUp": signup.SignUp, "MoneyTransfer": transfer.MoneyTransfer, "os": os, "xdb": xdb}
    exec(block("python.md", "Serving"), names)
    assert served == [(names["worker"], 8080)]


def test_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signup, "send_email", lambda to, text: None)
    names: dict[str, Any] = {"F": signup.Form("Alice", "a@x"), "SignUp": signup.SignUp, "User": signup.User}
    exec(block("python.md", "Testing a handler"), names)


def test_in_your_own_transaction(xdb_db: Any) -> None:
    xdb_db.execute(
        "CREATE TABLE accounts (account_id text PRIMARY KEY, balance numeric);"
        "CREATE TABLE transfers (transfer_id text PRIMARY KEY, to_account text, amount numeric, status text);"
        "INSERT INTO accounts VALUES ('acc-1', 1)"
    )
    xdb_db.serve(transfer.MoneyTransfer)
    text = block("python-client.md", "In your own transaction").replace("dbname=shop", xdb_db.dsn)
    names: dict[str, Any] = {"xdb": xdb, "psycopg": psycopg, "Decimal": Decimal}
    exec(text, {**names, **{name: getattr(transfer, name) for name in ("Account", "MoneyTransfer", "Transfer")}})
    assert xdb_db.client.wait(transfer.MoneyTransfer, "transfer-7", timeout=30).result == "insufficient funds"
    assert xdb_db.execute("SELECT status FROM transfers WHERE transfer_id = 't-7'") == [("rejected",)]


class Order(xdb.Process):
    @xdb.state(start=True, wait=xdb.timer(hours=1))
    def wait(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc
    def ship(self, address: str) -> str:
        raise xdb.Fatal("OutOfStock", f"nothing is left for {address}")


def test_errors(xdb_db: Any) -> None:
    xdb_db.serve(Order)
    xdb_db.client.start(Order, "order-5")
    told: list[Any] = []
    text = block("python-client.md", "Errors").replace("...", "told.append(error)")
    exec(text, {"xdb": xdb, "client": xdb_db.client, "Order": Order, "address": "Main Street", "told": told})
    assert [error.detail for error in told] and "nothing is left for Main Street" in str(told[0])


def test_a_real_server(xdb_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("hello")
    monkeypatch.setitem(sys.modules, "hello", module)
    exec(blocks("python.md", "Quick start")[0], vars(module))
    exec(block("python-client.md", "Tests with a real server"), vars(module))
    vars(module)["test_nobody_answers"](xdb_db)
