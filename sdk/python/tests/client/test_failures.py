"""What a handler raises, as its caller and its process get it: from a server, and from the simulator."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from shop import wait_until

import xdb
from xdb import errors
from xdb.testing.simulator import Simulator


class Fails(xdb.Process):
    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=go)
    def begin(self) -> xdb.Decision:
        return {"recover": self.sold_out, "wait": self.slow, "fail": self.broken}[self.go.message]()

    @xdb.state(on_failure="recover")
    def sold_out(self) -> xdb.Decision:
        raise xdb.Fatal("OutOfStock", "no more red ones")

    @xdb.state
    def recover(self) -> xdb.Decision:
        found = self.call.recovered_from
        assert found is not None
        return xdb.complete([found.state, found.state_execution_id, found.api, found.status, found.error_type, found.detail])

    @xdb.state(retry=xdb.Retry(attempts=2, initial=timedelta(milliseconds=100)))
    def broken(self) -> xdb.Decision:
        raise xdb.Retryable("Busy", "come back later")

    @xdb.state(retry=xdb.Retry(initial=timedelta(hours=1), maximum=timedelta(hours=1)))
    def slow(self) -> xdb.Decision:
        raise LookupError("no shelf has it")

    @xdb.rpc
    def ask(self, what: str) -> int:
        found: dict[str, Exception] = {
            "fatal": xdb.Fatal("NotAnApprover", "eve is none of them"),
            "retryable": xdb.Retryable("Busy"),
            "plain": LookupError("no shelf has it"),
            "long": xdb.Fatal("L" * 300, "long"),
            "zero": ValueError("a \0 in it"),
        }
        if what in found:
            raise found[what]
        return what  # type: ignore[return-value]


@pytest.fixture(params=["server", "simulator"])
def client(request: pytest.FixtureRequest) -> Any:
    if request.param == "simulator":
        with Simulator(Fails) as simulator:
            simulator.start(Fails, "f")
            yield simulator
    else:
        db = request.getfixturevalue("xdb_db")
        serving = db.serve(Fails)
        db.client.start(Fails, "f")
        db.clock.settle()
        yield db.client
        serving.stop()


def test_an_rpc_that_fails_has_the_workers_word_for_it(client: Any) -> None:
    cases = [
        ("fatal", "NotAnApprover", "NotAnApprover: eve is none of them."),
        ("retryable", "Busy", "Busy: Busy."),
        ("plain", "LookupError", "LookupError: no shelf has it."),
        ("long", "L" * 200, "L: long."),
        ("zero", "ValueError", "ValueError: a \ufffd in it."),
        ("output", "CodecError", "CodecError: Fails.ask() returned: str 'output' is not int."),
    ]
    for what, error_type, detail in cases:
        with pytest.raises(errors.WorkerFailed) as failed:
            client.rpc(Fails.ask, "f", what)
        assert (failed.value.sqlstate, failed.value.error_type) == ("XD010", error_type)
        assert failed.value.detail is not None and failed.value.detail.startswith("HTTP status 500: ")
        assert failed.value.detail.endswith(detail)


def test_a_fatal_error_goes_to_the_failure_state_at_once(client: Any) -> None:
    client.publish(Fails.go, "f", "recover")
    expected = ["sold_out", "sold_out-1", "EXECUTE_API", 500, "OutOfStock", "no more red ones"]
    assert client.wait(Fails, "f").result == expected


def test_a_retryable_error_is_tried_again_and_then_fails_the_process(client: Any) -> None:
    client.publish(Fails.go, "f", "fail")
    if isinstance(client, Simulator):
        client.run_until_closed("f")
    outcome = client.wait(Fails, "f")
    reason = "step broken-1 failed at attempt 2: come back later"
    assert (outcome.status, outcome.output, outcome.reason) == ("FAILED", None, reason)
    with pytest.raises(xdb.NotCompleted) as failed:
        _ = outcome.result
    assert str(failed.value) == f"process 'f' has not completed: FAILED ({reason})"
    assert pickle.loads(pickle.dumps(failed.value)).outcome == outcome
    found = client.describe("f")
    assert found.reason == reason
    assert found.last_failure is not None and found.last_failure["attempt"] == 2
    assert found.last_failure["failure"] == {"status": 500, "errorType": "Busy", "detail": "come back later"}
    client.start(Fails, "f")
    with pytest.raises(TimeoutError, match="no result yet: give wait"):
        _ = client.wait(Fails, "f", timeout=0.01).result


def test_a_wait_that_times_out_has_the_last_failure(client: Any) -> None:
    client.publish(Fails.go, "f", "wait")
    wait_until("it fails", lambda: client.describe("f").last_failure)
    expected = "process 'f' is still RUNNING and has no result yet: attempt 1 of slow-1 failed: LookupError: no shelf has it"
    for execution in (None, client.describe("f").execution_id):
        with pytest.raises(TimeoutError) as timed_out:
            _ = client.wait(Fails, "f", timeout=0.01, execution=execution).result
        assert str(timed_out.value) == expected


def test_a_worker_that_is_not_there_has_no_word(xdb_db: Any) -> None:
    serving = xdb_db.serve(Fails)
    xdb_db.client.start(Fails, "f")
    xdb_db.clock.settle()
    serving.stop()
    with pytest.raises(errors.WorkerFailed, match="connection refused") as failed:
        xdb_db.client.rpc(Fails.ask, "f", "fatal")
    assert failed.value.error_type is None and failed.value.retryable
