"""What handlers raise in these tests: exceptions that are no `Exception`, among others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest


class PanicException(BaseException):
    """As pyo3 raises it for a panic of Rust."""


class Timeout(BaseException):
    """As gevent has it."""


class NoText(BaseException):
    def __str__(self) -> str:
        raise GeneratorExit("no text")


async def waits_for_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task


def raises(error: BaseException) -> None:
    raise error


RAISED: dict[str, Callable[[], object]] = {
    "CancelledError": lambda: asyncio.run(waits_for_a_cancelled_task()),
    "SystemExit": lambda: sys.exit("for good"),
    "KeyboardInterrupt": lambda: raises(KeyboardInterrupt()),
    "GeneratorExit": lambda: raises(GeneratorExit()),
    "PanicException": lambda: raises(PanicException("called `Option::unwrap()` on a `None` value")),
    "Timeout": lambda: raises(Timeout("1 second")),
    "NoText": lambda: raises(NoText()),
    "Failed": lambda: pytest.fail("no"),
    "Skipped": lambda: pytest.skip("no"),
}


async def raise_in_coroutine(what: str) -> None:
    if what == "CancelledError":
        await waits_for_a_cancelled_task()
    RAISED[what]()
