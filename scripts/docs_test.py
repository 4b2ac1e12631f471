#!/usr/bin/env python3
"""Runs the fenced blocks of the documentation in the order of their page, and compares what they print.

Each page has a throwaway server with the extension, a directory of its own, one shell and one psql. So what a block has set
(a variable of the shell, `\\connect`, a temporary table) holds for the next one. The word behind the fence says what a block is:

  sql,run      is sent to psql, as the superuser `postgres` until the page connects as another role
  sh,run       is sent to the shell
  python,run   is a program, and is run
  sql,file     (sh, python, toml, ini too) is saved in the page's directory under the name in its first line, a comment
  text,output  is what the block before it prints
  json,check   is JSON, one text or several, and is parsed
  python,from=examples/python/order.py
               is a part of this file, which tests of its own run
  text         is a picture or a template, and is not run

A block that can't be run has the word `skip` and a comment above it that says why: <!-- not run: REASON -->. A comment that
begins with `docs-test sql` or `docs-test sh` has lines for the test alone, which a reader does not see.

psql runs with -q, so `INSERT 0 1` and the like are not printed. In an output block, `…` stands for any text, and a line of `…` for any lines. UUIDs, times (also in microseconds) and ports are compared as such, and
several spaces or dashes as one. `PORT` numbers 8070 to 8099 are replaced by free ports, and `/tmp/xdb-a1b2c3` by the server's directory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "sdk" / "python" / "src"))

SECONDS_A_BLOCK = 120
RUN = {"sql", "sh", "python"}
FILES = {"sql", "sh", "python", "toml", "ini"}
FENCE = re.compile(r"^```(?P<info>\S*)\n(?P<text>.*?)^```$|^<!-- (?P<hidden>docs-test (?:sql|sh))\n(?P<lines>.*?)^-->$", re.M | re.S)
NORMAL = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d+"), "<length>"),
    (re.compile(r"\b1\d{15}\b"), "<microseconds>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"-{2,}"), "--"),
    (re.compile(r"[ \t]+"), " "),
]

# For comments of the test alone: `CALL docs_until('SELECT ...')` waits until the query gives true, as a reader does who looks again.
PREPARED = """\\pset pager off
CREATE EXTENSION xdb;
CREATE PROCEDURE public.docs_until(query text) LANGUAGE plpgsql AS $$
DECLARE
    done bool;
BEGIN
    FOR n IN 1..600 LOOP
        EXECUTE query INTO done;
        IF done THEN RETURN; END IF;
        COMMIT;
        PERFORM pg_sleep(0.1);
    END LOOP;
    RAISE 'not true within a minute: %', query;
