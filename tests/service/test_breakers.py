"""Breakers: every arrow of their lifecycle, those that are refused, and what becomes of the jobs that need them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import BREAKER, JOB, Change, decide, insist
from keptwork.errors import BadInput, InvalidTransition, NotFound
from keptwork.jobs import held_jobs
from keptwork.jobs.breaker import Breaker
from keptwork.jobs.breakers import Answer, Report, admit, report, settle
from keptwork.jobs.held_jobs import PATIENCE_US, reset, tend
from keptwork.store import Job, NewJob, Store, Transaction, open_store
from keptwork.store.contract.breakers import Row
from tests.conformance.stage import LEASE, claim, entity, log, moved, queued, worker
from tests.support.broken_sql import leave_out
from tests.support.database_time import Timed, open_timed

SECOND = 1_000_000
API = Breaker("api", failure_threshold=3, cooldown="30s")
COOLDOWN = 30 * SECOND
_queues = count(1)


@pytest.fixture
async def timed(database_url: str) -> AsyncIterator[Timed]:
    """A store whose time the test moves, audited in the end."""
    opened = await open_timed(database_url)
    yield opened
    verdict = await verify.verify(opened.store)
    assert verdict.clean, verdict.problems
    await opened.close()


@pytest.fixture
def store(timed: Timed) -> Store:
    return timed.store


async def running(store: Store, lease_us: int = LEASE, **fields: Any) -> Job:
    """A job of its own queue, as its claim returned it."""
    queue = f"q{next(_queues)}"
    await store.enqueue([NewJob("kind", queue=queue, **fields)])
    (job,) = await claim(store, await worker(store), 1, queue, start=True, lease_us=lease_us)
    return job


async def told(store: Store, ok: bool | None, job: Job | None = None, error: str = "it is down") -> None:
    job = job or await running(store)
    await store.atomically(lambda tx: report(tx, job.tenant_id, API.name, ok, job, error))


async def answer(store: Store, job: Job | None = None, breaker: Breaker = API) -> Answer:
    return (await admit(store, job or await running(store), breaker)).answer


async def row(store: Store, tenant_id: int = 1) -> Row:
    found = await store.breaker(tenant_id, API.name)
    assert found is not None
    return found


async def state(store: Store) -> str:
    return str((await row(store))["state"])


async def opened(store: Store, breaker: Breaker = API) -> None:
    """A breaker that has just opened."""
    assert await answer(store, breaker=breaker) is Answer.GO
    for _ in range(breaker.failure_threshold):
        await told(store, False)
    assert await state(store) == "OPEN"


async def half_open(timed: Timed, breaker: Breaker = API, lease_us: int = LEASE) -> Job:
    """A breaker with a probe under way, and the job that is it."""
    await opened(timed.store, breaker)
    await timed.advance(COOLDOWN)
    probe = await running(timed.store, lease_us)
    assert await answer(timed.store, probe, breaker) is Answer.PROBE
    return probe


async def arrows(store: Store) -> list[str]:
    return [event.trigger for event in await log(store, entity="breaker")]


# --- closed


async def test_the_first_use_makes_a_closed_breaker_with_its_settings(store: Store) -> None:
    assert await answer(store) is Answer.GO
    made = await row(store)
    assert (made["state"], made["failure_threshold"], made["cooldown_us"]) == ("CLOSED", 3, COOLDOWN)
    assert await answer(store) is Answer.GO
    assert await arrows(store) == ["create"]


async def test_changed_settings_are_taken_over(store: Store) -> None:
    await answer(store)
    assert await answer(store, breaker=replace(API, failure_threshold=7, cooldown="2m")) is Answer.GO
    assert ((await row(store))["failure_threshold"], (await row(store))["cooldown_us"]) == (7, 120 * SECOND)


async def test_failures_in_a_row_open_it_and_the_event_tells_the_last_of_them(store: Store) -> None:
    await answer(store)
    await told(store, False)
    await told(store, False, error="it was slow")
    assert ((await row(store))["failures"], await state(store)) == (2, "CLOSED")
    job = await running(store)
    await told(store, False, job, error="connection refused")
    assert await state(store) == "OPEN"
    event = (await log(store, entity="breaker"))[-1]
    assert (event.trigger, event.reason) == ("trip", "connection refused")
    assert json.loads(event.payload or "") == {"failures": 3, "error": "connection refused", "job": job.public_id}
    assert 0 <= await store.now() - (await row(store))["opened_at"] < SECOND


async def test_a_success_in_between_begins_the_count_anew(store: Store) -> None:
    await answer(store)
    for ok in (False, False, True, False, False):
        await told(store, ok)
    assert ((await row(store))["failures"], await state(store)) == (2, "CLOSED")


async def test_what_says_nothing_counts_as_nothing(store: Store) -> None:
    await answer(store)
    for ok in (False, None, None, None, False):
        await told(store, ok)
    assert ((await row(store))["failures"], await state(store)) == (2, "CLOSED")


async def test_a_breaker_nobody_has_asked_is_told_in_vain(store: Store) -> None:
    await told(store, False)
    assert await store.breaker(1, API.name) is None


# --- open


async def test_an_open_breaker_holds_jobs_until_it_has_cooled_down(timed: Timed) -> None:
    await opened(timed.store)
    await timed.advance(COOLDOWN - SECOND)
    admission = await admit(timed.store, await running(timed.store), API)
    assert (admission.answer, admission.held_by) == (Answer.HOLD, "breaker:api")
    assert "api is OPEN, open since" in admission.says
    assert "it is down" in admission.says
    await timed.advance(SECOND)
    assert await answer(timed.store) is Answer.PROBE


async def test_a_job_that_is_to_fail_then_is_told_so(store: Store) -> None:
    await opened(store)
    admission = await admit(store, await running(store), replace(API, on_open="fail"))
    assert (admission.answer, admission.held_by) == (Answer.FAIL, None)
    assert "declared to fail" in admission.says


async def test_reports_that_come_when_it_is_open_change_nothing(store: Store) -> None:
    await opened(store)
    before = await row(store)
    for ok in (True, False, None):
        await told(store, ok)
    assert await row(store) == before


# --- half open


async def test_exactly_one_job_is_the_probe_and_stays_it_when_it_asks_again(timed: Timed) -> None:
    probe = await half_open(timed)
    assert [await answer(timed.store) for _ in range(3)] == [Answer.HOLD] * 3
    assert await answer(timed.store, probe) is Answer.PROBE
    assert await arrows(timed.store) == ["create", "trip", "probe"]


async def test_a_good_probe_closes_it(timed: Timed) -> None:
    probe = await half_open(timed)
    await told(timed.store, True, probe)
    after = await row(timed.store)
    assert (after["state"], after["failures"], after["opened_at"]) == ("CLOSED", 0, None)
    assert await answer(timed.store) is Answer.GO


async def test_a_failed_probe_opens_it_for_another_cooldown(timed: Timed) -> None:
    probe = await half_open(timed)
    await timed.advance(7 * SECOND)
    await told(timed.store, False, probe, error="still down")
    after = await row(timed.store)
    assert (after["state"], after["error"]) == ("OPEN", "still down")
    assert 0 <= await timed.store.now() + COOLDOWN - after["probe_at"] < SECOND
    await timed.advance(COOLDOWN - SECOND)
    assert await answer(timed.store) is Answer.HOLD
    await timed.advance(SECOND)
    assert await answer(timed.store) is Answer.PROBE


async def test_a_probe_that_tells_nothing_lets_the_next_one_try_at_once(timed: Timed) -> None:
    await told(timed.store, None, await half_open(timed))
    assert await state(timed.store) == "OPEN"
    assert await answer(timed.store) is Answer.PROBE
    assert await arrows(timed.store) == ["create", "trip", "probe", "reopen", "probe"]


async def test_with_a_higher_threshold_one_probe_after_the_other_must_succeed(timed: Timed) -> None:
    careful = replace(API, success_threshold=2)
    first = await half_open(timed, careful)
    await told(timed.store, True, first)
    assert (await state(timed.store), (await row(timed.store))["successes"]) == ("HALF_OPEN", 1)
    second = await running(timed.store)
    assert await answer(timed.store, second, careful) is Answer.PROBE
    assert await answer(timed.store, breaker=careful) is Answer.HOLD
    await told(timed.store, True, second)
    assert await state(timed.store) == "CLOSED"
    assert await arrows(timed.store) == ["create", "trip", "probe", "close"]


async def test_late_reports_of_jobs_that_are_not_the_probe_change_nothing(timed: Timed) -> None:
    early = await running(timed.store)
    probe = await half_open(timed)
    before = await row(timed.store)
    for ok in (True, False, None):
        await told(timed.store, ok, early)
        await told(timed.store, ok, replace(probe, epoch=probe.epoch + 1))
    assert await row(timed.store) == before


async def test_when_the_probers_lease_is_over_another_may_try_and_the_log_says_so(timed: Timed) -> None:
    probe = await half_open(timed, lease_us=10 * SECOND)
    await timed.advance(9 * SECOND)
    assert await answer(timed.store) is Answer.HOLD
    await timed.advance(SECOND)
    assert await answer(timed.store) is Answer.PROBE
    assert await answer(timed.store) is Answer.HOLD
    events = await log(timed.store, entity="breaker")
    assert [event.trigger for event in events[-3:]] == ["probe", "reopen", "probe"]
    assert json.loads(events[-2].payload or "") == {"job": probe.public_id}
    await told(timed.store, True, probe)
    assert await state(timed.store) == "HALF_OPEN"


async def test_a_prober_that_keeps_its_lease_stays_the_probe(timed: Timed) -> None:
    probe = await half_open(timed, lease_us=10 * SECOND)
    for _ in range(3):
        await timed.advance(9 * SECOND)
        assert await timed.store.renew(probe.owner or 0, [(probe.id, probe.epoch)], 10 * SECOND) == []
    assert await answer(timed.store) is Answer.HOLD


async def test_when_the_probers_job_was_cancelled_another_may_try(timed: Timed) -> None:
    probe = await half_open(timed)
    await moved(timed.store, JOB, probe.id, "cancel")
    assert await answer(timed.store) is Answer.PROBE
    assert (await arrows(timed.store))[-2:] == ["reopen", "probe"]


@pytest.mark.parametrize(
    ("trigger", "where", "told"),
    [
        ("trip", "CLOSED", {"failures": 2, "failure_threshold": 3}),
        ("probe", "OPEN", {"probe_at": 11}),
        ("close", "HALF_OPEN", {"successes": 1, "success_threshold": 2}),
        ("reset", "CLOSED", {}),
        ("reopen", "OPEN", {}),
        ("probe", "HALF_OPEN", {"probe_at": 0}),
    ],
)
def test_arrows_that_are_not_due_are_refused(trigger: str, where: str, told: dict[str, int]) -> None:
    record = {"id": 1, "tenant_id": 1, "seq": 1, "epoch": 0, "state": where, **told}
    assert isinstance(decide(BREAKER, record, trigger, now=10), InvalidTransition)


# --- settled together with the job


def change(job: Job, trigger: str = "retry", **values: Any) -> Change:
    given = {"error": "it is down", "delay_us": 0, **values}
    return insist(decide(JOB, job, trigger, token=job.token, actor=f"w:{job.owner}", values=given))


async def test_a_report_that_is_sent_again_because_its_answer_was_lost_counts_once(store: Store) -> None:
    await answer(store)
    job = await running(store)
    for _ in range(3):
        settled = await store.atomically(lambda tx: settle(tx, [change(job)], [Report(job, API.name, False)]))
        assert settled.late == []
    assert (await row(store))["failures"] == 1


async def test_what_a_job_tells_that_lost_its_lease_does_not_count(timed: Timed) -> None:
    await answer(timed.store)
    job = await running(timed.store)
    await timed.advance(LEASE)
    wanted = change(job)
    settled = await timed.store.atomically(lambda tx: settle(tx, [wanted], [Report(job, API.name, False)]))
    assert settled.late == [wanted]
    assert (await row(timed.store))["failures"] == 0


async def test_a_batch_counts_its_reports_one_after_the_other(store: Store) -> None:
    await answer(store)
    jobs = [await running(store) for _ in range(5)]
    outcomes = [Report(job, API.name, ok) for job, ok in zip(jobs, (True, False, False, True, False), strict=True)]
    settled = await store.atomically(lambda tx: settle(tx, [change(job) for job in jobs], outcomes))
    assert (settled.late, (await row(store))["failures"]) == ([], 1)


async def test_a_job_is_not_held_by_a_breaker_that_was_closed_before_it_was_given_back(timed: Timed) -> None:
    probe, other = await half_open(timed), await running(timed.store)
    admission = await admit(timed.store, other, API)
    await told(timed.store, True, probe)
    back = change(other, "release", held_by=admission.held_by)
    await timed.store.atomically(lambda tx: settle(tx, [back], [Report(other, API.name, None, held=True)]))
    after = await entity(timed.store, JOB, other.id)
    assert (after["state"], after["held_by"], after["attempts"]) == ("queued", None, 0)


async def test_what_another_writes_with_the_jobs_says_which_came_too_late(store: Store) -> None:
    await answer(store)
    job = await running(store)

    async def nothing(tx: Transaction, changes: Sequence[Change]) -> list[Change]:
        return list(changes)

    wanted = change(job)
    settled = await store.atomically(lambda tx: settle(tx, [wanted], [Report(job, API.name, False)], nothing))
    assert (settled.late, (await row(store))["failures"]) == ([wanted], 0)


PATIENT = [Breaker(name, failure_threshold=10_000) for name in ("one", "two")]


async def failures_counted(store: Store, tellers: int, times: int) -> list[int]:
    """Of two breakers that many tell at once of failures, now of the one first, now of the other."""
    for one in PATIENT:
        await admit(store, await running(store), one)

    async def tell(number: int) -> None:
        for _ in range(times):
            jobs = [await running(store) for _ in PATIENT]
            names = [one.name for one in PATIENT][:: 1 if number % 2 else -1]
            told = [Report(job, name, False) for job, name in zip(jobs, names, strict=True)]
            await store.atomically(partial(settle, changes=[change(job) for job in jobs], reports=told))

    ended = await asyncio.gather(*(tell(number) for number in range(tellers)), return_exceptions=True)
    assert not any(ended), ended
    found = [await store.breaker(1, one.name) for one in PATIENT]
    return [one["failures"] for one in found if one is not None]


async def test_many_who_tell_two_breakers_at_once_neither_lose_a_count_nor_lock_each_other_out(
    database_url: str,
) -> None:
    store = await open_store(database_url)
    assert await failures_counted(store, 6, 8) == [48, 48]
    await store.close()


async def test_tellers_that_do_not_lock_are_caught_by_the_same_check(
    monkeypatch: pytest.MonkeyPatch, postgres_copy: str
) -> None:
    leave_out(monkeypatch, "lock_breaker", r"\{for_change\}")
    store = await open_store(postgres_copy)
    assert min(await failures_counted(store, 6, 2)) < 12
    await store.close()


# --- what it holds back


async def needing(store: Store, number: int, **fields: Any) -> list[int]:
    return await queued(store, number, hold_key=API.hold, **fields)


async def held(store: Store) -> set[int]:
    return {job["id"] for job in await store.jobs(limit=1000) if job["held_by"] == API.hold}


async def test_an_open_breaker_holds_what_is_queued_for_it_portion_by_portion(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_jobs, "PORTION", 10)
    others = await queued(store, 5)
    ids = await needing(store, 25)
    await opened(store)
    assert [(await tend(store, 1, API.name)).more for _ in range(3)] == [True, True, False]
    assert await held(store) == set(ids)
    claimed = await claim(store, await worker(store))
    assert [job.id for job in claimed] == others


async def test_when_it_has_cooled_down_one_job_is_let_go_and_no_other_until_that_has_begun(timed: Timed) -> None:
    low, high, later = [
        (await needing(timed.store, 1, priority=priority, delay_us=delay))[0]
        for priority, delay in ((1, 0), (5, 0), (9, COOLDOWN * 2))
    ]
    await opened(timed.store)
    assert await tend(timed.store, 1, API.name) == (0, False)
    await timed.advance(COOLDOWN)
    assert (await tend(timed.store, 1, API.name)).let_go == 1
    assert await held(timed.store) == {low, later}
    assert (await tend(timed.store, 1, API.name)).let_go == 0
    (probe,) = await claim(timed.store, await worker(timed.store), start=True)
    assert (probe.id, await answer(timed.store, probe)) == (high, Answer.PROBE)


async def test_a_job_that_nobody_begins_does_not_keep_those_of_other_queues_from_trying(timed: Timed) -> None:
    first, second = [(await needing(timed.store, 1, queue=queue))[0] for queue in ("asleep", "busy")]
    await opened(timed.store)
    await timed.advance(COOLDOWN)
    await tend(timed.store, 1, API.name)
    assert await held(timed.store) == {second}
    await timed.advance(PATIENCE_US)
    await tend(timed.store, 1, API.name)
    assert await held(timed.store) == set()
    await tend(timed.store, 1, API.name)
    assert await held(timed.store) == {first}


async def test_a_lost_probe_is_found_by_those_who_look_after_breakers(timed: Timed) -> None:
    (waiting,) = await needing(timed.store, 1)
    await half_open(timed, lease_us=SECOND)
    await tend(timed.store, 1, API.name)
    assert (await state(timed.store), await held(timed.store)) == ("HALF_OPEN", {waiting})
    await timed.advance(SECOND)
    assert (await tend(timed.store, 1, API.name)).let_go == 1
    assert (await state(timed.store), await held(timed.store)) == ("OPEN", set())


async def test_all_are_let_go_once_it_is_closed_and_then_it_is_done_with(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_jobs, "PORTION", 10)
    await needing(timed.store, 25)
    probe = await half_open(timed)
    while (await tend(timed.store, 1, API.name)).more:
        pass
    assert len(await held(timed.store)) == 25
    await told(timed.store, True, probe)
    assert [await tend(timed.store, 1, API.name) for _ in range(3)] == [(10, True), (10, True), (5, False)]
    assert (await held(timed.store), await timed.store.breakers_that_hold(9)) == (set(), [])
    assert all(job["attempts"] == 0 for job in await timed.store.jobs(limit=1000) if job["hold_key"])


async def test_what_needs_a_breaker_of_another_tenant_is_not_touched(store: Store) -> None:
    other = await store.add_tenant("other")
    ids = await needing(store, 2, tenant_id=other)
    await opened(store)
    await tend(store, 1, API.name)
    assert {job.id for job in await claim(store, await worker(store))} == set(ids)
    assert await store.breaker(other, API.name) is None


# --- by an operator


async def test_a_reset_closes_it_and_lets_everything_go(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_jobs, "PORTION", 10)
    await needing(timed.store, 25)
    await opened(timed.store)
    while (await tend(timed.store, 1, API.name)).more:
        pass
    assert await reset(timed.store, 1, API.name, actor="cli:ann", reason="it is up again") == 25
    assert (await state(timed.store), await held(timed.store)) == ("CLOSED", set())
    event = (await log(timed.store, entity="breaker"))[-1]
    assert (event.trigger, event.actor, event.reason) == ("reset", "cli:ann", "it is up again")


async def test_a_reset_ends_a_probe_and_its_report_is_one_of_many(timed: Timed) -> None:
    probe = await half_open(timed)
    await reset(timed.store, 1, API.name, actor="cli:ann", reason="now")
    await told(timed.store, False, probe)
    assert ((await row(timed.store))["failures"], await state(timed.store)) == (1, "CLOSED")


async def test_a_closed_breaker_refuses_a_reset_and_an_unknown_one_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="No breaker 'api'"):
        await reset(store, 1, API.name, actor="cli:ann", reason="why not")
    await answer(store)
    with pytest.raises(InvalidTransition, match="reset"):
        await reset(store, 1, API.name, actor="cli:ann", reason="why not")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"failure_threshold": 0}, "failure_threshold is 0"),
        ({"success_threshold": True}, "success_threshold is True"),
        ({"cooldown": "soon"}, "'soon' is no duration"),
        ({"on_open": "panic"}, "on_open is 'panic'"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 300}, "at most 192 characters"),
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused_where_it_is_declared(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Breaker(**{"name": "api", **settings})
