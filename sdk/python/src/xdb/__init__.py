"""Durable processes inside Postgres.

| to | use |
|---|---|
| define a process as a class | `Process`, `Row`, `state`, `rpc`, `Queue` |
| serve it over HTTP | `Worker`, `serve` |
| claim its calls over SQL instead | `PullWorker`, `AsyncPullWorker` |
| register it | `Admin` |
| start it, send it messages, call its RPCs | `Client`, `AsyncClient` |

Besides: `xdb.testing` (tests), `xdb.otel` (tracing), `xdb.logging` (ids of calls in log lines).
"""

from __future__ import annotations

from . import errors
from .aborts import abort
from .admin import Admin, Change, SignatureLost, Stranding
from .call import Call, DatabaseError, Parent, Recovered, current
from .checking import Finding
from .children import ChildClosed
from .client import AsyncClient, Client, Description, Done, Execution, Incident, Merge, NotCompleted, Outcome, Result, Start, StateOutcome, Summary
from .codec import CodecError
from .decisions import Decision, Fatal, Retryable, compensate, complete, complete_if_empty, end_thread, fail, force_complete, retry
from .definition import DefinitionError
from .errors import XdbError
from .functions import Function, StartCall
from .live import CallOver, Message, NotLoaded, NullAttribute, Results, results, then
from .locks import Lock, Shared
from .process import Process, Row, RowStart
from .pull import AsyncPullWorker, PullWorker, connection
from .queues import GlobalQueue, Queue
from .request import DeadlineExceeded, NoDecision, Reply, UnusedMovement
from .serve import Server, serve
from .signatures import BadSignature
from .states import COMPENSATE, RAISE_INCIDENT, OnFailure, Retry, Rpc, State, rpc, state
from .version import VERSION as __version__
from .waits import Wait, WaitError, all_of, any_of, cron, queue, timer
from .worker import Worker

__all__ = [
    "Admin",
    "AsyncClient",
    "AsyncPullWorker",
    "BadSignature",
    "COMPENSATE",
    "Call",
    "CallOver",
    "Change",
    "ChildClosed",
    "Client",
    "CodecError",
    "DatabaseError",
    "DeadlineExceeded",
    "Decision",
    "DefinitionError",
    "Description",
    "Done",
    "Execution",
    "Fatal",
    "Finding",
    "Function",
    "GlobalQueue",
    "Incident",
    "Lock",
    "Merge",
    "Message",
    "NoDecision",
    "NotCompleted",
    "NotLoaded",
    "NullAttribute",
    "OnFailure",
    "Outcome",
    "Parent",
    "Process",
    "PullWorker",
    "Queue",
    "RAISE_INCIDENT",
    "Recovered",
    "Reply",
    "Result",
    "Results",
    "Retry",
    "Retryable",
    "Row",
    "RowStart",
    "Rpc",
    "Server",
    "Shared",
    "SignatureLost",
    "Start",
    "StartCall",
    "State",
    "StateOutcome",
    "Stranding",
    "Summary",
    "UnusedMovement",
    "Wait",
    "WaitError",
    "Worker",
    "XdbError",
    "__version__",
    "abort",
    "all_of",
    "any_of",
    "compensate",
    "complete",
    "complete_if_empty",
    "connection",
    "cron",
    "current",
    "end_thread",
    "errors",
    "fail",
    "force_complete",
    "queue",
    "results",
    "retry",
    "rpc",
    "serve",
    "state",
    "then",
    "timer",
]
