"""Report a handler that calls `os._exit` in the worker's own process, which would otherwise end without a message.

Use it only in a process that is nothing but a worker. Child processes of handlers can exit as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from keptwork.observability import logs
from keptwork.process.tree import flush

FAILED = 1

leave = os._exit
"""The original `os._exit`, for Keptwork itself."""

log = logging.getLogger("keptwork")


@contextmanager
def reported() -> Iterator[None]:
    """Report the job that calls `os._exit` in this block. The process then never exits with status 0."""
    pid = os.getpid()

    def exits(status: int) -> NoReturn:
        if os.getpid() == pid:
            _tell(status)
            flush()
            leave(status or FAILED)
        leave(status)

    os._exit = exits
    try:
        yield
    finally:
        os._exit = leave


def _tell(status: int) -> None:
    job = logs.job.get()
    who = "something in this worker" if job is None else f"{job.public_id} ({job.kind})"
    extra = {"keptwork": {} if job is None else logs.about(job)}
    log.error("%s called os._exit(%d): this worker and the jobs beside it end here", who, status, extra=extra)


# End a child process that a handler forked, where it would otherwise continue the work of its worker.
#
# A forked child is a copy of the worker, with its event loop, slots, and open connections. If it returned from the
# handler, it would run the worker's jobs a second time over the worker's own sockets.


_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The event loops of the workers in this process."""


@contextmanager
def guarded(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """End a forked child that returns control to this loop inside this block."""
    _loops.add(loop)
    try:
        yield
    finally:
        _loops.discard(loop)


def end_child(made_by: int) -> None:
    """End this process unless its ID is `made_by`. Call this where a handler has returned."""
    if os.getpid() != made_by:
        job = logs.job.get()
        who = "a handler" if job is None else f"{job.public_id} ({job.kind})"
        log.error("a child process forked by %s returned to its worker, and ends here", who)
        flush()
        leave(FAILED)


def _in_child() -> None:
    """In a forked child, empty the parent's loops and let them only end the process."""
    parent = os.getppid()
    for loop in _loops:
        for name in ("_ready", "_scheduled"):  # attributes of asyncio's own loops
            with contextlib.suppress(AttributeError):
                getattr(loop, name).clear()
        with contextlib.suppress(RuntimeError):
            loop.call_soon(end_child, parent)
    _loops.clear()


os.register_at_fork(after_in_child=_in_child)
