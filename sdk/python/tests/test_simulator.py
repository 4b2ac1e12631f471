"""Whole processes on the simulator. `XDB_SIM`, the wheel xdb-sim, or the path has to have the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xdb
from xdb import errors
from xdb.testing import program, simulator
from xdb.testing.simulator import CallKeepsFailing, NeverRests, Simulator, SimulatorNotFound

try:
    program.find()
except SimulatorNotFound:
    pytest.skip("there is no xdb-sim", allow_module_level=True)

NOW = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)
MAILS: list[str] = []
CREDITS: list[tuple[str, Decimal, str]] = []


@dataclass
class Form:
    name: str
    email: str


class User(xdb.Row, table="public.users", key="user_id"):
    form: Form
    status: str
    source: str | None


class SignUp(xdb.Process, name="UserSignup"):
    user: User
    reminders: int = 0
    verified = xdb.Queue[str]()

    @xdb.state(start=True)
    def submit(self) -> xdb.Decision:
        MAILS.append(f"{self.user.form.email}: Welcome {self.user.form.name}")
        return self.verify()

    @xdb.state(wait=xdb.any_of(verified, xdb.timer(hours=24)))
    def verify(self) -> xdb.Decision:
        if self.verified.received:
            return xdb.complete("done")
        self.reminders += 1
        MAILS.append(f"{self.user.form.email}: Reminder {self.reminders}")
        return self.verify()

    @xdb.rpc
    def confirm(self, source: str) -> str:
        if self.user.status == "verified":
            return "already verified"
        self.user.status, self.user.source = "verified", source
        self.verified.publish(source)
        return "done"


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

    @xdb.state(start=True, lock="exclusive")
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

    @xdb.state(retry=xdb.Retry(attempts=3), on_failure="refund")
    def credit(self) -> xdb.Decision:
        CREDITS.append((self.transfer.to_account, self.transfer.amount, self.call.id))
        self.transfer.status = "done"
        return xdb.complete("done")

    @xdb.state(lock="exclusive")
    def refund(self, why: str | None) -> xdb.Decision:
        self.account.balance += self.transfer.amount
        self.transfer.status = "refunded"
        return xdb.fail(why or "the other bank did not take it")

    @xdb.rpc
    def approve(self, by: str) -> str:
        self.approval.publish(by)
        return self.transfer.status


class Odd(xdb.Process):
    """What goes wrong in ways of its own."""

    done = xdb.Queue[int]()

    @xdb.state(start=True)
    def first(self, what: str) -> xdb.Decision:
        if what == "loop":
            return self.first(what)
        if what == "raise":
            raise RuntimeError("a bug")
        if what == "fatal":
            raise xdb.Fatal("NoSuchCard", "it is gone")
        return self.waits()

    @xdb.state(wait=done)
    async def waits(self) -> xdb.Decision:
        return xdb.complete(self.done.message)


class Taker(xdb.Process):
    jobs = xdb.GlobalQueue[int]("jobs")

    @xdb.state(start=True, wait=jobs)
    def take(self) -> xdb.Decision:
        return xdb.complete(self.jobs.message.payload)


@pytest.fixture
def sim() -> Any:
    MAILS.clear()
    CREDITS.clear()
    with Simulator(SignUp, MoneyTransfer, Odd, Taker, now=NOW) as made:
        yield made


def alice(sim: Simulator, **more: Any) -> Any:
    row = User.row("alice", form=Form("Alice", "a@x"), status="waiting", source=None)
    return sim.start(SignUp, "signup-alice", rows=[row], **more)


def transfer(sim: Simulator, balance: str = "100", **more: Any) -> Any:
    rows = [
        Account.row("acc-1", balance=Decimal(balance)),
        Transfer.row("t-7", to_account="DE02", amount=Decimal("12.30"), status="new"),
    ]
    return sim.start(MoneyTransfer, "transfer-7", rows=rows, **more)


def test_a_user_signs_up_is_reminded_and_verifies(sim: Simulator) -> None:
    p = alice(sim)
    assert MAILS == ["a@x: Welcome Alice"]
    sim.advance(days=2, hours=1)
    assert MAILS[1:] == ["a@x: Reminder 1", "a@x: Reminder 2"] and sim.now == NOW + timedelta(days=2, hours=1)
    assert (p.status, p.local.reminders) == ("RUNNING", 2)
    assert p.rpc(SignUp.confirm, "link") == "done"
    assert p.outcome.result == "done" and p.outcome.status == "COMPLETED"
    assert sim.row(User, "alice") == {
        "user_id": "alice", "form": Form("Alice", "a@x"), "status": "verified", "source": "link",
    }
    assert p.rpc(SignUp.confirm, "again") == "already verified"
    assert [event.type for event in p.history][-2:] == ["CompletionRequested", "ProcessClosed"]
    assert p.history[0].at == NOW


def test_a_transfer_is_approved(sim: Simulator) -> None:
    p = transfer(sim)
    assert p.rpc(MoneyTransfer.approve, "bob") == "debited"
    [(to, amount, call)] = CREDITS
    assert (to, amount) == ("DE02", Decimal("12.30")) and call.endswith("/credit-1/execute")
    assert sim.row(Account, "acc-1") == {"account_id": "acc-1", "balance": Decimal("87.70")}
    assert p.outcome.result == "done"


def test_the_approval_times_out(sim: Simulator) -> None:
    p = transfer(sim)
    outcome = sim.run_until_closed("transfer-7")
    assert (outcome.status, outcome.output) == ("FAILED", "not approved")
    with pytest.raises(xdb.NotCompleted) as failed:
        _ = outcome.result
    why = "the worker decided to fail the process: 'not approved'"
    assert str(failed.value) == f"process 'transfer-7' has not completed: FAILED ({why})"
    assert sim.now == NOW + timedelta(hours=1) and sim.rows(Account)[0]["balance"] == Decimal("100")
    assert p.description.threads == ()


def test_a_rejected_transfer_writes_nothing_of_the_account(sim: Simulator) -> None:
    assert transfer(sim, balance="5").outcome.output == "insufficient funds"
    assert sim.row(Transfer, "t-7")["status"] == "rejected"  # type: ignore[index]


def test_calls_that_fail_are_made_again_and_then_given_up(sim: Simulator) -> None:
    p = transfer(sim)
    sim.fail_calls(MoneyTransfer.credit, times=2)
    p.rpc(MoneyTransfer.approve, "bob")
    assert p.status == "RUNNING" and p.description.last_failure["failure"]["errorType"] == "SimulatedFailure"
    sim.advance(seconds=1)
    assert p.status == "RUNNING"
    sim.advance(seconds=2)
    assert p.status == "COMPLETED" and len(CREDITS) == 1


def test_spent_retries_lead_to_the_compensation(sim: Simulator) -> None:
    p = transfer(sim)
    sim.fail_calls(MoneyTransfer.credit, times=3)
    p.rpc(MoneyTransfer.approve, "bob")
    sim.advance(minutes=1)
    assert p.outcome.output == "the other bank did not take it" and CREDITS == []
    assert sim.row(Account, "acc-1") == {"account_id": "acc-1", "balance": Decimal("100")}


def test_an_rpc_that_fails_is_the_callers_error(sim: Simulator) -> None:
    p = alice(sim)
    sim.fail_calls(SignUp.confirm, error_type="Down")
    with pytest.raises(errors.WorkerFailed) as failed:
        p.rpc(SignUp.confirm, "link")
    assert failed.value.error_type == "Down"
    assert sim.rpc(SignUp.confirm, "signup-alice", "link", idempotency_key="k") == "done"
    assert sim.rpc(SignUp.confirm, "signup-alice", "link", idempotency_key="k") == "done"


def test_errors_are_those_of_the_client(sim: Simulator) -> None:
    p = alice(sim)
    with pytest.raises(errors.AlreadyStarted, match="is running"):
        alice(sim)
    assert alice(sim, id_reuse="terminate_if_running").status == "RUNNING" and p.status == "TERMINATED"
    with pytest.raises(errors.ProcessNotFound):
        sim.publish(SignUp.verified, "missing", "x")
    with pytest.raises(errors.NotRunning):
        p.stop()
    with pytest.raises(errors.NoSuchTimer):
        sim.skip_timer(SignUp.verify, "signup-alice", timer_id="t")
    with pytest.raises(errors.XdbError) as conflict:
        transfer(sim) and transfer(sim, id_reuse="terminate_if_running", conflict="error")
    assert conflict.value.sqlstate == "23505"


def test_time_can_be_helped_along(sim: Simulator) -> None:
    p = alice(sim)
    sim.skip_timer(SignUp.verify, "signup-alice")
    assert p.local.reminders == 1
    sim.set_local(SignUp, "signup-alice", reminders=7)
    sim.to_next_timer()
    assert p.local.reminders == 8
    p.publish(SignUp.verified, "mail")
    assert p.outcome.result == "done"
    with pytest.raises(NeverRests, match="no timer, timeout, delayed start or retry is left"):
        sim.to_next_timer()


def test_a_bug_does_not_go_on_for_ever(sim: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MOST_AT_ONCE", 300)
    p = sim.start(Odd, "odd", "raise")
    with pytest.raises(CallKeepsFailing, match="first-1 of odd has failed 5 times, .*RuntimeError: a bug"):
        sim.advance(days=1)
    p.stop()
    with pytest.raises(NeverRests, match="loop has made 300 calls at one time of the clock"):
        sim.start(Odd, "loop", "loop")
    sim.stop("loop")
    assert sim.start(Odd, "fatal", "fatal").status == "FAILED"
    patient = Simulator(Odd, now=NOW, max_attempts=None)
    patient.start(Odd, "odd", "raise")
    patient.advance(days=1)
    assert patient.describe("odd").status == "RUNNING"
    patient.close()


def test_asynchronous_handlers_and_processes_that_wait_for_no_time(sim: Simulator) -> None:
    p = sim.start(Odd, "odd", "wait")
    with pytest.raises(NeverRests, match="waits for something other than a time"):
        sim.run_until_closed("odd")
    p.publish(Odd.done, 3)
    assert p.outcome.result == 3


def test_global_queues_are_shared(sim: Simulator) -> None:
    takers = [sim.start(Taker, f"taker-{n}") for n in range(2)]
    for n in (5, 6):
        sim.publish_global(Taker.jobs, n, message_id=str(n))
    assert [taker.outcome.result for taker in takers] == [5, 6]


class Later(xdb.Process):
    said = xdb.Queue[str]()

    @xdb.state(start=True)
    def first(self, name: str) -> xdb.Decision:
        return self.second.later(minutes=1.5)(name) + self.second.later(at=NOW + timedelta(hours=1))("at")

    @xdb.state
    def second(self, name: str) -> xdb.Decision:
        self.said.publish(name)
        if self.call.attempt == 1:
            return xdb.retry("Halfway", "said it", after=timedelta(minutes=2))
        if self.call.attempt == 2:
            raise xdb.Retryable("Busy", after=timedelta(minutes=3))
        return xdb.complete(name)


@pytest.fixture
def later() -> Any:
    with Simulator(Later, now=NOW) as made:
        yield made


def times(handle: Any) -> list[datetime]:
    return [datetime.fromisoformat(thread["nextAttemptAt"]) for thread in handle.description.threads]


def test_movements_begin_later_and_failures_set_the_time_of_their_repeat(later: Simulator) -> None:
    p = later.start(Later, None, "me")
    assert p.process_id == str(p.execution_id)
    assert times(p) == [NOW + timedelta(seconds=90), NOW + timedelta(hours=1)]
    later.advance(minutes=1.5)
    assert [event.type for event in p.history][-2:] == ["MessagesReceived", "AttemptFailed"]
    assert times(p)[0] == NOW + timedelta(seconds=90 + 120)
    later.advance(minutes=2)
    failed = p.description.last_failure
    assert failed is not None and failed["failure"]["errorType"] == "Busy"
    assert times(p)[0] == NOW + timedelta(seconds=90 + 120 + 180)
    later.advance(minutes=3)
    assert times(p) == [NOW + timedelta(hours=1)]
    elsewhere = later.start(Later, None, "there", starting_state=Later.second)
    assert [event.type for event in elsewhere.history][-2:] == ["MessagesReceived", "AttemptFailed"]
    with pytest.raises(ValueError, match="is not a state of"):
        later.start(Later, None, starting_state=SignUp.verify)


def test_starts_are_merged_while_they_wait(later: Simulator) -> None:
    def start(text: str, minutes: float, **how: Any) -> Any:
        at = NOW + timedelta(minutes=minutes)
        merge = xdb.Merge(within=timedelta(hours=1), **how)
        return later.start(Later, None, text, start_at=at, correlation_key="k", merge=merge)

    first = start("one", 10)
    assert start("two", 20).execution_id == first.execution_id
    assert start("three", 30, input="replace", start_at="latest").execution_id == first.execution_id
    assert start("four", 90).execution_id != first.execution_id
    assert times(first) == [NOW + timedelta(minutes=30)]
    merged = [event.details for event in first.history if event.type == "StartMerged"]
    assert [details.get("input") for details in merged] == [None, "three"]
    with pytest.raises(xdb.errors.InvalidArgument, match="calls no function"):
        start("five", 90, input="app.merge")
    with pytest.raises(ValueError, match="start_at='soon' is unknown: give one of 'keep'"):
        xdb.Merge(start_at="soon").options()  # type: ignore[arg-type]


class Fragile(xdb.Process):
    said = xdb.Function[str]("app.said")
    mended: bool = False

    @xdb.state(start=True, retry=xdb.Retry(attempts=2), on_failure=xdb.RAISE_INCIDENT)
    def send(self) -> xdb.Decision:
        if not self.mended:
            raise xdb.Retryable("NoAddress", "where to?")
        return xdb.complete(self.call.attempt)


@pytest.fixture
def held() -> Any:
    with Simulator(Fragile, Later, now=NOW) as made:
        yield made


def test_an_incident_stays_until_it_is_mended_and_retried(held: Simulator) -> None:
    p, q = held.start(Fragile, "p"), held.start(Fragile, "q", calls=[Fragile.said.on_start("begun")])
    assert [(each.process_id, each.function, each.argument) for each in held.called_functions()] == [("q", "said", "begun")]
    held.start(Later, "later", "me")
    held.advance(minutes=1)
    assert [each.process_id for each in held.incidents()] == ["p", "q"] and held.incidents(Later) == []
    [found] = held.incidents(Fragile, process_id="q")
    assert (found.execution_id, found.state_execution_id, found.attempt) == (q.execution_id, "send-1", 2)
    assert (found.error_type, found.detail) == ("NoAddress", "where to?") and found.raised_at > NOW
    held.advance(days=30)
    assert p.description.threads[0]["incident"]
    held.set_local(Fragile, "p", mended=True)
    assert held.retry_now("p") == 1 and p.outcome.result == 3
    q.stop()
    assert held.incidents() == []


def test_a_pause_parks_calls(held: Simulator) -> None:
    later = held.start(Later, "p", "me")
    later.pause(until=NOW + timedelta(minutes=2), reason="an audit")
    held.advance(minutes=1.6)
    assert [event.type for event in later.history][-1] == "ProcessPaused"
    held.advance(minutes=1)
    assert "ProcessResumed" in [event.type for event in later.history] and later.description.last_failure
    later.pause(reject=True)
    with pytest.raises(xdb.errors.Paused, match="is paused"):
        later.publish(Later.said, "hello")
    later.resume()
    held.pause_type(Later)
    waiting = held.start(Later, "q", "me")
    assert [event.type for event in waiting.history] == ["ProcessStarted", "StateStarted"]
    held.pause_type("Later", reject=True)
    with pytest.raises(xdb.errors.Paused):
        held.start(Later, "r", "me")
    held.resume_type(Later)
    assert "StateCompleted" in [event.type for event in waiting.history]


def test_a_movement_has_one_time_that_can_be_meant() -> None:
    with pytest.raises(ValueError, match="both a delay and at="):
        Later.second.later(seconds=1, at=NOW)
    with pytest.raises(ValueError, match="must not be negative"):
        Later.second.later(seconds=-1)
    with pytest.raises(ValueError, match="has no time zone"):
        Later.second.later(at=datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="is not a timedelta of zero or more"):
        xdb.retry(after=timedelta(seconds=-1))
    assert xdb.Retryable("Busy", after=timedelta(days=3652.5)).retry_after == 315_576_000
    for wait in (xdb.retry, partial(xdb.Retryable, "Busy")):
        with pytest.raises(ValueError, match="longer than ten years"):
            wait(after=timedelta(days=3652.5, seconds=1))


def test_the_fields_of_retry_can_be_stored() -> None:
    assert xdb.retry("a\0b", "c\0d\ud800").body == {"retry": {"errorType": "a\ufffdb", "detail": "c\ufffdd?"}}


def test_rows_change_beside_the_process(sim: Simulator) -> None:
    p = alice(sim, start_at=NOW + timedelta(hours=1), timeout=timedelta(hours=24.5))
    assert MAILS == []
    sim.put_row(User.row("alice", status="verified"))
    assert p.rpc(SignUp.confirm, "link") == "already verified"
    sim.advance(days=1)
    assert p.status == "RUNNING"
    sim.delete_row(User, "alice")
    assert sim.row(User, "alice") is None
    with pytest.raises(CallKeepsFailing, match="NullAttribute"):
        sim.advance(hours=1, minutes=5)
    with pytest.raises(CallKeepsFailing):
        sim.advance(hours=1)
    sim.max_attempts = None
    sim.advance(hours=1)
    assert p.status == "TIMEOUT", "its time counts from its late beginning"


def test_it_is_a_client_and_a_clock(sim: Simulator) -> None:
    assert sim.client is sim and sim.clock is sim
    alice(sim)
    assert sim.client.wait(SignUp, "signup-alice").timed_out
    assert sim.client.describe("signup-alice").process_type == "UserSignup"


def test_a_missing_simulator_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDB_SIM", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: "/nowhere")
    with pytest.raises(SimulatorNotFound, match="pip install ./sdk/sim"):
        Simulator(SignUp)


def test_a_simulator_that_has_ended_is_reported(sim: Simulator) -> None:
    other = Simulator(SignUp)
    other._program._process.kill()
    other._program._process.wait()
    with pytest.raises(RuntimeError, match="has exited"):
        other.describe("p")
    assert os.path.exists(program.find())


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no Rust")
def test_pip_installs_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, environment = Path(sys.prefix) / "wheels", tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    offline = ["--no-index", "--find-links", str(wheels)] if wheels.exists() else []
    command = [str(environment / "bin" / "pip"), "install", *offline, str(Path(__file__).parents[2] / "sim")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    monkeypatch.setenv("XDB_SIM", str(environment / "bin" / "xdb-sim"))
    with Simulator(SignUp) as installed:
        alice(installed)
        assert installed.describe("signup-alice").process_type == "UserSignup"
