"""A worker whose jobs have limits, to be killed by tests; it marks where each begins and ends in a sink outside.

Usage: python -m tests.acceptance.limited_program URL SINK_PORT NAME LEASE [TWIN]. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from keptwork import Keptwork
from tests.acceptance.effects import Outlet
from tests.acceptance.twins import break_store
from tests.acceptance.worker_program import MANY_ATTEMPTS, die_with_the_test

MOST = 3
SLOTS = 8

Declare = Callable[[Keptwork, Outlet | None], None]


def declare(app: Keptwork, outlet: Outlet | None) -> None:
    """A kind of which three may run at once, in the whole fleet; the test that enqueues them needs no sink."""

    @app.job(limit=MOST, max_attempts=MANY_ATTEMPTS)
    async def marked(ctx: Any, number: int, seconds: float) -> None:
        assert outlet is not None
        token = int(ctx.fencing_token)
        outlet.deliver(ctx.idempotency_key("begin"), number, "begin", token)
        await asyncio.sleep(seconds)
        outlet.deliver(ctx.idempotency_key("end"), number, "end", token)


def run(declare: Declare, url: str, port: str, name: str, lease: str, twin: str = "") -> None:
    """A worker of the jobs that are declared, until the test ends."""
    threading.Thread(target=die_with_the_test, daemon=True).start()
    if twin:
        break_store(twin)
    app = Keptwork(url)
    declare(app, Outlet(int(port)))
    asyncio.run(app.work(name=name, lease=lease, concurrency=SLOTS))


if __name__ == "__main__":
    run(declare, *sys.argv[1:])
