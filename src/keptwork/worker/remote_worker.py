"""A worker without a database: the worker of every process, over a server in the place of a store.

It carries out the jobs of its application and, of flows, the steps that call a function. What needs more than that is
left to workers with a database, and said in one line when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from keptwork.bounds import OWN_KINDS
from keptwork.client.credentials import server_address, server_key
from keptwork.errors import BadInput
from keptwork.job_type import JobType
from keptwork.outcomes import PermanentError, ValidationError
from keptwork.store import Store
from keptwork.worker.called import called, output_of
from keptwork.worker.context import Context
from keptwork.worker.remote_store import WAIT_SECONDS, Hand, RemoteStore
from keptwork.worker.settings import Settings
from keptwork.worker.versions import Older
from keptwork.worker.worker import Worker

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
    """A worker for a server, and how to let it give up waiting for jobs."""
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
                cast(Store, store),  # as much of one as a worker asks for
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
    """Those whose jobs it can take: a breaker is asked in the database."""
    behind = sorted(name for name, kind in kinds.items() if kind.breaker is not None)
    declared = sorted(name for name, kind in kinds.items() if kind.throttle is not None)
    if behind:
        log.warning("behind a breaker, and so left to workers with the database: %s", ", ".join(behind))
    if declared:
        log.warning("limits are declared by workers with the database, not by this one: %s", ", ".join(declared))
    return {name: kind for name, kind in kinds.items() if name not in behind}


class Calls:
    """Steps of flows that call a function. The server has filled in what it is called with."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    async def carry_out(self, ctx: Context, **_: Any) -> Any:
        """What the function returned."""
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
