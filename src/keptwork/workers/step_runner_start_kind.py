"""The built-in kind of job that starts a flow. A schedule of a flow enqueues one at each tick."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from keptwork.context import Context
from keptwork.errors import BadInput, FlowKeyReused, NotFound
from keptwork.flows import commands as flows
from keptwork.flows import start
from keptwork.flows.transaction import Actor
from keptwork.job import JobType
from keptwork.jobs.schedules import START, flow_key
from keptwork.outcomes import PermanentError
from keptwork.store import Store
from keptwork.store.contract.queues import SCHEDULER


class StartKind:
    """Starts flows, one for each tick."""

    def __init__(self, opened: Callable[[], Awaitable[Store]]) -> None:
        self._opened = opened

    def job_types(self) -> dict[str, JobType]:
        """Return the kind by name, for the worker."""
        return {START: JobType.of(self._start, name=START)}

    async def _start(self, ctx: Context, flow: str, inputs: dict[str, Any] | None = None) -> dict[str, str]:
        """Start the flow of this tick. A repeated call returns the same flow."""
        store = await self._opened()
        try:
            template = await start.find(store, ctx.tenant_id, flow)
            key = flow_key(ctx.correlation_id) or ctx.job_id
            newest, by = start.by_name(template, flow), Actor(SCHEDULER)
            ref = await flows.start_template(store, template, inputs, newest=newest, key=key, actor=by)
        except (NotFound, BadInput, FlowKeyReused) as error:
            raise PermanentError(str(error)) from None
        return {"flow": ref.public_id}
