from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import money_transfer
import psycopg
import pytest
from money_transfer import Account, MoneyTransfer, Transfer

from xdb.client import Outcome
from xdb.testing.pytest_plugin import Database

Bank = Callable[[str, Decimal, str], None]


def run(db: Database, monkeypatch: pytest.MonkeyPatch, bank: Bank, amount: str, approve: bool = True) -> Outcome:
    """Runs a transfer from an account with a balance of 100 to its end."""
    monkeypatch.setattr(money_transfer, "credit_there", bank)
    db.execute(money_transfer.TABLES)
    db.execute("INSERT INTO accounts VALUES ('acc-1', 100)")
    db.serve(MoneyTransfer)
    with psycopg.connect(db.dsn) as conn:  # the row and the process, both or neither
        conn.execute("INSERT INTO transfers VALUES ('t-7', 'DE02', %s, 'new')", (Decimal(amount),))
        db.client.start(MoneyTransfer, "transfer-7", rows=[Account.row("acc-1"), Transfer.row("t-7")], conn=conn)
    if approve:
        db.clock.settle()
        assert db.client.rpc(MoneyTransfer.approve, "transfer-7", "bob", idempotency_key="click-991") == "debited"
    return db.clock.run_until_closed("transfer-7")


def left(db: Database) -> tuple[Decimal, str]:
    [(balance, status)] = db.execute("SELECT balance, status FROM accounts, transfers")
    return balance, status


def test_the_money_arrives(xdb_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: dict[str, Decimal] = {}

    def bank(account: str, amount: Decimal, idempotency_key: str) -> None:
        if idempotency_key not in arrived:
            arrived[idempotency_key] = amount
            raise ConnectionError("the connection was lost after the credit")

    assert run(xdb_db, monkeypatch, bank, "12.30").status == "COMPLETED"
    assert left(xdb_db) == (Decimal("87.70"), "done")
    assert list(arrived.values()) == [Decimal("12.30")]  # once, although there were two attempts


def test_the_other_bank_does_not_take_it(xdb_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def bank(account: str, amount: Decimal, idempotency_key: str) -> None:
        raise ConnectionError("closed for today")

    outcome = run(xdb_db, monkeypatch, bank, "12.30")
    assert (outcome.status, outcome.output) == ("FAILED", "the other bank did not take it")
    assert left(xdb_db) == (Decimal("100"), "refunded")


@pytest.mark.parametrize("amount, why, status", [("12.30", "not approved", "refunded"), ("100.01", "insufficient funds", "rejected")])
def test_no_money_leaves(xdb_db: Database, monkeypatch: pytest.MonkeyPatch, amount: str, why: str, status: str) -> None:
    def bank(account: str, amount: Decimal, idempotency_key: str) -> None:
        raise AssertionError("the bank must not be called")

    outcome = run(xdb_db, monkeypatch, bank, amount, approve=False)
    assert (outcome.status, outcome.output) == ("FAILED", why)
    assert left(xdb_db) == (Decimal("100"), status)
