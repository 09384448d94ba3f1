"""Start flows from Python, from a file, a definition, or plain data, and follow them with a handle."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keptwork.core.durations import Span, span_us
from keptwork.errors import FlowFailed, StillUnfinished
from keptwork.flows import commands as flows
from keptwork.flows import report
from keptwork.flows.compiled import definition_text
from keptwork.flows.definition import Flow
from keptwork.flows.files import FlowFile, described, read
from keptwork.flows.live_view import FlowView
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.flows.commands import FlowRef
    from keptwork.flows.report import FlowReport
    from keptwork.store.contract.waits_approvals import Approval

SHORTEST_LOOK, LONGEST_LOOK = 0.005, 0.1

Definition = str | Path | Flow | Mapping[str, Any]
"""The path of a flow file, a flow, or the content of such a file."""


def flow_file(what: Definition) -> FlowFile:
    """Return the flow with its nested flows. Raise `BadFlow` if it is invalid."""
    if isinstance(what, Flow):
        return described(json.loads(definition_text(what)))
    return described(what) if isinstance(what, Mapping) else read(what)


class FlowHandle:
    """The handle of a started flow."""

    def __init__(self, ref: FlowRef, app: Keptwork) -> None:
        self._ref = ref
        self._app = app

    @property
    def id(self) -> str:
        """The public ID."""
        return self._ref.public_id

    async def ended(self, timeout: Span | None = None) -> FlowReport:  # noqa: ASYNC109 - with an error that tells more
        """Wait until the flow finishes or fails and return its report.

        A flow that has not finished after `timeout` raises `StillUnfinished`. A worker of this process (`app.work()`)
        or of another must run the flow.
        """
        store = await self._app.open()
        view = FlowView(store, self._ref, self._app.tenant_id)
        try:
            async with asyncio.timeout(None if timeout is None else span_us(timeout) / 1_000_000):
                await self._until_ended(view)
        except TimeoutError:
            raise StillUnfinished(id=self.id, state=view.flow.get("state", "unknown"), waited=str(timeout)) from None
        return await report.report(store, view)

    async def _until_ended(self, view: FlowView) -> None:
        rung, pause = asyncio.Event(), SHORTEST_LOOK
        stop_hearing = self._app.on_settled(rung.set)
        try:
            while not await view.ended():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await rung.wait()
                pause = SHORTEST_LOOK if rung.is_set() else min(pause * 2, LONGEST_LOOK)
                rung.clear()
        finally:
            stop_hearing()

    async def outputs(self, timeout: Span | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - as `ended` has it
        """Wait until the flow succeeds and return the outputs of its steps by name.

        An unsuccessful flow raises `FlowFailed`.
        """
        found = await self.ended(timeout)
        if found.word != "succeeded":
            raise FlowFailed(id=found.id, state=found.state, why=found.error or "nothing is known")
        store = await self._app.open()
        view = FlowView(store, self._ref, self._app.tenant_id)
        await view.look()
        return await report.outputs(store, view)

    async def report(self) -> FlowReport:
        """Return the progress of the flow, step by step."""
        store = await self._app.open()
        return await report.report(store, FlowView(store, self._ref, self._app.tenant_id))

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Cancel the flow and everything that belongs to it."""
        await flows.cancel(await self._app.open(), self._ref, Actor(by, reason))

    async def approvals(self) -> list[Approval]:
        """Return the open approval requests of the flow."""
        view = FlowView(await self._app.open(), self._ref, self._app.tenant_id)
        await view.look()
        return await view.questions()

    async def approve(self, step: str | None = None, *, by: str, comment: str | None = None) -> list[Approval]:
        """Approve the open requests of the flow, or of one step, and return them."""
        asked = [one for one in await self.approvals() if step in (None, one.step)]
        return [await self._app.approve(one.public_id, by=by, comment=comment) for one in asked]

    async def let_go(self, *, by: str | None = None) -> None:
        """Lift the hold of a flow that was started with `hold`."""
        await flows.let_go(await self._app.open(), self._ref, Actor(by))


async def start_flow(
    app: Keptwork, what: Definition, inputs: Mapping[str, Any] | None, *, by: str | None = None, **how: Any
) -> FlowHandle:
    """Start a flow; see `Keptwork.start_flow`."""
    file = flow_file(what)
    store = await app.open()
    ref = await flows.start(
        store, file.flow, inputs, tenant_id=app.tenant_id, library=file.library, actor=Actor(by), **how
    )
    return FlowHandle(ref, app)
