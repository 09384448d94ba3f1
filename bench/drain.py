"""One worker process that settles a number of no-op jobs and ends. Usage: python -m bench.drain URL COUNT.

Prints jobs per second, from the first job's start to the last one's.
"""

import asyncio
import sys
import time

from keptwork import Keptwork
from keptwork.context import Context


async def main(url: str, count: int) -> None:
    app = Keptwork(url)
    began: list[float] = []
    settled = 0

    @app.job()
    async def noop(ctx: Context) -> None:
        nonlocal settled
        began[:] = began or [time.perf_counter()]
        settled += 1
        if settled == count:
            print((count - 1) / (time.perf_counter() - began[0]))
            app.stop()

    async with app:
        await app.work(until_idle=True)
    assert settled >= count, f"only {settled} jobs were there"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
