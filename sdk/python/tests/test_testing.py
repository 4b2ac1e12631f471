from __future__ import annotations

import inspect
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import signup
import transfer
from signup import Form, SignUp, User
from test_worker import Basket, Line, Order
from transfer import Account, MoneyTransfer, Transfer

import xdb
from xdb.testing import Published, call, wait
from xdb.testing.clock import Clock
from xdb.testing.simulator import Simulator

F = Form("Alice", "a@x")


@pytest.fixture(autouse=True)
def mails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    monkeypatch.setattr(signup, "send_email", lambda to, text: sent.append(text))
    return sent


def test_sign_up(mails: list[str]) -> None:
    rows = {User: dict(form=F, status="waiting", source=None)}
    result = call(SignUp.verify, rows=rows, local={"reminders": 2}, received={SignUp.verified: []})
    assert result.decision == SignUp.verify()
    assert (result.local, result.rows, result.published) == ({"reminders": 3}, {}, [])
    assert mails == ["Reminder 3: please verify your address."]
    result = call(SignUp.verify, rows=rows, received={SignUp.verified: ["link"]})
    assert result.decision == xdb.complete("done") and result.local == {}
    result = call(SignUp.confirm, "link", rows=rows)
    assert (result.output, result.rows) == ("done", {User: {"status": "verified", "source": "link"}})
    assert result.published == [Published("verified", "link")]


def test_money_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {Account: dict(balance=Decimal(10)), Transfer: dict(to_account="DE", amount=Decimal("12.30"), status="new")}
    result = call(MoneyTransfer.debit, rows=rows)
    assert result.decision == xdb.fail("insufficient funds") and result.rows == {Transfer: {"status": "rejected"}}
    rows[Account] = dict(balance=Decimal(20))
    result = call(MoneyTransfer.debit, rows=rows)
    assert result.decision == MoneyTransfer.approved() and result.rows[Account] == {"balance": Decimal("7.70")}
    assert call(MoneyTransfer.approved, received={MoneyTransfer.approval: []}).decision == MoneyTransfer.refund(
        "not approved"
    )
    keys: list[str] = []
    monkeypatch.setattr(transfer.bank, "credit", lambda to, amount, idempotency_key: keys.append(idempotency_key))
    assert call(MoneyTransfer.credit, rows=rows, attempt=2).decision == xdb.complete("done")
    assert keys == ["00000000-0000-7000-8000-000000000000/credit-1/execute"]
    assert call(MoneyTransfer.refund, None, rows=rows).rows[Account] == {"balance": Decimal("32.30")}


def test_all_that_a_handler_can_do() -> None:
    result = call(Order.publishes)
    assert result.published == [
        Published("parts", Line("a", 1), None, "m1"),
        Published("prices", Decimal("1.10"), "EUR", None, timedelta(hours=1)),
        Published("prices", Decimal("1.20"), None, None, timedelta(seconds=90)),
    ]
    assert result.decision == xdb.complete_if_empty(Order.parts, result="empty", otherwise=Order.reads())
    result = call(
        Order.waits,
        received={Order.parts: [Line("a", 1)], Order.prices: [xdb.Message(Decimal(2), "EUR", "m")]},
        fired=["soon"],
    )
    assert result.decision == xdb.complete([[Line("a", 1)], [(Decimal(2), "EUR", "m")], True, True])
    result = call(Order.waits_by_function, received={Order.parts: [Line("a", 1)]})
    assert result.decision == xdb.complete(Line("a", 1))
    assert wait(Order.waits_by_function, local={"tries": 3})["timerCommands"][0]["delayInSeconds"] == 3
    result = call(Order.changes, rows={Basket: dict(lines=[])})
    assert result.rows == {Basket: {"lines": [Line("b", 2)], "total": Decimal("2.50")}}
    assert result.local == {"tags": ["changed"]}
    assert call(Order.starts).decision == Order.reads()
    assert call(Order.quick_async, 1).decision == xdb.complete(2)


def test_an_exception_of_a_handler_is_raised() -> None:
    with pytest.raises(LookupError, match="not in stock"):
        call(Order.raises)
    with pytest.raises(xdb.Fatal) as fatal:
        call(Order.fatal)
    assert fatal.value.error_type == "OutOfStock"
    with pytest.raises(xdb.NoDecision):
        call(Order.nothing)
    with pytest.raises(xdb.NullAttribute):
        call(Order.reads, rows={Basket: None})
    with pytest.raises(xdb.CodecError, match="Basket.lines: int 3 is not"):
        call(Order.reads, rows={Basket: {"lines": 3}})
    for wrong in ({"rows": {User: {}}}, {"rows": {Basket: {"x": 1}}}, {"local": {"x": 1}}):
        with pytest.raises(TypeError, match="Order has no|Basket has no"):
            call(Order.reads, **wrong)  # type: ignore


