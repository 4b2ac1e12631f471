#!/usr/bin/env python3
"""Finds words that make a sentence harder than it has to be: in the documentation, the comments of SQL, Rust and Python, and messages.

Each pattern says what to write instead. docs/glossary.md has the project's own words.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Pattern, and what to write instead.
WORDS = [
    (r"\bwho(so)?ever\b", "name the actor: the caller, the session, the worker, …"),
    (r"\bnobody('s)?\b|\bno one\b", "name the actor, or say it positively"),
    (r"\bsomebody('s)?\b|\bsomeone('s)?\b|\banybody('s)?\b|\banyone('s)?\b|\beverybody('s)?\b", "name the actor"),
    (r"(?:^|[.,:;(] )[Ww]ho (has|have|is|was|may|can|waits?|comes?|wants?|gets?)\b", "name the actor"),
    (r"\bshall\b", "should, must, or the plain present"),
    (r"\bso long\b(?! as)|\bso long as\b", "while, until, or the length"),
    (r"\bso many\b|\bso much\b|\bso often\b", "how many, or a number"),
    (r"\bwhat (\w+ ){0,6}is none\b|\bare none of them\b", "say what is refused or left out"),
    (r"\banew\b", "again"),
    (r"\bif nothing is said\b", "default …"),
    (r"\bis told\b|\bare told\b|\btells of\b|\bhears of\b", "warning, notify, wake up"),
    (r"\bis gone\b|\bare gone\b", "was deleted, was dropped, no longer exists"),
    (r"\bstands? in (the|your|its) way\b|\bin (nobody|the way)\b", "block, conflict"),
    (r"\b(fetch(es)?|fetched|fetching) (its|their|the|a|one's) calls?\b|\bthat fetch(es)?\b", "pull worker, claim"),
    (r"\busers' (tables?|rows?|code)\b", "the application's tables, rows, code"),
    (r"\b(left|leaves?|leaving) (\w+ ){0,5}?alone\b|\bputs? (\w+ )?off\b", "defer, retry later, do not claim"),
    (r"\bthose (who|that) (wait|have|are|may|can)\b", "name the actor"),
    (r"\bas ever\b", "say when"),
    (r"\b(a|an|each|every|the|this|next|last) looks?\b(?!-| up)|\blook(s|ed|ing)? through\b", "scan, poll"),
    (r"(?<!\bin )\bfronts?\b", "cursor"),
    (r"\b(hold|holds|held|holding) (\w+ )?up\b|\b(let|lets|letting) (it |them |one )?go\b(?! of)", "block, park; resume"),
    (r"\b(stand|stands|standing|stood) in (a |the |this )?(line|queue)\b", "wait, queue up"),
    (r"\bportions?\b|\bequal parts\b", "slice, fair share"),
    (r"\b(is|are) (a )?runners?'(?=\W)|\b(is|are) (a )?runner's\b", "runs in a runner, is marked as slow"),
    (r"\bgoes away\b|\bgone by then\b", "is deleted, is removed, ends"),
    (r"\bcall is (not )?yours\b|\bwithout a word\b|\btry again later\b", "lease lost; unexpectedly; retry"),
    (r"\b(has|have|had) the locks?\b|\bwants? (the|a|its|their|these|those) locks?\b", "hold a lock, need a lock"),
    (r"\btables of others\b", "the application's tables"),
]
PATTERNS = [(re.compile(pattern, re.I), instead) for pattern, instead in WORDS]

# Path, words, and why they stay.
ALLOWED: list[tuple[str, str, str]] = [
    ("scripts/words.py", "", "it lists the words"),
]


def sources(*patterns: str) -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and not any(name == allowed and not words for allowed, words, _ in ALLOWED):
            yield path


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside of its fenced blocks, and the comments inside of them."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
        elif comment := re.search(r"(?:^|\s)(?:--|#) (.*)", line):
            yield number, comment[1]


def paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Joins lines that follow each other, so that a phrase may cross them; with the place where each line begins."""
    text, begins, last = "", [], 0
    for number, line in lines:
        if begins and (number != last + 1 or not line.strip()):
            yield text, begins
            text, begins = "", []
        if line.strip():
            begins.append((len(text), number))
            text += line.strip() + " "
        last = number
    yield text, begins


def of_rust(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, and the literals of messages."""
    in_tests = "/tests/" in str(path)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code, comment, text = line.partition("//")
        if comment and code.count('"') % 2 == 0:
            yield number, re.sub(r"`[^`]*`", "", text)
            line = code
        if not in_tests:
            yield from ((number, text) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line) if " " in text)


def of_sql(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, and literals of several words: comments of objects are such."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code, _, comment = line.partition("--")
        yield number, comment
        yield from ((number, text) for text in re.findall(r"'((?:[^']|'')*)'?", code) if " " in text)


def of_python(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            for more, line in enumerate(token.string.splitlines()):
                yield token.start[0] + more, re.sub(r"`[^`]*`", "", line)


KINDS = [
    (prose, ["*.md"]),
    (of_rust, ["src/*.rs", "crates/*.rs"]),
    (of_sql, ["sql/*.sql", "examples/*.sql", ":!sql/xdb--*"]),
    (of_python, ["sdk/*.py", "examples/*.py", ":!sdk/python/tests/*"]),
]


def main() -> int:
    """Arguments are the beginnings of paths: these alone."""
    found: Counter[str] = Counter()
    for read, patterns in KINDS:
        for path in sources(*patterns):
            name = str(path.relative_to(ROOT))
            if sys.argv[1:] and not name.startswith(tuple(sys.argv[1:])):
                continue
            for text, begins in paragraphs(read(path)):
                for pattern, instead in PATTERNS:
                    for word in pattern.finditer(text):
                        number = max(line for begin, line in begins if begin <= word.start())
                        if not any(name.startswith(at) and words == word[0] for at, words, _ in ALLOWED):
                            print(f"{name}:{number}: \"{word[0]}\": {instead}")
                            found[name.split("/")[0]] += 1
    for room, count in found.most_common():
        print(f"{count:5} in {room}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
