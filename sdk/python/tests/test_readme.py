"""The first process of the README works as it stands."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import xdb
from xdb.testing import call


DOCS = Path(__file__).parents[3] / "docs"
QUICK_START = (DOCS / "quick-start-python.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python(?:,\w+)?\n(.*?)```", text, re.DOTALL)


def test_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    hello, _, test = blocks((Path(__file__).parents[1] / "README.md").read_text())
    assert hello in QUICK_START, "the quick start has another one"
    module = types.ModuleType("hello")
    monkeypatch.setitem(sys.modules, "hello", module)
    exec(hello, vars(module))
    exec(test, vars(module))
    vars(module)["test_nobody"]()
    process = vars(module)["Hello"]
    rows = {vars(module)["Guest"]: {"greeting": None}}
    assert call(process.greet, rows=rows, received={process.names: []}).decision == process.greet()
    assert call(process.say, "Ada").output == "thank you, Ada"
    assert isinstance(vars(module)["worker"], xdb.Worker)


def test_the_process_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("hello")
    monkeypatch.setitem(sys.modules, "hello", module)
    exec(blocks(QUICK_START)[0], vars(module))
    [test, _] = blocks((DOCS / "python-testing.md").read_text().partition("## A whole process in memory")[2])
    exec(test, vars(module))
    vars(module)["test_in_memory"]()
