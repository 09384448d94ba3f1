"""The program module of a tool's process: what a keeper's child does to become the tool.

The process receives everything over its connection: arguments, environment, working directory, and the three standard
streams as open files. The connection closes automatically when the tool starts, so silence means success. Otherwise the
answer says why the tool could not start. In the tool, only the streams are open, and no signal is ignored or blocked.
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
    """Do nothing: there is nothing to load."""


def run(what: Any, talk: socket.socket) -> None:
    """Become the tool. Return only if that fails."""
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
    """Duplicate the descriptor above the standard streams, and close the duplicate on exec."""
    return int(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE))


def _become(order: dict[str, Any], files: list[int], line: int) -> dict[str, Any]:
    """Set up the process and execute the program. Return why that failed."""
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
    for number in _CHANGEABLE:  # Python ignores some signals, and the parent of the worker can ignore others
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return _executed(argv, environment)


def _executed(argv: list[bytes], environment: dict[bytes, bytes]) -> dict[str, Any]:
    """Search for the program as a shell does, and execute it. A file that cannot be executed does not end the search,
    but is reported."""
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
    """Yield the paths to try. The working directory is not searched, unless the program is a path in it."""
    if b"/" in program:
        yield program
    else:
        yield from (folder + b"/" + program for folder in search.split(b":") if folder.startswith(b"/"))


def _environment(given: dict[str, str]) -> dict[bytes, bytes]:
    return {_bytes(name): _bytes(value) for name, value in given.items()}


def _bytes(text: str) -> bytes:
    """Return the bytes that the worker decoded with surrogate escapes."""
    return text.encode("utf-8", "surrogateescape")
