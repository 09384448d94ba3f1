"""Processes killed with -9 while they delete what has ended: of each flow everything is there, or nothing."""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import WORKSTREAM
from keptwork.maintenance.retention import Retention, sweep
from keptwork.store import Store, open_store
from keptwork.store.contract.flows_steps import FlowFilter
from tests.support.command import environment
from tests.support.ended_flows import ended_flows

PROGRAM = "tests.acceptance.pruner_program"
STEPS = 5


def start(url: str, *twin: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", PROGRAM, url, *twin]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def killed(url: str, lines: int, after: float, *twin: str) -> None:
    """Starts one and kills it a little after it has said so many lines."""
    with start(url, *twin) as victim:
        assert victim.stdout is not None
        for _ in range(lines):
            victim.stdout.readline()
        time.sleep(after)
        victim.kill()


async def with_store(url: str, work: Any) -> Any:
    store = await open_store(url)
    try:
        return await work(store)
    finally:
        await store.close()


async def torn(store: Store) -> list[str]:
    """What is wrong with the flows that are there, and with the account of those that are not."""
    flows = await store.flows(WORKSTREAM, FlowFilter(1), limit=10_000)
    torn = [f"{row['id']} has {found} steps" for row in flows if (found := len(await store.steps(row["id"]))) != STEPS]
    verdict = await verify.verify(store)
    accounted = {one.entity: one.rows for one in await store.pruned()}
    if accounted.get("workstream-step", 0) != STEPS * accounted.get("workstream", 0):
        torn.append(f"accounted for: {accounted}")
    if verdict.rows["workstream-step"] != STEPS * len(flows):
        torn.append(f"{verdict.rows['workstream-step']} steps of {len(flows)} flows")
    return torn + [problem.what for problem in verdict.problems]


def check(url: str, flows: int, deaths: int) -> int:
    """Returns how many were left when the last one died."""
    chance = random.Random(deaths)
    asyncio.run(with_store(url, lambda store: ended_flows(store, flows, STEPS)))
    for _ in range(deaths):
        killed(url, chance.randrange(1, 4), chance.random() * 0.02)
        assert asyncio.run(with_store(url, torn)) == []
    left: int = asyncio.run(with_store(url, _count))
    with start(url) as survivor:
        assert survivor.wait(120) == 0
    assert asyncio.run(with_store(url, torn)) == []
    assert asyncio.run(with_store(url, _count)) == 0
    return left


async def _count(store: Store) -> int:
    return len(await store.flows(WORKSTREAM, FlowFilter(1), limit=10_000))


def test_a_pruner_killed_at_any_moment_leaves_whole_flows(database_url: str) -> None:
    assert 0 < check(database_url, flows=200, deaths=2) < 200


def test_a_pruner_that_takes_a_flow_in_two_transactions_is_caught_by_the_same_check(database_url: str) -> None:
    asyncio.run(with_store(database_url, lambda store: ended_flows(store, 5, STEPS)))
    killed(database_url, 1, 0.0, "broken")
    assert asyncio.run(with_store(database_url, torn)) != []


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_20_pruners_killed_over_2000_flows(database_url: str) -> None:
    left = check(database_url, flows=2_000, deaths=20)
    print(f"\n20 pruners killed over 2,000 flows of {STEPS} steps, {left:,} were left for the last: each whole or gone")


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_2000_flows_are_pruned_in_short_writes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(database_url)
    await ended_flows(store, 2_000, STEPS)
    prunes, took = type(store).prune, []

    async def timed(self: Any, *which: Any) -> int:
        began = time.perf_counter()
        done = await prunes(self, *which)
        took.append((time.perf_counter() - began) * 1000)
        return done

    monkeypatch.setattr(type(store), "prune", timed)
    began = time.perf_counter()
    swept = await sweep(store, Retention.of(finished=0, failures=0, keys=None))
    seconds = time.perf_counter() - began
    assert swept.workstreams.total() == 2_000
    assert await torn(store) == []
    await store.close()
    longest, usual = max(took), statistics.median(took)
    print(
        f"\n2,000 flows of {STEPS} steps in {seconds:.1f} s: {len(took)} writes, {usual:.0f} ms, at most {longest:.0f}"
    )
