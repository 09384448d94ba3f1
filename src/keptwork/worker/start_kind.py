"""The built-in kind of job that starts a flow. A schedule of a flow enqueues one at each tick."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from keptwork.errors import BadInput, FlowKeyReused, NotFound
from keptwork.job_type import JobType
from keptwork.outcomes import PermanentError
from keptwork.service import flows, templates
from keptwork.service.flow_scene import Actor
from keptwork.service.schedules import START, flow_key
from keptwork.store import Store
from keptwork.store.schedules import SCHEDULER
from keptwork.worker.context import Context


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
            template = await templates.find(store, ctx.tenant_id, flow)
            key = flow_key(ctx.correlation_id) or ctx.job_id
            newest, by = templates.by_name(template, flow), Actor(SCHEDULER)
            ref = await flows.start_template(store, template, inputs, newest=newest, key=key, actor=by)
        except (NotFound, BadInput, FlowKeyReused) as error:
            raise PermanentError(str(error)) from None
        return {"flow": ref.public_id}
