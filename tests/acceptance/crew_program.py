"""A worker for shares that wait until they are told to go on, to be killed meanwhile.

Usage: python -m tests.acceptance.crew_program URL FOLDER. Each share leaves a file with its worker's process id in the
folder, `share-0` for instance, and ends once there is a file `go`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from keptwork import Keptwork
from keptwork.context import Context


def application(url: str, folder: Path) -> Keptwork:
    app = Keptwork(url)

    @app.job(name="dig", lease="1s", max_attempts=5)
    async def dig(ctx: Context, share: int, shares: int, task: str) -> int:
        (folder / f"share-{share}").write_text(str(os.getpid()))
        while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
        return share

    return app


async def main(url: str, folder: str) -> None:
    async with application(url, Path(folder)) as app:
        await app.work(concurrency=1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
