"""The clients, and the classes of what they take and return."""

from .aio import AsyncClient
from .client import Client
from .outcome import Description, Done, Execution, Incident, NotCompleted, Outcome, Result, StateOutcome, Summary
from .statements import Merge, Start

__all__ = [
    "AsyncClient",
    "Client",
    "Description",
    "Done",
    "Execution",
    "Incident",
    "Merge",
    "NotCompleted",
    "Outcome",
    "Result",
    "Start",
    "StateOutcome",
    "Summary",
]
