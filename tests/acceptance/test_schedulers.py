"""Ten schedules, three servers that are killed again and again, an hour of the database's time: each tick once."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from keptwork.audit import verify
from keptwork.core.schedule_rules import Rule, correlation
from keptwork.jobs import schedules
from keptwork.jobs.schedules import Declaration
from keptwork.store import JobFilter, NewJob, Store, open_store
from tests.acceptance.fleet import environment_of_tests
from tests.acceptance.schedulers import SharedClock, settled

SECOND = 1_000_000
SERVERS = 3
STANDSTILLS = 0.15
# Half past two in Berlin, for the first time that night; at the end of the hour it is half past two again.
START = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * SECOND
END = START + 3600 * SECOND

Matches = Callable[[datetime], bool]


class Case(NamedTuple):
    """A rule, and which seconds of the hour are its ticks, said in another way."""

    rule: dict[str, str]
    zone: str
    matches: Matches


def every(seconds: int) -> Case:
    return Case({"every": f"{seconds}s"}, "UTC", lambda t: int(t.timestamp()) % seconds == 0)


def cron(expression: str, matches: Matches, zone: str = "UTC") -> Case:
    return Case({"cron": expression, "tz": zone}, zone, matches)


CASES = {
    "each 13 s": every(13),
    "each 97 s": every(97),
    "each 10 min": every(600),
    "each minute": cron("* * * * *", lambda t: t.second == 0),
    "each half minute": cron("*/30 * * * * *", lambda t: t.second in (0, 30)),
    "five in Berlin": cron("*/5 * * * *", lambda t: t.minute % 5 == 0 and t.second == 0, "Europe/Berlin"),
    "two o'clock in Berlin": cron(
        "*/4 2 * * *", lambda t: t.hour == 2 and t.minute % 4 == 0 and t.second == 0, "Europe/Berlin"
    ),
    "once in Berlin": cron(
        "45 2 * * *", lambda t: (t.hour, t.minute, t.second, t.fold) == (2, 45, 0, 0), "Europe/Berlin"
    ),
    "New York": cron(
        "15,45 20,21 * * sat",
        lambda t: t.hour in (20, 21) and t.minute in (15, 45) and t.second == 0 and t.isoweekday() == 6,
        "America/New_York",
    ),
    "Kathmandu": cron(
        "0-20/10 6 * * *", lambda t: t.hour == 6 and t.minute in (0, 10, 20) and t.second == 0, "Asia/Kathmandu"
    ),
}


def expected() -> set[str]:
    """By a look at every second of the hour."""
    ticks = range(START + SECOND, END + 1, SECOND)
    return {
        correlation(name, tick)
        for name, case in CASES.items()
        for tick in ticks
        if case.matches(datetime.fromtimestamp(tick // SECOND, ZoneInfo(case.zone)))
    }


class Hour:
    """A database under test and the hand on its clock."""

    def __init__(self, store: Store, clock: SharedClock, hand: asyncpg.Connection | None) -> None:
        self.store, self._clock, self._hand = store, clock, hand

    async def set(self, now: int) -> None:
        self._clock.set(now)
        if self._hand is not None:
            await self._hand.execute("UPDATE test_clock SET at = $1::bigint", now)

    async def pass_by(self, chance: random.Random, longest: float, nap: float) -> None:
        """In steps of chance. Now and then, and at the end, it stands still until nothing is due: however slow the
        servers are, their hour is not over before they have begun."""
        now = START
        while now < END:
            now = min(END, now + round(chance.uniform(0, longest) * SECOND))
            await self.set(now)
            await asyncio.sleep(chance.uniform(0, nap))
            if now == END or chance.random() < STANDSTILLS:
                async with asyncio.timeout(60):
                    await settled(self.store)

    async def fired(self) -> Counter[str]:
        jobs, last = Counter[str](), None
        while page := await self.store.jobs(JobFilter(), after=last, limit=5000, newest_first=False):
            jobs.update(row["correlation_id"] for row in page)
            last = page[-1]["id"]
        return jobs


@asynccontextmanager
async def hour(url: str, clock_file: Path) -> AsyncIterator[Hour]:
    """Ten schedules in a database whose time begins at START."""
    clock, hand = SharedClock.made(clock_file, START), None
    if url.startswith("sqlite"):
        store = await open_store(url, clock=clock)
    else:
        store, hand = await open_store(url), await asyncpg.connect(url)
        await hand.execute(f"CREATE TABLE test_clock AS SELECT {START}::bigint AS at")
        await hand.execute(
            "CREATE OR REPLACE FUNCTION keptwork_now() RETURNS bigint LANGUAGE sql VOLATILE "
            "AS 'SELECT at FROM test_clock'"
        )
    for name, case in CASES.items():
        declared = Declaration.of(name, Rule.of(**case.rule), "all")
        await schedules.put(store, declared, NewJob("noop"), "test")
    try:
        yield Hour(store, clock, hand)
    finally:
        await store.close()
        if hand is not None:
            await hand.close()


@asynccontextmanager
async def servers(url: str, clock_file: Path, kills: float, seed: int, twin: str) -> AsyncIterator[dict[str, int]]:
    """Schedulers that are killed so often a second while the block lasts; how many died is known after it."""
    told: dict[str, int] = {}
    settings = [url, str(clock_file), str(SERVERS), str(kills), str(seed), *([twin] if twin else [])]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.acceptance.schedulers", *settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment_of_tests(),
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        assert await program.stdout.readline() == b"ready\n"
        yield told
        program.stdin.close()
        told.update(json.loads(await program.stdout.read()))
    finally:
        program.stdin.close()
        await program.wait()


async def run(url: str, folder: Path, *, kills: float, longest: float, nap: float, seed: int, twin: str = "") -> Any:
    """How often each tick was fired, how many servers died on the way, and what the audit says."""
    clock_file = folder / "clock"
    async with hour(url, clock_file) as under_test:
        async with servers(url, clock_file, kills, seed, twin) as told:
            await under_test.pass_by(random.Random(seed), longest, nap)
        return await under_test.fired(), told, await verify.verify(under_test.store)


def wrong(fired: Counter[str]) -> dict[str, list[str]]:
    wanted = expected()
    faults = {
        "missed": sorted(wanted - fired.keys()),
        "doubled": sorted(tick for tick, times in fired.items() if times > 1),
        "invented": sorted(fired.keys() - wanted),
    }
    return {fault: ticks for fault, ticks in faults.items() if ticks}


def report(url: str, fired: Counter[str], told: dict[str, int]) -> None:
    died = f"{told['killed']} servers killed, {told['died_inside']} more between lock and answer"
    print(f"\n{url.partition(':')[0]}: {len(CASES)} schedules, {SERVERS} servers, 1 h, {fired.total()} ticks, {died}")


async def test_an_hour_of_ten_schedules_on_three_servers_that_are_killed_fires_each_tick_once(database_url, tmp_path):
    fired, told, verdict = await run(database_url, tmp_path, kills=4, longest=80, nap=0.02, seed=1)
    report(database_url, fired, told)
    assert wrong(fired) == {}
    assert verdict.clean, verdict.problems
    assert told["killed"] > 3
    assert told["died_inside"] > 3


async def test_servers_that_neither_lock_nor_compare_are_caught(database_url, tmp_path):
    # Those that are gone are replaced when the next one is killed, and one alone doubles nothing.
    fired, _, _ = await run(database_url, tmp_path, kills=8, longest=80, nap=0.02, seed=2, twin="fires-blindly")
    assert wrong(fired).keys() == {"doubled"}


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_an_hour_of_ten_schedules_with_hundreds_of_killed_servers(database_url, tmp_path, seed):
    fired, told, verdict = await run(database_url, tmp_path, kills=8, longest=8, nap=0.03, seed=seed)
    report(database_url, fired, told)
    assert wrong(fired) == {}
    assert verdict.clean, verdict.problems
    assert told["killed"] + told["died_inside"] > 100
