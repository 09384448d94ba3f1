"""Many workers for agent jobs, each a process of its own that was forked from this one.

Usage: python -m tests.acceptance.agent_crowd CONFIG URL NUMBER [TWIN]. They end with its input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

import anthropic  # noqa: F401 - imported here, once for all of them

import keptwork.agents.providers.choose  # noqa: F401 - the same
from keptwork import Keptwork
from keptwork.process.tree import die_with, run_and_exit
from tests.acceptance.twins import break_store


async def work(config: str, url: str, number: int) -> None:
    await Keptwork(url, config=config).work(name=f"worker {number}", concurrency=2)


def begin(config: str, url: str, number: int) -> None:
    asyncio.run(work(config, url, number))


def main(config: str, url: str, number: str, twin: str = "") -> None:
    if twin:
        break_store(twin)
    here = os.getpid()
    for one in range(int(number)):
        if not os.fork():
            die_with(here, signal.SIGKILL)
            run_and_exit(partial(begin, config, url, one))
    print("all", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
