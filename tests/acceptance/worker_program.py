"""A worker as a user would write it, to be killed and stopped by tests.

Usage: python -m tests.acceptance.worker_program URL SINK_PORT NAME LEASE [TWIN]. It ends when its standard input does,
so that it never outlives the test that started it. With WITNESS=FOLDER in its environment it writes down there what it
asks its store for.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any, cast

from keptwork import Cancel, Keptwork, PermanentError, Snooze, TransientError
from keptwork.store import Store
from tests.acceptance.effects import Outlet
from tests.acceptance.twins import break_store
from tests.acceptance.witness import Witness

SLOTS = 4
# No test dead-letters an innocent job, however often its worker is killed.
MANY_ATTEMPTS = 1000

Context = Any


def declare(app: Keptwork, outlet: Outlet | None) -> None:
    """The kinds of jobs; the test that enqueues them needs no sink."""

    def deliver(ctx: Context, number: int, step: str) -> None:
        assert outlet is not None
        outlet.deliver(ctx.idempotency_key(step), number, step, token(ctx))

    @app.job(max_attempts=MANY_ATTEMPTS)
    async def two_steps(ctx: Context, number: int, seconds: float) -> dict[str, int]:
        """Two effects with a wait between them; the result says who brought it about."""
        deliver(ctx, number, "first")
        await asyncio.sleep(seconds)
        deliver(ctx, number, "second")
        return {"token": token(ctx), "pid": os.getpid()}

    @app.job(backoff="20ms")
    async def moody(ctx: Context, number: int) -> Any:
        """Ends in every way there is, as chance will have it."""
        dice = random.Random(f"{number} {token(ctx)}")
        await asyncio.sleep(dice.uniform(0, 0.1))
        (said,) = dice.choices((None, Snooze(0.02), Cancel("moody"), TransientError, PermanentError), (10, 2, 1, 4, 1))
        if isinstance(said, type):
            raise said("moody")
        return said

    @app.job(max_attempts=2, name="poison")
    async def poison(ctx: Context, number: int) -> None:
        """Kills whoever runs it."""
        deliver(ctx, number, "poison")
        os.kill(os.getpid(), signal.SIGKILL)


def token(ctx: Context) -> int:
    """The fencing token: the job's epoch."""
    return int(ctx.fencing_token)


def die_with_the_test() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


async def work(url: str, port: int, name: str, lease: str) -> None:
    app = Keptwork(url)
    declare(app, Outlet(port))
    if folder := os.environ.get("WITNESS"):
        app._store = cast(Store, Witness(await app.open(), Path(folder)))
    await app.work(name=name, lease=lease, concurrency=SLOTS)


def main(url: str, port: str, name: str, lease: str, twin: str = "") -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    if twin:
        break_store(twin)
    asyncio.run(work(url, int(port), name, lease))


if __name__ == "__main__":
    main(*sys.argv[1:])