def test_misspelt_arguments_are_refused() -> None:
    """They said nothing, and the test had tested something else."""
    for wrong, message in (
        ({"localx": {"tries": 3}}, "localx= is neither an argument nor a field of the request's context; the fields are processId"),
        ({"atempt": 5}, "atempt= is neither an argument"),
        ({"recieved": {Order.parts: []}}, "recieved= is neither an argument"),
        ({"received": {"nope": ["Ada"]}}, "Order has no queue 'nope'; its queues are .*parts.*prices"),
        ({"received": {SignUp.verified: ["link"]}}, "Order has no queue 'verified'"),
        ({"received": {xdb.GlobalQueue[int]("nope"): [1]}}, "Order has no queue 'nope'"),
        ({"fired": ["nope"]}, "Order.waits waits for no timer 'nope'; its timers are .*soon"),
        ({"skipped": ["nope"]}, "Order.waits waits for no timer 'nope'"),
    ):
        with pytest.raises(TypeError, match=message):
            call(Order.waits, **wrong)  # type: ignore
    with pytest.raises(TypeError, match="Order.reads waits for no timer 'soon'; its timers are none"):
        call(Order.reads, rows={Basket: dict(lines=[])}, fired=["soon"])
    with pytest.raises(TypeError, match="atempt= is neither an argument"):
        wait(Order.waits_by_function, atempt=5)  # type: ignore
    # A wait that is a function may have any timer.
    assert call(Order.waits_by_function, received={"parts": [Line("a", 1)]}, fired=["any"]).decision is not None


def test_a_queue_by_its_name_is_local_or_global_as_the_class_has_it() -> None:
    class Reads(xdb.Process):
        words = xdb.Queue[str]()
        prices = xdb.GlobalQueue[int]("prices")

        @xdb.state(wait=lambda self: self.words.take())
        def read(self) -> xdb.Decision:
            return xdb.complete([self.words.messages, [each.payload for each in self.prices.messages]])

    class Below(Reads):
        pass

    for received in ({"words": ["a"], "prices": [1]}, {Reads.words: ["a"], xdb.GlobalQueue[int]("prices"): [1]}):
        assert call(Below.read, received=received).decision == xdb.complete([["a"], [1]])


def test_a_movement_that_was_not_called() -> None:
    class Moves(xdb.Process):
        @xdb.state
        def next(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.state
        def later(self) -> xdb.Decision:
            return self.next.later(days=1)  # type: ignore[return-value]

        @xdb.state
        def configured(self) -> xdb.Decision:
            return self.next.with_config(timeout=timedelta(seconds=1))  # type: ignore[return-value]

    with pytest.raises(xdb.NoDecision, match=r"which is a state: call it, self\.next\.later\(\.\.\.\)\(\)$"):
        call(Moves.later)
    with pytest.raises(xdb.NoDecision, match=r"which is a state: call it, self\.next\.with_config\(\.\.\.\)\(\)$"):
        call(Moves.configured)


def test_the_simulator_is_a_client_except_as_documented() -> None:
    def methods(cls: type) -> dict[str, inspect.Signature]:
        return {name: inspect.signature(fn) for name, fn in vars(cls).items() if inspect.isfunction(fn) and name[0] != "_"}

    client, simulator = methods(xdb.Client), methods(Simulator)
    missing = sorted(client.keys() - simulator.keys())
    page = " ".join((Path(__file__).parents[3] / "docs" / "python-testing.md").read_text(encoding="utf-8").split())
    assert missing == ["list", "retry_now_many", "schedule", "skip_timer_many", "start_many", "stop_many", "wait_for_state"]
    assert f"except {', '.join(f'`{name}`' for name in missing[:-1])} and `{missing[-1]}`" in page
    assert methods(Clock).keys() - simulator.keys() == {"reset"}  # the fixture's own
    for name in client.keys() & simulator.keys() - {"check"}:
        assert client[name].parameters.keys() - simulator[name].parameters.keys() <= {"conn"}, name
    assert not simulator["check"].parameters.keys() - {"self"}
