"""Notifies waiting processes on SQLite: one byte to each, through sockets in a directory of the file's own.

Nothing depends on a notification, since the next poll makes up for a lost one. The directory is among temporary files
and is named after the database's inode, because a socket's path is limited to about 100 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from keptwork.core.loop_scope import running_loop

QUIET_SECONDS = 0.002


class Bell(Protocol):
    """An object to notify about new jobs, and to subscribe to."""

    def ring(self) -> None: ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]: ...

    def close(self) -> None: ...


class MemoryBell:
    """The notifier of a database in memory, which only this process can see."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def ring(self) -> None:
        for heard in self._listeners:
            heard()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Register a callback that runs on the current event loop, whichever loop notifies. Return a function that
        removes it."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            if running_loop() is loop:
                heard()
            else:
                with contextlib.suppress(RuntimeError):  # that loop was closed
                    loop.call_soon_threadsafe(heard)

        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear)

    def close(self) -> None:
        self._listeners.clear()


class SocketBell:
    """A notifier with at most one notification every 2 ms. Notifications in between are combined into one at the
    end."""

    def __init__(self, path: str) -> None:
        found = Path(path).stat()
        self._folder = Path(tempfile.gettempdir()) / f"keptwork-{os.getuid()}-{found.st_dev:x}-{found.st_ino:x}"
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._rang_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def ring(self) -> None:
        """Notify all subscribers after jobs were enqueued and committed."""
        if self._later is not None and self._loop is not None and not self._loop.is_closed():
            return
        wait = self._rang_at + QUIET_SECONDS - time.monotonic()
        if wait > 0:
            self._loop = asyncio.get_running_loop()
            self._later = self._loop.call_later(wait, self._ring_now)
        else:
            self._ring_now()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for notifications. Return a function that removes it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ear.setblocking(False)
        ear.bind(str(name))
        loop = asyncio.get_running_loop()
        loop.add_reader(ear, _hear, ear, heard)

        def stop() -> None:
            loop.remove_reader(ear)
            ear.close()
            name.unlink(missing_ok=True)

        return stop

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._sender.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # succeeds only after the last subscriber has left

    def _ring_now(self) -> None:
        self._later, self._rang_at = None, time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            for ear in os.scandir(self._folder):
                self._send(ear.path)

    def _send(self, ear: str) -> None:
        try:
            self._sender.sendto(b"!", ear)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(ear)  # its process died without closing it
        except OSError:
            return  # its buffer is full, so it already has a notification


def _hear(ear: socket.socket, heard: Callable[[], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while ear.recv(64):
            continue
    heard()
