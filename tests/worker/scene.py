"""What the tests of the worker do again and again: let one work for a while, and read what became of a job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.handles import Handle
from keptwork.store import Event
from tests.conformance.stage import entity, eventually, log, moved

__all__ = ["eventually", "moved"]


@asynccontextmanager
async def working(app: Keptwork, **settings: Any) -> AsyncIterator[asyncio.Task[int]]:
    """A worker beside the test; it is stopped at the end and must end in good order."""
    task = asyncio.create_task(app.work(**settings))
    try:
        yield task
    finally:
        app.stop()
        async with asyncio.timeout(60):
            await task


async def row(app: Keptwork, job: Handle) -> dict[str, Any]:
    return await entity(await app.open(), JOB, job.key)


async def state(app: Keptwork, job: Handle) -> str:
    return str((await row(app, job))["state"])


async def reaches(app: Keptwork, job: Handle, wanted: str) -> None:
    async def there() -> bool:
        return await state(app, job) == wanted

    await eventually(there)


async def story(app: Keptwork, job: Handle) -> list[Event]:
    return await log(await app.open(), entity="job", entity_id=job.key)


async def triggers(app: Keptwork, job: Handle) -> list[str]:
    return [event.trigger for event in await story(app, job)]


async def last(app: Keptwork, job: Handle) -> tuple[str, str | None, Any]:
    """How the job ended: trigger, reason, stage."""
    event = (await story(app, job))[-1]
    return event.trigger, event.reason, json.loads(event.payload or "{}").get("stage")


async def workers(app: Keptwork) -> list[int]:
    events = await log(await app.open(), entity="worker")
    return list(dict.fromkeys(event.entity_id for event in events))


async def worker_story(app: Keptwork, id: int) -> list[str]:
    return [event.to_state for event in await log(await app.open(), entity="worker", entity_id=id)]


async def move_worker(app: Keptwork, id: int, trigger: str) -> None:
    await moved(await app.open(), WORKER, id, trigger)


async def only_worker(app: Keptwork) -> int:
    async def registered() -> bool:
        return bool(await workers(app))

    await eventually(registered)
    (id,) = await workers(app)
    return id
