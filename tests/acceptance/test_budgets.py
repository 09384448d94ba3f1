"""Many spenders and one budget: the cap is never passed, and the books are right to the last millionth."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest

from keptwork.store import open_store
from tests.acceptance.spenders import CEILING


async def books(url: str) -> tuple[int, int, int, int]:
    """What the tenant's budget says is spent and reserved, and what its ledger says."""
    store = await open_store(url)
    ((budget, _),) = await store.budgets(1, scope="tenant")
    charges = await store.charges(1, limit=1_000_000)
    await store.close()
    open_ones = sum(charge.ceiling_micros for charge in charges if charge.state == "open")
    spent = sum(charge.cost_micros for charge in charges)
    return budget.spent_micros, budget.reserved_micros, spent, open_ones


def check_spenders(url: str, processes: int, rounds: int, cap: int, twin: str = "") -> None:
    asyncio.run(migrated(url))
    numbers = str(processes), str(rounds), str(cap)
    command = [sys.executable, "-m", "tests.acceptance.spenders", url, *numbers, *([twin] * bool(twin))]
    began = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=500)
    answer, seconds = json.loads(done.stdout), time.monotonic() - began
    told: Counter[str] = Counter()
    for one in answer["told"]:
        told.update({name: one[name] for name in ("made", "refused", "paid")})
    most = max(one["most"] for one in answer["told"])
    asked = f"{processes} processes asked {processes * rounds} times, {told['made']} calls, {told['refused']} refused"
    print(f"\n{urlsplit(url).scheme}: {asked}, {told['paid']} of {cap} spent, at most {most}, {seconds:.1f} s")
    assert answer["failed"] == 0
    spent, reserved, in_ledger, still_open = asyncio.run(books(url))
    assert max(most, spent) <= cap, "the cap was passed"
    assert told["refused"] > 0
    assert cap - processes * CEILING < spent <= cap, "there was room, and calls were refused"
    assert (spent, reserved) == (in_ledger, still_open) == (told["paid"], 0)


async def migrated(url: str) -> None:
    await (await open_store(url)).close()


def test_sixteen_processes_that_spend_at_once_never_pass_the_cap(database_url: str) -> None:
    check_spenders(database_url, 16, 12, 5_000)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_sixty_four_processes_that_ask_6400_times_never_pass_the_cap(database_url: str) -> None:
    check_spenders(database_url, 64, 100, 300_000)


def test_spenders_that_look_without_a_lock_are_caught_by_the_same_check(database_url: str) -> None:
    with pytest.raises(AssertionError, match="the cap was passed"):
        check_spenders(database_url, 16, 12, 2_000, "no-budget-lock")
