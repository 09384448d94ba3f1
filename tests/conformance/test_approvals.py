"""Questions to people: asked once, decided once, and whoever waits for the decision is due with it."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store, open_store
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, Verbs, claim, decided, moved, queued, worker
from tests.conformance.times import SetClock
from tests.conformance.waiting import LATER, beside, due
from tests.support.broken_sql import leave_out

OURS = 1
QUESTION = NewApproval("#approval 1", "Ship?", '{"v":1}', "ops")


async def running(store: Store, **fields: int) -> Job:
    await queued(store, **fields)
    (job,) = await claim(store, await worker(store), 1, start=True)
    return job


async def asked(store: Verbs, job: Job, question: NewApproval = QUESTION) -> Approval:
    found = await store.open_approval(job, question)
    assert found is not None
    return found


async def wait(store: Verbs, job: Job, question: Approval) -> None:
    await moved(store, JOB, job.id, "snooze", by="holder", values=waiting(question))


def waiting(question: Approval) -> dict[str, object]:
    return {"run_at": LATER, "waits_for": question.waits_for, "seen": question.id}


@keeps(
    Writer.open_approval,
    "Open an approval request for a running job under its claim",
    "The same request at the same step returns the first one as it is now",
    "A different request at that step withdraws the open one",
)
async def test_a_question_is_asked_once_and_another_takes_its_place(store: Store) -> None:
    job = await running(store)
    first = await asked(store, job)
    assert (first.question, first.details, first.scope, first.job_id) == ("Ship?", '{"v":1}', "ops", job.id)
    assert (first.decision, first.expires_at, first.digest) == (None, None, QUESTION.digest)
    assert await asked(store, job) == first
    elsewhere = await asked(store, job, QUESTION._replace(step="#approval 2"))
    second = await asked(store, job, QUESTION._replace(details='{"v":2}'))
    assert len({first.id, second.id, elsewhere.id}) == 3
    old = await store.approval(OURS, first.id)
    assert old is not None
    assert old.decision == "withdrawn"
    await store.decide_approval(OURS, second.id, "approved", "ann")
    third = await asked(store, job)
    assert third.id not in (first.id, second.id)
    assert (await asked(store, job, QUESTION._replace(details='{"v":2}'))).decision == "approved"


@keeps(Writer.open_approval, "Return None if the claim no longer holds the job")
async def test_who_no_longer_holds_the_job_asks_nothing(timed: Store, clock: SetClock) -> None:
    job = await running(timed)
    question = await asked(timed, job)
    await clock.advance(LEASE + 1)
    assert await timed.open_approval(job, QUESTION) is None
    assert await timed.open_approval(job, QUESTION._replace(question="Else?")) is None
    assert await timed.approvals(OURS) == [question]


@keeps(
    Reader.approval,
    "Return an approval by its ID",
    "Return None for another tenant's approval, as for one that does not exist",
)
@keeps(
    Reader.approvals,
    "Return at most `limit` approvals of a tenant, newest first, with IDs below `after`",
    "They belong to one job or to all, and are open or in any state",
)
async def test_questions_are_found_by_key_and_listed(store: Store, other_tenant: int) -> None:
    jobs = [await running(store) for _ in range(3)]
    a, b, c = [await asked(store, job) for job in jobs]
    theirs = await asked(store, await running(store, tenant_id=other_tenant))
    await store.decide_approval(OURS, b.id, "rejected", "ann")
    assert await store.approval(OURS, a.id) == a
    assert await store.approval(OURS, theirs.id) is await store.approval(OURS, 1 << 50) is None
    assert [one.id for one in await store.approvals(OURS)] == [c.id, a.id]
    assert [one.id for one in await store.approvals(OURS, open_only=False)] == [c.id, b.id, a.id]
    assert [one.id for one in await store.approvals(OURS, open_only=False, limit=1)] == [c.id]
    assert [one.id for one in await store.approvals(OURS, open_only=False, after=c.id, limit=1)] == [b.id]
    assert [one.id for one in await store.approvals(OURS, after=c.id)] == [a.id]
    assert await store.approvals(OURS, after=a.id) == []
    assert [one.id for one in await store.approvals(OURS, job=jobs[0].id)] == [a.id]
    assert await store.approvals(OURS, job=jobs[1].id) == []
    assert await store.decide_approval(OURS, theirs.id, "approved", "ann") is None


@keeps(
    Writer.decide_approval,
    "Decide an open approval before its deadline, and make the waiting job due",
    "The job must be unfinished",
    "Only after the deadline can the decision be `expired`",
    "Return the approval as it is afterward, whether or not this call decided it",
)
async def test_a_question_is_decided_once_in_time_and_its_job_is_due(timed: Store, clock: SetClock) -> None:
    job, late, over = await running(timed), await running(timed), await running(timed)
    question = await asked(timed, job, QUESTION._replace(expires_us=1000))
    expiring = await asked(timed, late, QUESTION._replace(expires_us=1000))
    pointless = await asked(timed, over)
    await wait(timed, job, question)
    early = await timed.decide_approval(OURS, question.id, "expired")
    assert early == question
    assert not await due(timed, job)
    decided_ = await timed.decide_approval(OURS, question.id, "approved", "ann", "fine")
    assert decided_ is not None
    assert (decided_.decision, decided_.decided_by, decided_.comment) == ("approved", "ann", "fine")
    assert decided_.decided_at == clock.now
    assert await due(timed, job)
    assert await timed.decide_approval(OURS, question.id, "rejected", "bob") == decided_
    await clock.advance(1000)
    unchanged = await timed.decide_approval(OURS, expiring.id, "approved", "ann")
    assert unchanged == expiring
    gone = await timed.decide_approval(OURS, expiring.id, "expired")
    assert gone is not None
    assert gone.decision == "expired"
    await moved(timed, JOB, over.id, "cancel")
    assert await timed.decide_approval(OURS, pointless.id, "approved", "ann") == pointless


@keeps(Writer.decide_approval, "Concurrent calls lead to one decision")
async def test_of_thirty_two_who_decide_one_decides(store: Store) -> None:
    question = await asked(store, await running(store))
    said = await asyncio.gather(
        *(
            store.decide_approval(OURS, question.id, "approved" if number % 2 else "rejected", f"p{number}")
            for number in range(32)
        )
    )
    assert len(set(said)) == 1
    assert said[0] == await store.approval(OURS, question.id)


@keeps(
    Writer.withdraw_approvals,
    "Withdraw at most `limit` open approvals whose jobs have ended or were deleted",
    "Return their number",
)
async def test_questions_of_ended_jobs_are_withdrawn(store: Store, hand: Hand) -> None:
    jobs = [await running(store) for _ in range(4)]
    questions = [await asked(store, job) for job in jobs]
    assert await store.withdraw_approvals() == 0
    await store.decide_approval(OURS, questions[3].id, "approved", "ann")
    for job in jobs[1:]:
        await moved(store, JOB, job.id, "succeed", by="holder")
    assert await store.withdraw_approvals(1) == 1
    assert await store.withdraw_approvals() == 1
    assert [one.decision for one in await store.approvals(OURS, open_only=False)][::-1] == [
        None,
        "withdrawn",
        "withdrawn",
        "approved",
    ]
    await hand.run(f"DELETE FROM jobs WHERE id = {jobs[3].id}")
    assert await store.approval(OURS, questions[3].id) is None


# --- races


async def approve(store: Verbs, question: Approval) -> None:
    await store.decide_approval(OURS, question.id, "approved", "ann")


async def decided_before_the_wait_is_written(store: Store) -> bool:
    job = await running(store)
    question = await asked(store, job)
    snooze = await decided(store, JOB, job.id, "snooze", by="holder", values=waiting(question))
    late = await beside(store, lambda transaction: approve(transaction, question), lambda: store.apply([snooze]))
    assert late == []
    return await due(store, job)


async def decided_while_the_wait_is_written(store: Store) -> bool:
    job = await running(store)
    question = await asked(store, job)
    await beside(store, lambda transaction: wait(transaction, job, question), lambda: approve(store, question))
    return await due(store, job)


RACES = [decided_before_the_wait_is_written, decided_while_the_wait_is_written]


async def test_a_decision_and_a_wait_that_come_at_once_do_not_miss_each_other(store: Store) -> None:
    assert [await race(store) for race in RACES] == [True, True]


async def test_the_test_above_notices_a_store_that_does_not_lock_the_job(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "lock_asker", r"\{for_change\}")
    monkeypatch.setattr("tests.conformance.waiting.PATIENCE", 10)
    store = await open_store(emptied_database)
    try:
        assert [await race(store) for race in RACES] == [False, False]
    finally:
        await store.close()
