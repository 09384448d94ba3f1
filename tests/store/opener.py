"""A process that opens a database when it is told to, as many others do at the same moment.

    python -m tests.store.opener URL

Says "ready", waits for a line, opens, takes one job through its life, and says what became of it.
"""

from __future__ import annotations

import asyncio
import sys

from keptwork.store import open_store
from tests.store.walk import walk


async def open_and_walk(url: str) -> None:
    store = await open_store(url)
    await walk(store)
    await store.close()


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(open_and_walk(sys.argv[1]))
    print("done", flush=True)
