"""A worker that delivers webhooks, to be killed by tests.

Usage: python -m tests.acceptance.courier_program URL LEASE_SECONDS. It ends when its standard input does, so that it
never outlives the test that started it.
"""

from __future__ import annotations

import asyncio
import sys

from keptwork import Keptwork
from keptwork.webhooks import delivery


async def main(url: str, lease: str) -> None:
    delivery.LEASE_US = round(float(lease) * 1_000_000)
    loop = asyncio.get_running_loop()
    async with Keptwork(url) as app:
        work = asyncio.create_task(app.work())
        await loop.run_in_executor(None, sys.stdin.read)
        work.cancel()
        await asyncio.wait({work})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
