from __future__ import annotations

import approval
import pytest
from approval import Approval, Contract

import xdb
from xdb.testing.pytest_plugin import Database


@pytest.fixture
def db(xdb_db: Database) -> Database:
    xdb_db.execute(approval.TABLES)
    xdb_db.serve(Approval)
    approvers = {"approvers": ["ann", "bob", "cid"]}
    xdb_db.client.start(Approval, "a", rows=[Contract.row("c-1", status="open")], local=approvers)
    xdb_db.clock.settle()
    return xdb_db


def test_two_of_three(db: Database) -> None:
    for by in ("cid", "cid", "ann"):
        assert not db.client.wait(Approval, "a", timeout=0).results
        db.client.rpc(Approval.approve, "a", by)
    assert db.client.wait(Approval, "a").result == "approved by cid and ann"
    assert db.execute("SELECT status FROM contracts") == [("approved",)]


def test_a_veto(db: Database) -> None:
    db.client.rpc(Approval.approve, "a", "ann")
    db.client.rpc(Approval.refuse, "a", "bob")
    assert db.client.wait(Approval, "a").result == "refused by bob"


def test_another_person_may_not_approve(db: Database) -> None:
    with pytest.raises(xdb.errors.WorkerFailed) as failed:
        db.client.rpc(Approval.approve, "a", "eve")
    assert failed.value.error_type == "NotAnApprover"
    db.client.stop("a")


def test_one_is_not_enough(db: Database) -> None:
    db.client.rpc(Approval.approve, "a", "ann")
    assert db.clock.run_until_closed("a").result == "expired"
    assert db.execute("SELECT status FROM contracts") == [("expired",)]
