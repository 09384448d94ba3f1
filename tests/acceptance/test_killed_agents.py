"""Workers killed with -9 at the boundaries of an agent's turns: it goes on where it was, and nothing that was kept is
asked or run again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.agents import transcripts
from keptwork.core.lifecycles import JOB
from keptwork.job import DeclaredJob
from keptwork.store import open_store
from tests.acceptance.agent_program import KIND, PLACES, TURNS, declare
from tests.acceptance.chaos import Stage, stage, unfinished, until
from tests.acceptance.step_program import Strikes
from tests.worker.agent_stage import recorded

PROGRAM = "tests.acceptance.agent_program"
AT_ONCE = 2
QUICK = ("answered 1", "ran 2", "told 3")
LAST = ("ran", "told")  # the last turn uses no tool
EVERY = tuple(
    f"{place} {turn}" for turn in range(1, TURNS + 1) for place in PLACES if turn < TURNS or place not in LAST
)


def kill_at(on: Stage, folder: Path, places: tuple[str, ...], patience: float = 60.0) -> Strikes:
    """One job; whoever runs it dies at each of these places in turn, and is replaced."""
    strikes = Strikes(folder / "strikes")
    strikes.set(places)
    on.ids = [asyncio.run(_enqueue(on.url, folder, strikes))]

    def ended() -> bool:
        on.fleet.bury_dead()
        on.fleet.start(AT_ONCE - len(on.fleet.members), PROGRAM, str(strikes._path), str(folder))
        return not asyncio.run(unfinished(on.url, on.ids))

    until(ended, patience)
    on.fleet.close()
    return strikes


async def _enqueue(url: str, folder: Path, strikes: Strikes) -> int:
    app = Keptwork(url)
    declare(app, folder, strikes)
    async with app:
        return (await DeclaredJob(app, app.kinds[KIND]).enqueue()).key


async def _left(on: Stage) -> tuple[str, int]:
    """How the job ended, and how many messages its transcript has."""
    store = await open_store(on.url)
    try:
        (row,) = await store.rows(JOB, on.ids)
        return str(row["state"]), len(await transcripts.transcript(store, 1, row["id"]))
    finally:
        await store.close()


def faults(folder: Path, places: tuple[str, ...]) -> list[str]:
    """What was asked or run more often than it was lost, or less often than it should have been."""
    asked = Counter(map(int, (folder / "asked").read_text().split()))
    ran = Counter(int(one.argv[0]) for one in recorded(folder))
    lost = Counter(places)
    found = [
        f"turn {n} was asked {asked[n]} times" for n in range(1, TURNS + 1) if asked[n] != 1 + lost[f"answered {n}"]
    ]
    return found + [f"tool {n} ran {ran[n]} times" for n in range(1, TURNS) if ran[n] != 1 + lost[f"ran {n}"]]


def check(on: Stage, folder: Path, places: tuple[str, ...], patience: float) -> None:
    strikes = kill_at(on, folder, places, patience)
    print(f"\n{on.kind}: an agent of {TURNS} turns, {len(places)} kills, {len(recorded(folder))} runs of its tool")
    assert strikes.left() == [], "not every strike was reached"
    assert asyncio.run(_left(on)) == ("succeeded", 2 * TURNS + 1)
    assert faults(folder, places) == []


@pytest.mark.timeout(120)
def test_killed_at_three_boundaries_an_agent_goes_on_where_it_was(sqlite_url: str, tmp_path: Path) -> None:
    with stage(sqlite_url, seed=1, lease="800ms") as on:
        check(on, tmp_path, QUICK, patience=60)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_killed_at_every_boundary_an_agent_goes_on_where_it_was(database_url: str, tmp_path: Path) -> None:
    with stage(database_url, seed=1, lease="1s") as on:
        check(on, tmp_path, EVERY, patience=500)


@pytest.mark.timeout(120)
def test_the_check_catches_a_loop_that_forgets_which_tools_it_ran(sqlite_url: str, tmp_path: Path) -> None:
    with stage(sqlite_url, seed=1, lease="800ms", twin="forgets-tools") as on:
        kill_at(on, tmp_path, ("told 2",))
        assert "tool 2 ran 2 times" in faults(tmp_path, ("told 2",))
