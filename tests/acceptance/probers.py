"""Many operating-system processes that all ask one breaker, again and again, whether they may try.

Usage: python -m tests.acceptance.probers URL PROCESSES ROUNDS FOLDER [TWIN]. Prints, as JSON, which jobs were told that
they are the probe, and how often one that was met another at it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from keptwork.core.lifecycles import WORKER
from keptwork.jobs import breakers
from keptwork.jobs.breaker import Breaker
from keptwork.jobs.breakers import Answer
from keptwork.store import Job, NewJob, Store, open_store
from tests.acceptance.together import together
from tests.acceptance.twins import break_store

LEASE_US = 300_000_000
API = Breaker("api", failure_threshold=1, cooldown="0s")


async def ask(url: str, number: int, rounds: int, folder: Path, ready: Callable[[], None]) -> dict[str, object]:
    """With a claimed job for each round; whoever is told to try does so for a moment, and fails."""
    store = await open_store(url, migrate=False)
    jobs = await claimed(store, number, rounds)
    ready()
    probes, met = [], 0
    for job in jobs:
        if (await breakers.admit(store, job, API)).answer is Answer.PROBE:
            probes.append(job.id)
            met += await meets_another(str(folder / "probe"))
            await tell(store, job)
    await store.close()
    return {"probes": probes, "met": met}


async def claimed(store: Store, number: int, rounds: int) -> list[Job]:
    queue = f"q{number}"
    worker = await store.create(WORKER, name=queue, incarnation=str(os.getpid()), workspace_id="test")
    await store.enqueue([NewJob("call", queue=queue)] * rounds)
    return await store.claim(worker, [queue], rounds, LEASE_US, claim_id=1, start=True)


async def meets_another(mark: str) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    await asyncio.sleep(0.003)
    os.unlink(mark)
    return False


async def tell(store: Store, job: Job) -> None:
    await store.atomically(lambda tx: breakers.report(tx, job.tenant_id, API.name, False, job, "still down"))


def main(url: str, processes: int, rounds: int, folder: str, twin: str = "") -> None:
    if twin:
        break_store(twin)
    failed, told = together(processes, lambda number, ready: ask(url, number, rounds, Path(folder), ready))
    print(json.dumps({"failed": failed, "told": told}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
