"""A worker whose jobs need a service that fails, hangs or works, as a file says; to be killed while it tries.

Usage: python -m tests.acceptance.breaker_program URL SINK_PORT NAME LEASE [TWIN], with the file as MOOD in its
environment. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from keptwork import Breaker, Keptwork
from tests.acceptance.effects import Outlet
from tests.acceptance.limited_program import run
from tests.acceptance.worker_program import MANY_ATTEMPTS

DOWN, HANGS, WORKS = "down", "hangs", "works"


def declare(app: Keptwork, outlet: Outlet | None) -> None:
    """A kind of job behind a breaker; the test that enqueues them needs no sink."""

    @app.job(breaker=Breaker("api", failure_threshold=2, cooldown="500ms"), max_attempts=MANY_ATTEMPTS, backoff="20ms")
    async def call(ctx: Any, number: int) -> None:
        assert outlet is not None
        token = int(ctx.fencing_token)
        outlet.deliver(ctx.idempotency_key(f"try {token}"), number, "try", token)
        mood = mood_of_service()
        if mood == DOWN:
            raise ConnectionError("refused")
        if mood == HANGS:
            await asyncio.sleep(3600)
        outlet.deliver(ctx.idempotency_key("done"), number, "done", token)


def mood_of_service() -> str:
    return Path(os.environ["MOOD"]).read_text()


if __name__ == "__main__":
    run(declare, *sys.argv[1:])
