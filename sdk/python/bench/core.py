"""Measures how many calls a worker answers per second on one core: `PYTHONPATH=src python bench/core.py [seconds [rounds]]`.

The budget is 200 microseconds for a call that does nothing, with signature and JSON: 5,000 calls per second. It measures CPU time, and
takes the best round, so that other programs on the machine don't count. Limitations: no HTTP server, no network.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from decimal import Decimal

import xdb
from xdb.signatures import key_of, sign

SECRET = "a secret of the benchmark"


@dataclass
class Form:
    name: str
    email: str


class Account(xdb.Row, table="accounts", key="id"):
    form: Form
    balance: Decimal


class Bench(xdb.Process):
    account: Account
    count: int = 0

    @xdb.state(start=True)
    def nothing(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state
    def some(self) -> xdb.Decision:
        assert self.account.form.name
        self.account.balance -= 1
        self.count += 1
        return self.nothing()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    worker = xdb.Worker(Bench, secret=SECRET)
    for state in (Bench.nothing, Bench.some):
        body = json.dumps(
            {
                "context": {
                    "processId": "bench-1",
                    "processExecutionId": "01a1f8a5-1337-7008-b047-32488e30ad8e",
                    "owner": "app",
                    "database": "bench",
                    "processStartedTimestamp": 1795172930,
                    "stateExecutionId": f"{state.name}-1",
                    "attempt": 1,
                    "callId": f"01a1f8a5-1337-7008-b047-32488e30ad8e/{state.name}-1/execute",
                    "firstAttemptTimestamp": 1795172931,
                },
                "processType": "Bench",
                "stateId": state.name,
                "stateInput": None,
                "loadedGlobalAttributes": {"form": {"name": "Alice", "email": "a@x"}, "balance": 12.30},
                "loadedLocalAttributes": {"count": 1},
                "commandResults": {"timerResults": [], "localQueueResults": [], "globalQueueResults": []},
            }
        ).encode()
        now = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "idempotency-key": "bench/0",
            "webhook-id": "bench/0",
            "webhook-timestamp": now,
            "webhook-signature": sign(key_of(SECRET), "bench/0", now, body),
        }
        each = min(time_of_a_call(worker, headers, body, seconds) for _ in range(rounds))
        print(f"{state.name}: {1 / each:,.0f} calls per second on one core, {each * 1e6:.0f} microseconds each")


def time_of_a_call(worker: xdb.Worker, headers: dict[str, str], body: bytes, seconds: float) -> float:
    """The CPU time of one call, in seconds. Measures for `seconds`."""
    calls, began, used = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        for _ in range(100):
            reply = worker.handle("POST", "/api/v1/xdb/worker/async-state/execute", headers, body)
            assert reply.status == 200, reply.body
        calls += 100
    return (time.process_time() - used) / calls


if __name__ == "__main__":
    main()
