"""The budget of the pure core: 5,000 calls a second of one core."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench" / "core.py"


def test_a_call_takes_its_budget_of_processor_time_at_most() -> None:
    """It is counted in time of the processor, takes a sixth of it, and a machine that is busy does not count."""
    ran = subprocess.run([sys.executable, str(BENCH), "0.2"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    rates = [int(rate.replace(",", "")) for rate in re.findall(r": ([\d,]+) calls a second of one core", ran.stdout)]
    assert len(rates) == 2 and min(rates) >= 5000, ran.stdout
