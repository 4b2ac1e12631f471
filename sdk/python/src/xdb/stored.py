"""Finds stored values of running processes that the annotations of the code can't read: inputs, local attributes, messages.

Limitations: only values that the session may see, at most 10,000 of each kind, and no columns of the application's tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .client.connections import Execute
from .client.statements import type_name
from .codec import CodecError, decode, loads

if TYPE_CHECKING:
    from . import Process

# Values of each kind and process type. If there are more, the server chooses which.
AT_MOST = 10_000

_INPUTS = f"""SELECT s.state_id, p.process_id, s.input::text
    FROM xdb.processes AS p JOIN xdb.state_executions AS s USING (execution_id)
    WHERE p.process_type = %s::text AND p.status = 'RUNNING' AND s.ended_at IS NULL LIMIT {AT_MOST}"""

_ATTRIBUTES = f"""SELECT e.key, p.process_id, e.value::text
    FROM (SELECT process_id, execution_id FROM xdb.processes WHERE process_type = %s::text AND status = 'RUNNING' LIMIT {AT_MOST}) AS p,
        jsonb_each(xdb.get_local_attributes(process_id => p.process_id, execution_id => p.execution_id)) AS e"""

_MESSAGES = f"""SELECT m.queue_name, p.process_id, m.payload::text
    FROM xdb.processes AS p JOIN xdb.queue_messages AS m USING (execution_id)
    WHERE p.process_type = %s::text AND p.status = 'RUNNING' LIMIT {AT_MOST}"""

_GLOBAL_MESSAGES = f"""SELECT m.queue_name, NULL, m.payload::text
    FROM xdb.queue_messages AS m WHERE m.execution_id IS NULL AND m.queue_name IN (SELECT jsonb_array_elements_text(%s::text::jsonb)) LIMIT {AT_MOST}"""


def unreadable(execute: Execute, process: type[Process]) -> Iterator[str]:
    """One line for each input, local attribute and queue with values that a handler of this class could not read."""
    described, name = process._xdb, (type_name(process),)
    inputs = {state.name: (state.input_type, state.input_place) for state in described.states.values() if state.takes_input}
    yield from _unreadable("the input of state {}", execute(_INPUTS, name), inputs)
    attributes = {key: (attribute.annotation, key) for key, attribute in described.local.items()}
    yield from _unreadable("local attribute {}", execute(_ATTRIBUTES, name), attributes)
    messages = {queue.name: (queue.message_type, queue.name) for queue in described.queues.values()}
    yield from _unreadable("a message of queue {}", execute(_MESSAGES, name), messages)
    shared = {queue.name: (queue.message_type, queue.name) for queue in described.global_queues.values()}
    if shared:
        yield from _unreadable("a message of global queue {}", execute(_GLOBAL_MESSAGES, (json.dumps(list(shared)),)), shared)


def _unreadable(what: str, rows: list[tuple[Any, ...]], types: dict[str, tuple[Any, str]]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for key, process_id, text in rows:
        if key in types:
            annotation, place = types[key]
            try:
                decode(loads((text or "null").encode()), annotation, place)
            except (CodecError, ValueError, TypeError) as error:
                found.setdefault(key, []).append(f"{error} (in {process_id})" if process_id is not None else str(error))
    for key, problems in found.items():
        others = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield f"{what.format(key)} can't be read by the code: {problems[0]}{others}"
