"""One process of the simulator: what `Simulator.start` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

from ..client.outcome import Description, Outcome
from ..process import Process
from ..states import Rpc

if TYPE_CHECKING:
    from ..queues import Queue
    from .simulator import Simulator

I = TypeVar("I")
O = TypeVar("O")
P = TypeVar("P", bound=Process)
T = TypeVar("T")


@dataclass(frozen=True)
class Event:
    """An event of a history."""

    number: int
    at: datetime
    type: str
    details: Mapping[str, Any] = field(repr=False)


class Handle(Generic[P]):
    """A process that the simulator has started, with the methods of the simulator for this execution."""

    def __init__(self, simulator: Simulator, process: type[P], process_id: str, execution_id: str) -> None:
        self._simulator = simulator
        self.process = process
        self.process_id = process_id
        self.execution_id = UUID(execution_id)

    def __repr__(self) -> str:
        return f"<{self.process.__name__} {self.process_id!r}: {self.status}>"

    @overload
    def rpc(self, rpc: Rpc[None, O], *, idempotency_key: str | None = ...) -> O: ...
    @overload
    def rpc(self, rpc: Rpc[I, O], input: I, *, idempotency_key: str | None = ...) -> O: ...
    def rpc(self, rpc: Rpc[Any, Any], input: object = None, *, idempotency_key: str | None = None) -> Any:
        """Calls an RPC, and returns its output."""
        call: Callable[..., Any] = self._simulator.rpc
        return call(rpc, self.process_id, input, idempotency_key=idempotency_key, execution=self.execution_id)

    def publish(self, queue: Queue[T], message: T, *, message_id: str | None = None) -> None:
        """Publishes a message to one of its local queues."""
        self._simulator.publish(queue, self.process_id, message, message_id=message_id, execution=self.execution_id)

    def stop(self, reason: str | None = None, fail: bool = False) -> None:
        """Stops the process. Its status is then TERMINATED, or with `fail` FAILED."""
        self._simulator.stop(self.process_id, reason, fail, execution=self.execution_id)

    def pause(self, *, reject: bool = False, until: datetime | None = None, reason: str | None = None) -> None:
        """Pauses the process until `resume()`, or until the time `until`."""
        self._simulator.pause(self.process_id, reject=reject, until=until, reason=reason, execution=self.execution_id)

    def resume(self) -> None:
        """Ends the pause of the process."""
        self._simulator.resume(self.process_id, execution=self.execution_id)

    @property
    def status(self) -> str:
        """RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED."""
        return self.outcome.status

    @property
    def outcome(self) -> Outcome:
        """Its status and results."""
        return self._simulator.outcome(self.process_id, execution=self.execution_id)

    @property
    def description(self) -> Description:
        """What it does, what it waits for, and what failed last."""
        return self._simulator.describe(self.process_id, execution=self.execution_id)

    @property
    def local(self) -> P:
        """Its local attributes, as a read-only instance."""
        return self._simulator.local(self.process, self.process_id, execution=self.execution_id)

    @property
    def history(self) -> list[Event]:
        """Its events."""
        return self._simulator.history(self.process_id, execution=self.execution_id)
