"""What the workers that are registered say that they run."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from .signatures import key_of, sign

# Of a worker that is there: it computes nothing.
TIMEOUT = 3.0
_PATH = "/api/v1/xdb/worker/health"
_CALL = "/api/v1/xdb/worker/async-state/execute"
_LONGEST = 16 * 1024 * 1024


class NotAsked(Exception):
    """A worker that could not be asked from here, or does not say. The server may reach it all the same."""


class NotAWorker(NotAsked):
    """What answers there has no worker at this path. It would not have one for the server either."""


def types_at(url: str) -> Mapping[str, str]:
    """The process types of the worker at this URL, with the hashes of their definitions."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + _PATH, timeout=TIMEOUT) as answer:
            types = json.loads(answer.read(_LONGEST))["types"]
    except (KeyError, TypeError, ValueError):
        raise NotAsked("what answers there does not say which process types it has") from None
    except urllib.error.HTTPError as error:
        kind = NotAWorker if error.code in (404, 405, 410) else NotAsked
        raise kind(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotAsked(str(error) or type(error).__name__) from error
    if not isinstance(types, dict):
        raise NotAsked("what answers there does not say which process types it has")
    return types


def refuses_signature(url: str, secret: str) -> bool:
    """Whether the worker at this URL refuses what is signed with this secret. It is asked for nothing: the body is no call."""
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
