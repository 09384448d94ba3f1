"""Counts the log over and over in small pages, until it is killed. Usage: counting_program.py URL PAGE."""

from __future__ import annotations

import asyncio
import sys

from keptwork.observability import stats
from keptwork.store import open_store


async def main(url: str, page: int) -> None:
    store = await open_store(url)
    print("counting", flush=True)
    while True:
        await stats.roll_up(store, page=page)
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
