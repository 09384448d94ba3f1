"""Run by test_bad_input in a process of its own: works until the disk is full, makes room, and works on.

Prints what was acknowledged, what was still there while the disk was full, and what in the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from keptwork.audit import verify
from keptwork.errors import DiskFull
from keptwork.store import NewJob, open_store
from keptwork.store.sqlite.store import SqliteStore

BALLAST_BYTES = 400 << 10
BATCH = 10


async def main(folder: Path, how: str) -> None:
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * BALLAST_BYTES)
    store = await open_store(f"sqlite:///{folder}/keptwork.db")
    assert isinstance(store, SqliteStore)
    if how == "limit":  # no small disk to be had: the file is kept from growing instead
        await store._write(lambda session: session._db.pragma("max_page_count", 300))
    acknowledged, refusal = 0, ""
    while not refusal:
        try:
            acknowledged += len(await store.enqueue([NewJob("fill", json.dumps("x" * 1000))] * BATCH))
        except DiskFull as full:
            refusal = str(full)
    kept = (await verify.verify(store)).rows["job"]
    ballast.unlink()
    if how == "limit":
        await store._write(lambda session: session._db.pragma("max_page_count", 400))
    resumed = len(await store.enqueue([NewJob("resume")] * BATCH))
    await store.close()
    again = await open_store(f"sqlite:///{folder}/keptwork.db", migrate=False, create=False)
    verdict = await verify.verify(again)
    await again.close()
    told = {
        "refusal": refusal,
        "acknowledged": acknowledged,
        "kept_while_full": kept,
        "resumed": resumed,
        "kept_in_the_end": verdict.rows["job"],
        "problems": [problem._asdict() for problem in verdict.problems],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
