"""Create a worker without a database: the usual worker, with a server in place of a store.

It runs the jobs of its application and those steps of flows that call a function. Other work is left to workers with a
database; one log line at the start reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from keptwork.client.credentials import server_address, server_key
from keptwork.context import Context
from keptwork.core.validation import OWN_KINDS
from keptwork.errors import BadInput
from keptwork.job import JobType
from keptwork.outcomes import PermanentError, ValidationError
from keptwork.store import Store
from keptwork.workers.handlers import Older
from keptwork.workers.inline_runner import called, output_of
from keptwork.workers.registration import Settings
from keptwork.workers.remote.store import WAIT_SECONDS, Hand, RemoteStore
from keptwork.workers.worker import Worker

CALL = f"{OWN_KINDS}call"

log = logging.getLogger("keptwork")


@asynccontextmanager
async def remote_worker(
    server: str,
    key: str | None,
    key_file: str | None,
    kinds: Mapping[str, JobType],
    older: Older,
    settings: Settings,
    until_idle: bool = False,
) -> AsyncIterator[tuple[Worker, Callable[[], None]]]:
    """Yield a worker for a server, and a function that ends its wait for jobs."""
    if settings.most_memory is not None or settings.bond is not None:
        raise BadInput(
            what="a worker with --server neither pauses by itself nor has a supervisor; leave out what asks it"
        )
    address, served = server_address(server), _served(kinds)
    store = RemoteStore(
        address,
        server_key(key, None if key_file is None else Path(key_file)),
        wait_seconds=0 if until_idle else WAIT_SECONDS,
    )
    try:
        yield (
            Worker(
                cast(Store, store),  # has the operations that a worker uses
                {**served, CALL: JobType.of(Calls(store.hand).carry_out, name=CALL, on_exhausted="fail")},
                replace(settings, database=address, remote=True),
                cast(Any, store.beside),
                older=older,
            ),
            store.hang_up,
        )
    finally:
        await store.close()


def _served(kinds: Mapping[str, JobType]) -> dict[str, JobType]:
    """Return the kinds that this worker can run. Kinds with a breaker need the database."""
    behind = sorted(name for name, kind in kinds.items() if kind.breaker is not None)
    declared = sorted(name for name, kind in kinds.items() if kind.throttle is not None)
    if behind:
        log.warning("behind a breaker, and so left to workers with the database: %s", ", ".join(behind))
    if declared:
        log.warning("limits are declared by workers with the database, not by this one: %s", ", ".join(declared))
    return {name: kind for name, kind in kinds.items() if name not in behind}


class Calls:
    """Runs steps of flows that call a function. The server has resolved their arguments."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    async def carry_out(self, ctx: Context, **_: Any) -> Any:
        """Return what the function returned."""
        step = self._hand.steps.get(ctx.job.id)
        if step is None:
            raise PermanentError(f"the server did not say what the step {ctx.job_id} calls")
        try:
            async with asyncio.timeout(step["timeout"]):
                return output_of(await called(ctx, step["call"], step["arguments"]))
        except (PermanentError, ValidationError):
            raise
        except Exception as error:
            if step["retry_in"] is not None:
                error.delay_us = round(step["retry_in"] * 1_000_000)  # type: ignore[attr-defined]  # read when it is settled
            raise
