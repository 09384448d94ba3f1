"""A worker for agent jobs, one at a time, that begins when it is told to.

Usage: python -m tests.acceptance.agent_caller CONFIG URL NAME LEASE [TWIN]. It says that it is ready, begins to work
with the first line of its input, and dies with its end. The twin `forgets-lost-calls` takes a call that was left open
by a dead worker for its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from detent import Detent
from detent.service import budgets
from tests.acceptance.worker_program import die_with_the_test


async def work(config: str, url: str, name: str, lease: str) -> None:
    app = Detent(url, config=config)
    await app.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.readline)
    threading.Thread(target=die_with_the_test, daemon=True).start()
    await app.work(name=name, lease=lease, concurrency=1)


def forget_lost_calls() -> None:
    shipped = budgets.reserve

    async def reserve(store: Any, **given: Any) -> Any:
        return await shipped(store, **{**given, "epoch": 0})

    budgets.reserve = reserve


def main(config: str, url: str, name: str, lease: str, twin: str = "") -> None:
    if twin:
        forget_lost_calls()
    asyncio.run(work(config, url, name, lease))


if __name__ == "__main__":
    main(*sys.argv[1:])
