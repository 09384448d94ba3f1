"""The worker's side of isolated processes: cages, each a connection to a keeper, reused while they are empty.

A keeper's connection carries errands, one at a time, and reports. Each errand has a second connection to the process
that executes it, for the request, the answer, and a request to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from keptwork.process.frames import ASIDE, HEADER, STOP, body_length, framed
from keptwork.process.resource_limits import Limits

ZYGOTE = "keptwork.process.zygote"
TRIES = 3
KILL_SECONDS = 2.5
END_SECONDS = 5.0
GRACE_SECONDS = 0.5
NOT_STARTED = "the process that isolated jobs are forked from could not be started"


Reply = Callable[[bytes], Awaitable[Any]]
"""Returns the reply to a request from a process, as a value that JSON can hold."""


class CageLost(Exception):
    """The keeper is gone, and with it the process tree."""


class NotBegun(CageLost):
    """The keeper was gone before it received the errand, so another keeper can get it."""


class Ending(NamedTuple):
    """How a process tree ended: the answer of its leader, if any, and the report of the keeper."""

    answer: bytes | None
    code: int | None = None
    why: str | None = None
    refused: str | None = None
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class Longest(NamedTuple):
    """Maximum length of an answer, and of a request from the process, in bytes."""

    answer: int
    aside: int


class Talk:
    """The connection to the process that executes an errand."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._told = False
        self._asked = False

    def ask_to_stop(self) -> None:
        """Request a stop, but only after the request was sent, because the stop byte must not split it."""
        self._asked = True
        if self._told:
            with contextlib.suppress(OSError):  # the process has just ended
                self._socket.send(STOP)

    async def tell(self, request: bytes, files: Sequence[int]) -> None:
        """Send the request and the open files that belong to it, by descriptor."""
        message = HEADER.pack(len(request)) + request
        with contextlib.suppress(ConnectionError):
            sent = socket.send_fds(self._socket, [message], files) if files else 0
            await asyncio.get_running_loop().sock_sendall(self._socket, message[sent:])
        self._told = True
        if self._asked:
            self.ask_to_stop()

    async def hear(self, longest: Longest, reply: Reply) -> bytes | None:
        """Reply to requests from the process, and return its answer. Return None if it ended without one."""
        while (body := await self._heard(max(longest))) is not None and body.startswith(ASIDE):
            told = framed(await reply(body[len(ASIDE) :]))
            with contextlib.suppress(OSError):
                self._socket.send(told)  # in one call, so that no stop byte can split it
        if body is not None and len(body) > longest.answer:
            raise ValueError(f"a message of {len(body):,} bytes is over the limit of {longest.answer:,}")
        return body

    async def _heard(self, longest: int) -> bytes | None:
        try:
            return await _frame(self._socket, longest)
        except ConnectionError:  # the process ended before it read everything
            return None


