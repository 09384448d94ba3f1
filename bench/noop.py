"""An application with nothing to do, for `detent work bench.noop:app`."""

import asyncio

from detent import Detent
from detent.worker.context import Context

app = Detent()


@app.job()
async def noop(ctx: Context) -> None:
    """Settled as soon as it is begun."""


@app.job()
async def nap(ctx: Context) -> None:
    """Lasts long enough for its lease to be looked at."""
    await asyncio.sleep(2)
