"""An application with nothing to do, for `keptwork work bench.noop:app`."""

import asyncio

from keptwork import Keptwork
from keptwork.context import Context

app = Keptwork()


@app.job()
async def noop(ctx: Context) -> None:
    """Settled as soon as it is begun."""


@app.job()
async def nap(ctx: Context) -> None:
    """Lasts long enough for its lease to be looked at."""
    await asyncio.sleep(2)
