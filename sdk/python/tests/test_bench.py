"""The benchmark of the core works, and its budget holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# In microseconds of the processor: several times what a call takes, so that no other work of a machine makes up for it.
BUDGET = 200


def test_a_call_that_does_nothing_is_within_its_budget() -> None:
    command = [sys.executable, str(ROOT / "bench" / "core.py"), "0.1", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    figures = re.findall(r"^(\w+): [\d,]+ calls per second on one core, (\d+) microseconds each$", ran.stdout, re.MULTILINE)
    assert [name for name, _ in figures] == ["nothing", "some"], ran.stdout
    assert int(figures[0][1]) <= BUDGET, ran.stdout
