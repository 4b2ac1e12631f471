"""The first process of the README works as it stands."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import xdb
from xdb.testing import call


def test_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    hello, _, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert hello in (Path(__file__).parents[3] / "docs" / "python.md").read_text(), "the quick start has another one"
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
