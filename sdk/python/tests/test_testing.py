from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
import signup
import transfer
from signup import Form, SignUp, User
from test_worker import Basket, Line, Order
from transfer import Account, MoneyTransfer, Transfer

import xdb
from xdb.testing import Published, call, wait

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
        "nobody approved"
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


def test_what_a_handler_raises_is_raised() -> None:
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


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"localx": {"tags": []}}, "'localx' is no argument, and no field of a request's context"),
        ({"atempt": 5}, "'atempt' is no argument"),
        ({"received": {"nope": ["Ada"]}}, "Order has no queue 'nope'"),
        ({"received": {xdb.GlobalQueue[str]("nope"): []}}, "Order has no global queue 'nope'"),
        ({"fired": ["sooon"]}, "Order.waits waits for no timer 'sooon'; its timers are soon"),
    ],
)
def test_what_a_call_does_not_have_is_refused(given: Any, problem: str) -> None:
    """A test that misspells what it gives would be green for the wrong reason."""
    with pytest.raises(TypeError, match=problem):
        call(Order.waits, **given)
