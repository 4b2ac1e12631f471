"""Whatever a handler raises is a failed attempt with its class, over HTTP as elsewhere."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import post

import xdb


class PanicException(BaseException):
    """As pyo3 raises it for a panic of Rust."""


class NoText(BaseException):
    def __str__(self) -> str:
        raise GeneratorExit("no text")


async def waits_for_what_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task


def raises(error: BaseException) -> None:
    raise error


RAISED: dict[str, Callable[[], object]] = {
    "CancelledError": lambda: asyncio.run(waits_for_what_is_cancelled()),
    "SystemExit": lambda: sys.exit("for good"),
    "GeneratorExit": lambda: raises(GeneratorExit()),
    "PanicException": lambda: raises(PanicException("called `Option::unwrap()` on a `None` value")),
    "NoText": lambda: raises(NoText()),
    "Failed": lambda: pytest.fail("no"),
    "KeyboardInterrupt": lambda: raises(KeyboardInterrupt()),
}


class Served(xdb.Process):
    @xdb.state(start=True)
    def only(self, what: str) -> xdb.Decision:
        RAISED[what]()
        return xdb.complete()

    @xdb.state
    async def other(self, what: str) -> xdb.Decision:
        if what == "CancelledError":
            await waits_for_what_is_cancelled()
        RAISED[what]()
        return xdb.complete()


@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("state", ["only", "other"])
def test_the_answer_over_http_says_what_was_raised(what: str, state: str) -> None:
    answers: list[Any] = []
    # In a thread, where no Ctrl-C comes.
    thread = threading.Thread(target=lambda: answers.append(post(xdb.Worker(Served), "Served", state, input=what)))
    thread.start()
    thread.join()
    [(status, answer)] = answers
    assert (status, answer["errorType"]) == (500, what)


def test_ctrl_c_in_the_main_thread_ends_the_program() -> None:
    for state in ("only", "other"):
        with pytest.raises(KeyboardInterrupt):
            post(xdb.Worker(Served), "Served", state, input="KeyboardInterrupt")
