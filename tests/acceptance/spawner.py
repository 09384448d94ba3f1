"""A worker whose parent job spawns children in two writes, and stops in between to be killed.

Usage: python -m tests.acceptance.spawner URL FOLDER COUNT [forgetful]. In its first run the parent leaves a file
`spawned` in the folder and sleeps. The forgetful twin does not look for what it has spawned before.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.workers.children import Children


def application(url: str, folder: Path, count: int) -> Keptwork:
    app = Keptwork(url)

    @app.job(name="child")
    async def child(ctx: Context, n: int) -> int:
        return n

    @app.job(name="parent", lease="1s", max_attempts=20)
    async def parent(ctx: Context) -> Any:
        first = await ctx.spawn_many(child, [{"n": n} for n in range(count)])
        if is_new(folder / "spawned"):
            await asyncio.sleep(60)
        second = await ctx.spawn_many("child", [{"n": n} for n in range(count, 2 * count)])
        return await ctx.join([*first, *second])

    return app


def is_new(mark: Path) -> bool:
    new = not mark.exists()
    mark.touch()
    return new


def forget() -> None:
    shipped = Children._spawned

    async def spawned(self: Children, name: str, *what: Any) -> list[int]:
        return await shipped(self, f"{name} {uuid4()}", *what)

    Children._spawned = spawned  # type: ignore[method-assign, assignment]


async def main(url: str, folder: str, count: str, twin: str = "") -> None:
    if twin == "forgetful":
        forget()
    async with application(url, Path(folder), int(count)) as app:
        await app.work(concurrency=2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
