"""A client whose commits are not synced: says of each job that it is kept, until it is killed.

Usage: python -m tests.store.unsynced_client URL
"""

from __future__ import annotations

import asyncio
import sys

from keptwork.store import NewJob, open_store


async def main(url: str) -> None:
    store = await open_store(url)
    while True:
        (key,) = await store.enqueue([NewJob("note", "{}")])
        print(key, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
