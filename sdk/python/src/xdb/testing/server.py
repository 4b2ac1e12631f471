"""A throwaway Postgres server with XDB, on a socket in a private directory. It is removed when the tests end."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STARTS_WITHIN = 60.0
STOPS_WITHIN = 20.0

SETTINGS: Mapping[str, str] = {
    "shared_preload_libraries": "'xdb'",
    "listen_addresses": "''",
    "port": "5432",
    "fsync": "off",
    # Enough for an engine in each test's database, and the launcher.
    "max_worker_processes": "32",
}


class ServerFailed(Exception):
    """The throwaway server could not be made. The message has its log."""


class Server:
    """A server whose superuser is `postgres`. `stop` removes it, and so does the end of this program, even if it is killed."""

    def __init__(self, pg_config: str | None = None, settings: Mapping[str, str] = {}) -> None:
        self.bindir = Path(_bindir(pg_config or os.environ.get("PG_CONFIG") or "pg_config"))
        self._account = _account()
        # Not in the test's directory, because the path of a socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="xdb-test-"))
        self._server: subprocess.Popen[Any] | None = None
        try:
            if self._account is not None:
                os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
            self._initdb()
            self._configure({**SETTINGS, **settings})
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def dsn(self) -> str:
        """The conninfo of the superuser."""
        return f"host={self.directory} port=5432 user=postgres dbname=postgres"

    @property
    def log(self) -> str:
        """The server's log so far."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """Stops the server, by force if necessary, and removes its files."""
        server, self._server = self._server, None
        if server is not None:
            for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                server.send_signal(how)
                try:
                    server.wait(STOPS_WITHIN)
                    break
                except subprocess.TimeoutExpired:
                    continue
        shutil.rmtree(self.directory, ignore_errors=True)

    def _initdb(self) -> None:
        made = subprocess.run(
            [self.bindir / "initdb", "-D", self.directory / "data", "-U", "postgres", "--auth=trust",
             "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._as_server_user(),
        )
        if made.returncode != 0:
            raise ServerFailed(made.stdout.decode(errors="replace"))

    def _configure(self, settings: Mapping[str, str]) -> None:
        lines = [f"unix_socket_directories = '{self.directory}'", *(f"{k} = {v}" for k, v in settings.items())]
        with open(self.directory / "data" / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _start(self) -> None:
        log = open(self.directory / "server.log", "wb")
        with log:
            self._server = server = subprocess.Popen(
                [self.bindir / "postgres", "-D", self.directory / "data"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_end_with_parent, **self._as_server_user(),
            )
        deadline = time.monotonic() + STARTS_WITHIN
        while subprocess.run([self.bindir / "pg_isready", "-q", "-h", self.directory]).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"the throwaway server did not start:\n{self.log}")
            time.sleep(0.05)

    def _as_server_user(self) -> dict[str, Any]:
        # In a session of its own, so that Ctrl-C reaches only the tests. RUST_BACKTRACE would put a backtrace into every DETAIL.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "RUST_"))}
        options: dict[str, Any] = {"cwd": "/", "env": environment, "start_new_session": True}
        if self._account is not None:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return options


def _bindir(pg_config: str) -> str:
    try:
        return subprocess.run([pg_config, "--bindir"], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerFailed(f"can't run {pg_config}: set PG_CONFIG to the pg_config of a Postgres with XDB") from error


def _account() -> pwd.struct_passwd | None:
    """The account of the server if the tests run as root, because Postgres refuses to run as root. Otherwise None."""
    return pwd.getpwnam("postgres") if os.geteuid() == 0 else None


# Looked up before the fork. After it, the import lock could belong to a thread that does not exist in the child.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """On Linux, makes the kernel shut the server down when the tests end, even if they are killed."""
    if _prctl is not None:
        pr_set_pdeathsig = 1
        _prctl(pr_set_pdeathsig, signal.SIGINT)