END $$;"""


@dataclass
class Block:
    """A fenced block, or a comment with lines for the test."""

    line: int
    language: str
    word: str
    text: str
    reason: str | None

    @property
    def kind(self) -> str:
        return f"{self.language},{self.word}" if self.word else self.language


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["hidden"]:
            yield Block(line, found["hidden"].split()[1], "run", found["lines"], None)
            continue
        language, _, word = found["info"].partition(",")
        above = text[: found.start()].rstrip().rsplit("\n", 1)[-1]
        reason = re.fullmatch(r"<!-- not run: (.+) -->", above)
        yield Block(line, language, word, found["text"], reason and reason[1])


def faults_of(block: Block) -> str | None:
    """Why a block proves nothing as it stands."""
    match block.word:
        case "run" if block.language in RUN:
            return None
        case "file" if block.language in FILES:
            return None if file_name(block) else "its first line names no file"
        case "output" if block.language == "text":
            return None
        case "check" if block.language == "json":
            return None
        case word if word.startswith("from="):
            source = ROOT / word.removeprefix("from=")
            is_there = source.is_file() and block.text in source.read_text(encoding="utf-8")
            return None if is_there else "its lines are not in this file"
        case "skip":
            return None if block.reason else "no comment above it says why it is not run"
        case "" if block.language == "text":
            return None
    return f"```{block.kind} is not run: see the head of scripts/docs_test.py"


MOST_LINES, MOST_COLUMNS = 400, 120
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines outside of fenced blocks and of comments for the test, with their numbers."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    yield from enumerate(text.splitlines(), 1)


def anchors(page: Path) -> set[str]:
    """As a forge makes them of the headings, and those that the page sets itself."""
    found: set[str] = set()
    for _, line in prose(page):
        found.update(re.findall(r'<a id="([^"]+)">', line))
        if heading := re.match(r"#+ (.+)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
            found.add(next(name for name in (slug, *(f"{slug}-{n}" for n in range(1, 100))) if name not in found))
    return found


def faults_of_page(page: Path) -> Iterator[tuple[int, str]]:
    """Links that lead nowhere, and what is too long to be read."""
    lines = page.read_text(encoding="utf-8").count("\n")
    if lines > MOST_LINES:
        yield 1, f"the page has {lines} lines, and should have at most {MOST_LINES}"
    for number, line in prose(page):
        if len(line) > MOST_COLUMNS and not line.startswith("|"):
            yield number, f"the line has {len(line)} characters, and should have at most {MOST_COLUMNS}"
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            to = (page.parent / target).resolve() if target else page
            if not to.exists():
                yield number, f"{link} is not there"
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                yield number, f"{to.name} has no heading #{anchor}"


def file_name(block: Block) -> str | None:
    found = re.match(r"(?:#|--) (\S+\.\w+)\n", block.text)
    return found and found[1]


class Failed(Exception):
    """A block did not do what its page says."""


class Shell:
    """A program that reads commands, and says when it is through with them."""

    def __init__(
        self, command: list[str], echo: str, directory: Path, environment: dict[str, str], log: Path | None = None
    ) -> None:
        self.echo, self.number = echo, 0
        self.process = subprocess.Popen(
            ["stdbuf", "-oL", *command], cwd=directory, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w") if log else subprocess.STDOUT,
        )

    def run(self, text: str) -> str:
        """What it prints for these lines."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.number += 1
        mark = f"--- end of block {self.number} ---"
        self.process.stdin.write(f"{text}\n{self.echo} '{mark}'\n")
        self.process.stdin.flush()
        lines: list[str] = []
        watch = threading.Timer(SECONDS_A_BLOCK, self.stop)
        watch.start()
        try:
            for line in self.process.stdout:
                before, found, _ = line.partition(mark)
                if found:
                    return "".join([*lines, before])
                lines.append(line)
        finally:
            watch.cancel()
        raise Failed("it ended, or took over two minutes, after:\n" + "".join(lines))

    def stop(self) -> None:
        """Ends it, and what it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def normal(text: str) -> list[str]:
    for pattern, word in NORMAL:
        text = pattern.sub(word, text)
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def is_like(printed: str, expected: str) -> bool:
    pattern = "\n".join(".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in normal(expected))
    return re.fullmatch(pattern.replace("\n.*", "(?:\n.*)?"), "\n".join(normal(printed)), re.S) is not None


def free_ports(numbers: set[str]) -> dict[str, str]:
    kept = []
    for _ in numbers:
        kept.append(socket.socket())
        kept[-1].bind(("127.0.0.1", 0))
    ports = {number: str(at.getsockname()[1]) for number, at in zip(sorted(numbers), kept)}
    for at in kept:
        at.close()
    return ports


def environment(bindir: Path, directory: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON", "VIRTUAL"))}
    own |= {"PATH": f"{Path(sys.prefix) / 'bin'}:{bindir}:{own['PATH']}", "PGHOST": str(directory), "PGUSER": "postgres"}
    own |= {"PGDATABASE": "postgres", "PYTHONPATH": str(ROOT / "sdk" / "python" / "src"), "PYTHONUNBUFFERED": "1"}
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "PG_CONFIG": str(bindir / "pg_config"), "LC_ALL": "C.UTF-8"}
    wheels = Path(sys.prefix) / "wheels"
    if wheels.exists():
        own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return own


def run_page(page: Path) -> None:
    """Follows a page; raises what a reader would stumble over."""
    found = list(blocks(page))
    if not any(block.word in ("run", "file") for block in found):
        return
    from xdb.testing.server import Server

    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="xdb-docs-") as name:
            follow(page, found, server.bindir, server.directory, Path(name))
    finally:
        server.stop()


def follow(page: Path, found: list[Block], bindir: Path, server: Path, directory: Path) -> None:
    own = environment(bindir, server)
    own["XDB_TEST_DSN"] = f"host={server} port=5432 user=postgres dbname=postgres"
    for name in ("sdk", "examples", "contrib"):
        (directory / name).symlink_to(ROOT / name)
    ports = free_ports({port for block in found for port in re.findall(r"\b80[789]\d\b", block.text)})
    psql = Shell([str(bindir / "psql"), "-Xq", "--no-readline"], "\\echo", directory, own)
    # What workers write to their logs is no output of a block.
    log = directory / "stderr.log"
    shell = Shell(["bash"], "echo", directory, own, log)
    try:
        psql.run(PREPARED)
        shell.run("export PS1=; set +m")
        printed, last = "", None
        for block in found:
            text = re.sub(r"\b80[789]\d\b", lambda port: ports[port[0]], block.text).replace("/tmp/xdb-a1b2c3", str(server))
            at = f"{page.relative_to(ROOT)}:{block.line}"
            if block.word == "output":
                if not is_like(printed, text):
                    raise Failed(f"{at}: expected\n{text}\nbut printed was\n{printed}")
                last = None
                continue
            refuse_errors(page, last, printed)
            printed, last, logged = "", block, log.read_text()
            try:
                printed = do(block, text, psql, shell, directory, ports)
            except Failed as failed:
                raise Failed(f"{at}: {failed}\n{log.read_text()[len(logged):]}") from None
            refuse_errors(page, block, log.read_text()[len(logged):])
        refuse_errors(page, last, printed)
    finally:
        shell.stop()
        psql.stop()


def do(block: Block, text: str, psql: Shell, shell: Shell, directory: Path, ports: dict[str, str]) -> str:
    """What a block prints."""
    if block.word == "file":
        (directory / (file_name(block) or "")).write_text(text, encoding="utf-8")
    elif block.word == "check":
        parse_all(text)
    elif block.word == "run" and block.language == "sql":
        return psql.run(text)
    elif block.word == "run" and block.language == "python":
        program = directory / f"block_{block.line}.py"
        program.write_text(text, encoding="utf-8")
        return shell.run(f"python {shlex.quote(program.name)}")
    elif block.word == "run":
        printed = shell.run(text)
        for port in ports.values():
            if re.search(rf"\b{port}\b.*&\s*$", text, re.M):  # a reader types slower than a worker starts
                shell.run(f"for _ in $(seq 600); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>&- && break; sleep 0.1; done")
        return printed
    return ""


def parse_all(text: str) -> None:
    """One JSON text, or several, one after the other."""
    text = text.strip()
    try:
        while text:
            _, end = json.JSONDecoder().raw_decode(text)
            text = text[end:].lstrip()
    except ValueError as error:
        raise Failed(f"this is not JSON: {error}") from None


def refuse_errors(page: Path, block: Block | None, printed: str) -> None:
    """An error that no output block expects is one that the reader meets too."""
    if block is not None and block.word == "run" and re.search(r"^(psql:.*)?(ERROR|FATAL|Traceback|bash: )", printed, re.M):
        raise Failed(f"{page.relative_to(ROOT)}:{block.line}: an error:\n{printed}")


def pages(names: list[str]) -> list[Path]:
    if names:
        return [Path(name).resolve() for name in names]
    beside = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "crates/sim/README.md", *sorted(ROOT.glob("sdk/*/README.md"))]
    return [*beside, *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the fenced blocks of the documentation.")
    parser.add_argument("--check", action="store_true", help="look only whether each block would be run")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="pages at a time")
    parser.add_argument("pages", nargs="*", help="these alone")
    given = parser.parse_args()
    wanted, failed = pages(given.pages), 0
    for page in wanted:
        for line, fault in faults_of_page(page):
            print(f"{page.relative_to(ROOT)}:{line}: {fault}")
            failed += 1
        for block in blocks(page):
            if fault := faults_of(block):
                print(f"{page.relative_to(ROOT)}:{block.line}: {fault}")
                failed += 1
    if failed or given.check:
        return int(failed > 0)

    def outcome(page: Path) -> str | None:
        try:
            run_page(page)
        except Failed as failed:
            return str(failed)
        return None

    with ThreadPoolExecutor(given.jobs) as pool:
        for page, why in zip(wanted, pool.map(outcome, wanted)):
            print(f"{page.relative_to(ROOT)}: {'ok' if why is None else 'FAILED'}", flush=True)
            if why is not None:
                print(why)
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
