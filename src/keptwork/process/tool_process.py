"""The program of a tool's own process: what a keeper's child does to become the tool.

It gets everything over its line: the arguments, the environment, the folder, and the three standard streams as open
files. The line closes by itself when the tool begins, so that silence means it has; what is answered instead is why it
could not begin. Nothing but the streams is open in the tool, and no signal is ignored or blocked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

from keptwork.process.frames import framed, receive

FIRST_FREE = 3
PAST_LAST = 1 << 16
_CHANGEABLE = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_NOT_HERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


def prepare(what: Any) -> None:
    """There is nothing to load."""


def run(what: Any, talk: socket.socket) -> None:
    """Becomes the tool; returns only if that cannot be."""
    line = socket.socket(fileno=_beyond_standard(talk.detach()))
    try:
        received = receive(line)
        if received is None:
            raise ConnectionError("nobody said what to run")
        order, files = received
        answer = _become(order, [_beyond_standard(file) for file in files], line.fileno())
    except BaseException as error:
        answer = {"stage": "before", "why": f"{type(error).__name__}: {error}"}
    line.sendall(framed(answer))


def _beyond_standard(descriptor: int) -> int:
    """The same file, where no standard stream will be put, and closed when the tool begins."""
    return int(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE))


def _become(order: dict[str, Any], files: list[int], line: int) -> dict[str, Any]:
    """What kept it from it, and where it has looked."""
    argv, environment = [_bytes(part) for part in order["argv"]], _environment(order["env"])
    try:
        if order["cwd"] is not None:
            os.chdir(_bytes(order["cwd"]))
    except OSError as error:
        return {"stage": "cwd", "errno": error.errno}
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(FIRST_FREE, line)
    os.closerange(line + 1, PAST_LAST)
    for number in _CHANGEABLE:  # Python ignores some, and who started the worker may ignore others
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return _executed(argv, environment)


def _executed(argv: list[bytes], environment: dict[bytes, bytes]) -> dict[str, Any]:
    """As a shell looks for a program: one that may not be run does not end the search, but is told about."""
    number, found, tried = errno.ENOENT, None, []
    for path in _places(argv[0], environment.get(b"PATH", b"")):
        tried.append(os.fsdecode(os.path.dirname(path)))
        try:
            os.execve(path, argv, environment)  # noqa: S606 - there is no shell, which is the point
        except OSError as error:
            if error.errno not in _NOT_HERE or os.path.exists(path):
                number, found = error.errno or number, os.fsdecode(path)
            if number not in _NOT_HERE:
                break
    return {"stage": "program", "errno": number, "found": found, "tried": tried}


def _places(program: bytes, search: bytes) -> Iterator[bytes]:
    """Never the working directory, unless that is what was said."""
    if b"/" in program:
        yield program
    else:
        yield from (folder + b"/" + program for folder in search.split(b":") if folder.startswith(b"/"))


def _environment(given: dict[str, str]) -> dict[bytes, bytes]:
    return {_bytes(name): _bytes(value) for name, value in given.items()}


def _bytes(text: str) -> bytes:
    """What was no text on the worker's side comes back as the bytes it was."""
    return text.encode("utf-8", "surrogateescape")
