"""One flow carried out by a process: everything that happens is told, whenever it happens."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.cli.run_screen import Lines
from keptwork.cli.run_session import Left, Manner, Session
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.flows.live_view import FlowView

CHAIN = Flow.model_validate(
    {"name": "f", "steps": [{"id": "a", "command": ["true"]}, {"id": "b", "command": ["true"], "depends_on": ["a"]}]}
)
SLOW = Flow.model_validate({"name": "f", "steps": [{"id": "a", "command": ["sleep", "60"]}]})


class Slow(FlowView):
    """Has read the log when the flow has hardly begun, and looks at the flow when it is over."""

    looks = 0

    async def _look_at_flow(self) -> None:
        self.looks += 1
        await super()._look_at_flow()
        while self.looks > 2 and not self.over:  # before that nobody works on it
            await asyncio.sleep(0.01)
            await super()._look_at_flow()


@pytest.mark.acceptance
async def test_a_step_that_ends_just_before_its_flow_is_told_too(sqlite_url: str) -> None:
    async with Keptwork(sqlite_url) as app:
        store = await app.open()
        view, told = Slow(store, await flows.start(store, CHAIN), app.tenant_id), io.StringIO()
        assert await Session(app, store, view, Lines(told), Manner()).carry_out() is Left.OVER
    assert told.getvalue().count("a succeeded in") == told.getvalue().count("b succeeded in") == 1


@pytest.mark.acceptance
async def test_stop_that_comes_while_the_worker_starts_ends_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Keptwork(sqlite_url) as app:
        store, work = await app.open(), app.work
        view = FlowView(store, await flows.start(store, SLOW), app.tenant_id)
        session = Session(app, store, view, Lines(io.StringIO()), Manner(grace="100ms"))

        def started_late(**how: Any) -> Any:
            session._pressed()
            return work(**how)

        monkeypatch.setattr(app, "work", started_late)
        async with asyncio.timeout(20):
            assert await session.carry_out() is Left.STOPPED
