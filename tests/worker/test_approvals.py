"""Approvals on each kind of store: one decision, whoever else decides; the job goes on with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.errors import AlreadyDecided, BadInput, KeptworkError, NotFound
from keptwork.flows import approvals
from keptwork.jobs import queries
from keptwork.store.contract.waits_approvals import Approval
from tests.worker.scene import eventually, reaches, row, state, working


def asker(app: Keptwork) -> Any:
    @app.job()
    async def ship(ctx: Context, expires: str | None = None) -> Any:
        approved = await ctx.wait_for_approval("Ship 1.2?", by="ops", expires=expires, details={"version": "1.2"})
        return [approved.by, approved.comment, approved.at.isoformat()[:2]]

    return ship


async def the_question(app: Keptwork) -> Approval:
    async def asked() -> bool:
        return bool(await app.approvals())

    await eventually(asked)
    (question,) = await app.approvals()
    return question


async def test_an_approved_job_goes_on_and_knows_who_approved(app: Keptwork) -> None:
    job = await asker(app).enqueue()
    async with working(app, concurrency=1):
        question = await the_question(app)
        assert (question.question, question.scope, question.details) == ("Ship 1.2?", "ops", '{"version":"1.2"}')
        await app.approve(question.public_id, by="ann", comment="fine")
        assert await job.result("60s") == ["ann", "fine", "20"]
    assert await app.approvals() == []
    assert (await row(app, job))["attempts"] == 1


async def test_a_rejected_job_fails_and_says_why(app: Keptwork) -> None:
    job = await asker(app).enqueue()
    async with working(app, concurrency=1):
        question = await the_question(app)
        await app.reject(question.public_id, by="ann", comment="not on a Friday")
        await reaches(app, job, "failed")
    assert f"{question.public_id} was rejected by ann: not on a Friday" in (await row(app, job))["error"]


async def test_a_question_nobody_answers_expires(app: Keptwork) -> None:
    job = await asker(app).enqueue(expires="100ms")
    async with working(app, concurrency=1):
        await reaches(app, job, "failed")
    assert "expired: nobody decided in time" in (await row(app, job))["error"]
    (question,) = await approvals.listed(await app.open(), 1, job=job.key, open_only=False)
    with pytest.raises(AlreadyDecided, match="was expired before"):
        await app.approve(question.public_id, by="ann")


async def test_a_decision_is_repeated_but_never_changed(app: Keptwork) -> None:
    await asker(app).enqueue()
    async with working(app, concurrency=1):
        question = await the_question(app)
        first = await app.approve(question.public_id, by="ann")
        assert await app.approve(question.public_id, by="bob") == first
        with pytest.raises(AlreadyDecided, match="was approved by ann before, and stays so"):
            await app.reject(question.public_id, by="bob")
    for wrong in ("apr_nothing", question.public_id.replace("apr", "job")):
        with pytest.raises(NotFound):
            await app.approve(wrong, by="ann")
    with pytest.raises(BadInput):
        await app.approve(question.public_id, by="")


async def test_a_job_that_ended_withdraws_its_question(app: Keptwork) -> None:
    job = await asker(app).enqueue()
    async with working(app, concurrency=1):
        question = await the_question(app)
    assert await queries.cancel(await app.open(), 1, job.id) == "cancelled"
    assert await app.approvals() == []
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        await app.approve(question.public_id, by="ann")


async def test_of_many_who_decide_at_once_one_decides(app: Keptwork) -> None:
    job = await asker(app).enqueue()
    async with working(app, concurrency=1):
        question = await the_question(app)
        store = await app.open()

        async def decides(number: int) -> str:
            try:
                if number % 3 == 2:
                    return f"cancel: {await queries.cancel(store, 1, job.id)}"
                decide = app.approve if number % 3 else app.reject
                return f"{(await decide(question.public_id, by=f'p{number}')).decision}"
            except KeptworkError as refused:
                return type(refused).__name__

        said = await asyncio.gather(*map(decides, range(32)))
        winners = {one for one in said if one in ("approved", "rejected")}
        decided = await approvals.find(store, 1, question.public_id)
        assert len(winners) <= 1
        if winners:
            assert decided.decision == winners.pop()
        else:
            assert decided.decision == "withdrawn"

        async def ended() -> bool:
            return await state(app, job) in ("cancelled", "succeeded", "failed")

        await eventually(ended)


async def test_another_question_at_the_same_place_withdraws_the_first(app: Keptwork) -> None:
    asked = {"version": 1}

    @app.job()
    async def ship(ctx: Context) -> Any:
        approved = await ctx.wait_for_approval("Ship?", details=dict(asked))
        return [asked["version"], approved.by]

    job = await ship.enqueue()
    async with working(app, concurrency=1):
        first = await the_question(app)

        async def waits() -> bool:
            return bool((await row(app, job))["waits_for"] == first.waits_for)

        await eventually(waits)
        asked["version"] = 2  # the code, or what it looks at, has changed under the waiting job
        store = await app.open()
        async with store.transaction() as tx:
            await tx.execute(f"UPDATE jobs SET run_at = 0 WHERE id = {job.key}")

        async def another() -> bool:
            return [one.id for one in await app.approvals()] not in ([], [first.id])

        await eventually(another)
        second = await the_question(app)
        with pytest.raises(AlreadyDecided, match="withdrawn"):
            await app.approve(first.public_id, by="ann")
        await app.approve(second.public_id, by="ann")
        assert await job.result("60s") == [2, "ann"]
