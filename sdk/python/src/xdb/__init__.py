"""Durable processes inside Postgres: what runs in a worker.

Define a process as a class (`Process`, `Row`, `state`, `rpc`, `Queue`), and serve it (`Worker`, `serve`).
"""

from __future__ import annotations

from .call import Call, DatabaseError, Recovered, current
from .codec import CodecError
from .decisions import Decision, Fatal, Retryable, complete, complete_if_empty, end_thread, fail, force_complete
from .definition import DefinitionError
from .live import CallOver, Message, NotLoaded, NullAttribute, Results, results, then
from .process import Process, Row, RowStart
from .queues import GlobalQueue, Queue
from .request import DeadlineExceeded, NoDecision, Reply
from .serve import Server, serve
from .signatures import BadSignature
from .states import Retry, Rpc, State, rpc, state
from .version import VERSION as __version__
from .waits import Wait, WaitError, all_of, any_of, queue, timer
from .worker import Worker

__all__ = [
    "BadSignature",
    "Call",
    "CallOver",
    "CodecError",
    "DatabaseError",
    "DeadlineExceeded",
    "Decision",
    "DefinitionError",
    "Fatal",
    "GlobalQueue",
    "Message",
    "NoDecision",
    "NotLoaded",
    "NullAttribute",
    "Process",
    "Queue",
    "Recovered",
    "Reply",
    "Results",
    "Retry",
    "Retryable",
    "Row",
    "RowStart",
    "Rpc",
    "Server",
    "State",
    "Wait",
    "WaitError",
    "Worker",
    "__version__",
    "all_of",
    "any_of",
    "complete",
    "complete_if_empty",
    "current",
    "end_thread",
    "fail",
    "force_complete",
    "queue",
    "results",
    "rpc",
    "serve",
    "state",
    "then",
    "timer",
]
