"""Adds the ids of the current call to log records.

After `xdb.logging.install()` every line that the root logger's handlers write during a call has them, including your own lines:
`logging.basicConfig(format="%(process_id)s %(state)s %(message)s"); xdb.logging.install()`. The SDK logs to `xdb.worker`.
"""

from __future__ import annotations

import logging

from .call import running

FIELDS = ("process_id", "execution_id", "state", "attempt", "call_id")
log = logging.getLogger("xdb.worker")


class CallFilter(logging.Filter):
    """Adds `process_id`, `execution_id`, `state` (or the RPC), `attempt` and `call_id` to records. Outside of calls they are `-`."""

    def filter(self, record: logging.LogRecord) -> bool:
        call = running.get(None)
        if call is not None:
            record.process_id, record.execution_id = call.process_id, call.execution_id
            record.state, record.attempt, record.call_id = call.state or call.rpc, call.attempt, call.id
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, "-")
        return True


def install(*handlers: logging.Handler) -> None:
    """Adds the filter to these handlers, by default to all handlers of the root logger. It may be called twice."""
    for handler in handlers or tuple(logging.getLogger().handlers):
        if not any(isinstance(each, CallFilter) for each in handler.filters):
            handler.addFilter(CallFilter())


log.addFilter(CallFilter())
