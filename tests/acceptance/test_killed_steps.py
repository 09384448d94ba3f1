"""Workers killed with -9 at the boundaries of steps: what was checkpointed is never run again."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.job import DeclaredJob
from keptwork.store import open_store
from keptwork.store.contract.checkpoints import Checkpoint
from tests.acceptance.chaos import Stage, stage, unfinished, until
from tests.acceptance.effects import Delivery
from tests.acceptance.step_program import KIND, PLACES, STEPS, Strikes, declare, step_name

PROGRAM = "tests.acceptance.step_program"
AT_ONCE = 2
"""Workers that are up: while one takes over, the next starts."""

QUICK = ("before 2", "ran 7", "saved 19")
EVERY = tuple(f"{place} {number}" for number in range(STEPS) for place in PLACES)


def kill_at(on: Stage, strikes: Strikes, places: tuple[str, ...], patience: float = 60.0) -> None:
    """One job; whoever runs it dies at each of these places in turn, and is replaced."""
    strikes.set(places)
    on.ids = [asyncio.run(_enqueue(on.url, strikes))]
    end = time.monotonic() + patience

    def ended() -> bool:
        on.fleet.bury_dead()
        on.fleet.start(AT_ONCE - len(on.fleet.members), PROGRAM, str(strikes._path))
        return not asyncio.run(unfinished(on.url, on.ids))

    until(ended, end - time.monotonic())
    on.fleet.close()


async def _enqueue(url: str, strikes: Strikes) -> int:
    app = Keptwork(url)
    declare(app, None, strikes)
    async with app:
        return (await DeclaredJob(app, app.kinds[KIND]).enqueue()).key


async def _left(on: Stage) -> tuple[str, list[Checkpoint]]:
    """The result of the job, and what its steps have left."""
    store = await open_store(on.url)
    try:
        (row,) = await store.rows(JOB, on.ids)
        return str(row["result"] if row["state"] == "succeeded" else row["state"]), await store.checkpoints(
            1, row["id"]
        )
    finally:
        await store.close()


def faults(kept: list[Checkpoint], deliveries: list[Delivery]) -> list[str]:
    """What is wrong with the effects of a job, given the epoch each of its steps was checkpointed under."""
    found, before = [], 0
    epochs = {one.name: one.epoch for one in kept}
    for name in map(step_name, range(STEPS)):
        tokens = [delivery.token for delivery in deliveries if delivery.step == name]
        kept_in = epochs.get(name, -1)
        if tokens.count(kept_in) != 1:
            found.append(f"{name} was kept in epoch {kept_in}, and ran in {tokens}")
        found += [f"{name} ran again in epoch {token}" for token in tokens if token > kept_in]
        found += [f"{name} ran in epoch {token} before the last one was kept" for token in tokens if token < before]
        before = max(before, kept_in)
    return found


def check(on: Stage, tmp_path: Path, places: tuple[str, ...], patience: float) -> None:
    strikes, began = Strikes(tmp_path / "strikes"), time.monotonic()
    kill_at(on, strikes, places, patience)
    result, kept = asyncio.run(_left(on))
    deliveries = on.sink.deliveries
    seconds = time.monotonic() - began
    print(f"\n{on.kind}: {len(places)} kills, {len(deliveries)} effects of {STEPS} steps in {seconds:.0f} s")
    assert strikes.left() == [], "not every strike was reached"
    assert faults(kept, deliveries) == []
    assert json.loads(result) == list(range(STEPS))
    ran = [place for place in places if place.startswith("ran")]
    assert len(deliveries) >= STEPS + len(ran), "an effect without a checkpoint is repeated, which is all one can do"


@pytest.mark.timeout(120)
def test_killed_at_three_boundaries_no_checkpointed_step_runs_twice(database_url: str, tmp_path: Path) -> None:
    with stage(database_url, seed=1, lease="800ms") as on:
        check(on, tmp_path, QUICK, patience=60)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_killed_at_every_boundary_of_20_steps_no_checkpointed_step_runs_twice(
    database_url: str, tmp_path: Path
) -> None:
    with stage(database_url, seed=1, lease="2s") as on:
        check(on, tmp_path, EVERY, patience=1000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("twin", "said"), [("forgets-steps", "ran again in epoch"), ("keeps-later", "before the last one was kept")]
)
def test_the_check_catches_a_journal_that_forgets_or_keeps_too_late(
    sqlite_url: str, tmp_path: Path, twin: str, said: str
) -> None:
    with stage(sqlite_url, seed=1, lease="800ms", twin=twin) as on:
        kill_at(on, Strikes(tmp_path / "strikes"), ("ran 5",))
        _, kept = asyncio.run(_left(on))
        assert said in " ".join(faults(kept, on.sink.deliveries))
