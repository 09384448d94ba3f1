"""One PostgreSQL data folder and the server process on it: initialise, launch, signal.

Knows nothing of databases, roles and URLs; those are postgres_server.py's.
"""

import signal
import subprocess
import time
from pathlib import Path

from tests.support.postgres_binaries import Account, environment

START_SECONDS = 60.0
STOP_SECONDS = 30.0
MEMORY_IN_USE = "pre-existing shared memory block"

# Superuser by unix socket only (its folder is private); everybody else by password over loopback.
HBA = """\
local  all          postgres                trust
local  replication  postgres                trust
host   all          all       127.0.0.1/32  scram-sha-256
"""


class ServerDidNotStart(Exception):
    """PostgreSQL ended, or stayed silent, before it was ready; its log follows."""


class Postmaster:
    def __init__(self, folder: Path, bindir: Path, account: Account) -> None:
        self.data = folder / "data"
        self._log = folder / "log"
        self._bindir = bindir
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._left_shared_memory = False

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def initialise(self, settings: dict[str, str]) -> None:
        argv = [str(self._bindir / "initdb"), "-D", str(self.data), "-U", "postgres", "-E", "UTF8"]
        options = ["--locale=C", "--auth=trust", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            [*argv, *options],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=self.data.parent,
            **self._account.popen(),
        )
        if done.returncode:
            raise ServerDidNotStart(done.stderr)
        (self.data / "pg_hba.conf").write_text(HBA)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def launch(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_up_before(deadline):
            # A killed server's children hold its memory for some milliseconds more: wait for them.
            if MEMORY_IN_USE not in self._log.read_text(errors="replace") or time.monotonic() > deadline:
                raise ServerDidNotStart(self._log.read_text(errors="replace"))
            time.sleep(0.05)
        self._left_shared_memory = False

    def stop(self) -> None:
        """Fast shutdown: open transactions roll back, a checkpoint is written."""
        self._signal(signal.SIGINT)

    def kill9(self) -> None:
        """A crash. The server's children notice by themselves and go."""
        self._left_shared_memory = True
        self._signal(signal.SIGKILL)

    def abandon(self) -> None:
        """End it without regard for the data folder, which is about to be removed."""
        if self._left_shared_memory:
            # Only a server on the same data folder knows which shared memory the killed one left behind.
            self.launch()
        self._signal(signal.SIGQUIT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def _is_up_before(self, deadline: float) -> bool:
        process = self._process = self._spawn()
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_ready(process.pid):
                return True
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        return False

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [self._bindir / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self.data.parent,
                start_new_session=True,  # a Ctrl-C in the terminal is meant for pytest, not for the server
                **self._account.popen(),
            )

    def _is_ready(self, pid: int) -> bool:
        # The file pg_ctl reads too: the pid on its first line, the status on its last.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
