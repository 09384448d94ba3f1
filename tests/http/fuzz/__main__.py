"""Asks a server that runs in a process of its own, over a new database: 100,000 times, unless told otherwise."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
from contextlib import suppress

from keptwork.store import open_store
from tests.http.flow_stage import trip
from tests.http.fuzz.fuzzer import Fuzzer
from tests.http.processes import server

CONFIGURATION = """
[server]
failed_keys_per_minute = 0

[tools.ruff]
command = ["ruff"]
"""


def main() -> int:
    """Fails if any answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="postgres")
    given = parser.parse_args()
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    print(f"seed {given.seed}, {given.database}", flush=True)
    with server(given.database, CONFIGURATION) as opened:
        asyncio.run(_trip(opened.url))
        fuzzer = Fuzzer(opened.address, opened.key, given.seed)
        with suppress(KeyboardInterrupt):  # whoever stops it is told what was found so far
            fuzzer.ask_all(given.requests)
    print(fuzzer.found.told())
    return 1 if fuzzer.found.wrong else 0


async def _trip(url: str) -> None:
    """A breaker is made by a worker that needs it, and by no route."""
    store = await open_store(url)
    try:
        await trip(store, await store.tenant("default"), "tool:ruff")
    finally:
        await store.close()


if __name__ == "__main__":
    sys.exit(main())
