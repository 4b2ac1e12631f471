"""Agents that call a language model for 20 seconds, use a tool, call the model again, and ask a person.

    uvicorn agent:app --port 8080
    python -m xdb register agent:slow --name agents --url http://127.0.0.1:8080 --max-concurrency 500
    python -m xdb register agent:quick --name quick --url http://127.0.0.1:8080

One program serves slow and quick types, but they are registered as two workers. Each worker has its own places, so quick calls don't wait
for the model. One `xdb.Worker` can serve both, because the slow handlers are async. Slow ordinary handlers would take all of its threads,
and need an `xdb.Worker` of their own.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

import xdb


@dataclass
class Said:
    role: str
    text: str


class Model:
    """A language model. It gets an idempotency key, so that it does not work twice for one call."""

    async def answer(self, messages: list[Said], key: str) -> str:
        await asyncio.sleep(float(os.environ.get("MODEL_SECONDS", "20")))
        return "tool: weather" if len(messages) == 1 else "It is 42 degrees."


model = Model()


class Agent(xdb.Process, timeout=timedelta(hours=1)):
    messages: list[Said] = []
    approvals = xdb.Queue[bool]()

    @xdb.state(start=True, timeout=timedelta(seconds=90), retry=xdb.Retry(attempts=4))
    async def think(self, prompt: str | None) -> xdb.Decision:
        # This handler is cancelled when the agent is stopped, because its answer is no longer needed.
        if prompt is not None:
            self.messages.append(Said("user", prompt))
        said = await model.answer(self.messages, self.call.id)
        self.messages.append(Said("assistant", said))
        return self.use_tool(said) if said.startswith("tool: ") else self.ask()

    @xdb.state
    async def use_tool(self, said: str) -> xdb.Decision:
        self.messages.append(Said("tool", f"{said.removeprefix('tool: ')} is 42"))
        return self.think(None)

    @xdb.state(wait=xdb.any_of(approvals, xdb.timer(days=2)))
    async def ask(self) -> xdb.Decision:
        if not (self.approvals.received and self.approvals.message):
            return xdb.fail("not approved")
        return xdb.complete(self.messages[-1].text)

    @xdb.rpc
    async def approve(self, yes: bool) -> int:
        self.approvals.publish(yes)
        return len(self.messages)


class Note(xdb.Process):
    """A quick process type of the same program."""

    @xdb.state(start=True)
    async def write(self, text: str) -> xdb.Decision:
        return xdb.complete(f"noted: {text}")


slow, quick = xdb.Worker(Agent), xdb.Worker(Note)  # registered separately
app = xdb.Worker(Agent, Note).asgi()  # and served together