class Cage:
    """A keeper. It can get the next errand while it is `empty`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.empty = True

    async def run(
        self,
        errand: dict[str, Any],
        request: bytes,
        longest: Longest,
        begun: Callable[[Talk], None],
        reply: Reply,
        files: Sequence[int],
    ) -> Ending:
        """Send the request, and return when the process tree is gone.

        If this call is cancelled, it ends the tree first.
        """
        with self._opened(errand) as talk:
            begun(talk)
            try:
                await talk.tell(request, files)
                return await self._report(await talk.hear(longest, reply))
            except BaseException:
                await self._kill(errand["grace"] + KILL_SECONDS)
                raise

    @contextlib.contextmanager
    def _opened(self, errand: Any) -> Iterator[Talk]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            self.empty = False
            try:
                socket.send_fds(self._line, [framed(errand)], [theirs.fileno()])
            except OSError as error:
                raise NotBegun from error
            theirs.close()
            yield Talk(ours)

    async def _report(self, answer: bytes | None) -> Ending:
        try:
            body = await _frame(self._line, 1 << 16)
        # the kernel's error for a connection that was closed before everything was read
        except ConnectionResetError as error:
            raise NotBegun from error
        if body is None:
            raise CageLost
        report = json.loads(body)
        self.empty = not report["last"]
        return _ending(answer, report)

    async def _kill(self, patience: float) -> None:
        with contextlib.suppress(OSError, CageLost, TimeoutError, ValueError):
            self._line.send(framed("kill"))
            async with asyncio.timeout(patience):
                await self._report(None)

    def close(self) -> None:
        """Close the connection. The keeper then ends its tree and itself."""
        self._line.close()


class Cages:
    """Creates cages as needed.

    Their zygote starts with the first cage, and again if it dies. After a request to end, a process has `grace`
    seconds.
    """

    def __init__(self, program: str, preload: Sequence[Any], grace: float = GRACE_SECONDS) -> None:
        self._program = program
        self._preload = preload
        self._grace = grace
        self._idle: list[Cage] = []
        self._zygote: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    async def run(
        self,
        what: Any,
        limits: Limits,
        request: bytes,
        longest: Longest,
        begun: Callable[[Talk], None],
        reply: Reply,
        files: Sequence[int] = (),
    ) -> Ending:
        """Run the program on `what` in a cage.

        `request` is sent to the process, `reply` answers its own requests, and it receives the open `files`.
        """
        errand = {"what": what, "limits": [limits.memory_bytes, limits.cpu_seconds], "grace": self._grace}
        for _ in range(len(self._idle) + TRIES):  # idle keepers can have died together
            cage = self._idle.pop() if self._idle else self._new()
            try:
                return await cage.run(errand, request, longest, begun, reply, files)
            except NotBegun:
                continue
            finally:
                if cage.empty:
                    self._idle.append(cage)
                else:
                    cage.close()
        raise CageLost(NOT_STARTED)

    async def close(self) -> None:
        """End every process. Those in use have a moment to end."""
        while self._idle:
            self._idle.pop().close()
        if self._zygote is not None:
            process, line = self._zygote
            self._zygote = None
            line.close()
            await asyncio.to_thread(_ended, process)

    def _new(self) -> Cage:
        for _ in range(TRIES):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(self._started(), [framed("keeper")], [theirs.fileno()])
                    return Cage(ours)
                except OSError:
                    ours.close()
                    self._forget_zygote()
        raise CageLost(NOT_STARTED)

    def _started(self) -> socket.socket:
        if self._zygote is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._zygote = _zygote(theirs.fileno(), self._program), ours
            ours.sendall(framed({"path": [*map(str, sys.path)], "preload": self._preload}))
            ours.setblocking(False)
        return self._zygote[1]

    def _forget_zygote(self) -> None:
        if self._zygote is not None:
            process, line = self._zygote
            self._zygote = None
            line.close()
            process.kill()
            process.wait()


def _zygote(descriptor: int, program: str) -> subprocess.Popen[bytes]:
    """Start the zygote. Call this on the thread that lives as long as the worker: the kernel ends the zygote with that
    thread."""
    command = [sys.executable, "-P", "-m", ZYGOTE, str(descriptor), str(os.getpid()), program]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True)


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _frame(line: socket.socket, largest: int) -> bytes | None:
    header = await _exactly(line, HEADER.size)
    return None if header is None else await _exactly(line, body_length(header, largest))


async def _exactly(line: socket.socket, length: int) -> bytes | None:
    received, loop = memoryview(bytearray(length)), asyncio.get_running_loop()
    at = 0
    while at < length:
        more = await loop.sock_recv_into(line, received[at:])
        if not more:
            return None
        at += more
    return bytes(received)


def _ending(answer: bytes | None, report: dict[str, Any]) -> Ending:
    used = report.get("cpu", 0.0), report.get("peak", 0)
    return Ending(answer, report.get("code"), report.get("why"), report.get("refused"), *used)
