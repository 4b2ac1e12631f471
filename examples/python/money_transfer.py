"""A transfer to another bank: debited here, approved by a person, credited there. If a step fails, the money is refunded.

    python -m xdb serve money_transfer:worker
"""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import timedelta
from decimal import Decimal

import xdb

TABLES = """
CREATE TABLE accounts (account_id text PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0));
CREATE TABLE transfers (transfer_id text PRIMARY KEY, to_account text NOT NULL, amount numeric NOT NULL, status text NOT NULL)
"""


def credit_there(account: str, amount: Decimal, idempotency_key: str) -> None:
    """Credits the account at the other bank, which ignores a request whose key it has seen."""
    body = json.dumps({"account": account, "amount": str(amount)}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}
    with urllib.request.urlopen(urllib.request.Request(os.environ["BANK_URL"], body, headers), timeout=5):
        pass


class Account(xdb.Row, table="public.accounts", key="account_id"):
    balance: Decimal


class Transfer(xdb.Row, table="public.transfers", key="transfer_id"):
    to_account: str
    amount: Decimal
    status: str


class MoneyTransfer(xdb.Process):
    account: Account
    transfer: Transfer
    approval = xdb.Queue[str]()

    @xdb.state(start=True, lock="exclusive")  # no other process can change the row between read and write
    def debit(self) -> xdb.Decision:
        if self.account.balance < self.transfer.amount:
            self.transfer.status = "rejected"
            return xdb.fail("insufficient funds")
        self.account.balance -= self.transfer.amount
        self.transfer.status = "debited"
        return self.approved()

    @xdb.state(wait=xdb.any_of(approval, xdb.timer(hours=1)))
    def approved(self) -> xdb.Decision:
        return self.credit() if self.approval.received else self.refund("not approved")

    @xdb.state(retry=xdb.Retry(attempts=5), timeout=timedelta(seconds=10), on_failure="refund")
    def credit(self) -> xdb.Decision:
        credit_there(self.transfer.to_account, self.transfer.amount, idempotency_key=self.call.id)
        self.transfer.status = "done"
        return xdb.complete("done")

    @xdb.state(lock="exclusive")  # the compensation
    def refund(self, why: str | None) -> xdb.Decision:
        self.account.balance += self.transfer.amount
        self.transfer.status = "refunded"
        return xdb.fail(why or "the other bank did not take it")

    @xdb.rpc
    def approve(self, by: str) -> str:
        self.approval.publish(by)
        return self.transfer.status


worker = xdb.Worker(MoneyTransfer)
