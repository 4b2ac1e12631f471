"""Finds and runs the program `xdb-sim`, and sends it commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..codec import dumps, loads
from ..errors import BY_SQLSTATE, WorkerFailed, XdbError

NAME = "xdb-sim"


class SimulatorNotFound(RuntimeError):
    """The program `xdb-sim` is not installed."""


class Program:
    """A running `xdb-sim`. A command is a line of JSON, and so is its result: see crates/sim/README.md."""

    def __init__(self, now: str) -> None:
        self._process = subprocess.Popen([find(), "--now", now], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.close = weakref.finalize(self, _end, self._process)

    def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Returns the result of a command. If it is refused, raises the error that a client gets."""
        assert self._process.stdin is not None and self._process.stdout is not None
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            self._process.stdin.write(dumps({command: given}) + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise RuntimeError(f"{NAME} has exited with status {self._process.poll()}") from None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{NAME} has exited with status {self._process.wait()}")
        reply: Any = loads(line)
        if "error" in reply:
            raise _error(**reply["error"])
        return reply["result"]


def find() -> str:
    """The path of the program: `XDB_SIM`, else beside this Python, where the wheel `xdb-sim` installs it, else in PATH."""
    if given := os.environ.get("XDB_SIM"):
        return given
    scripts = [sysconfig.get_path("scripts")]
    user = sysconfig.get_preferred_scheme("user")
    if user in sysconfig.get_scheme_names():
        scripts.append(sysconfig.get_path("scripts", user))
    found = shutil.which(NAME, path=os.pathsep.join(scripts)) or shutil.which(NAME)
    if found is None:
        raise SimulatorNotFound(
            f"{NAME} was not found: install it with `pip install ./sdk/sim` in a checkout of XDB, which needs Rust, or set XDB_SIM to its path "
            f"(`cargo build -p {NAME}` builds it)"
        )
    return found


def _error(
    sqlstate: str, message: str, detail: str | None, hint: str | None, datatype: str | None = None
) -> XdbError:
    made = BY_SQLSTATE.get(sqlstate, XdbError)(message, detail=detail, hint=hint, sqlstate=sqlstate)
    if isinstance(made, WorkerFailed):
        made.error_type = datatype
    return made


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the program by closing its input."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            # Closing fails if the program has exited and unwritten commands are left.
            with suppress(BrokenPipeError):
                pipe.close()
    process.wait()
