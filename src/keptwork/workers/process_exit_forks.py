"""End a child process that a handler forked, where it would otherwise continue the work of its worker.

A forked child is a copy of the worker, with its event loop, slots, and open connections. If it returned from the
handler, it would run the worker's jobs a second time over the worker's own sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from keptwork.observability import logs
from keptwork.process.tree_bonds import flush
from keptwork.workers.process_exit import FAILED, leave

log = logging.getLogger("keptwork")

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
