"""Collect what a program writes, within a limit: the start, the end, and the number of bytes between.

The reader pauses after each full read, so that a program that floods its output slows down only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
from collections.abc import Callable

CHUNK = 1 << 16
WIDE_PIPE = 1 << 18
REST_SECONDS = 0.002
LAST_CHUNKS = 64
LOOK_BACK = 4096

# Sequences that a terminal would interpret: colors, titles, cursor movement.
_CONTROL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")


class Kept:
    """The start and the end of a stream."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        """Append the next bytes."""
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._half:
            self._forget()

    def _forget(self) -> None:
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus

    @property
    def cut(self) -> int:
        """The number of bytes that were dropped."""
        self._forget()
        return self._dropped

    @property
    def content(self) -> bytes:
        """The retained bytes, with a note where bytes were dropped."""
        note = f"\n[… {self.cut:,} bytes are left out here …]\n".encode() if self.cut else b""
        return bytes(self._head) + note + bytes(self._tail)

    @property
    def text(self) -> str:
        """The content as text, with replacement characters for invalid UTF-8."""
        return self.content.decode("utf-8", "replace")

    @property
    def first_line(self) -> str:
        """The first nonblank line, without control characters."""
        lines = (harmless(line).strip() for line in self._head[:LOOK_BACK].decode("utf-8", "replace").splitlines())
        return next((line for line in lines if line), "")

    def last_lines(self, count: int, cleared: Callable[[str], str] = str) -> list[str]:
        """Return the last nonblank lines, without control characters. `cleared` removes secrets."""
        end = bytes((self._tail if len(self._tail) > LOOK_BACK else self._head + self._tail)[-LOOK_BACK:])
        lines = (harmless(line).strip() for line in reversed(cleared(end.decode("utf-8", "replace")).splitlines()))
        said = [line for line in lines if line][:count]
        return said[::-1]


def harmless(text: str) -> str:
    """Return the text without control characters, for display anywhere.

    >>> harmless("\\x1b[31mred\\x1b[0m\\x07")
    'red '
    """
    return "".join(sign if sign.isprintable() else " " for sign in _CONTROL.sub("", text))


class Stream:
    """A pipe that a program writes into. Its content is collected while the event loop runs."""

    def __init__(self, kept: Kept, heard: Callable[[Kept], None]) -> None:
        self._kept = kept
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._rest: asyncio.TimerHandle | None = None
        self._size = CHUNK
        self._listen()

    def _listen(self) -> None:
        self._rest = None
        self._loop.add_reader(self._reading, self._take)

    def _take(self) -> None:
        if self._taken() == self._size:
            self._loop.remove_reader(self._reading)
            self._rest = self._loop.call_later(REST_SECONDS, self._listen)
            self._widen()
        self._heard(self._kept)

    def _taken(self) -> int:
        try:
            chunk = os.read(self._reading, self._size)
        except BlockingIOError:
            return 0
        self._kept.add(chunk)
        return len(chunk)

    def _widen(self) -> None:
        """Widen the pipe of a program that writes much, so that it waits for the reader less often."""
        if self._size < WIDE_PIPE:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(self._reading, fcntl.F_SETPIPE_SZ, WIDE_PIPE)
                self._size = WIDE_PIPE

    def close(self) -> None:
        """Read what is left in the pipe. The amount is limited, because a process that could not be ended might still
        write."""
        if self._rest is None:
            self._loop.remove_reader(self._reading)
        else:
            self._rest.cancel()
        for _ in range(LAST_CHUNKS):
            if not self._taken():
                break
        os.close(self._reading)
        os.close(self.writing)
