"""Workers that die in a step: that is no failure of the step, until it looks like its doing."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import WORKER
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store

pytestmark = pytest.mark.acceptance

LEASE_US = 20_000
HERE = "tests.worker.test_step_deaths"

runs: list[int] = []


def works() -> int:
    runs.append(1)
    return len(runs)


def fails() -> None:
    runs.append(1)
    raise ValueError("no luck")


@pytest.fixture(autouse=True)
def none_yet() -> None:
    runs.clear()


@pytest.fixture
def workshop(tmp_path: Path, database_url: str) -> Keptwork:
    (tmp_path / "keptwork.toml").write_text('[tools.echo]\ncommand = ["echo", "hello"]\n')
    return Keptwork(database_url, config=str(tmp_path / "keptwork.toml"))


async def died(store: Store, times: int) -> None:
    """A worker takes the step and is never heard of again, so many times."""
    reaper = Reaper(store, lambda: None, Outage())
    for _ in range(times):
        worker = await store.create(WORKER, name="w", incarnation=secrets.token_hex(4), workspace_id="x")
        taken = await store.claim(worker, ["default"], 1, LEASE_US, claim_id=secrets.randbits(62), start=True)
        assert len(taken) == 1
        await asyncio.sleep(2 * LEASE_US / 1_000_000)
        assert await reaper.run_once() == 1


async def outcome(app: Keptwork, step: dict[str, Any], deaths: int) -> str:
    flow = await app.start_flow({"name": "f", "steps": [{"id": "s", **step}]})
    await died(await app.open(), deaths)
    working = asyncio.create_task(app.work())
    ended = await flow.ended("20s")
    app.stop()
    await working
    return str(ended.error or ended.state)


STEPS = {
    "call": {"call": f"{HERE}:works"},
    "command": {"command": ["true"]},
    "tool": {"tool": "echo"},
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
async def test_a_step_without_retries_is_begun_again_after_the_death_of_its_worker(
    workshop: Keptwork, step: dict[str, Any]
) -> None:
    async with workshop as app:
        assert await outcome(app, step, deaths=3) == "S_SUCCESS"


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
async def test_a_step_in_which_every_worker_dies_is_given_up(workshop: Keptwork, step: dict[str, Any]) -> None:
    async with workshop as app:
        told = await outcome(app, step, deaths=4)
    assert "died 4 times" in told or "lease of its worker ended in attempt 4 of 4" in told
    assert runs == []


@pytest.mark.parametrize(("retries", "deaths"), [(0, 0), (0, 2), (2, 0), (2, 3)])
async def test_deaths_of_workers_are_no_retries_of_a_step_that_fails(
    workshop: Keptwork, retries: int, deaths: int
) -> None:
    async with workshop as app:
        step = {"call": f"{HERE}:fails", "retries": retries, "backoff": "1ms"}
        assert await outcome(app, step, deaths) == "s: ValueError: no luck"
    assert len(runs) == retries + 1
