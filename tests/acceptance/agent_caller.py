"""Workers for agent jobs, one at a time, each a process of its own that was forked from this one.

Usage: python -m tests.acceptance.agent_caller CONFIG URL NAME LEASE [TWIN]. For every line of its input it begins a
worker and says its process id; it ends with its input, and its worker with it. The twin `forgets-lost-calls` leaves
the calls of a dead worker open and takes them for its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import anthropic  # noqa: F401 - imported here, once for all of them

import keptwork.agents.providers.choose  # noqa: F401 - the same
from keptwork import Keptwork
from keptwork.agents import budgets
from keptwork.process.tree import die_with, run_and_exit


async def work(config: str, url: str, name: str, lease: str) -> None:
    await Keptwork(url, config=config).work(name=name, lease=lease, concurrency=1)


def forget_lost_calls() -> None:
    shipped = budgets.reserve

    async def reserve(store: Any, **given: Any) -> Any:
        left_open = await store.open_charges(given["job_id"], given["call"])
        return budgets.Reserved(left_open[0].id) if left_open else await shipped(store, **given)

    async def close_nothing(*_: Any) -> int:
        return 0

    budgets.reserve = reserve
    budgets.close_calls = close_nothing  # type: ignore[assignment]
    budgets.close_abandoned = close_nothing  # type: ignore[assignment]


def begun(arguments: list[str]) -> int:
    """A worker; the process id of it."""
    here = os.getpid()
    child = os.fork()
    if not child:
        die_with(here, signal.SIGKILL)
        run_and_exit(lambda: asyncio.run(work(*arguments)))
    return child


def main(*arguments: str) -> None:
    *rest, twin = arguments if len(arguments) == 5 else (*arguments, "")
    if twin:
        forget_lost_calls()
    for _ in sys.stdin:
        print(child := begun(rest), flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
