"""Children: processes that an answer starts (`self.start_child`), and the message about the end of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Union

from .functions import StartCall
from .jsontext import JSON
from .live import Live
from .locks import Lock
from .queues import BoundQueue
from .scalars import SCALARS, scalar
from .states import State

if TYPE_CHECKING:
    from .client.statements import IdReuse
    from .process import Process, RowStart

# The most children of one answer.
MOST_CHILDREN = 1000


@dataclass(frozen=True)
class ChildClosed:
    """The message that a queue of the parent gets when a child closes: `shipped = xdb.Queue[xdb.ChildClosed]()`.

    `status` is `COMPLETED`, `FAILED`, `TIMEOUT` or `TERMINATED`. `result` is the output if there is exactly one. Results that are larger than a
    message may be are left out: `omitted`.
    """

    process_id: str
    execution_id: str
    process_type: str
    status: str
    result: Any = None
    # All outputs, each with the step that gave it.
    results: Sequence[Mapping[str, Any]] = field(default_factory=list)
    # Why the child failed or was stopped.
    reason: str | None = None
    omitted: bool = False

    @property
    def completed(self) -> bool:
        """Whether the child has completed."""
        return self.status == "COMPLETED"


def _to_json(closed: ChildClosed) -> JSON:
    message: dict[str, JSON] = {
        "processId": closed.process_id,
        "processExecutionId": closed.execution_id,
        "processType": closed.process_type,
        "status": closed.status,
    }
    if closed.reason is not None:
        message["reason"] = closed.reason
    if closed.omitted:
        return {**message, "omitted": True}
    return {**message, "result": closed.result, "results": [dict(each) for each in closed.results]}


def _of_json(message: Mapping[str, Any]) -> ChildClosed:
    return ChildClosed(
        message["processId"],
        message["processExecutionId"],
        message["processType"],
        message["status"],
        message.get("result"),
        message.get("results") or [],
        message.get("reason"),
        bool(message.get("omitted")),
    )


SCALARS[ChildClosed] = scalar(ChildClosed, ChildClosed, dict, _to_json, _of_json)


def start_child(
    live: Live,
    process: type[Process],
    input: object,
    *,
    id: str | None,
    on_close: BoundQueue[ChildClosed] | None,
    leave: bool,
    rows: Sequence[RowStart],
    local: Mapping[str, object] | None,
    id_reuse: IdReuse,
    timeout: Union[float, timedelta, None],
    start_at: datetime | None,
    starting_state: State[Any] | None,
    shard_key: str | None,
    priority: int | None,
    locks: Sequence[Lock],
    calls: Sequence[StartCall],
) -> None:
    """Adds a child to the answer: see `Process.start_child`."""
    # The client imports the classes of this package.
    from .client.statements import Start, seconds_of

    one = Start(
        process, id, input, rows, local, id_reuse, start_at=start_at, starting_state=starting_state, shard_key=shard_key,
        priority=priority, locks=locks, calls=calls,
    )
    if on_close is not None and not isinstance(on_close, BoundQueue):
        raise TypeError(f"on_close={on_close!r} is not a local queue of this process: write on_close=self.shipped")
    given = one.arguments()
    child: dict[str, JSON] = {
        "processType": given["process_type"],
        "processId": given.get("process_id"),
        "input": given.get("input"),
        "globalAttributes": given.get("global_attributes"),
        "localAttributes": given.get("local_attributes"),
        "idReusePolicy": None if id_reuse == "allow_if_no_running" else given["id_reuse_policy"],
        "timeoutSeconds": None if timeout is None else seconds_of(timeout),
        "startAt": given.get("start_at"),
        "options": given.get("options"),
        "onClose": None if on_close is None else on_close.name,
        "whenParentCloses": "LEAVE" if leave else None,
    }
    with live.guard:
        live.check_open(f"can't start a child of the type {given['process_type']}")
        if len(live.children) == MOST_CHILDREN:
            raise ValueError(f"one answer starts at most {MOST_CHILDREN} children: start the others in a next state")
        live.children.append({key: value for key, value in child.items() if value is not None})
