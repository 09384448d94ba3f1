"""Track a worker's shutdown: whether it was requested, its deadline, its manner, and the error that reports it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import NoReturn

from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import JOB, WORKER, Change, decide, insist
from keptwork.errors import KeptworkError, WorkerExhausted, WorkerTerminated
from keptwork.jobs import complete
from keptwork.process.tree import descendants, flush, signal_all
from keptwork.store import Job, Store
from keptwork.workers.process_exit import leave
from keptwork.workers.registration import DRAINED, EXHAUSTED, Order

log = logging.getLogger("keptwork")


class Departure:
    """A worker's shutdown. If there are several requests, the earliest deadline and the latest order apply.

    `grace` is in seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._asked = asyncio.Event()
        self.ends_at = 0.0
        self.reason = DRAINED
        self.order: Order | None = None

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    @property
    def at_once(self) -> bool:
        """Whether the worker must stop without waiting for anything."""
        return self.order is not None and self.order.how == "hard"

    @property
    def cancelled(self) -> str:
        """The reason to cancel jobs that are cut short, or an empty string if they return to the queue."""
        return "its worker was terminated" if self.order is not None and self.order.jobs == "cancel" else ""

    def within_grace(self) -> None:
        self._within(self._grace)

    def obey(self, order: Order) -> None:
        """Apply an order to end, or note that the worker was already ended."""
        log.warning("asked to end (%s) by %s: %s", order.how, actor_name(order.by) or "somebody", order.reason or "–")
        self.order = order
        if order.how == "drain" and order.reason:
            self.reason = f"{DRAINED}: {order.reason}"
        self._within({"drain": float("inf"), "soft": self._grace, "hard": 0.0}[order.how])

    def exhausted(self, what: str) -> None:
        """Shut down because only another process can recover from this condition."""
        self.reason = f"{EXHAUSTED}: {what}"
        self._within(self._grace)

    def error(self, worker: int) -> KeptworkError | None:
        """Return the exception that reports the shutdown, or None if the worker ended normally."""
        if self.order is not None and self.order.how != "drain":
            return terminated(worker, self.order)
        if self.reason.startswith(EXHAUSTED):
            id, what = public_id(WORKER.name, worker), self.reason.removeprefix(f"{EXHAUSTED}: ")
            return WorkerExhausted(id=id, what=what)
        return None

    def _within(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        self.ends_at = min(self.ends_at, ends_at) if self.asked else ends_at
        self._asked.set()


def terminated(worker: int, order: Order) -> WorkerTerminated:
    """Return the exception of a worker that an operator or another process terminated."""
    id, by = public_id(WORKER.name, worker), actor_name(order.by) or "somebody"
    return WorkerTerminated(id=id, by=by, reason=order.reason or "no reason was given")


# End the process of a worker that was terminated while its event loop is blocked.
#
# Its jobs are first released, with a delay after which this process is surely gone, or cancelled if the order requires
# it.


GONE_US = 1_000_000
PATIENCE_SECONDS = 0.5


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
