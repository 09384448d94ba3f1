"""Dead letters: found, explained, and run again one by one or many at a time, on both stores."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, NotFound, RunAgainBefore
from keptwork.jobs import dead_letters
from keptwork.store import JobFilter, NewJob, Store
from tests.conformance.stage import claim, entity, moved, queued, worker

OURS = 1


def named(key: int) -> str:
    return public_id("job", key)


async def dead(store: Store, number: int = 1, reason: str = "policy_violation", **fields: Any) -> list[int]:
    """That many jobs given up, oldest first."""
    owner = await worker(store)
    keys = await store.enqueue([NewJob("kind", **fields)] * number)
    await claim(store, owner, number, fields.get("queue", "default"), start=True)
    for key in keys:
        detail = json.dumps({"stage": "exec", "last_lease_expires_at": 1_700_000_000_000_000})
        how: dict[str, Any] = {"reason": reason, "reason_code": reason, "detail": detail, "values": {"error": "broken"}}
        await moved(store, JOB, key, "dead_letter", by="holder", **how)
    return sorted(keys)


async def redriven(store: Store, **how: Any) -> dict[int, int]:
    wanted = how.pop("wanted", dead_letters.among(OURS))
    return {old: new async for old, new in dead_letters.redrive(store, wanted, **how)}


async def test_a_dead_letter_tells_everything_about_its_end(store: Store) -> None:
    (key,) = await dead(store, correlation_id="c-1")
    row = await dead_letters.find(store, OURS, named(key))
    shown = dead_letters.as_json(row, [])
    expected = {
        "id": named(key),
        "reason_code": "policy_violation",
        "stage": "exec",
        "last_error": "broken",
        "attempts": 1,
        "last_owner": public_id("worker", row["owner"]),
        "last_lease_expires_at": rfc3339(1_700_000_000_000_000),
        "correlation_id": "c-1",
        "dead_lettered_at": rfc3339(row["completed_at"]),
    }
    assert {name: shown[name] for name in expected} == expected


@pytest.mark.parametrize("detail", [None, "[1]", '"text"', '{"other": 1}'])
async def test_what_its_worker_did_not_note_is_none(store: Store, detail: str | None) -> None:
    (key,) = await queued(store)
    await moved(store, JOB, key, "dead_letter", detail=detail, reason="timeout")
    shown = dead_letters.as_json(await entity(store, JOB, key), [])
    assert [shown[name] for name in ("stage", "last_lease_expires_at", "last_owner")] == [None] * 3


async def test_a_job_that_is_no_dead_letter_is_not_found_nor_is_a_foreign_one(store: Store, other_tenant: int) -> None:
    (living,) = await queued(store)
    (theirs,) = await queued(store, tenant_id=other_tenant)
    await moved(store, JOB, theirs, "dead_letter", reason="timeout")
    for key in (living, theirs, theirs + 1):
        for verb in (dead_letters.find, dead_letters.redrive_one):
            with pytest.raises(NotFound, match="No dead letter"):
                await verb(store, OURS, named(key))
    assert await redriven(store) == {}


async def test_a_filter_chooses_by_queue_kind_reason_and_time(store: Store) -> None:
    (first,) = await dead(store, reason="timeout")
    since = await store.now()
    (second,) = await dead(store, queue="q")
    for filters, key in (({"queue": "q"}, second), ({"reason_code": "timeout"}, first), ({"since": since}, second)):
        page = await dead_letters.page(store, dead_letters.among(OURS, **filters))
        assert [row["id"] for row in page.jobs] == [key]
    assert (await dead_letters.page(store, dead_letters.among(OURS, kind="other"))).jobs == []
    with pytest.raises(BadInput, match="'boredom' is no reason code; there are: parse_error"):
        dead_letters.among(OURS, reason_code="boredom")


async def test_one_is_run_again_with_another_payload_and_a_second_time_only_if_meant(store: Store) -> None:
    (key,) = await dead(store)
    old, new = await dead_letters.redrive_one(store, OURS, named(key), payload='{"fixed": true}')
    row = await entity(store, JOB, new)
    assert (old, row["redriven_from"], json.loads(row["payload"])) == (key, key, {"fixed": True})
    with pytest.raises(RunAgainBefore):
        await dead_letters.redrive_one(store, OURS, named(key))
    assert (await dead_letters.redrive_one(store, OURS, named(key), again=True)).new != new
    assert len((await dead_letters.later_jobs(store, OURS, [{"id": key}]))[key]) == 2


async def test_many_are_run_again_once_and_those_before_are_passed_over(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 3)
    keys = await dead(store, 8)
    await queued(store, 2)
    first = await redriven(store, limit=4)
    assert list(first) == keys[:4]
    rest = await redriven(store)
    assert list(rest) == keys[4:]
    assert await redriven(store) == {}
    assert len(await redriven(store, again=True)) == 8
    rows = await store.rows(JOB, [*first.values(), *rest.values()])
    assert sorted(row["redriven_from"] for row in rows) == keys


async def test_a_dead_letter_of_a_step_no_longer_keeps_the_others_from_being_run_again(store: Store) -> None:
    first, of_a_step, last = [*await dead(store), *await dead(store, step_id=17), *await dead(store)]
    assert await dead_letters.count(store, dead_letters.among(OURS)) == 2
    assert list(await redriven(store, limit=1)) == [first]
    assert list(await redriven(store, limit=1)) == [last]  # the step does not use up what may be taken
    assert await dead_letters.count(store, dead_letters.among(OURS)) == 0
    assert await store.jobs(JobFilter(redriven_from=(of_a_step,))) == []


async def test_two_who_redrive_all_at_once_make_one_job_each(store: Store) -> None:
    keys = await dead(store, 20)
    answers = await asyncio.gather(*[redriven(store) for _ in range(4)])
    assert len(await store.jobs(JobFilter(redriven_from=tuple(keys)))) == 20
    together = {(old, new) for answer in answers for old, new in answer.items()}
    assert sorted(old for old, _ in together) == keys


async def test_a_dry_run_counts_and_changes_nothing(store: Store) -> None:
    await dead(store, 5)
    wanted = dead_letters.among(OURS)
    assert await dead_letters.count(store, wanted) == 5
    assert await dead_letters.count(store, wanted, limit=3) == 3
    assert len(await store.jobs()) == 5
    await redriven(store, limit=2)
    assert await dead_letters.count(store, wanted) == 3
    assert await dead_letters.count(store, wanted, again=True) == 5


async def test_a_rate_is_kept_by_pausing_between_batches(store: Store) -> None:
    await dead(store, 7)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    assert len(await redriven(store, rate=10, pause=pause)) == 7
    assert pauses == [0.2, 0.2, 0.2]
    pauses.clear()
    assert len(await redriven(store, rate=0.5, pause=pause, limit=3, again=True)) == 3
    assert pauses == [2.0, 2.0]


async def test_what_dies_again_meanwhile_is_left_alone_so_that_it_ends(store: Store) -> None:
    await dead(store, 3)

    async def kill_the_new(_: float) -> None:
        for row in await store.jobs(JobFilter(states=("queued",))):
            await moved(store, JOB, row["id"], "dead_letter", reason="timeout")

    assert len(await redriven(store, rate=1, pause=kill_the_new, again=True, limit=9)) == 3


@pytest.mark.parametrize("how", [{"rate": 0}, {"rate": -1}, {"rate": float("nan")}, {"limit": 0}])
async def test_a_redrive_that_could_not_end_is_refused(store: Store, how: dict[str, Any]) -> None:
    await dead(store)
    with pytest.raises(BadInput, match="it must be"):
        await redriven(store, **how)
    assert len(await store.jobs()) == 1
