"""Wait for signals in a handler: each wait receives the next signal of its name that the job has not received."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from keptwork.core.durations import Span, span_us
from keptwork.errors import BadInput, NoEvent
from keptwork.jobs.commands_signals import check_event
from keptwork.jobs.outcome import Suspend
from keptwork.outcomes import PermanentError
from keptwork.store import Job
from keptwork.store.contract.waits import EVENT
from keptwork.store.contract.waits_signals import Signal
from keptwork.workers.children import Ask
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.steps import Steps


class Signals:
    """The signals of one run. The sequence number of the last received signal is stored for each name."""

    def __init__(self, job: Job, steps: Steps, ask: Ask) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask
        self._taken: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def wait(self, name: str, event: str, timeout: Span | None) -> Any:  # noqa: ASYNC109 - it outlives this run
        limit_us = _checked(event, timeout)
        async with self._turns.setdefault(event, asyncio.Lock()):  # two concurrent waits receive one after the other
            kept = await self._kept(name, event, limit_us)
        if kept is None:
            raise NoEvent(name=event, waited=timeout)
        self._taken[event] = kept["place"]
        return kept["payload"]

    async def _kept(self, name: str, event: str, limit_us: int | None) -> Any:
        """Return the received signal, from this or an earlier run, or None after the time-out."""
        found = await self._steps.recall(name)
        if found is not None:
            return json.loads(found.result)
        signal = await self._next(event)
        if signal is not None:
            taken = {"place": signal.id, "payload": json.loads(signal.payload)}
            self._taken[event] = signal.id
            return await self._steps.keep(name, taken)
        until = None if limit_us is None else await self._deadline(f"{name} until", limit_us)
        if until is not None and until <= await self._now():
            return await self._steps.keep(name, None)
        raise Suspended(Suspend(f"{EVENT}{event}", until, self._taken.get(event, 0)))

    async def _next(self, event: str) -> Signal | None:
        job, after = self._job, self._taken.get(event, 0)
        found: Signal | None = await self._ask(
            job, lambda store: store.next_signal(job.tenant_id, job.id, event, after)
        )
        return found

    async def _deadline(self, name: str, limit_us: int) -> int:
        """Return the deadline, counted from the first run that waited."""
        return await self._steps.kept_once(name, await self._now() + limit_us)

    async def _now(self) -> int:
        return int(await self._ask(self._job, lambda store: store.now()))


def _checked(event: str, timeout: Span | None) -> int | None:
    try:
        check_event(event)
        return None if timeout is None else span_us(timeout)
    except BadInput as refusal:
        raise PermanentError(str(refusal)) from None
