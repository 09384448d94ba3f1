"""A wait under asyncio's tools in a process of its own: durable, or refused at once, as in the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from keptwork import Keptwork
from tests.process import tool_jobs
from tests.worker.scene import last, row, triggers, working

pytestmark = pytest.mark.acceptance


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One kind of store is enough: none of this depends on it."""
    return sqlite_url


@pytest.mark.parametrize("tool", ["gather", "task_group", "wait_for_all", "shield", "as_completed"])
async def test_sleep_in_a_process_suspends_under_tool(app: Keptwork, tool: str, tmp_path: Path) -> None:
    handler, log = app.job(isolation="process")(tool_jobs.under_tool), tmp_path / "log"
    job = await handler.enqueue(tool=tool, log=str(log))
    async with working(app, concurrency=1):
        assert await job.result("60s") == "paid"
    assert "snooze" in await triggers(app, job)
    assert log.read_text() == "begins\ndone\n"


@pytest.mark.parametrize("tool", ["wait_for", "timeout", "returned_beside"])
async def test_sleep_in_a_process_is_refused_under_tool(app: Keptwork, tool: str, tmp_path: Path) -> None:
    handler = app.job(isolation="process")(tool_jobs.under_tool)
    job = await handler.enqueue(tool=tool, log=str(tmp_path / "log"))
    await app.work(until_idle=True, concurrency=1)
    assert (await last(app, job))[0] == "fail"
    assert "ctx.sleep('100ms')" in (await row(app, job))["error"]
