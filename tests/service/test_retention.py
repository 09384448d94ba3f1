"""Retention as workers and operators run it: batches, rests, what stays, and what the audit makes of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from bench import past
from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.maintenance import retention
from keptwork.maintenance.retention import Pruner, Retention, prune, sweep
from keptwork.store import JobFilter, NewJob, Store
from keptwork.store.contract.waits_signals import NewSignal
from tests.conformance.by_hand import Hand, hand_on
from tests.support.lives import live

DAY_US = past.DAY_US
PAST = 90  # finished jobs, made over nine days, the newest a day ago


@pytest.fixture
async def old(store: Store, database_url: str, request: pytest.FixtureRequest) -> Store:
    """A database with a past, and a few jobs of today in every state."""
    await live(store, 30)
    if database_url.startswith("sqlite"):
        past.fill_sqlite(database_url.removeprefix("sqlite:///"), PAST, await store.now())
    else:
        past.fill_postgres(request.getfixturevalue("postgres_server"), database_url, PAST, await store.now())
    return store


@pytest.fixture
async def hand(database_url: str) -> AsyncIterator[Hand]:
    opened = await hand_on(database_url)
    yield opened
    await opened.close()


async def counted(store: Store) -> int:
    return len(await store.jobs(JobFilter(), limit=1000, columns=("id",)))


async def test_the_past_of_the_benches_is_one_the_audit_confirms(old: Store) -> None:
    verdict = await verify.verify(old)
    assert (verdict.problems, verdict.rows["job"]) == ([], PAST + 30)


async def test_a_sweep_deletes_what_is_old_enough_in_small_batches_and_the_audit_is_content(
    old: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 7)
    monkeypatch.setattr(retention, "LOOKED_AT_ONCE", 10)
    swept = await sweep(old, Retention())
    assert dict(swept.jobs) == {"succeeded": 30}  # of nine days' worth, what is older than seven
    assert await counted(old) == PAST + 30 - 30
    assert (await sweep(old, Retention())).rows == 0
    verdict = await verify.verify(old)
    assert (verdict.problems, verdict.entities) == ([], PAST + 31)


async def test_none_keeps_for_ever(old: Store) -> None:
    assert (await sweep(old, Retention.of(None, None, None))).rows == 0
    assert await counted(old) == PAST + 30


async def test_failures_have_an_age_of_their_own(old: Store) -> None:
    swept = await sweep(old, Retention.of(finished=None, failures=0, keys=None))
    assert set(swept.jobs) == {"failed", "dead_lettered"}
    assert (await verify.verify(old)).clean


async def test_a_dry_run_counts_and_deletes_nothing(old: Store) -> None:
    would = await prune(old, 1, "4d", dry_run=True)
    assert dict(would.jobs) == {"succeeded": 60}
    assert await counted(old) == PAST + 30
    told: list[tuple[int, int]] = []
    assert await prune(old, 1, "4d", progress=lambda done, total: told.append((done, total))) == would
    assert told[-1] == (60, 60)


async def test_only_final_states_can_be_named(old: Store) -> None:
    says = "'queued' is no final state of a job; there are: succeeded, failed, cancelled, dead_lettered"
    with pytest.raises(BadInput, match=says):
        await prune(old, 1, "4d", ("succeeded", "queued"))


async def test_between_batches_others_have_the_database_for_longer_than_a_batch_took(
    old: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 10)
    monkeypatch.setattr(retention, "SHORTEST_REST", 0.02)
    began = time.monotonic()
    await sweep(old, Retention())
    assert time.monotonic() - began >= 3 * 0.02


async def test_of_many_processes_one_sweeps_and_not_again_for_an_hour(old: Store) -> None:
    pruners = [Pruner(old, Retention(), chance=lambda: 0.0) for _ in range(3)]
    assert [await pruner.run_once() for pruner in pruners] == [True, False, False]
    assert await counted(old) == PAST


# --- what the audit does not accept -------------------------------------------------------------------------


async def oldest(store: Store, number: int) -> list[int]:
    page = await store.jobs(JobFilter(states=("succeeded",)), limit=number, newest_first=False, columns=("id",))
    return [row["id"] for row in page]


async def problems(store: Store) -> list[str]:
    return [problem.what for problem in (await verify.verify(store)).problems]


async def test_a_row_deleted_where_retention_never_was_is_a_fault(old: Store, hand: Hand) -> None:
    (id,) = await oldest(old, 1)
    await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    assert await problems(old) == ["the row is gone, though retention deleted nothing succeeded that ended so late"]


async def test_a_row_deleted_that_ended_after_the_last_one_pruned_is_a_fault(old: Store, hand: Hand) -> None:
    await sweep(old, Retention())
    (id,) = await oldest(old, 1)
    await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    assert await problems(old) == ["the row is gone, though retention deleted nothing succeeded that ended so late"]


async def test_a_row_deleted_in_the_shadow_of_those_that_were_pruned_is_a_fault(old: Store, hand: Hand) -> None:
    (id,) = await oldest(old, 1)
    await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    await sweep(old, Retention())
    assert await problems(old) == ["30 rows that were succeeded are gone, retention deleted 29 (tenant 1)"]


async def test_an_account_of_another_state_or_tenant_covers_nothing(old: Store, hand: Hand) -> None:
    await sweep(old, Retention())
    await hand.run("UPDATE retention SET state = 'failed'")
    assert len(await problems(old)) == 30
    await hand.run("UPDATE retention SET state = 'succeeded', tenant_id = 2")
    assert len(await problems(old)) == 30


async def test_an_unfinished_row_cannot_be_deleted_by_hand(old: Store, hand: Hand) -> None:
    (id,) = await old.enqueue([NewJob("noop")])
    with pytest.raises(Exception, match="a job that has not ended cannot be deleted"):
        await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    assert await old.get(JOB, id, 1)


async def test_a_sweep_drops_signals_of_more_than_a_week_ago(store: Store, hand: Hand) -> None:
    for name in ("old", "new"):
        await store.send_signal(NewSignal(1, name, "1", name))
    await hand.run(f"UPDATE signals SET created_at = created_at - {8 * DAY_US} WHERE name = 'old'")
    assert (await sweep(store, Retention())).signals == 1
    assert await store.next_signal(1, 1, "old", 0) is None
    assert await store.next_signal(1, 1, "new", 0) is not None
