"""A process that prunes flows in small batches, and says so after each: python -m … URL [broken].

The broken one is a retention that takes the steps and the flow in two transactions.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from keptwork.maintenance import retention
from keptwork.maintenance.retention import Retention, sweep
from keptwork.store import open_store
from keptwork.store.contract.retention import RetentionVerbs, Retinue

AT_ONCE = 30


async def in_pieces(self: Any, retinues: list[Retinue]) -> None:
    """As the store does it, but for the transaction."""
    for table in Retinue().keys:
        ids = [id for one in retinues for id in one.keys[table]]
        if ids:
            await self._account_for(await self._tell(f"take_{table}", ids=self._list(ids)))
            print(f"took {table}", flush=True)
            await asyncio.sleep(60)  # to be killed in


async def prune_in_pieces(self: Any, lifecycle: Any, ids: list[int], expiry: Any) -> int:
    found = await self._retinues(lifecycle, ids)
    await in_pieces(self, list(found.values()))
    return len(found)


async def main(url: str, *twin: str) -> None:
    retention.AT_ONCE = AT_ONCE
    retention.RESTS = 0
    if twin:
        RetentionVerbs.prune = prune_in_pieces  # type: ignore[method-assign,assignment]
    store = await open_store(url)
    prunes = type(store).prune

    async def told(self: Any, *which: Any) -> int:
        done = await prunes(self, *which)
        print("batch", flush=True)
        return done

    type(store).prune = told  # type: ignore[method-assign,assignment]
    await sweep(store, Retention.of(finished=0, failures=0, keys=None))
    await store.close()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
