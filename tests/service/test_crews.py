"""Crews as the service handles them, on both stores: every move and every refusal, and what goes with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keptwork.core.guards import MAX_DEPTH
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.crews.commands import Inside, NewCrew
from keptwork.diagnostics import diagnose
from keptwork.errors import BadInput, CrewFailed, CrewUnfinished, InvalidTransition, NotFound
from keptwork.job import JobType
from keptwork.jobs import queries
from keptwork.jobs.complete import applied
from keptwork.jobs.outcome import Raised, Suspend, settle
from keptwork.maintenance import reconciler
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.store import Job, Store
from keptwork.store.contract.crews import HELD_BY_QUOTA, waits_for_crew
from keptwork.store.contract.records import Expiry
from keptwork.workers import commands as workers
from tests.conformance.by_hand import Hand, hand_on
from tests.conformance.stage import claim, entity, log, worker


async def dig(ctx: Any, share: int, shares: int, task: str, where: str = "here") -> None:
    """Never called: these tests say themselves what came of it."""


DIG = JobType.of(dig, max_attempts=2, backoff="1ms")


def a_crew(workers: int = 2, tenant: int = 1, **how: Any) -> NewCrew:
    return crews.new_crew(DIG, {"where": "there"}, tenant, task="dig a hole", workers=workers, **how)


async def submitted(store: Store, workers: int = 2, inside: Inside = Inside(), **how: Any) -> int:  # noqa: B008
    return await crews.submit(store, a_crew(workers, **how), inside)


async def state(store: Store, crew: int) -> str:
    return str((await entity(store, CREW, crew))["state"])


async def states(store: Store, *keys: int) -> list[str]:
    return [await state(store, key) for key in keys]


async def triggers(store: Store, crew: int) -> list[str]:
    return [event.trigger for event in await log(store, entity=CREW.name, entity_id=crew)]


async def taken(store: Store, number: int = 100) -> list[Job]:
    """Shares that are due, running under a fresh worker."""
    return await claim(store, await worker(store), number, start=True)


async def say(store: Store, job: Job, said: Any) -> None:
    """What comes of a share, written as a worker writes it."""
    assert await applied(store, [settle(job, DIG, said, lambda: 0.0, f"w:{job.owner}")]) == []


async def wait_for(store: Store, asker: Job, crew: int) -> None:
    held_by = None if asker.crew_id is None else HELD_BY_QUOTA
    await say(store, asker, Suspend(waits_for_crew(crew), None, 0, held_by))


async def nested(store: Store, workers: int = 1) -> tuple[int, Job, int]:
    """A crew whose one share waits for a crew inside it."""
    outer = await submitted(store, 1)
    (asker,) = await taken(store)
    inner = await submitted(store, workers, Inside(outer, outer, asker.id))
    await wait_for(store, asker, inner)
    return outer, asker, inner


async def used(store: Store, tenant: int = 1) -> dict[int, int]:
    return {depth: used for depth, _, used in await crew_moves.quotas(store, tenant) if used}


def id_of(crew: int) -> str:
    return public_id(CREW.name, crew)


@pytest.fixture
async def hand(store: Store, database_url: str) -> AsyncIterator[Hand]:
    opened = await hand_on(database_url)
    yield opened
    await opened.close()


# --- submitting


async def test_a_crew_that_fits_is_at_work_at_once_and_each_worker_has_a_share(store: Store) -> None:
    crew = await submitted(store, 3)
    row = await entity(store, CREW, crew)
    assert (row["state"], row["depth"], row["worker_count"]) == ("RUNNING", 0, 3)
    assert row["started_at"] is not None
    assert await triggers(store, crew) == ["submit", "validate", "allocate_resources"]
    shares = await store.shares([crew])
    assert [json.loads(job.payload) for job in shares] == [
        {"where": "there", "share": number, "shares": 3, "task": "dig a hole"} for number in range(3)
    ]
    assert {(job.crew_id, job.tree_id, job.max_attempts, job.correlation_id) for job in shares} == {
        (crew, crew, 2, id_of(crew))
    }
    assert await used(store) == {0: 3}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"workers": 0}, "a crew of 0 workers cannot be; it has 1 to 10"),
        ({"workers": 11}, "a crew of 11 workers"),
        ({"workers": True}, "a crew of True workers"),
        ({"task": " "}, "is no task"),
        ({"task": "x" * 10_001}, "over the limit"),
        ({"arguments": {"share": 1}}, "the arguments share are given to each share by the crew"),
        ({"arguments": {"unknown": 1}}, "unexpected keyword argument 'unknown'"),
        ({"key": ""}, "is no key"),
        ({"timeout": "soon"}, "soon"),
    ],
)
def test_what_is_wrong_with_it_is_refused_before_anything_is_kept(how: Any, says: str) -> None:
    given: dict[str, Any] = {"task": "dig", "arguments": {}, **how}
    with pytest.raises(BadInput, match=says):
        crews.new_crew(DIG, given.pop("arguments"), 1, **given)


async def test_a_crew_inside_one_that_is_not_there_fails_and_says_so(store: Store) -> None:
    other = await submitted(store, tenant=await store.add_tenant("other"))
    for parent in (other, other + 1):
        crew = await submitted(store, inside=Inside(parent))
        row = await entity(store, CREW, crew)
        assert (row["state"], await triggers(store, crew)) == ("FAILED", ["submit", "reject"])
        assert row["error"] == row["reason"] == f"there is no crew {id_of(parent)} for it to be inside of"
        assert row["completed_at"] is not None
        assert await store.shares([crew]) == []


async def test_crews_go_down_to_depth_five_and_no_further(store: Store) -> None:
    keys = [await submitted(store, 1)]
    for _ in range(MAX_DEPTH):
        keys.append(await submitted(store, 1, Inside(keys[-1])))
    assert [(await entity(store, CREW, key))["depth"] for key in keys] == [0, 1, 2, 3, 4, 5]
    assert {(await entity(store, CREW, key))["tree_id"] for key in keys[1:]} == {keys[0]}
    too_deep = await submitted(store, 1, Inside(keys[-1]))
    row = await entity(store, CREW, too_deep)
    assert (row["state"], row["error"]) == ("FAILED", "it would be at depth 6; crews go down to depth 5")


async def test_a_crew_inside_one_that_has_ended_fails(store: Store) -> None:
    outer = await submitted(store, 1)
    await crews.cancel(store, 1, id_of(outer))
    assert "has ended (CANCELED)" in (await entity(store, CREW, await submitted(store, 1, Inside(outer))))["error"]


async def test_a_crew_that_no_quota_could_ever_hold_fails_rather_than_wait_for_ever(store: Store) -> None:
    outer = await submitted(store, 1)
    inner = await submitted(store, 9, Inside(outer))
    assert (await entity(store, CREW, inner))["error"] == "its 9 workers are more than the quota of depth 1, which is 8"


async def test_the_same_key_makes_no_second_crew(store: Store) -> None:
    first = await submitted(store, key="order-17")
    assert await submitted(store, key="order-17") == first
    tenant = await store.add_tenant("other")
    assert await submitted(store, tenant=tenant, key="order-17") != first
    assert (await store.counts(CREW))[0] == 2


async def test_many_who_submit_under_one_key_at_the_same_time_make_one_crew(store: Store) -> None:
    made = await asyncio.gather(*(submitted(store, key="order-17") for _ in range(16)))
    assert (len(set(made)), (await store.counts(CREW))[0], await used(store)) == (1, 1, {0: 2})


# --- workers


async def test_what_does_not_fit_waits_in_order_and_small_ones_do_not_overtake(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 5})
    first, large, small = [await submitted(store, workers) for workers in (3, 4, 1)]
    assert await states(store, first, large, small) == ["RUNNING", "PENDING", "PENDING"]
    for job in await taken(store):
        await say(store, job, None)
    assert await states(store, first, large, small) == ["COMPLETED", "RUNNING", "RUNNING"]
    assert await used(store) == {0: 5}


async def test_each_worker_that_is_free_goes_to_the_next_at_once(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 2})
    first, second = await submitted(store, 2), await submitted(store, 1)
    done, _ = await taken(store)
    await say(store, done, None)
    assert await states(store, first, second) == ["RUNNING", "RUNNING"]


async def test_quotas_are_per_tenant_and_hold_from_when_they_are_set(store: Store) -> None:
    other = await store.add_tenant("other")
    await crews.set_quotas(store, 1, {0: 1})
    waiting, elsewhere = await submitted(store, 1), await submitted(store, 10, tenant=other)
    behind = await submitted(store, 1)
    assert await states(store, waiting, elsewhere, behind) == ["RUNNING", "RUNNING", "PENDING"]
    await crews.set_quotas(store, 1, {0: 2})
    assert await state(store, behind) == "RUNNING"
    for bad in ({6: 1}, {0: 0}, {0: True}):
        with pytest.raises(BadInput):
            await crews.set_quotas(store, 1, bad)


async def test_a_crew_that_a_lowered_quota_can_no_longer_hold_keeps_nobody_behind_it(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 4})
    first, large, small = [await submitted(store, workers) for workers in (2, 4, 1)]
    await crews.set_quotas(store, 1, {0: 3})
    assert await states(store, first, large, small) == ["RUNNING", "PENDING", "RUNNING"]
    await crews.set_quotas(store, 1, {0: 7})
    assert await state(store, large) == "RUNNING"


async def test_a_share_that_waits_for_a_crew_gives_its_worker_back_and_has_one_before_it_goes_on(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 1})
    outer, asker, inner = await nested(store)
    assert await used(store) == {1: 1}
    other = await submitted(store, 1)
    (theirs, mine) = sorted(await taken(store), key=lambda job: job.crew_id == inner)
    assert theirs.crew_id == other
    await say(store, mine, {"found": "gold"})
    assert await states(store, inner, other, outer) == ["COMPLETED", "RUNNING", "RUNNING"]
    row = await entity(store, JOB, asker.id)
    assert (row["waits_for"], row["held_by"]) == (None, HELD_BY_QUOTA)
    assert await taken(store) == []
    await say(store, theirs, None)
    (again,) = await taken(store)
    assert (again.id, await used(store)) == (asker.id, {0: 1})
    await say(store, again, None)
    assert await states(store, outer, other) == ["COMPLETED", "COMPLETED"]
    assert await used(store) == {}


async def test_a_share_that_begins_to_wait_for_a_crew_that_has_just_ended_goes_on(store: Store) -> None:
    outer = await submitted(store, 1)
    (asker,) = await taken(store)
    inner = await submitted(store, 1, Inside(outer, outer, asker.id))
    (job,) = await taken(store)
    await say(store, job, None)
    await wait_for(store, asker, inner)
    (again,) = await taken(store)
    assert again.id == asker.id


async def test_a_job_that_is_no_share_waits_for_a_crew_as_well(store: Store) -> None:
    await queries.enqueue(store, 1, "plain")
    (asker,) = await taken(store)
    crew = await submitted(store, 1, Inside(asker_id=asker.id))
    await wait_for(store, asker, crew)
    assert (await entity(store, JOB, asker.id))["held_by"] is None
    (job,) = await taken(store)
    await say(store, job, None)
    assert [again.id for again in await taken(store)] == [asker.id]


# --- ending


async def test_a_crew_is_done_with_its_last_share_and_keeps_what_they_returned(store: Store) -> None:
    crew = await submitted(store, 3)
    shares = sorted(await taken(store), key=lambda job: job.id)
    for job, said in zip(reversed(shares), [None, ["b"], {"a": 1}], strict=True):
        assert await state(store, crew) == "RUNNING"
        await say(store, job, said)
    assert await triggers(store, crew) == ["submit", "validate", "allocate_resources", "success"]
    assert await crews.result(store, 1, id_of(crew)) == [{"a": 1}, ["b"], None]


async def test_large_results_are_kept_by_their_hash(store: Store) -> None:
    crew = await submitted(store, 2)
    for job in await taken(store):
        await say(store, job, "x" * 9_000)
    row = await entity(store, CREW, crew)
    assert row["result_hash"] is not None
    assert len(row["result"]) < 200
    assert await crews.result(store, 1, id_of(crew)) == ["x" * 9_000] * 2
    assert await store.drop_unused_blobs(await store.now() + 1, 100) == 0


async def test_results_that_are_too_large_together_are_a_failure_that_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.crews.engine.LARGEST_RESULT", 100)
    crew = await submitted(store, 2)
    for job in await taken(store):
        await say(store, job, "x" * 60)
    assert "over the limit" in (await entity(store, CREW, crew))["error"]
    assert await state(store, crew) == "FAILED"


async def test_a_share_that_is_retried_leaves_its_crew_at_work_and_one_that_is_given_up_fails_it(store: Store) -> None:
    crew = await submitted(store, 2)
    first, second = await taken(store)
    await say(store, first, Raised(ValueError("for now")))
    assert (await state(store, crew), await used(store)) == ("RUNNING", {0: 2})
    (again,) = await taken(store)
    assert again.id == first.id
    await say(store, again, Raised(ValueError("for good")))
    row = await entity(store, CREW, crew)
    assert row["state"] == "FAILED"
    assert row["error"].startswith(f"share {first.public_id} ended dead_lettered: exhausted_retries")
    assert "for good" in row["error"]
    assert (await entity(store, JOB, second.id))["state"] == "cancelled"
    assert await used(store) == {}
    with pytest.raises(CrewFailed, match="for good"):
        await crews.result(store, 1, id_of(crew))


async def test_what_is_inside_a_crew_that_fails_goes_with_it(store: Store) -> None:
    outer = await submitted(store, 2)
    asker, other = await taken(store)
    inner = await submitted(store, 2, Inside(outer, outer, asker.id))
    innermost = await submitted(store, 1, Inside(inner))
    await wait_for(store, asker, inner)
    await queries.cancel(store, 1, other.public_id, hard=True, reason="enough")
    assert await states(store, outer, inner, innermost) == ["FAILED", "CANCELED", "CANCELED"]
    assert "ended cancelled: enough" in (await entity(store, CREW, outer))["error"]
    assert await store.shares([outer, inner, innermost], unfinished_only=True) == []


async def test_a_crew_with_a_crew_inside_is_done_when_both_are(store: Store) -> None:
    outer = await submitted(store, 1)
    (job,) = await taken(store)
    inner = await submitted(store, 1, Inside(outer))
    await say(store, job, None)
    assert await states(store, outer, inner) == ["RUNNING", "RUNNING"]
    (last,) = await taken(store)
    await say(store, last, None)
    assert await states(store, outer, inner) == ["COMPLETED", "COMPLETED"]


async def test_a_share_whose_workers_keep_crashing_is_given_up_and_fails_its_crew(store: Store, hand: Hand) -> None:
    crew = await submitted(store, 1)
    for number in range(2):
        assert (await state(store, crew), len(await taken(store))) == ("RUNNING", 1), number
        await hand.run("UPDATE jobs SET lease_until = 1 WHERE crew_id IS NOT NULL")
        await Reaper(store, lambda: None, Outage()).run_once()
    assert await state(store, crew) == "FAILED"
    assert "the lease of its worker ended" in (await entity(store, CREW, crew))["error"]


# --- cancelling


@pytest.mark.parametrize("at", ["PENDING", "RUNNING"])
async def test_cancelling_ends_the_crew_with_all_its_jobs_and_lets_the_next_one_go(store: Store, at: str) -> None:
    await crews.set_quotas(store, 1, {0: 2})
    first, second, third = [await submitted(store, 2) for _ in range(3)]
    running = (await taken(store, 1))[0]
    wanted = first if at == "RUNNING" else second
    assert await crews.cancel(store, 1, id_of(wanted), reason="no longer needed", actor="ann") == [wanted]
    event = (await log(store, entity=CREW.name, entity_id=wanted))[-1]
    assert (event.trigger, event.from_state, event.actor, event.reason) == ("cancel", at, "ann", "no longer needed")
    assert await store.shares([wanted], unfinished_only=True) == []
    if at == "RUNNING":
        assert await states(store, first, second, third) == ["CANCELED", "RUNNING", "PENDING"]
        late = await applied(store, [settle(running, DIG, None, lambda: 0.0, "w:1")])
        assert [change.id for change in late] == [running.id]
    else:
        assert await states(store, first, second, third) == ["RUNNING", "CANCELED", "PENDING"]


async def test_what_has_ended_cannot_be_cancelled_and_nothing_changes(store: Store) -> None:
    crew = await submitted(store, 1)
    (job,) = await taken(store)
    await say(store, job, None)
    with pytest.raises(InvalidTransition, match=f"crew {id_of(crew)} is COMPLETED: cannot cancel"):
        await crews.cancel(store, 1, id_of(crew))
    assert await state(store, crew) == "COMPLETED"


async def test_another_tenants_crew_is_not_found(store: Store) -> None:
    crew = await submitted(store, tenant=await store.add_tenant("other"))
    for call in (crews.cancel, crews.tree, crews.find, crews.result):
        with pytest.raises(NotFound):
            await call(store, 1, id_of(crew))
    with pytest.raises(NotFound):
        await crews.find(store, 1, "crew_nonsense")


async def test_cancelling_a_crew_inside_wakes_the_share_that_waits_for_it(store: Store) -> None:
    outer, asker, inner = await nested(store)
    await crews.cancel(store, 1, id_of(inner))
    assert await states(store, outer, inner) == ["RUNNING", "CANCELED"]
    assert [job.id for job in await taken(store)] == [asker.id]


async def test_a_worker_that_is_terminated_with_its_jobs_fails_their_crew(store: Store) -> None:
    crew = await submitted(store, 1)
    (job,) = await taken(store)
    wish = workers.Wish(actor="ann", reason="broken")
    await workers.terminate(store, 1, public_id("worker", job.owner or 0), wish, hard=True, cancel_jobs=True)
    assert await state(store, crew) == "FAILED"


# --- what was left behind


async def test_time_cancels_a_crew_whose_time_is_over(store: Store, hand: Hand) -> None:
    crew, patient = await submitted(store, 1, timeout="1h"), await submitted(store, 1)
    assert await reconciler.mend(store) == 0
    await hand.run(f"UPDATE crews SET deadline_at = 1 WHERE id = {crew}")
    assert await reconciler.mend(store) == 1
    row = await entity(store, CREW, crew)
    assert (row["state"], row["reason"]) == ("CANCELED", "timeout")
    assert (await state(store, patient), await store.shares([crew], unfinished_only=True)) == ("RUNNING", [])


async def test_shares_that_ended_behind_the_services_back_are_seen(store: Store) -> None:
    done, failed = await submitted(store, 1), await submitted(store, 2)
    for job in await taken(store):
        said = None if job.crew_id == done else Raised(ValueError("no"))
        change = settle(job, DIG, said, lambda: 0.0, f"w:{job.owner}")
        await store.apply([change])
    assert await states(store, done, failed) == ["RUNNING", "RUNNING"]
    assert await reconciler.mend(store) == 1
    for job in await taken(store):
        await store.apply([settle(job, DIG, Raised(ValueError("no")), lambda: 0.0, f"w:{job.owner}")])
    assert await reconciler.mend(store) == 1
    assert await states(store, done, failed) == ["COMPLETED", "FAILED"]
    assert await reconciler.mend(store) == 0


async def test_workers_that_are_free_find_those_who_wait_even_if_nobody_told_them(store: Store, hand: Hand) -> None:
    await hand.run("INSERT INTO crew_quotas (tenant_id, depth, most) VALUES (1, 0, 1)")
    first, second = await submitted(store, 1), await submitted(store, 1)
    assert await states(store, first, second) == ["RUNNING", "PENDING"]
    await hand.run("UPDATE crew_quotas SET most = 2")
    assert await reconciler.mend(store) == 1
    assert await state(store, second) == "RUNNING"


async def test_a_share_that_nobody_woke_is_woken(store: Store, hand: Hand) -> None:
    outer, asker, inner = await nested(store)
    await crews.cancel(store, 1, id_of(inner))
    await hand.run(f"UPDATE jobs SET held_by = 'quota', waits_for = '{waits_for_crew(inner)}' WHERE id = {asker.id}")
    assert await taken(store) == []
    assert await reconciler.mend(store) > 0
    assert [job.id for job in await taken(store)] == [asker.id]
    assert await state(store, outer) == "RUNNING"


async def test_the_crew_of_a_cancelled_job_goes_with_it(store: Store) -> None:
    await queries.enqueue(store, 1, "plain")
    (asker,) = await taken(store)
    crew = await submitted(store, 1, Inside(asker_id=asker.id))
    await wait_for(store, asker, crew)
    await queries.cancel(store, 1, asker.public_id)
    assert await reconciler.mend(store) == 1
    row = await entity(store, CREW, crew)
    assert (row["state"], row["reason"]) == ("CANCELED", f"{asker.public_id}, which waited for it, was cancelled")


async def test_a_share_is_kept_while_its_crew_is_at_work(store: Store) -> None:
    crew = await submitted(store, 2)
    first, second = await taken(store)
    await say(store, first, None)
    expiry = Expiry({"succeeded": await store.now() + 10**12})
    assert await store.prune(JOB, [first.id], expiry) == 0
    await say(store, second, None)
    assert await state(store, crew) == "COMPLETED"
    assert await store.prune(JOB, [first.id, second.id], expiry) == 2


async def test_waiting_for_a_crew_that_takes_too_long_says_so(store: Store) -> None:
    crew = await submitted(store, 1)
    with pytest.raises(CrewUnfinished, match="is still RUNNING after 10ms"):
        await crews.result(store, 1, id_of(crew), "10ms")


# --- why


async def why(store: Store, id: str) -> list[tuple[str, str]]:
    return [(str(reason.cause), reason.says) for reason in (await diagnose.explained(store, 1, id)).reasons]


async def test_it_can_be_told_who_has_the_workers_and_who_comes_first(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 3})
    first, second, third = [await submitted(store, 2, timeout="1h") for _ in range(3)]
    found = await why(store, id_of(third))
    assert found[:2] == [
        ("quota", f"it needs 2 workers of depth 0, where 2 of 3 are at work: {id_of(first)} has 2"),
        ("in_line", f"1 before it in line, first {id_of(second)}, which needs 2 workers"),
    ]
    assert found[2][0] == "deadline"
    await crews.set_quotas(store, 1, {0: 1})
    assert (await why(store, id_of(second)))[0][1] == "it needs 2 workers, and the quota of depth 0 is only 1"


async def test_it_can_be_told_that_crews_inside_are_not_done_or_that_somebody_should_have_seen_the_end(
    store: Store,
) -> None:
    outer = await submitted(store, 1)
    (job,) = await taken(store)
    inner = await submitted(store, 1, Inside(outer))
    await say(store, job, None)
    assert await why(store, id_of(outer)) == [
        ("inside", f"its shares are done, and it waits for crews inside it: {id_of(inner)}")
    ]
    (job,) = await taken(store)
    await store.apply([settle(job, DIG, None, lambda: 0.0, f"w:{job.owner}")])
    assert await why(store, id_of(inner)) == [("shares", "its shares have ended; a worker that runs sees to it")]


async def test_it_can_be_told_what_a_running_crew_waits_for(store: Store) -> None:
    outer, asker, inner = await nested(store)
    says = f"0 of 1 shares are done; {asker.public_id} waits for crew {id_of(inner)}, and has no worker meanwhile"
    ((cause, said),) = await why(store, id_of(outer))
    assert said.startswith(f"{says}: 0 of 1 shares are done; job_")
    assert cause == "no_worker"  # of the crew inside
    assert (await why(store, asker.public_id))[0] == ("crew", f"it waits for the crew {id_of(inner)}")
    await crews.set_quotas(store, 1, {0: 1})
    await submitted(store, 1)
    await crews.cancel(store, 1, id_of(inner))
    assert "could go on" in (await why(store, id_of(outer)))[0][1]
    assert (await why(store, asker.public_id))[0][0] == "quota"
    await crews.cancel(store, 1, id_of(outer), reason="enough")
    assert await why(store, id_of(outer)) == [("ended", "it has ended as CANCELED (enough)")]
