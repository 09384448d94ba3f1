"""The built-in kind of job that starts a flow: what a schedule of a flow enqueues with each of its ticks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from detent.errors import BadInput, FlowKeyReused, NotFound
from detent.job_type import JobType
from detent.outcomes import PermanentError
from detent.service import flows, templates
from detent.service.flow_scene import Actor
from detent.service.schedules import START, flow_key
from detent.store import Store
from detent.store.schedules import SCHEDULER
from detent.worker.context import Context


class StartKind:
    """Starts flows, each tick's once."""

    def __init__(self, opened: Callable[[], Awaitable[Store]]) -> None:
        self._opened = opened

    def job_types(self) -> dict[str, JobType]:
        """By name, as the worker looks them up."""
        return {START: JobType.of(self._start, name=START)}

    async def _start(self, ctx: Context, flow: str, inputs: dict[str, Any] | None = None) -> dict[str, str]:
        """The flow of this tick; done twice, it is the same one."""
        store = await self._opened()
        try:
            template = await templates.find(store, ctx.tenant_id, flow)
            key = flow_key(ctx.correlation_id) or ctx.job_id
            newest, by = templates.by_name(template, flow), Actor(SCHEDULER)
            ref = await flows.start_template(store, template, inputs, newest=newest, key=key, actor=by)
        except (NotFound, BadInput, FlowKeyReused) as error:
            raise PermanentError(str(error)) from None
        return {"flow": ref.public_id}
