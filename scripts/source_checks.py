#!/usr/bin/env python3
"""Checks of the Rust sources' text, for scripts/lint: `rooms`, `circles`, `sizes` and `names`."""

import re
import sys
from pathlib import Path

# From the bottom up. A room may use what stands below it; of those that stand beside each other, none the other. One that is
# not named is a transport, and stands beside the others of its kind.
LEVELS = [["transport"], ["http"], ["pg"], ["error", "guc", "clock"], ["store"], ["calls"], ["turn"], ["scheduler"], ["api"], ["lib"]]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
TRANSPORTS = LEVEL["http"]
# What chooses the transport, or says whose workers it serves. Everybody else knows only the seam.
CHOOSE = ["lib", "scheduler", "api"]
# Macros live at the root of the crate, wherever they are written.
MACROS = {"sql_functions": "pg"}

UNSAFE = {
    "src/http/notifier.rs": "an eventfd, in the reactor",
    "src/http/threads.rs": "the signal mask of threads, as the reactor's",
}

# A build for tests alone has it.
SQL_OF_TESTS = "src/pg/tests.rs"

SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|TRUNCATE|CREATE|ALTER|DROP|COPY|SET CONSTRAINTS|LOCK TABLE)\s"
)

# Declared more than once with one meaning, and why.
SAME_MEANING = {"Result": "a crate's std::result::Result with the error type of the crate, as std::io::Result is"}

LONGEST_FUNCTION = 60
LARGEST_CIRCLE = 3
# Shared memory is one segment. It is made of the places that the files in its directory describe, and each of them reads it.
SEGMENT = "src/pg/shmem.rs"
WIDEST_STRUCT = 15

# Macros that make types, whose names stand before the braces of their variants. `counters!` names a constant beside each.
MAKES_TYPES = re.compile(r"^ *(?:words|counters)! *\{", re.MULTILINE)
MADE = re.compile(r"^ *(\w+) *(?:= *\w+ *)?\{", re.MULTILINE)

TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
  | (?P<block>/\*)
  | [bc]?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
  | [bc]?"(?P<string>(?:[^"\\]|\\.)*)"
  | b?'(?:[^'\\\n]|\\[^\n]+?)'
    """,
    re.VERBOSE | re.DOTALL,
)


class Source:
    """A file: its code with comments and literals blanked, and its literals."""

    def __init__(self, path):
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.strings = []
        parts, at = [], 0
        while found := TOKEN.search(self.text, at):
            if found["hashes"] is not None and re.match(r"\w", self.text[found.start() - 1 : found.start()]):
                # The end of an identifier, not the beginning of a literal.
                parts.append(self.text[at : found.start() + 1])
                at = found.start() + 1
                continue
            parts.append(self.text[at : found.start()])
            at = self.end_of_comment(found.end()) if found["block"] else found.end()
            parts.append(re.sub(r"[^\n]", " ", self.text[found.start() : at]))
            literal = found["raw"] if found["raw"] is not None else found["string"]
            if literal is not None:
                self.strings.append((found.start(), literal))
        parts.append(self.text[at:])
        self.code = "".join(parts)

    def end_of_comment(self, at):
        depth = 1
        while depth:
            found = re.compile(r"/\*|\*/").search(self.text, at)
            depth += 1 if found[0] == "/*" else -1
            at = found.end()
        return at

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def place(self, at):
        return f"{self.path}:{self.line(at)}"

    def has_reason(self, at, words):
        """Whether the comments and attributes right above say so."""
        lines = self.text.split("\n")[: self.line(at) - 1]
        while lines and re.match(r"\s*(//|#\[|\)\])", lines[-1]):
            if re.match(rf"\s*// {words} because \S", lines.pop()):
                return True
        return False

    def block(self, at):
        """Where the braces open and close of what begins here; None for what has none."""
        depth = 0
        for i in range(at, len(self.code)):
            character = self.code[i]
            if character in "([":
                depth += 1
            elif character in ")]":
                depth -= 1
            elif character == ";" and depth == 0:
                return None
            elif character == "{" and depth == 0:
                return i, self.closing(i)
        return None

    def closing(self, at):
        depth = 0
        for i in range(at, len(self.code)):
            depth += (self.code[i] == "{") - (self.code[i] == "}")
            if depth == 0:
                return i
        return len(self.code) - 1

    def made_types(self):
        """Where the names of types stand that macros make."""
        for macro in MAKES_TYPES.finditer(self.code):
            yield from MADE.finditer(self.code, macro.end(), self.closing(macro.end() - 1))


def sources(*patterns):
    for pattern in patterns:
        for path in sorted(Path().glob(pattern)):
            yield Source(path)


def used(source, module):
    """(place, name) of all that is used from the root of the crate."""
    names = r"(?:\{(?P<group>[^;]*?)\}\s*;|(?P<name>\w+))"
    for found in re.finditer(rf"\b(?:crate|(?P<up>super(?:\s*::\s*super)*))\s*::\s*{names}", source.code):
        if found["up"] and found["up"].count("super") < len(module):
            continue
        if found["name"]:
            yield found.start(), found["name"]
            continue
        # The names at the top of `crate::{a, b::{c, d}}`.
        group = found["group"]
        while (inner := re.sub(r"\{[^{}]*\}", "", group)) != group:
            group = inner
        for name in re.findall(r"(?:^|,)\s*(\w+)", group):
            yield found.start(), name


def rooms():
    problems = []
    for source in sources("src/**/*.rs"):
        path = source.path
        parts = list(path.with_suffix("").parts[1:])
        room = parts[0]
        module = [part for part in parts if part not in ("mod", "lib")]
        level = LEVEL.get(room, TRANSPORTS)
        code = re.sub(r"#\[unsafe\(no_mangle\)\]", lambda found: " " * len(found[0]), source.code)
        if room != "pg" and str(path) not in UNSAFE:
            for found in re.finditer(r"\bunsafe\b", code):
                problems.append(f"{source.place(found.start())}: unsafe outside of src/pg")
        if room != "store" and str(path) != SQL_OF_TESTS:
            for at, literal in source.strings:
                if SQL.match(literal):
                    problems.append(f"{source.place(at)}: SQL outside of src/store")
        if room == "lib":
            continue
        if level <= TRANSPORTS:
            for found in re.finditer(r"\b(pgrx|pg_sys)\b", code):
                problems.append(f"{source.place(found.start())}: {room} has to stay free of pgrx")
        for at, name in used(source, module):
            name = MACROS.get(name, name)
            if name == room:
                continue
            below = LEVEL.get(name, TRANSPORTS)
            if below >= level:
                problems.append(f"{source.place(at)}: {room} uses {name}, which does not stand below it")
            elif below == TRANSPORTS and room not in CHOOSE:
                problems.append(f"{source.place(at)}: {room} uses the transport {name}; it has to know src/transport.rs alone")
    for path in UNSAFE:
        if not Path(path).exists() or not re.search(r"\bunsafe\b", Source(Path(path)).code):
            problems.append(f"{path}: no unsafe there any more; take it out of scripts/source_checks.py")
    return problems


USE = re.compile(r"(?P<pub>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:])\w+(?:\s*::\s*\w+)+")
DEFINED = re.compile(
    r"^(?:pub(?:\([^)]*\))? |const |unsafe |async |extern \S* )*(?:fn|struct|enum|union|trait|type|const|static)\s+(?:mut )?(\w+)", re.MULTILINE
)


def leaves(tree, path=()):
    """(path, name here) of all that a tree of `use` names."""
    found = re.match(r"\s*(?:(\w+|\*)\s*)?(::)?\s*", tree)
    rest = tree[found.end() :]
    path = (*path, found[1]) if found[1] else path
    if rest.startswith("{"):
        depth, begin = 0, 1
        for i, character in enumerate(rest):
            depth += (character == "{") - (character == "}")
            if (character, depth) in ((",", 1), ("}", 0)):
                if rest[begin:i].strip():
                    yield from leaves(rest[begin:i], path)
                begin = i + 1
    elif found[2]:
        yield from leaves(rest, path)
    else:
        renamed = re.match(r"as\s+(\w+)", rest)
        path = path[:-1] if path[-1] == "self" else path
        yield path, renamed[1] if renamed else path[-1]


class Module:
    """A file, as the others of its crate see it: what it defines, and what it names of theirs."""

    def __init__(self, source, path):
        code = source.code
        # What stands in braces are its tests, or is defined by a macro.
        while found := re.search(r"\bmod\s+\w+\s*\{", source.code):
            source.code = source.code[: found.start()] + source.code[source.closing(found.end() - 1) + 1 :]
        code = source.code
        self.file, self.path = source.path, path
        self.rest = USE.sub("", code)
        self.defined = {*DEFINED.findall(self.rest), *(found[1] for found in source.made_types())}
        self.uses = [(self.absolute(leaf), name, use["pub"]) for use in USE.finditer(code) for leaf, name in leaves(use["tree"])]
        self.named = {self.absolute(re.split(r"\s*::\s*", path)) for path in PATH.findall(self.rest)}
        self.named |= {path for path, name, public in self.uses if not public or self.has(name)}

    def absolute(self, path):
        """The path from the root of the crate; of another crate it is one that leads nowhere."""
        ups = list(path).count("super")
        path = [name for name in path if name not in ("super", "self")]
        return tuple(path[1:] if path[:1] == ["crate"] else (*self.path[: len(self.path) - ups], *path))

    def has(self, name):
        return re.search(rf"(?<![\w.:]){name}\b", self.rest) is not None if name != "*" else True


def defining(modules, path, seen=()):
    """(name, file) of what a path names, wherever it is passed on from; of `*` for each name."""
    depth = max((n for n in range(len(path) + 1) if path[:n] in modules), default=None)
    if depth in (None, len(path)) or path in seen:
        return set()
    module, (name, *rest) = modules[path[:depth]], path[depth:]
    found = {(each, module) for each in module.defined if name in (each, "*")}
    for leaf, own, _ in module.uses:
        is_of_crate = leaf[:depth] != module.path or leaf[: depth + 1] in modules
        if is_of_crate and (own in (name, "*") or name == "*"):
            found |= defining(modules, (*leaf[:-1], name, *rest) if own == "*" else (*leaf, *rest), (*seen, path))
    return found


def arrows(modules, is_room):
    """What each file imports from each other."""
    found = {module.file: {} for module in modules.values()}
    for module in modules.values():
        for path in module.named:
            for name, other in defining(modules, path):
                is_part = str(module.file) == SEGMENT and other.path[: len(module.path)] == module.path
                if is_room(module, other) and module is not other and not is_part and (path[-1] != "*" or module.has(name)):
                    found[module.file].setdefault(other.file, set()).add(name)
    return found


def circles():
    problems = []
    for root in [Path("src"), *sorted(Path("crates").glob("*/src"))]:
        modules = {}
        for source in sources(f"{root}/**/*.rs"):
            path = tuple(part for part in source.path.relative_to(root).with_suffix("").parts if part not in ("mod", "lib"))
            modules[path] = Module(source, path)
        imports = arrows(modules, lambda one, other: root != Path("src") or one.path[:1] == other.path[:1])
        reached = {}
        for file in imports:
            left, reached[file] = [file], set()
            while left:
                new = imports[left.pop()].keys() - reached[file]
                reached[file] |= new
                left += new
        for circle in sorted({tuple(sorted(other for other in reached[file] if file in reached[other])) for file in imports}):
            if len(circle) > LARGEST_CIRCLE:
                problems.append(f"{circle[0]}: a circle of {len(circle)} files that import from each other; the limit is {LARGEST_CIRCLE}")
                ties = [(file, other) for file in circle for other in circle if other in imports[file]]
                problems += [f"  {file} imports from {other}: {', '.join(sorted(imports[file][other]))}" for file, other in ties]
    return problems


def fields(source, opens, closes):
    """Number of fields of a struct between these braces. In a description of a table they stand in groups, `name { ... }`."""
    body = source.code[opens + 1 : closes].replace("->", "  ")
    depth, count, filled = 0, 0, False
    for character in body:
        depth += (character in "([<") - (character in ")]>")
        if character in ",}" and depth == 0:
            count, filled = count + filled, False
        elif character == "{":
            filled = False
        elif not character.isspace():
            filled = True
    return count + filled


def sizes():
    problems = []
    for source in sources("src/**/*.rs", "crates/*/src/**/*.rs"):
        for found in re.finditer(r"\bfn\s+(\w+)", source.code):
            block = source.block(found.end())
            lines = source.line(block[1]) - source.line(found.start()) + 1 if block else 0
            if lines > LONGEST_FUNCTION and not source.has_reason(found.start(), "Long"):
                problems.append(f"{source.place(found.start())}: {found[1]} has {lines} lines; the limit is {LONGEST_FUNCTION}")
        for found in re.finditer(r"\bstruct\s+(\w+)", source.code):
            block = source.block(found.end())
            count = fields(source, *block) if block else 0
            if count > WIDEST_STRUCT and not source.has_reason(found.start(), "Wide"):
                problems.append(f"{source.place(found.start())}: {found[1]} has {count} fields; the limit is {WIDEST_STRUCT}")
    if problems:
        problems.append('Split it, or say right above why not: "// Long because ..." or "// Wide because ...".')
    return problems


def names():
    """Types that are declared more than once: a name says which thing it is, whichever file a reader is in."""
    places = {}
    # As it is written at the beginning of an item: what a trait or an implementation names for it is no type of its own.
    declared = re.compile(r"^(?P<indent> *)(?:pub(?:\([^)]*\))? +)?(?:unsafe +)?(?:struct|enum|union|trait|type) +(\w+)", re.MULTILINE)
    for source in sources("src/**/*.rs", "crates/*/src/**/*.rs"):
        if str(source.path) == SQL_OF_TESTS:
            continue
        inner = [source.block(found.end()) for found in re.finditer(r"\b(?:trait|impl)\b[^;{]*", source.code)]
        for found in declared.finditer(source.code):
            if not any(block and block[0] < found.start() < block[1] for block in inner):
                places.setdefault(found[2], []).append(source.place(found.start(2)))
        for found in source.made_types():
            places.setdefault(found[1], []).append(source.place(found.start(1)))
    problems = [
        f"{name} is declared {len(all)} times: {', '.join(all)}"
        for name, all in sorted(places.items())
        if len(all) > 1 and name not in SAME_MEANING
    ]
    for name in SAME_MEANING:
        if len(places.get(name, [])) < 2:
            problems.append(f"{name}: not declared twice any more; take it out of scripts/source_checks.py")
    if problems:
        problems.append("Name each type by what it is.")
    return problems


def main():
    problems = {"rooms": rooms, "circles": circles, "sizes": sizes, "names": names}[sys.argv[1]]()
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
