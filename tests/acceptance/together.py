"""Many forked processes that begin the same work at the same moment; each leaves behind what it has to say.

Everything is imported before the processes are forked, so that they begin together; none shares a connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Work = Callable[[int, Callable[[], None]], Awaitable[Any]]
"""Takes the number of its process, and what it calls when it is ready: that returns when all are."""


def together(processes: int, work: Work) -> tuple[int, list[Any]]:
    """How many processes failed, and what the others have returned."""
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        pipes = (ready_write, go_read, go_write)
        pids = [_fork(work, number, Path(name), pipes) for number in range(processes)]
        os.close(ready_write)
        for _ in pids:
            os.read(ready_read, 1)
        os.close(go_write)  # everyone reads the end of the pipe at once
        failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
        return len(failed), [json.loads(path.read_text()) for path in Path(name).iterdir()]


def _fork(work: Work, number: int, folder: Path, pipes: tuple[int, int, int]) -> int:
    if pid := os.fork():
        return pid
    status, (ready, go, go_write) = 1, pipes
    os.close(go_write)
    waiting = [ready]

    def all_are_ready() -> None:
        os.write(waiting.pop(), b".")
        os.read(go, 1)

    try:
        (folder / str(number)).write_text(json.dumps(asyncio.run(_awaited(work, number, all_are_ready))))
        status = 0
    finally:
        for pipe in waiting:  # one that failed before it was ready must not hold up the others
            os.write(pipe, b".")
        os._exit(status)  # never the parent's clean-up in a child


async def _awaited(work: Work, number: int, ready: Callable[[], None]) -> Any:
    return await work(number, ready)
