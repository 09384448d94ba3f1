"""Workers and flows that somebody damaged: one such flow must not take the workers down, nor the other flows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keptwork import Keptwork
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKSTREAM
from keptwork.diagnostics import overrides
from keptwork.diagnostics.doctor import runner
from keptwork.flows import commands as flows
from tests.service.flow_driver import flow, states, step


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    await app.close()


async def test_a_flow_that_cannot_follow_its_jobs_leaves_the_worker_and_the_others_alone(app: Keptwork) -> None:
    """What its job had come to was refused again and again, and ended every worker that tried."""
    store = await app.open()
    bad = await flows.start(store, flow(step("sub", flow="inner")), library={"inner": flow(step("x"))})
    good = await flows.start(store, flow(step("a"), step("b", "a")))
    (sub,) = await store.steps(bad.id)
    id = public_id("workstream-step", sub["id"])
    done = await overrides.overridden(store, 1, id, "S_RETRYING", reason="to damage it", actor="ann")
    assert [finding.check for finding in done.findings] == ["misplaced"]
    assert await app.work(until_idle=True) == 3
    assert (await states(store, good))[0] == "S_SUCCESS"
    assert (await runner.treat(store)).left == []
    await app.work(until_idle=True)
    assert (await states(store, bad))[0] == "S_SUCCESS"


async def test_a_step_whose_flow_is_not_there_fails(app: Keptwork) -> None:
    """It ended every worker that came to it."""
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("sub", "a", flow="nothing"), abandon_after="0s"))
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert (state, steps["a"]) == ("S_ABANDONED", "S_SUCCESS")
    (row,) = await store.rows(WORKSTREAM, [ref.id])
    assert "No template nothing" in row["error"]


async def test_a_flow_that_time_cannot_move_does_not_keep_the_others_waiting(app: Keptwork) -> None:
    store = await app.open()
    refs = [await flows.start(store, flow(step("a", approval={}), timeout="1h", kind="run")) for _ in range(2)]
    async with store.transaction() as tx:
        await tx.amend(refs[0].kind.flow, [ref.id for ref in refs], 1, wake_at=1)
        await tx.execute(f"UPDATE runs SET template_id = 7 WHERE id = {refs[0].id}")
    await flows.wake(store)
    assert [(await states(store, ref))[0] for ref in refs] == ["WAITING_APPROVAL", "FAILED"]
