"""A worker with one kind of job, of many steps, that kills itself with -9 where the test says.

Usage: python -m tests.acceptance.step_program STRIKES URL SINK_PORT NAME LEASE [TWIN]. STRIKES is a file of lines such
as `ran 7`: the process that first gets to that place takes the line away and dies there. The places of a step are
`before` (it runs, and has done nothing yet), `ran` (its effect is there, and nothing is saved) and `saved` (its result
is committed, and the handler has not seen it).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keptwork import Keptwork
from keptwork.store.contract.checkpoints import Save
from tests.acceptance.effects import Outlet
from tests.acceptance.twins import break_store
from tests.acceptance.worker_program import MANY_ATTEMPTS, die_with_the_test, token

STEPS = 20
STEP_SECONDS = 0.01
PLACES = ("before", "ran", "saved")
KIND = "long"


def step_name(number: int) -> str:
    return f"step {number}"


class Strikes:
    """Where processes are to die, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def left(self) -> list[str]:
        return self._path.read_text().splitlines()

    def set(self, places: Sequence[str]) -> None:
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{place}\n" for place in places))
        new.replace(self._path)

    def reached(self, place: str) -> None:
        """Dies, if it is to be here."""
        if self.left()[:1] == [place]:
            self.set(self.left()[1:])
            os.kill(os.getpid(), signal.SIGKILL)


def declare(app: Keptwork, outlet: Outlet | None, strikes: Strikes) -> None:
    """The kind of job; the test that enqueues it needs no sink."""

    async def effect(ctx: Any, number: int) -> int:
        assert outlet is not None
        await asyncio.sleep(STEP_SECONDS)
        strikes.reached(f"before {number}")
        outlet.deliver(ctx.idempotency_key(step_name(number)), 0, step_name(number), token(ctx))
        strikes.reached(f"ran {number}")
        return number

    @app.job(name=KIND, max_attempts=MANY_ATTEMPTS)
    async def long(ctx: Any) -> list[int]:
        return [await ctx.step(step_name(number), effect, ctx, number) for number in range(STEPS)]


async def work(strikes: Strikes, url: str, port: int, name: str, lease: str) -> None:
    app = Keptwork(url)
    declare(app, Outlet(port), strikes)
    store = await app.open()
    shipped = store.checkpoint

    async def checkpoint(saves: Sequence[Save]) -> list[str | None]:
        stands = await shipped(saves)
        for save in saves:
            strikes.reached(save.name.replace("step", "saved"))
        return stands

    store.checkpoint = checkpoint  # type: ignore[method-assign]
    await app.work(name=name, lease=lease)


def main(path: str, url: str, port: str, name: str, lease: str, twin: str = "") -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    if twin:
        break_store(twin)
    asyncio.run(work(Strikes(Path(path)), url, int(port), name, lease))


if __name__ == "__main__":
    main(*sys.argv[1:])
