"""A pause between a reaper's read and its write: what was finished meanwhile never changes, the rest is reaped."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from keptwork.audit.verify import verify
from tests.acceptance.observer import drop_guard
from tests.acceptance.slow_reaper import hold_up
from tests.support.broken_sql import ignore_columns
from tests.support.database_time import open_timed


async def check(url: str, pauses: int, seed: int) -> None:
    timed = await open_timed(url)
    try:
        outcome = await hold_up(timed, pauses, seed)
        verdict = await verify(timed.store)
    finally:
        await timed.close()
    print(f"\n{urlsplit(url).scheme}: {outcome}")
    assert outcome.changed == []
    assert outcome.not_reaped == []
    assert outcome.late_writes == 0
    assert [*verdict.problems] == []
    assert outcome.pauses == pauses
    assert outcome.finished_meanwhile > pauses // 10, "hardly anything was finished between a read and a write"


async def test_100_pauses_between_the_reapers_read_and_write_change_no_finished_job(database_url: str) -> None:
    await check(database_url, 100, seed=1)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_10000_pauses_between_the_reapers_read_and_write_change_no_finished_job(database_url: str) -> None:
    await check(database_url, 10_000, seed=2)


async def test_a_reaper_that_writes_without_comparing_is_caught_by_the_same_check(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_columns(monkeypatch, "seq", "epoch", "state", "owner", "lease_until")
    timed = await open_timed(database_url)
    await drop_guard(database_url)
    outcome = await hold_up(timed, 50, seed=3)
    await timed.close()
    assert outcome.changed
