from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import agent
import pytest
from agent import Agent, Note, Said

from xdb.testing.pytest_plugin import Database


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def served() -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(agent.app, log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    running.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join(60)
        listening.close()


class Thinks(agent.Model):
    """A model that answers when the test allows it."""

    def __init__(self) -> None:
        self.thinking, self.cancelled, self.goes_on = 0, 0, False

    async def answer(self, messages: list[Said], key: str) -> str:
        self.thinking += 1
        try:
            while not self.goes_on:
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.thinking -= 1
        return "tool: weather" if len(messages) == 1 else "It is 42 degrees."


def test_quick_processes_do_not_wait_for_thinking_agents(xdb_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Thinks()
    monkeypatch.setattr(agent, "model", model)
    with served() as url:
        xdb_db.admin.register(agent.slow, name="agents", url=url, max_concurrency=4)
        xdb_db.admin.register(agent.quick, name="quick", url=url)
        for n in range(12):
            xdb_db.client.start(Agent, f"a-{n}", f"question {n}")
        wait_until(lambda: model.thinking == 4)  # all places of the slow worker
        xdb_db.client.start(Note, "note", "hello")
        assert xdb_db.client.wait(Note, "note").result == "noted: hello"
        assert model.thinking == 4
        for n in range(4, 12):
            xdb_db.client.stop(f"a-{n}")
        model.goes_on = True
        running = "SELECT count(*) FROM xdb.waits WHERE kind = 'LOCAL_QUEUE'"
        wait_until(lambda: xdb_db.execute(running) == [(4,)])
        for n in range(4):
            assert xdb_db.client.rpc(Agent.approve, f"a-{n}", n != 3) == 4
        results = [xdb_db.client.wait(Agent, f"a-{n}").output for n in range(4)]
        assert results == ["It is 42 degrees."] * 3 + ["not approved"]
