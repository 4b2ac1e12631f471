"""What the tests are run with is what is pinned: no new release of another package makes them fail."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# The package itself, and what a virtual environment of this Python begins with.
NOT_PINNED = {"xdb-sdk", "pip", "setuptools", "wheel"}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.skipif(not (Path(sys.prefix) / "made-of").exists(), reason="this environment is none of scripts/python-env")
def test_everything_is_pinned() -> None:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    pinned = {normalised(name): version for name, version in (line.split("==") for line in lines)}
    installed = {normalised(each.metadata["Name"]): each.version for each in metadata.distributions()}
    installed = {name: version for name, version in installed.items() if name not in NOT_PINNED}
    other = {name: version for name, version in installed.items() if pinned.get(name) != version}
    if sys.version_info[:2] != (3, 11):  # another Python may need what that one has
        other = {name: version for name, version in other.items() if name in pinned}
    assert other == {}, "pin them with `scripts/python-env --pin`"
