"""Requests as the engine makes them."""

from __future__ import annotations

import base64
import time
from typing import Any

from xdb import codec
from xdb.signatures import key_of, sign

EXECUTION = "01a1f8a5-1337-7008-b047-32488e30ad8e"
BASE = "/api/v1/xdb/worker/"
PATHS = {
    "execute": BASE + "async-state/execute",
    "wait-until": BASE + "async-state/wait-until",
    "rpc": BASE + "process/rpc",
}


def request(process_type: str, name: str, api: str = "execute", **fields: Any) -> bytes:
    """The body of a call. `context` adds to its context."""
    is_rpc = api == "rpc"
    body = {
        "context": {
            "processId": "p-1",
            "processExecutionId": EXECUTION,
            "owner": "app",
            "database": "shop",
            "processStartedTimestamp": 1795172930,
            "attempt": 1,
            "callId": f"{EXECUTION}/{name}-1/{api}",
            "firstAttemptTimestamp": 1795172931,
            **({} if is_rpc else {"stateExecutionId": f"{name}-1"}),
            **fields.pop("context", {}),
        },
        "processType": process_type,
        "rpcName" if is_rpc else "stateId": name,
        "input" if is_rpc else "stateInput": fields.pop("input", None),
        "loadedGlobalAttributes": fields.pop("rows", {}),
        "loadedLocalAttributes": fields.pop("local", {}),
        **fields,
    }
    if api == "execute":
        body.setdefault("commandResults", {"timerResults": [], "localQueueResults": [], "globalQueueResults": []})
    return codec.dumps(body)


def headers(body: bytes, *secrets: str, age: float = 0, **other: str) -> dict[str, str]:
    """The headers of a call, signed with these secrets."""
    key, now = f"{EXECUTION}/x-1/execute/0", str(int(time.time() - age))
    made = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Idempotency-Key": key}
    if secrets:
        signatures = " ".join(sign(key_of(secret), key, now, body) for secret in secrets)
        made.update({"webhook-id": key, "webhook-timestamp": now, "webhook-signature": signatures})
    return {**made, **{name.replace("_", "-"): value for name, value in other.items()}}


def post(worker: Any, process_type: str, name: str, api: str = "execute", **fields: Any) -> tuple[int, Any]:
    """Status and answer of one call of the pure core."""
    body = request(process_type, name, api, **fields)
    reply = worker.handle("POST", "/some/prefix" + PATHS[api], headers(body), body)
    return reply.status, codec.loads(reply.body)


SECRET = "whsec_" + base64.b64encode(b"a key of the tests").decode()
