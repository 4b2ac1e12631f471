"""The vectors of sdk/conformance, which every SDK runs."""

from __future__ import annotations

import json
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from reference import Conformance

import xdb
from xdb import codec, errors
from xdb.client.definitions import differences

REPOSITORY = Path(__file__).parents[4]
WORKER = xdb.Worker(Conformance)


def vectors(name: str) -> Any:
    return json.loads((REPOSITORY / "sdk" / "conformance" / f"{name}.json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """Null is as good as an absent key."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each is not None}
    return [plain(each) for each in value] if isinstance(value, list) else value


REQUESTS = {each["name"]: each for each in vectors("requests")}


@pytest.mark.parametrize("vector", vectors("answers"), ids=lambda vector: str(vector["request"]))
def test_answers(vector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = REQUESTS[vector["request"]]
    monkeypatch.setattr(time, "time", lambda: json.loads(request["body"])["context"]["firstAttemptTimestamp"])
    body = request["body"].encode()
    headers = {"Idempotency-Key": request["idempotencyKey"], "Content-Length": str(len(body))}
    reply = WORKER.handle("POST", "/under/a/prefix" + request["path"], headers, body)
    answer, expected = plain(json.loads(reply.body)), plain(vector["answer"])
    if reply.status != 200:  # the words are each SDK's own, where the vector has none
        answer = {key: answer.get(key) for key in expected}
    assert (reply.status, answer, reply.headers) == (vector["status"], expected, vector.get("headers", {}))


def test_the_definition() -> None:
    made = json.loads(codec.dumps(Conformance.definition()))
    assert differences(vectors("definition"), made) == []


@pytest.mark.parametrize("case", vectors("signatures")["cases"], ids=lambda case: str(case["name"]))
def test_signatures(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = vectors("signatures")
    monkeypatch.setattr(time, "time", lambda: given["now"])
    worker = xdb.Worker(Conformance, secret=case["secrets"], tolerance=given["toleranceSeconds"])
    body = case.get("body", given["body"]).encode()
    reply = worker.handle("POST", given["path"], case["headers"], body)
    answer = json.loads(reply.body)
    assert (reply.status, answer.get("errorType")) == ((200, None) if case["accepted"] else (401, "BadSignature"))


TYPES: dict[str, Any] = {"numeric": Decimal, "bigint": int, "double precision": float}


@pytest.mark.parametrize("number", vectors("numbers"), ids=lambda number: f"{number['type']} {number['value']}"[:50])
def test_numbers(number: Any) -> None:
    """What a column holds comes to a handler, and goes back, as it is."""
    kind = TYPES[number["type"]]
    came = codec.decode(codec.loads(number["json"].encode()), kind)
    assert type(came) is kind and came == kind(number["value"])
    written = codec.dumps(codec.encode(came)).decode()
    assert kind(json.loads(written, parse_float=str, parse_int=str)) == came
    if kind is Decimal:
        assert Decimal(json.loads(written)).as_tuple() == Decimal(number["value"]).as_tuple()  # a text, with all digits


def test_numbers_are_written_as_postgres_does(xdb_db: Any) -> None:
    for number in vectors("numbers"):
        sql = f"SELECT to_jsonb(%s::{number['type']})::text, (jsonb_build_object('n', %s::jsonb) ->> 'n')::{number['type']}::text"
        kind = TYPES[number["type"]]
        written = codec.dumps(codec.encode(kind(number["value"]))).decode()
        with psycopg.connect(xdb_db.dsn) as conn:
            assert conn.execute(sql, (number["value"], written)).fetchone() == (number["json"], number["value"])


def test_errors() -> None:
    listed = {each["sqlstate"]: (each["name"], each["retryable"]) for each in vectors("errors")}
    assert listed == {sqlstate: (kind.__name__, kind.retryable) for sqlstate, kind in errors.BY_SQLSTATE.items()}
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(XD\d{3})` \| `(\w+)`( \(retryable\))? \|", page, re.MULTILINE)
    # The page has the errors that the server raises; XD028 is reserved.
    assert {sqlstate: (name, bool(retryable)) for sqlstate, name, retryable in named}.items() <= listed.items()
    assert {each for each in listed if each.startswith("XD")} - {sqlstate for sqlstate, *_ in named} == {"XD028"}
