"""What tests of waits have in common: far in the future, whether a job is due, and two writes that race."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store, Transaction
from tests.conformance.stage import entity

T = TypeVar("T")

LATER = 1 << 60

PATIENCE = 0.15
"""How long the second of two that race is given before the first commits, for it waits for a lock. A twin that takes
none is done by itself, and gets all the time it needs."""


async def due(store: Store, job: Job) -> bool:
    """Whether the job waits no longer."""
    row = await entity(store, JOB, job.id)
    return bool(row["waits_for"] is None and row["run_at"] <= await store.now())


async def beside(
    store: Store, first: Callable[[Transaction], Awaitable[Any]], second: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Makes the second write while the first is written and not committed; returns what came of the second."""
    async with store.transaction() as transaction:
        await first(transaction)
        other = asyncio.ensure_future(second())
        await asyncio.wait({other}, timeout=PATIENCE)
    return await other
