"""Whatever a handler raises is a failed attempt with its class, over HTTP as elsewhere."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from raised import RAISED, raise_in_coroutine
from support import post

import xdb


class Served(xdb.Process):
    @xdb.state(start=True)
    def only(self, what: str) -> xdb.Decision:
        RAISED[what]()
        return xdb.complete()

    @xdb.state
    async def other(self, what: str) -> xdb.Decision:
        await raise_in_coroutine(what)
        return xdb.complete()


@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("state", ["only", "other"])
def test_the_answer_over_http_names_the_raised_exception(what: str, state: str) -> None:
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
