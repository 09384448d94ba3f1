"""An application on a disk that fails for a while: enqueues, works, and repeats what was refused, in one process.

Usage: python -m tests.acceptance.disk_scenario FILE [TWIN]. Prints a line of JSON for every job that was acknowledged
and for every refusal, and `done` when all has been done without a restart.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from keptwork import Keptwork
from keptwork.errors import StoreError
from keptwork.store.sqlite.writer import Unit, Writer

T = TypeVar("T")

JOBS = 4
PAUSE_SECONDS = 0.01


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def insisted(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks until it is granted; only a refusal that the product declares is taken for one."""
    while True:
        try:
            return await ask()
        except StoreError as refusal:
            tell(refused=type(refusal).__name__, status=refusal.status, line=str(refusal))
            await asyncio.sleep(PAUSE_SECONDS)


async def scenario(url: str) -> None:
    app = Keptwork(url)

    @app.job(lease="60s")
    async def answer(ctx: Any, number: int) -> str:
        return "x" * 2000 + str(number)

    store = await insisted(app.open)
    for number in range(JOBS):
        job = await insisted(partial(answer.enqueue, number=number, _key=f"number-{number}"))
        tell(acknowledged=job.key)
    await insisted(lambda: store.set_queue_paused("other", True))
    await insisted(lambda: app.work(concurrency=2, until_idle=True))
    await app.close()
    tell(done=True)


def swallow_errors() -> None:
    """The broken twin: a failed commit is acknowledged like any other."""
    shipped = Writer._commit

    def careless(self: Writer, group: list[Unit]) -> None:
        shipped(self, group)
        for unit in group:
            unit.error = None

    Writer._commit = careless  # type: ignore[method-assign]  # that is what a twin is


if __name__ == "__main__":
    if sys.argv[2:] == ["swallow-errors"]:
        swallow_errors()
    asyncio.run(scenario(f"sqlite:///{sys.argv[1]}"))
