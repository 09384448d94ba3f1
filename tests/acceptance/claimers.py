"""Many operating-system processes that claim from one queue until it is empty.

Usage: python -m tests.acceptance.claimers URL PROCESSES BATCH [TWIN]. Prints, as JSON, what each process got.
"""

import json
import os
import sys
from collections.abc import Callable

from keptwork.core.lifecycles import WORKER
from keptwork.store import open_store
from tests.acceptance.together import together
from tests.acceptance.twins import break_store

LEASE_US = 120_000_000
EMPTY_ANSWERS = 3


async def claim_all(url: str, number: int, batch: int, ready: Callable[[], None]) -> list[int]:
    """Register, wait for the others, then claim until the queue has answered with nothing a few times."""
    store = await open_store(url, migrate=False)
    worker = await store.create(WORKER, name=f"claimer-{number}", incarnation=str(os.getpid()), workspace_id="test")
    ready()
    got: list[int] = []
    empty = 0
    while empty < EMPTY_ANSWERS:
        jobs = await store.claim(worker, ["default"], batch, LEASE_US, claim_id=len(got) + 1)
        got += [job.id for job in jobs]
        empty = 0 if jobs else empty + 1
    await store.close()
    return got


def main(url: str, processes: int, batch: int, twin: str = "") -> None:
    if twin:
        break_store(twin)
    failed, got = together(processes, lambda number, ready: claim_all(url, number, batch, ready))
    print(json.dumps({"failed": failed, "got": got}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
