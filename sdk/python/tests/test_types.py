"""What type checkers say of the examples: nothing, but for the deliberate mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests" / "typing"


def mistakes() -> set[tuple[str, int]]:
    lines = (EXAMPLES / "app.py").read_text().splitlines()
    found = {("app.py", number) for number, line in enumerate(lines, 1) if "# error expected" in line}
    assert len(found) == 14
    return found


def test_mypy_reports_the_mistakes() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--no-color-output", f"--cache-dir={sys.prefix}/mypy"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = re.findall(r"^(?:.*/)?([\w.]+):(\d+): error:", ran.stdout, re.MULTILINE)
    assert {(name, int(line)) for name, line in errors} == mistakes(), ran.stdout + ran.stderr
    assert len(errors) == len(mistakes()), ran.stdout


def test_pyright_reports_the_mistakes() -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = [each for each in json.loads(ran.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    places = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    assert places == mistakes(), json.dumps(errors, indent=1)
    assert len(errors) == len(mistakes())


def test_no_file_is_too_long() -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    assert max(sizes.values()) <= 600, sizes
    assert sizes["codec.py"] <= 300


def test_examples_are_short() -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in (ROOT.parents[1] / "examples" / "python").glob("*.py")}
    assert len(sizes) >= 12 and max(sizes.values()) < 100, sizes
