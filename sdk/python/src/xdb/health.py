"""Asks HTTP workers which process types they serve, and whether they accept a secret.

Limitations: the request comes from this machine, which may reach other addresses than the Postgres server does.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from .signatures import key_of, sign

# Seconds. A worker answers at once, because it computes nothing.
TIMEOUT = 3.0
_PATH = "/api/v1/xdb/worker/health"
_CALL = "/api/v1/xdb/worker/async-state/execute"
_LONGEST = 16 * 1024 * 1024


class NotAsked(Exception):
    """The worker could not be reached from here, or gave no list of process types. The Postgres server may still reach it."""


class NotAWorker(NotAsked):
    """Something answers at this address, but no worker at this path. The engine would not find one there either."""


def types_at(url: str) -> Mapping[str, str]:
    """The process types of the worker at this URL, with the hashes of their definitions. Raises `NotAsked` or `NotAWorker`."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + _PATH, timeout=TIMEOUT) as answer:
            types = json.loads(answer.read(_LONGEST))["types"]
    except (KeyError, TypeError, ValueError):
        raise NotAsked("the answer has no list of process types") from None
    except urllib.error.HTTPError as error:
        kind = NotAWorker if error.code in (404, 405, 410) else NotAsked
        raise kind(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotAsked(str(error) or type(error).__name__) from error
    if not isinstance(types, dict):
        raise NotAsked("the answer has no list of process types")
    return types


def refuses_signature(url: str, secret: str) -> bool:
    """Whether the worker at this URL refuses a signature made with this secret. The request has an empty body, so no handler runs."""
    id, now, body = f"check-{time.time_ns()}", str(int(time.time())), b"{}"
    signature = sign(key_of(secret), id, now, body)
    headers = {"idempotency-key": id, "webhook-id": id, "webhook-timestamp": now, "webhook-signature": signature}
    asked = urllib.request.Request(url.rstrip("/") + _CALL, body, {**headers, "content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT):
            return False
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, http.client.HTTPException):
        return False
