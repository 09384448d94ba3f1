"""Report a handler that calls `os._exit` in the worker's own process, which would otherwise end without a message.

Use it only in a process that is nothing but a worker. Child processes of handlers can exit as they like.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from keptwork.observability import logs
from keptwork.process.tree_bonds import flush

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
