"""Every wait of a handler under every tool of asyncio: it is durable, or refused at once. Each cell is a test.

Beside the wait runs a step that takes a while. It is never cut off by the suspension, and its function runs once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keptwork.testing import Harness
from tests.worker.asyncio_scene import (
    DURABLE,
    REFUSED,
    Scene,
    Tool,
    gather,
    moves,
    returned_beside,
    wait_for,
    wait_for_first,
)
from tests.worker.scene import row

TIMED = ["sleep", "event", "join", "crew", "approval"]
LIMITS = {
    "sleep": "Sleep for the time",
    "event": "timeout=…",
    "join": "timeout=…",
    "crew": "_timeout=…",
    "approval": "expires=…",
}


CLOCKS = [tool for tool in REFUSED if tool not in (wait_for_first, returned_beside)]
"""Those under which the outcome does not depend on whether the step or the hold comes first."""


def _name(tool: Any) -> str:
    return str(getattr(tool, "__name__", tool))


@pytest.mark.parametrize("wait", TIMED)
@pytest.mark.parametrize("tool", DURABLE, ids=_name)
async def test_wait_under_tool_suspends_the_job_and_returns_in_a_later_run(wait: str, tool: Tool) -> None:
    scene = Scene(wait, tool)
    async with Harness(scene.app) as harness:
        job = await scene.parent.enqueue()
        seen = await moves(harness, job)
        if wait not in ("join", "crew"):  # whose children run in the same drain
            assert seen == ["snooze"]
        await scene.answer(harness, wait)
        seen += await moves(harness, job, "2h")
        assert seen[0] == "snooze"
        assert seen[-1] == "succeed"
        result = await job.result("1s")
    assert scene.log == ["begins", "done"]
    assert result == {"sleep": None, "crew": ["went", "went"], "approval": "ann"}.get(wait, "went")


@pytest.mark.parametrize("wait", TIMED)
@pytest.mark.parametrize("tool", REFUSED, ids=_name)
async def test_wait_under_clock_or_race_fails_the_job_and_names_its_own_limit(wait: str, tool: Tool) -> None:
    scene = Scene(wait, tool)
    if tool is wait_for_first:
        scene.seconds = 5  # the step is not first
    async with Harness(scene.app) as harness:
        job = await scene.parent.enqueue()
        runs = [run for run in await harness.drain() if run.id == job.id]
        assert [run.move for run in runs] == ["fail"]
        reason = runs[0].reason or ""
        if tool is returned_beside:
            assert "the handler returned while ctx." in reason
        else:
            assert "cannot wait inside a" in reason
            assert LIMITS[wait] in reason
        assert await moves(harness, job, "1d") == []


async def test_clock_of_asyncio_is_seen_in_a_job_with_a_time_out_of_its_own() -> None:
    scene = Scene("event", wait_for, timeout="1h")
    async with Harness(scene.app) as harness:
        job = await scene.parent.enqueue()
        assert await moves(harness, job) == ["fail"]


async def test_time_out_of_the_job_is_no_clock_around_a_wait() -> None:
    scene = Scene("event", gather, timeout="1h")
    async with Harness(scene.app) as harness:
        job = await scene.parent.enqueue()
        assert await moves(harness, job) == ["snooze"]


@pytest.mark.parametrize("wait", ["breaker", "budget"])
@pytest.mark.parametrize("tool", [*DURABLE, *CLOCKS], ids=_name)
async def test_hold_under_any_tool_releases_the_job(wait: str, tool: Tool) -> None:
    scene = Scene(wait, tool)
    async with Harness(scene.app) as harness:
        if wait == "breaker":
            await scene.breaks.enqueue()
            await harness.drain()
        job = await scene.parent.enqueue()
        assert await moves(harness, job) == ["release"]
        held_by = (await row(scene.app, job))["held_by"]
        assert held_by.startswith(wait)
    assert "cut off" not in scene.log


@pytest.mark.parametrize("tool", DURABLE, ids=_name)
async def test_drain_under_any_tool_releases_the_job(tool: Tool) -> None:
    scene = Scene("drain", tool)
    async with Harness(scene.app) as harness:
        job = await scene.parent.enqueue()
        assert await moves(harness, job) == ["release", "succeed"]
        assert await job.result("1s") == "went"
    assert scene.log == ["begins", "done"]


@pytest.mark.parametrize("tool", [*DURABLE, *REFUSED], ids=_name)
async def test_hold_for_a_version_under_any_tool_releases_the_job(tool: Tool) -> None:
    scene = Scene("event", tool)
    async with Harness(scene.app) as harness:
        kind = scene.app.kinds["parent"]
        scene.app.kinds["parent"] = replace(kind, version=1)
        scene._tool = gather
        job = await scene.parent.enqueue()
        assert await moves(harness, job) == ["snooze"]
        scene.app.kinds["parent"], scene._tool = kind, tool
        await scene.answer(harness, "event")
        assert await moves(harness, job) == ["release"]
        assert (await row(scene.app, job))["held_by"] == "version:parent@1"


@pytest.mark.parametrize("when", ["before", "unkept", "after"])
@pytest.mark.parametrize("tool", DURABLE, ids=_name)
async def test_crash_of_the_harness_under_any_tool_is_no_result(tool: Tool, when: Any) -> None:
    scene = Scene("event", tool)
    async with Harness(scene.app) as harness:
        await scene.app.send_event("go", "went")
        harness.crash_at("pay", when)
        job = await scene.parent.enqueue()
        assert await moves(harness, job, "5m") == ["expire", "succeed"]
        assert await job.result("1s") == "went"
    assert scene.log.count("done") == (2 if when == "unkept" else 1)
