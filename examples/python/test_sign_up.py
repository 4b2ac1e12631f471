from __future__ import annotations

import psycopg
import pytest
import sign_up
from sign_up import Form, SignUp, User

import xdb
from xdb.testing import call
from xdb.testing.pytest_plugin import Database

FORM = Form("Ada", "ada@example.com")


def test_the_first_reminder(capsys: pytest.CaptureFixture[str]) -> None:
    user = {"form": FORM, "status": "waiting", "source": None}
    result = call(SignUp.verify, rows={User: user}, local={"reminders": 0}, received={SignUp.verified: []})
    assert result.decision == SignUp.verify()
    assert result.local == {"reminders": 1}
    assert "Reminder 1" in capsys.readouterr().out


def test_two_days_and_a_link(xdb_db: Database) -> None:
    xdb_db.execute(sign_up.TABLES)
    xdb_db.serve(SignUp)
    xdb_db.client.start(SignUp, "signup-ada", rows=[User.row("ada", form=FORM)])
    for _ in range(2):
        xdb_db.clock.advance(days=1)
    assert xdb_db.client.local(SignUp, "signup-ada").reminders == 2
    assert xdb_db.client.rpc(SignUp.confirm, "signup-ada", "reminder") == "done"
    assert xdb_db.client.wait(SignUp, "signup-ada").result == "done"
    assert xdb_db.client.rpc(SignUp.confirm, "signup-ada", "reminder") == "already verified"
    assert xdb_db.execute("SELECT status, source FROM users") == [("verified", "reminder")]


def test_no_user_without_a_process(xdb_db: Database) -> None:
    xdb_db.execute(sign_up.TABLES)
    xdb_db.serve(SignUp)
    with psycopg.connect(xdb_db.dsn) as conn:
        xdb_db.client.start(SignUp, "signup-ada", rows=[User.row("ada", form=FORM)], conn=conn)
        conn.rollback()
    assert xdb_db.execute("SELECT FROM users") == []
    with pytest.raises(xdb.errors.ProcessNotFound):
        xdb_db.client.describe("signup-ada")
