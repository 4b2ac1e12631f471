"""What the workers that are registered say that they run."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Mapping

# Of a worker that is there: it computes nothing.
TIMEOUT = 3.0
_PATH = "/api/v1/xdb/worker/health"
_LONGEST = 16 * 1024 * 1024


class NotAsked(Exception):
    """A worker that could not be asked from here, or does not say. The server may reach it all the same."""


def types_at(url: str) -> Mapping[str, str]:
    """The process types of the worker at this URL, with the hashes of their definitions."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + _PATH, timeout=TIMEOUT) as answer:
            types = json.loads(answer.read(_LONGEST))["types"]
    except (KeyError, TypeError, ValueError):
        raise NotAsked("what answers there does not say which process types it has") from None
    except (OSError, http.client.HTTPException) as error:
        raise NotAsked(str(error) or type(error).__name__) from error
    if not isinstance(types, dict):
        raise NotAsked("what answers there does not say which process types it has")
    return types
