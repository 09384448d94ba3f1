"""Kill -9 of every process while flows run: every flow ends, and each of its effects is there once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import WORKSTREAM
from keptwork.store import open_store
from keptwork.store.contract.flows_steps import FlowFilter
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.fleet import Member
from tests.acceptance.flow_program import effects
from tests.flow.flow_log import faults, known

PROGRAM = "tests.acceptance.flow_program"
WORKERS = 2


class Killing:
    """So many flows, and somebody who kills whoever works on them or starts them, once each has got something done."""

    def __init__(self, on: Stage, count: int, pause: float) -> None:
        self._on, self._count, self._pause = on, count, pause
        self._starter: Member | None = None
        self._there_before = 0
        self._started = False
        self.kills = 0

    def until_all_ended(self, patience: float, most: int) -> bool:
        """Strikes up to so often, and then lets what is left come to its end."""
        end = time.monotonic() + patience
        while time.monotonic() < end and self.kills < most and not self._over():
            time.sleep(self._on.chance.uniform(0, 2 * self._pause))
            if busy := self._busy():
                self._on.fleet.kill(self._on.chance.choice(busy))
                self.kills += 1
        return until(self._over, end - time.monotonic())

    def _busy(self) -> list[Member]:
        """Those that have done something: one that is killed before would only ever start."""
        pids = {delivery.pid for delivery in list(self._on.sink.deliveries)}
        has_started = asyncio.run(_flows(self._on.url)) > self._there_before
        return [
            member
            for member in self._on.fleet.members
            if member.pid in pids or (member is self._starter and has_started)
        ]

    def _over(self) -> bool:
        """Whoever is gone is replaced, except a starter that has done its work."""
        gone = self._on.fleet.bury_dead()
        if self._starter is not None and self._starter in gone and self._starter.process.returncode == 0:
            self._started = True
        if self._starter not in self._on.fleet.members and not self._started:
            self._there_before = asyncio.run(_flows(self._on.url))
            (self._starter,) = self._on.fleet.start(1, PROGRAM, "start", str(self._count))
        workers = [member for member in self._on.fleet.members if member is not self._starter]
        self._on.fleet.start(WORKERS - len(workers), PROGRAM)
        return self._started and asyncio.run(_flows(self._on.url, "S_SUCCESS")) >= self._count


async def _flows(url: str, *states: str) -> int:
    store = await open_store(url)
    rows = await store.flows(WORKSTREAM, FlowFilter(states=states or None), limit=1_000)
    await store.close()
    return len(rows)


async def _looked_into(url: str) -> tuple[list[str], int]:
    store = await open_store(url)
    all = await known(store)
    problems = [str(problem) for problem in (await verify.verify(store)).problems]
    await store.close()
    return faults(all) + problems, len(all.steps)


def wrong_effects(on: Stage, count: int) -> Iterator[str]:
    """Effects that are missing, and those that are there twice: under two keys, since under one the sink keeps one."""
    found = Counter((one.job, one.step) for one in on.sink.kept.values())
    wanted = {(number, name) for number in range(count) for name in effects(number)}
    yield from (f"{name} of flow {number} is missing" for number, name in sorted(wanted - found.keys()))
    yield from (
        f"{name} of flow {number} is there {times} times" for (number, name), times in found.items() if times > 1
    )


def check(on: Stage, count: int, kills: int, pause: float, patience: float) -> None:
    began, killing = time.monotonic(), Killing(on, count, pause)
    ended = killing.until_all_ended(patience, kills)
    on.fleet.close()
    found, steps = asyncio.run(_looked_into(on.url))
    first: dict[str, Any] = {}
    longest = max((one.at - first.setdefault(one.key, one).at for one in on.sink.deliveries), default=0.0)
    seconds = time.monotonic() - began
    print(
        f"\n{on.kind}: {count} flows, {steps} steps, {killing.kills} kills, {len(on.sink.kept)} effects of"
        f" {len(on.sink.deliveries)} deliveries, longest recovery {longest:.1f} s, in {seconds:.0f} s"
    )
    assert ended, "not every flow has ended"
    assert killing.kills > kills // 2
    assert found == []
    assert list(wrong_effects(on, count)) == []


@pytest.mark.timeout(120)
def test_flows_end_with_each_effect_once_whoever_is_killed(database_url: str) -> None:
    with stage(database_url, seed=1, lease="800ms") as on:
        check(on, 8, 5, 0.1, patience=90)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_500_flows_end_with_each_effect_once_whoever_is_killed(database_url: str) -> None:
    with stage(database_url, seed=2, lease="2s") as on:
        check(on, 500, 150, 0.1, patience=1700)


@pytest.mark.timeout(120)
def test_the_check_catches_steps_that_are_told_later(sqlite_url: str) -> None:
    with stage(sqlite_url, seed=3, lease="800ms", twin="tell-later") as on:
        assert not Killing(on, 4, 0.5).until_all_ended(15, 0)
        on.fleet.close()
        found, _ = asyncio.run(_looked_into(on.url))
        assert any("waits for nothing" in fault for fault in found)
        assert any("is missing" in fault for fault in wrong_effects(on, 4))
