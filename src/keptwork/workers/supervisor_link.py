"""One worker process: started without a shell, followed, and ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keptwork.process.tree import descendants, die_with, signal_all

# Tie a worker's process to its supervisor: it reads its supervisor, reports its start, and never outlives it.


NAME, PID, FD = "KEPTWORK_SUPERVISOR", "KEPTWORK_SUPERVISOR_PID", "KEPTWORK_SUPERVISOR_FD"


class Bond(NamedTuple):
    """A supervisor as its worker sees it: its name, its process ID, and a pipe to it."""

    name: str
    pid: int
    fd: int

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a worker's process."""
        return {NAME: self.name, PID: str(self.pid), FD: str(self.fd)}

    def report(self, worker: int, database: str) -> None:
        """Report once that the worker is registered."""
        self._say({"worker": worker, "database": database})

    def refuse(self, reason: str) -> None:
        """Report that the worker cannot start, and that another start would fail like this one."""
        self._say({"refused": reason})

    def _say(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self.fd, json.dumps(what).encode() + b"\n")
            os.close(self.fd)


def bound_to_supervisor() -> Bond | None:
    """Return the supervisor of this worker process, or None.

    From here on this process dies with its supervisor, even after kill -9. The variables are removed, so that child
    processes do not take themselves for supervised workers.
    """
    name, pid, fd = (os.environ.pop(variable, "") for variable in (NAME, PID, FD))
    if not name or not pid.isdecimal() or not fd.isdecimal():
        return None
    die_with(int(pid), signal.SIGKILL)
    os.set_inheritable(int(fd), False)
    return Bond(name, int(pid), int(fd))


LAST_LINES = 20
LONGEST_LINE = 500
CHUNK = 1 << 16

STDERR = 2


class Child:
    """A worker's process in one of the supervisor's places. `worker` is the key of its row once it has registered."""

    def __init__(self, place: int, process: asyncio.subprocess.Process, said: Callable[[int, str], None]) -> None:
        self.place = place
        self.process = process
        self.started_at = time.monotonic()
        self.tail: deque[str] = deque(maxlen=LAST_LINES)
        self.worker: int | None = None
        self.database: str | None = None
        self.refusal: str | None = None
        self.state = ""
        self.kill_at: float | None = None
        self.registered = asyncio.Event()
        self._said = said
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, place: int, argv: Sequence[str], name: str, said: Callable[[int, str], None]) -> Child:
        """Start a process. Its stdout goes to the supervisor's stderr, and its stderr is passed to `said` by line."""
        reading, writing = os.pipe()
        try:
            bond = Bond(name, os.getpid(), writing)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **bond.environment},
                pass_fds=(writing,),
                process_group=0,  # so that only the supervisor receives Ctrl-C
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child = cls(place, process, said)
        await child._hear_from(reading)
        return child

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def lived(self) -> float:
        """Seconds since the process started."""
        return time.monotonic() - self.started_at

    async def ended(self) -> int:
        """Wait until the process has ended and its output was read, and return its exit code."""
        code = await self.process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # a process that it started can hold the pipe open
                await asyncio.shield(self._listening)
                await asyncio.shield(self._hearing)
        self._listening.cancel()
        self._report.close()
        return code

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            signal_all([self.pid], number)

    def kill(self) -> None:
        """Kill the process and its descendants, as far as they can be found. The supervisor adopts the rest."""
        if self.alive:
            signal_all([self.pid, *descendants(self.pid)], signal.SIGKILL)

    async def _hear_from(self, reading: int) -> None:
        """Read the single line that reports that the worker has started, or why it refused to start."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        pipe = os.fdopen(reading, "rb", buffering=0)
        self._report, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        self._hearing = asyncio.create_task(self._hear(reader))

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told: dict[str, Any] = json.loads(await reader.readline())
            self.refusal = told.get("refused")
            self.worker, self.database = int(told["worker"]), str(told["database"])
            self.registered.set()

    async def _listen(self) -> None:
        stream, rest = self.process.stderr, b""
        while stream is not None and (chunk := await stream.read(CHUNK)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._keep(line)
            rest = rest[-CHUNK:]
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self.tail.append(text[:LONGEST_LINE])
            self._said(self.place, text)


def described(code: int) -> str:
    """Describe how a process ended.

    >>> described(-9), described(3), described(7)
    ('was killed by SIGKILL', 'was terminated', 'died with exit code 7')
    """
    if code < 0:
        return (
            f"was killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"died by signal {-code}"
        )
    return {0: "has drained", 3: "was terminated", 4: "was exhausted"}.get(code, f"died with exit code {code}")
