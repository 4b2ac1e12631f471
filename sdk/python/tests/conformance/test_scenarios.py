"""What is played on the simulator and on a server has the same history, which is that of the scenario."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from scenario import SCENARIOS, command_of, load, normalised, of_failures, play, same
from stages import ByFetching, ByFunctions, OnServer, OnSimulator, OverHttp

from xdb.testing import program
from xdb.testing.simulator import SimulatorNotFound

PATHS = sorted(SCENARIOS.glob("*.json"))
EXPECTATIONS = ("result", "sqlstate", "history")


def is_as_expected(scenario: dict[str, Any], came: list[dict[str, Any]], members: tuple[str, ...] | None = None) -> None:
    scenario, came = of_failures(scenario, members), of_failures(came, members)
    for number, (step, of_step) in enumerate(zip(scenario["steps"], came)):
        for kind in EXPECTATIONS:
            expected, given = step.get(kind, {} if kind == "history" else None), of_step.get(kind)
            told = f"step {number}, {json.dumps(dict([command_of(step)]))}: {kind} is\n{json.dumps(given, indent=1)}"
            assert same(given, expected), f"{told}\nand not\n{json.dumps(expected, indent=1)}"


@pytest.fixture(scope="session")
def has_simulator() -> None:
    try:
        program.find()
    except SimulatorNotFound:
        pytest.skip("there is no xdb-sim")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.stem))
def test_on_the_simulator(path: Path, has_simulator: None) -> None:
    scenario, stage = load(path), OnSimulator()
    try:
        came = play(scenario, stage)
    finally:
        stage.close()
    if os.environ.get("ACCEPT") == "1":
        accept(path, scenario, came)
    is_as_expected(load(path), came)


@pytest.mark.parametrize("way", [OverHttp, ByFetching, ByFunctions])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.stem))
def test_on_a_server(path: Path, way: type[OnServer], xdb_db: Any) -> None:
    if path.stem in way.left_out:
        pytest.skip(way.left_out[path.stem])
    scenario, stage = load(path), way(xdb_db)
    try:
        came = play(scenario, stage)
    finally:
        stage.close()
    is_as_expected(scenario, came, way.of_failures)


def accept(path: Path, scenario: dict[str, Any], came: list[dict[str, Any]]) -> None:
    """Writes what came as what is expected."""
    steps = []
    for step, of_step in zip(scenario["steps"], came):
        steps.append({**dict([command_of(step)]), **{kind: of_step[kind] for kind in EXPECTATIONS if of_step.get(kind) not in (None, {})}})
    path.write_text(written({**scenario, "steps": steps}) + "\n", encoding="utf-8")


def written(value: Any, indent: str = "", width: int = 150) -> str:
    """JSON with as much in a line as fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= width or not isinstance(value, (dict, list)):
        return line
    within = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {written(each, within, width)}" for key, each in value.items()]
    else:
        items = [written(each, within, width) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(within + item for item in items) + f"\n{indent}{last}"


def test_differences_of_histories_are_found() -> None:
    """Two times may be a little apart; nothing else may differ."""
    event = normalised("2027-01-01T00:00:00+00:00", "AttemptFailed", {"seq": 1, "nextAttemptAt": 1798761660500000})
    assert event == ["AttemptFailed", {"seq": 1, "nextAttemptAt": {"inSeconds": 60.5}}]
    assert same({"inSeconds": 60}, {"inSeconds": 54}) and not same({"inSeconds": 60}, {"inSeconds": 50})
    assert not same([1], [True]) and not same({"a": 1}, {"a": 1, "b": None}) and not same([1], [1, 1])
