"""First processes as the pages have them, every block in order, from an empty directory to a finished process."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from xdb.testing.server import Server

REPOSITORY = Path(__file__).parents[3]
# What the page can't know: where the server is, and which port is free.
DIRECTORY, PORT = "/tmp/xdb-a1b2c3", re.compile(r"\b80[78]0\b")


@pytest.fixture
def server() -> Iterator[Server]:
    """As `make psql` makes one."""
    server = Server()
    try:
        with psycopg.connect(server.dsn) as conn:
            conn.execute("CREATE EXTENSION xdb")
        yield server
    finally:
        server.stop()


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert {"sh", "sql", "python"} <= {kind for kind, _ in found} <= {"sh", "sql", "python", "text", ""}
    return [(kind, block) for kind, block in found if kind]  # without a kind it is for another shell


@contextmanager
def free_port() -> Iterator[str]:
    """A port for a worker. It is kept, so nothing else gets it before the worker comes, whose socket may share it."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield str(kept.getsockname()[1])


def script(server: Server, port: str, page: list[tuple[str, str]]) -> tuple[str, list[str]]:
    """All of it for one shell, and what it has to print."""
    psql = shlex.join([str(server.bindir / "psql"), "-qXAt", "-v", "ON_ERROR_STOP=1", server.dsn])
    lines, printed = ["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT"], []
    for kind, block in page:
        block = block.replace(DIRECTORY, str(server.directory))
        block = PORT.sub(port, block)
        if kind == "text":
            printed.append(block.rstrip("\n"))
        elif kind == "sql":
            lines.append(f"{psql} <<'--- end'\n{block}--- end")
        elif kind == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name is not None, f"this block has no name:\n{block}"
            lines.append(f"cat >{name[1]} <<'--- end'\n{block}--- end")
        else:
            lines.append(block)
            if re.search(r"&( worker=\$!)?\n", block) and port in block:  # nobody types faster than a worker starts
                lines.append(f"for _ in $(seq 600); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>&- && break; sleep 0.1; done")
    return "\n".join(lines), printed


PAGES = [
    ("docs/python.md", "Quick start", "2 passed"),
    ("docs/python-pull.md", "Quick start", "1 passed"),
    ("README.md", "Your first process", "g1|Hello, Ada!"),
    ("docs/worker-protocol.md", "A worker by hand", "g1|Hello, Ada!"),
    ("docs/deploying.md", "Step by step", "packed"),
]


@pytest.mark.parametrize("page, heading, at_the_end", PAGES)
def test_from_nothing_to_a_finished_process(server: Server, tmp_path: Path, page: str, heading: str, at_the_end: str) -> None:
    follow(server, tmp_path, blocks(page, heading), at_the_end)


def test_the_pages_work_after_each_other(server: Server, tmp_path: Path) -> None:
    """On one server, as for a reader who goes on to the next page."""
    for page, heading, at_the_end in [PAGES[2], PAGES[0], PAGES[1]]:
        follow(server, tmp_path, blocks(page, heading), at_the_end)


def follow(server: Server, directory: Path, page: list[tuple[str, str]], at_the_end: str) -> None:
    """Does what a page says in a directory, and looks at what is printed."""
    if not (directory / "sdk").exists():
        (directory / "sdk").symlink_to(REPOSITORY / "sdk")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON", "VIRTUAL"))}
    # The tests at its end may take this server, and need no other.
    environment["XDB_TEST_DSN"] = server.dsn
    environment["PATH"] = f"{server.bindir}:{environment['PATH']}"
    wheels = Path(sys.prefix) / "wheels"
    if wheels.exists():  # as the scripts have left them: nothing is fetched then
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with free_port() as port:
        text, printed = script(server, port, page)
        command = ["bash", "-c", text]
        ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    told = f"{ran.stdout}\n{ran.stderr}\n{server.log[-4000:]}"
    assert ran.returncode == 0, told
    at = 0
    for expected in printed:
        assert expected in ran.stdout[at:], f"{expected!r} is missing in:\n{told}"
        at = ran.stdout.index(expected, at) + len(expected)
    assert at_the_end in ran.stdout[at:], told
