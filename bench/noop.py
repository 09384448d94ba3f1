"""An application with nothing to do, for `detent work bench.noop:app`."""

from detent import Detent
from detent.worker.context import Context

app = Detent()


@app.job()
async def noop(ctx: Context) -> None:
    """Settled as soon as it is begun."""
