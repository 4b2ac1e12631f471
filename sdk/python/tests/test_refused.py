"""Calls that reach no handler: invalid ones, calls for another worker, and calls without the right signature."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import pytest
from support import BASE, PATHS, SECRET, headers, post, request
from test_worker import WORKER, Order

import xdb
from xdb import codec


@pytest.mark.parametrize(
    "process, name, api, error_type",
    [
        ("Order", "nowhere", "execute", "UnknownState"),
        ("Order", "nowhere", "wait-until", "UnknownState"),
        ("Order", "nowhere", "rpc", "UnknownRpc"),
        ("Unknown", "x", "execute", "UnknownProcessType"),
        ("Unknown", "x", "rpc", "UnknownProcessType"),
    ],
)
def test_a_name_that_another_version_of_the_worker_may_have_costs_no_attempt(process: str, name: str, api: str, error_type: str) -> None:
    """For ten minutes. What is still missing then is a failed attempt, which people see."""

    def answered(after: float) -> xdb.Reply:
        body = request(process, name, api, context={"firstAttemptTimestamp": time.time() - after})
        return WORKER.handle("POST", PATHS[api], headers(body), body)

    # A moment that is to come is that of a server whose clock goes before this one's, or of a test.
    for after in (0, 590, -86400):
        reply = answered(after)
        assert (reply.status, reply.all_headers["retry-after"]) == (503, "2")
        answer: Any = codec.loads(reply.body)
        assert answer["errorType"] == error_type and "may run an older version" in answer["detail"]
        assert "retryAfterSeconds" not in answer and "final" not in answer  # with these it would be an attempt
    late = answered(610)
    assert (late.status, "retry-after" in late.headers) == (404, False)
    assert codec.loads(late.body)["errorType"] == error_type  # type: ignore[index]


def test_the_error_of_an_unknown_name_lists_the_known_ones() -> None:
    _, answer = post(WORKER, "Order", "nowhere", context={"firstAttemptTimestamp": time.time()})
    assert answer["detail"].startswith("Order has no state 'nowhere' here, only nothing, foreign")


def test_other_paths_and_methods() -> None:
    assert WORKER.handle("POST", "/api/v1/xdb/worker/other", {}, b"").status == 404
    assert WORKER.handle("POST", "/", {}, b"").status == 404
    refused = WORKER.handle("GET", PATHS["execute"], {}, b"")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    health: Any = codec.loads(WORKER.handle("GET", "/x" + BASE + "health", {}, b"").body)
    assert health["sdk"] == f"python/{xdb.__version__}"
    assert health["types"]["Order"] == f"sha256:{Order.definition_hash()}"


@pytest.mark.parametrize(
    "body, detail",
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[" * 100000, "the body is not JSON"),
        (b"[]", "the request is not a call of the engine"),
        (b"{}", "the request is not a call of the engine: 'context' is missing"),
        (b'{"context": {}, "processType": "Order", "stateId": "reads"}', "'callId' is missing"),
        (b'{"context": {}, "processType": [], "stateId": "reads"}', "the request is not a call of the engine"),
    ],
    ids=["empty", "half", "deep", "list", "object", "context", "type"],
)
def test_a_body_that_is_no_call(body: bytes, detail: str) -> None:
    reply = WORKER.handle("POST", PATHS["execute"], {}, body)
    answer: Any = codec.loads(reply.body)
    assert reply.status == 400 and detail in answer["detail"]


def test_a_body_that_other_code_has_read() -> None:
    body = request("Order", "reads")
    worker = xdb.Worker(Order, secret=SECRET)
    reply = worker.handle("POST", PATHS["execute"], headers(body, SECRET), b"")
    answer: Any = codec.loads(reply.body)
    assert (reply.status, answer["errorType"]) == (500, "RawBodyConsumed")
    assert f"0 of {len(body)} bytes of the body are left, because other code has read it" in answer["detail"]
    large = xdb.Worker(Order, max_body=10).handle("POST", PATHS["execute"], headers(body), body)
    assert large.status == 413 and b"raise max_body" in large.body


@pytest.mark.parametrize("length, status", [("9" * 5000, 500), ("-1", 200), ("many", 200), ("\u0663", 200)])
def test_a_length_that_is_none(length: str, status: int) -> None:
    body = request("Order", "ask", "rpc", input=1)
    assert WORKER.handle("POST", PATHS["rpc"], {"Content-Length": length}, body).status == status


def test_a_worker_that_is_none() -> None:
    with pytest.raises(TypeError, match="a worker needs a process class"):
        xdb.Worker()
    with pytest.raises(TypeError, match="two process classes have the name 'Order'"):
        xdb.Worker(Order, Order)
    with pytest.raises(ValueError, match="the secret is empty: set the environment variable"):
        xdb.Worker(Order, secret="")
    with pytest.raises(ValueError, match="secret= is an empty list"):
        xdb.Worker(Order, secret=[])
    with pytest.raises(ValueError, match="not base64"):
        xdb.Worker(Order, secret="whsec_?")
    with pytest.raises(TypeError, match="can't run async handlers .Order.cancelled, Order.sleeps_async, Order.quick_async.: use worker.asgi"):
        WORKER.wsgi()


def test_a_defect_of_the_worker_is_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError("a defect")

    with xdb.Server(xdb.Worker(Order), port=0) as server:
        monkeypatch.setattr(server.worker, "open", broken)
        body = request("Order", "reads")
        with pytest.raises(OSError):
            urllib.request.urlopen(urllib.request.Request(server.url + PATHS["execute"], body), timeout=10)
    assert [each.levelname for each in caplog.records if "a connection failed" in each.getMessage()] == ["ERROR"]
    assert "ZeroDivisionError: a defect" in caplog.text


# --- signatures ------------------------------------------------------------------------------------------------------


def signed(worker: xdb.Worker, given: dict[str, str], body: bytes) -> tuple[int, str]:
    reply = worker.handle("POST", PATHS["rpc"], given, body)
    answer: Any = codec.loads(reply.body)
    return reply.status, answer.get("detail", "")


def test_signatures() -> None:
    body = request("Order", "ask", "rpc", input=1)
    worker = xdb.Worker(Order, secret=[SECRET, "an old one"])
    assert signed(worker, headers(body, SECRET), body)[0] == 200
    assert signed(worker, headers(body, "an old one"), body)[0] == 200
    # While the engine changes its secret it sends two signatures.
    assert signed(worker, headers(body, "unknown", SECRET), body)[0] == 200
    assert signed(worker, headers(body), body) == (
        401,
        "the call is not signed: register the worker with the secret= that it has here",
    )
    status, detail = signed(worker, headers(body, "unknown"), body)
    assert status == 401 and detail.startswith("no signature matches: the worker is registered with another secret")
    assert signed(worker, headers(body, SECRET), body[:-1] + b" ")[0] == 401
    for age, said in ((400, "s old, and the limit is 300 s"), (-400, "in the future")):
        status, detail = signed(worker, headers(body, SECRET, age=age), body)
        assert status == 401 and said in detail and "compare the clocks" in detail
    status, detail = signed(worker, {**headers(body, SECRET), "Idempotency-Key": "other"}, body)
    assert (status, detail) == (401, "webhook-id differs from Idempotency-Key")
    assert signed(worker, {**headers(body, SECRET), "webhook-timestamp": "soon"}, body)[0] == 401
    assert signed(worker, {**headers(body, SECRET), "webhook-signature": "v1,ü v2,x"}, body)[0] == 401


def test_many_signatures_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger could keep a worker busy with one large request else."""
    from xdb import signatures

    made: list[str] = []
    monkeypatch.setattr(signatures, "sign", lambda key, *_: made.append("") or "v1,none")  # type: ignore[func-returns-value]
    body = request("Order", "ask", "rpc", input=1)
    worker = xdb.Worker(Order, secret=[SECRET, "an old one"])
    many = {**headers(body, SECRET), "webhook-signature": " ".join(["v1,x"] * 1000)}
    assert signed(worker, many, body)[0] == 401
    assert len(made) == 2


def test_a_secret_is_in_no_text() -> None:
    worker = xdb.Worker(Order, secret=["topsecret", SECRET])
    assert "topsecret" not in repr(worker) + repr(worker.options) + str(vars(worker)["options"])


def test_a_signature_of_the_standard() -> None:
    """The example of the specification of Standard Webhooks."""
    from xdb.signatures import key_of, sign, verify

    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body, signature = b'{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body) == signature
    id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    given = {"webhook-id": id, "webhook-timestamp": "1614265330", "idempotency-key": id}
    verify([key], {**given, "webhook-signature": signature}, body, 1614265330, 300)
    assert key_of("whsec_QUI") == key_of("whsec_QUI=") == b"AB"
