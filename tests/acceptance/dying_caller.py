"""Callers of a SQLite store that die between the commit and the answer, and whoever makes their calls again.

Usage: python -m tests.acceptance.dying_caller FOLDER [TWIN]. Prints, as JSON, how often each call's caller died and
what was wrong after somebody else had made the call again. The twin forgets what it has asked for before.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from keptwork.errors import StoreError
from keptwork.store import Store, open_store
from keptwork.store.sqlite.writer import Writer
from tests.acceptance.write_calls import CALLS, Call, examine


async def prepare(path: Path) -> None:
    await (await open_store(f"sqlite:///{path}")).close()


async def arranged(call: Call, url: str) -> tuple[Any, int]:
    store = await open_store(url)
    given = await call.arrange(store)
    events = await store.event_count()
    await store.close()
    return given, events


def died_after_commit(call: Call, url: str, given: Any, number: int) -> bool:
    """Whether the caller got as far as that commit, and so no further."""
    if pid := os.fork():
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    try:
        _die_after_commit(number)
        asyncio.run(_make(call, url, given))
    finally:
        os._exit(0)  # never the parent's clean-up in a child


def _die_after_commit(number: int) -> None:
    shipped, commits = Writer.end, 0

    def end(self: Writer, how: str) -> None:
        nonlocal commits
        shipped(self, how)
        commits += how == "COMMIT"
        if commits == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Writer.end = end  # type: ignore[method-assign]


async def _make(call: Call, url: str, given: Any) -> None:
    await call.make(await open_store(url), given, False)


async def made_again(call: Call, url: str, given: Any, events: int, again: bool) -> None:
    store: Store = await open_store(url)
    try:
        await examine(call, store, given, await call.make(store, given, again), events)
    finally:
        await store.close()


def tried(call: Call, folder: Path, remembers: bool) -> dict[str, Any]:
    """One caller dies after the first commit, the next after the second, until one lives."""
    deaths = 0
    while True:
        url = f"sqlite:///{shutil.copy(folder / 'new.db', folder / f'{uuid4()}.db')}"
        given, events = asyncio.run(arranged(call, url))
        if not died_after_commit(call, url, given, deaths + 1):
            return {"deaths": deaths, "wrong": None}
        deaths += 1
        try:
            asyncio.run(made_again(call, url, given, events, remembers))
        except (AssertionError, StoreError) as wrong:
            return {"deaths": deaths, "wrong": str(wrong) or "it is not as it should be"}


def main(folder: str, twin: str = "") -> None:
    asyncio.run(prepare(Path(folder) / "new.db"))
    chosen = {name: call for name, call in CALLS.items() if twin or call.known_to_the_caller}
    print(json.dumps({name: tried(call, Path(folder), not twin) for name, call in chosen.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
