"""Many operating-system processes that claim from one queue until it is empty.

Usage: python -m tests.acceptance.claimers URL PROCESSES BATCH [TWIN]. Prints, as JSON, what each process got.
Everything is imported before the processes are forked, so that they begin together; none shares a connection.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from detent.lifecycle import WORKER
from detent.store import open_store
from tests.acceptance.twins import break_store

LEASE_US = 120_000_000
EMPTY_ANSWERS = 3


async def claim_all(url: str, number: int, batch: int, ready: int, go: int) -> list[int]:
    """Register, wait for the others, then claim until the queue has answered with nothing a few times."""
    store = await open_store(url, migrate=False)
    worker = await store.create(WORKER, name=f"claimer-{number}", incarnation=str(os.getpid()), workspace_id="test")
    os.write(ready, b".")
    os.read(go, 1)
    got: list[int] = []
    empty = 0
    while empty < EMPTY_ANSWERS:
        jobs = await store.claim(worker, ["default"], batch, LEASE_US, claim_id=len(got) + 1)
        got += [job.id for job in jobs]
        empty = 0 if jobs else empty + 1
    await store.close()
    return got


def fork_claimer(url: str, number: int, batch: int, folder: Path, pipes: tuple[int, int, int]) -> int:
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.close(pipes[2])
        (folder / str(number)).write_text(json.dumps(asyncio.run(claim_all(url, number, batch, *pipes[:2]))))
        status = 0
    finally:
        os._exit(status)  # never the parent's clean-up in a child


def main(url: str, processes: int, batch: int, twin: str = "") -> None:
    if twin:
        break_store(twin)
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        pipes = (ready_write, go_read, go_write)
        pids = [fork_claimer(url, number, batch, Path(name), pipes) for number in range(processes)]
        os.close(ready_write)
        for _ in pids:
            os.read(ready_read, 1)
        os.close(go_write)  # everyone reads the end of the pipe at once
        failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
        got = [json.loads(path.read_text()) for path in Path(name).iterdir()]
    print(json.dumps({"failed": len(failed), "got": got}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
