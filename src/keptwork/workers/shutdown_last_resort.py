"""End the process of a worker that was terminated while its event loop is blocked.

Its jobs are first released, with a delay after which this process is surely gone, or cancelled if the order requires
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from keptwork.core.lifecycles import JOB, Change, decide, insist
from keptwork.errors import KeptworkError
from keptwork.jobs import complete
from keptwork.process.tree import descendants, signal_all
from keptwork.process.tree_bonds import flush
from keptwork.store import Job, Store
from keptwork.workers.process_exit import leave
from keptwork.workers.registration_orders import Order

GONE_US = 1_000_000
PATIENCE_SECONDS = 0.5

log = logging.getLogger("keptwork")


async def end_process(store: Store, jobs: Sequence[Job], order: Order, actor: str, error: KeptworkError) -> NoReturn:
    """Release the jobs and end the process, even if the database fails. Unwritten jobs are left to their leases."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await complete.applied(store, [cut_short(job, order, actor) for job in jobs])
    except Exception as trouble:
        log.warning("its jobs are left to their leases: %s", trouble)
    log.error("%s", error)
    flush()
    signal_all(descendants(os.getpid()), signal.SIGKILL)
    leave(error.exit_code)


def cut_short(job: Job, order: Order, actor: str) -> Change:
    """Return the final change of a job whose handler ends with its process."""
    reason = f"its worker was terminated: {order.reason}" if order.reason else "its worker was terminated"
    if order.jobs == "cancel":
        return insist(decide(JOB, job, "cancel", token=job.token, actor=actor, reason=reason))
    return insist(
        decide(JOB, job, "release", token=job.token, actor=actor, reason=reason, values={"delay_us": GONE_US})
    )
