"""Every wait of a handler under every tool of asyncio: it is durable, or refused at once. Each cell is a test on
SQLite. Each row is a test on PostgreSQL, where the tools of a row share a database.

Beside the wait runs a step that takes a while. It is never cut off by the suspension, and its function runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from keptwork import Keptwork
from keptwork.job import DeclaredJob
from keptwork.testing import Harness
from tests.worker.asyncio_scene import (
    DURABLE,
    REFUSED,
    Row,
    Scene,
    ServerHarness,
    Tool,
    gather,
    moves,
    name_of,
    returned_beside,
    wait_for,
    wait_for_first,
)

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

Opens = Callable[[Keptwork], Harness]


class Cells(NamedTuple):
    """Tools that share a database of this kind."""

    database: str
    tools: Sequence[Tool]


def cells(tools: Sequence[Tool]) -> pytest.MarkDecorator:
    """A cell of each tool on SQLite, and the whole row on PostgreSQL."""
    rows = [*(Cells("sqlite", [tool]) for tool in tools), Cells("postgres", tools)]
    return pytest.mark.parametrize("row", rows, ids=[*map(name_of, tools), "postgres"])


@pytest.fixture
def opens(row: Cells, request: pytest.FixtureRequest) -> Opens:
    if row.database == "sqlite":
        return Harness
    url = str(request.getfixturevalue("postgres_copy"))
    return lambda app: ServerHarness(app, url)


@pytest.mark.parametrize("wait", TIMED)
@cells(DURABLE)
async def test_wait_under_tool_suspends_the_job_and_returns_in_a_later_run(wait: str, row: Cells, opens: Opens) -> None:
    jobs = Row(wait, row.tools)
    async with opens(jobs.app) as harness:
        await jobs.enqueue()
        seen = await jobs.moves(harness)
        if wait not in ("join", "crew"):  # whose children run in the same drain
            assert seen == jobs.all(["snooze"])
        await jobs.answer()
        for tool, later in (await jobs.moves(harness, "2h")).items():
            seen[tool] += later
        assert {tool: found[0] for tool, found in seen.items()} == jobs.all("snooze")
        assert {tool: found[-1] for tool, found in seen.items()} == jobs.all("succeed")
        result: Any = {"sleep": None, "crew": ["went", "went"], "approval": "ann"}.get(wait, "went")
        assert await jobs.results() == jobs.all(result)
    assert jobs.logs == jobs.all(["begins", "done"])


@pytest.mark.parametrize("wait", TIMED)
@cells(REFUSED)
async def test_wait_under_clock_or_race_fails_the_job_and_names_its_own_limit(
    wait: str, row: Cells, opens: Opens
) -> None:
    jobs = Row(wait, row.tools)
    if wait_for_first in row.tools:
        jobs.scenes[name_of(wait_for_first)].seconds = 5  # the step is not first
    if returned_beside in row.tools:
        jobs.scenes[name_of(returned_beside)].seconds = 2  # the wait is parked before the handler returns
    async with opens(jobs.app) as harness:
        await jobs.enqueue()
        for tool, runs in (await jobs.runs(harness)).items():
            assert [run.move for run in runs] == ["fail"], tool
            reason = runs[0].reason or ""
            if tool == name_of(returned_beside):
                assert "the handler returned while ctx." in reason
            else:
                assert "cannot wait inside a" in reason, tool
                assert LIMITS[wait] in reason, tool
        assert await jobs.moves(harness, "1d") == jobs.all([])


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
@cells([*DURABLE, *CLOCKS])
async def test_hold_under_any_tool_releases_the_job(wait: str, row: Cells, opens: Opens) -> None:
    jobs = Row(wait, row.tools)
    async with opens(jobs.app) as harness:
        if wait == "breaker":
            await DeclaredJob(jobs.app, jobs.app.kinds["breaks"]).enqueue()
            await harness.drain()
        await jobs.enqueue()
        assert await jobs.moves(harness) == jobs.all(["release"])
        held_by = await jobs.held_by()
        assert {tool: held.partition(":")[0] for tool, held in held_by.items()} == jobs.all(wait)
    assert not any("cut off" in log for log in jobs.logs.values()), jobs.logs


@cells(DURABLE)
async def test_drain_under_any_tool_releases_the_job(row: Cells, opens: Opens) -> None:
    jobs = Row("drain", row.tools)
    async with opens(jobs.app) as harness:
        await jobs.enqueue()
        assert await jobs.moves(harness) == jobs.all(["release", "succeed"])
        assert await jobs.results() == jobs.all("went")
    assert jobs.logs == jobs.all(["begins", "done"])


@cells([*DURABLE, *REFUSED])
async def test_hold_for_a_version_under_any_tool_releases_the_job(row: Cells, opens: Opens) -> None:
    jobs = Row("event", row.tools)
    kinds = {f"parent {tool}": jobs.app.kinds[f"parent {tool}"] for tool in jobs.scenes}
    async with opens(jobs.app) as harness:
        jobs.app.kinds.update({name: replace(kind, version=1) for name, kind in kinds.items()})
        for scene in jobs.scenes.values():
            scene._tool = gather
        await jobs.enqueue()
        assert await jobs.moves(harness) == jobs.all(["snooze"])
        jobs.app.kinds.update(kinds)
        for scene, tool in zip(jobs.scenes.values(), row.tools, strict=True):
            scene._tool = tool
        await jobs.answer()
        assert await jobs.moves(harness) == jobs.all(["release"])
        assert await jobs.held_by() == {tool: f"version:parent {tool}@1" for tool in jobs.scenes}


@pytest.mark.parametrize("when", ["before", "unkept", "after"])
@cells(DURABLE)
async def test_crash_of_the_harness_under_any_tool_is_no_result(row: Cells, opens: Opens, when: Any) -> None:
    jobs = Row("event", row.tools)
    async with opens(jobs.app) as harness:
        await jobs.app.send_event("go", "went")
        for scene in jobs.scenes.values():
            harness.crash_at("pay", when, job=scene.parent)
        await jobs.enqueue()
        assert await jobs.moves(harness, "5m") == jobs.all(["expire", "succeed"])
        assert await jobs.results() == jobs.all("went")
    done = 2 if when == "unkept" else 1
    assert {tool: log.count("done") for tool, log in jobs.logs.items()} == jobs.all(done)
