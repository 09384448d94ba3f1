"""Agent jobs, as rows of the database: every transition rule, what a crash leaves, and the record of every end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import commands as agents
from keptwork.agents import engine as agent_moves
from keptwork.agents.conversation import BusinessFailure, Stop, SystemFailure
from keptwork.agents.plan import AgentJob, Complete, Failure, RetryConfig, Success, System
from keptwork.agents.plan import next as following
from keptwork.core.lifecycles import JOB, Token, decide, insist
from keptwork.core.lifecycles.agent import AGENT
from keptwork.errors import JobFailed, LeaseLost, NotFound
from keptwork.jobs import queries
from tests.conformance.stage import claim, entity, eventually, worker
from tests.worker.agent_scene import (
    FailsOnceForEach,
    Scripted,
    end_leases,
    moves,
    record,
    row,
    said,
    started,
    story,
    texts,
    work_and_die,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GOOD = ["INIT", "DEFINE_AGENT", "PROCESS", "END"]


async def done(app: Keptwork) -> None:
    """Works until nothing is left to do; retries are a few milliseconds away."""
    async with asyncio.timeout(60):
        while True:
            await app.work(until_idle=True)
            store = await app.open()
            if not [one for one in await store.jobs(limit=100) if one["completed_at"] is None]:
                return
            await asyncio.sleep(0.01)


# --- the transition rules


async def test_a_job_goes_through_all_states_and_leaves_a_record(app: Keptwork) -> None:
    app.provider = Scripted(said("The typo is in line 3.", "offline-haiku"))
    agent = await started(app)
    await done(app)
    assert await moves(app, agent) == [
        ("success", "DEFINE_AGENT"),
        ("success", "PROCESS"),
        ("success", "END"),
        ("success", "COMPLETED"),
    ]
    result = await agent.result()
    assert (result["text"], result["skill"], result["tier"]) == ("The typo is in line 3.", "bug_fix", "haiku")
    assert (result["input_tokens"], result["output_tokens"], result["cost_micros"]) == (10, 5, 0)
    kept = await agent.audit()
    assert kept["state_transitions"] == GOOD
    assert (kept["job_id"], kept["carried_out_by"], kept["status"]) == (agent.id, agent.job_id, "Completed")
    assert (kept["description"], kept["llm_response"]) == ("Fix the typo", "The typo is in line 3.")
    assert (kept["retry_count"], kept["max_retries"], kept["calls"]) == (0, 3, 1)
    assert kept["agent"]["reasons"]["skill"] == "1 for fix"
    assert kept["agent"]["model"] == "offline-haiku"
    assert kept["duration_ms"] >= 0
    assert kept["started_at"] <= kept["completed_at"]


@pytest.mark.parametrize("description", ["", " \n ", "x" * 10_001, "é" * 5_001])
async def test_init_fails_without_a_retry_where_nothing_can_be_done(app: Keptwork, description: str) -> None:
    app.provider = Scripted()
    agent = await started(app, description)
    await done(app)
    assert await moves(app, agent) == [("failure", "FAILED")]
    kept = await record(app, agent)
    assert (kept.status, json.loads(kept.state_transitions), kept.retry_count) == ("Failed", ["INIT"], 0)
    assert kept.agent is None
    assert kept.llm_response is None
    assert not app.provider.asked
    with pytest.raises(JobFailed):
        await agent.result()


async def test_ten_thousand_bytes_are_not_too_many(app: Keptwork) -> None:
    app.provider = Scripted()
    agent = await started(app, "é" * 5_000)
    await done(app)
    assert (await record(app, agent)).status == "Completed"


async def test_define_agent_fails_without_a_retry_where_there_is_no_such_skill(app: Keptwork) -> None:
    app.provider = Scripted()
    agent = await started(app, skill="juggling")
    await done(app)
    assert await moves(app, agent) == [("success", "DEFINE_AGENT"), ("failure", "FAILED")]
    kept = await record(app, agent)
    assert json.loads(kept.state_transitions) == ["INIT", "DEFINE_AGENT"]
    assert "no skill 'juggling'; there are: testing" in str(kept.reason)


@pytest.mark.parametrize("failures", range(5))
async def test_process_is_tried_again_while_there_are_retries(app: Keptwork, failures: int) -> None:
    app.provider = Scripted(*[SystemFailure("too much to do") for _ in range(failures)], "fine")
    agent = await started(app, max_retries=3)
    await done(app)
    retries = [("retry", "PROCESS")] * min(failures, 3)
    ends = [("success", "END"), ("success", "COMPLETED")] if failures < 4 else [("failure", "FAILED")]
    assert await moves(app, agent) == [("success", "DEFINE_AGENT"), ("success", "PROCESS"), *retries, *ends]
    kept = await record(app, agent)
    assert kept.retry_count == min(failures, 3)
    assert len(app.provider.asked) == min(failures, 3) + 1 == kept.calls
    assert json.loads(kept.state_transitions) == _as_next_says(failures, 3)


def _as_next_says(failures: int, most: int) -> list[str]:
    """The states that the pure function leaves for a job whose first calls in PROCESS fail."""
    job = AgentJob("a", "b", retry_config=RetryConfig(most))
    while True:
        fails = job.state == "PROCESS" and job.retry_count + 1 <= failures
        step = following(job, Failure(System("too much to do")) if fails else Success())
        job = step.job
        if isinstance(step, Complete):
            return list(job.state_history)


async def test_end_fails_without_a_retry(app: Keptwork) -> None:
    """The worker dies when it has come to END; the next finds that it cannot say what came of it."""
    app.provider = Scripted()
    agent = await started(app)
    await work_and_die(app, {agent.job_id: 6})
    assert (await row(app, agent))["state"] == "END"
    store = await app.open()
    await store.amend(AGENT, [agent.key], app.tenant_id, skill="gone")
    await done_after_lease(app)
    assert (await moves(app, agent))[-1] == ("failure", "FAILED")
    kept = await record(app, agent)
    assert (kept.status, json.loads(kept.state_transitions), kept.retry_count) == ("Failed", GOOD, 0)
    assert kept.llm_response == "fine"


async def done_after_lease(app: Keptwork) -> None:
    await end_leases(app)
    await done(app)


# --- waiting


async def test_the_wait_doubles_and_is_at_least_what_the_provider_asked_for(app: Keptwork) -> None:
    failures: list[Any] = [SystemFailure("x"), SystemFailure("x"), SystemFailure("x", retry_after_us=90_000_000)]
    app.provider = Scripted(*failures, "fine")
    agent = await started(app, retry_base="1s")
    store = await app.open()
    waits = []
    for _ in range(3):
        await app.work(until_idle=True)
        job = await entity(store, JOB, agent.job_key)
        waits.append(job["run_at"] - job["updated_at"])
        async with store.transaction() as tx:
            await tx.execute("UPDATE jobs SET run_at = 0")
    assert waits == [1_000_000, 2_000_000, 90_000_000]
    await app.work(until_idle=True)
    job = await entity(store, JOB, agent.job_key)  # the provider is left alone for as long as it asked, whoever comes
    assert (job["waits_for"], len(app.provider.asked)) == ("room under a limit", 3)


# --- answers that are no good


async def test_what_was_wrong_with_an_answer_reaches_the_next_attempt(app: Keptwork) -> None:
    app.provider = Scripted("not JSON at all", '{"n": 3}')
    agent = await started(app, "Count the tests", schema=SCHEMA)
    await done(app)
    result = await agent.result()
    assert (result["json"], result["text"]) == ({"n": 3}, '{"n": 3}')
    first, second = texts(app.provider.asked)
    assert first == ["Count the tests"]
    assert second[:2] == ["Count the tests", "not JSON at all"]
    assert second[2].startswith("That is not what was asked for: ")
    assert '"required":["n"]' in app.provider.asked[0].system
    assert [trigger for trigger, _ in await moves(app, agent)].count("retry") == 1
    kept = await record(app, agent)
    assert (kept.retry_count, kept.calls) == (1, 2)


@pytest.mark.parametrize(
    "bad", [said("", "m"), said("I will not", "m", Stop.REFUSED), said("And so", "m", Stop.LENGTH)]
)
async def test_an_empty_a_refused_and_a_cut_answer_are_business_failures(app: Keptwork, bad: Any) -> None:
    app.provider = Scripted(bad)
    agent = await started(app, max_retries=1)
    await done(app)
    kept = await record(app, agent)
    assert (kept.status, kept.retry_count, kept.calls) == ("Failed", 1, 2)
    assert str(kept.reason).startswith("PermanentError: Business failure: ")


async def test_a_business_failure_of_the_provider_is_tried_again(app: Keptwork) -> None:
    app.provider = Scripted(BusinessFailure("a reply nobody can read"), "fine")
    agent = await started(app)
    await done(app)
    assert (await record(app, agent)).retry_count == 1
    assert texts(app.provider.asked) == [["Fix the typo"], ["Fix the typo"]]


# --- a crash at any point


async def test_a_crash_at_any_point_resumes_in_the_same_state_and_is_no_retry(app: Keptwork) -> None:
    app.provider = provider = FailsOnceForEach(lambda: BusinessFailure("unreadable"))
    handles = [await started(app, f"Fix the typo {number}") for number in range(10)]
    await work_and_die(app, {handle.job_id: number for number, handle in enumerate(handles)})
    left = [await row(app, handle) for handle in handles]
    assert [one["state"] for one in left] == ["INIT"] * 2 + ["DEFINE_AGENT"] + ["PROCESS"] * 6 + ["END"]
    assert [one["retry_count"] for one in left] == [0] * 5 + [1] * 5
    before = {one["id"]: (one, one["retry_count"]) for one in left}
    await done_after_lease(app)
    for number, handle in enumerate(handles):
        events = await story(app, handle)
        kept = await record(app, handle)
        retried = number != 4  # that one's failure was lost with its worker, and the next call did not fail
        assert (kept.status, kept.retry_count) == ("Completed", int(retried))
        again = ["PROCESS"] if retried else []
        assert json.loads(kept.state_transitions) == ["INIT", "DEFINE_AGENT", "PROCESS", *again, "END"]
        seen, retries = before[handle.key]
        assert next(event for event in events if event.seq == seen["seq"] + 1).from_state == seen["state"]
        assert kept.retry_count - retries == [event.trigger for event in events[seen["seq"] :]].count("retry")
    # Each is asked twice; only the one that died between the good reply and its commit once more.
    assert len(provider.asked) == 2 * len(handles) + 1


async def test_an_answer_that_was_kept_is_not_asked_for_again(app: Keptwork) -> None:
    """It dies at each of the points after the answer was kept, and the model is asked once."""
    app.provider = provider = Scripted("fine")
    handles = {(await started(app)).job_id: asks for asks in (5, 6, 7)}
    await work_and_die(app, handles)
    assert len(provider.asked) == 3
    await done_after_lease(app)
    assert len(provider.asked) == 3
    store = await app.open()
    assert {(one["state"], one["calls"]) for one in await store.agents(app.tenant_id)} == {("COMPLETED", 1)}


async def test_a_crash_between_the_reply_and_the_commit_asks_once_more(app: Keptwork) -> None:
    app.provider = provider = Scripted("fine")
    agent = await started(app)
    await work_and_die(app, {agent.job_id: 4})
    assert (len(provider.asked), (await row(app, agent))["calls"]) == (1, 0)
    await done_after_lease(app)
    assert (len(provider.asked), (await record(app, agent)).calls) == (2, 2), "the lost call is one, too"


async def test_a_worker_dying_of_it_each_time_ends_it_with_a_record(app: Keptwork) -> None:
    app.provider = Scripted()
    agent = await started(app, max_retries=0)
    store = await app.open()
    await store.amend(JOB, [agent.job_key], app.tenant_id, max_attempts=2)

    async def ended() -> bool:
        await work_and_die(app, {agent.job_id: 3})
        await end_leases(app)
        return (await row(app, agent))["completed_at"] is not None

    await eventually(ended)
    kept = await record(app, agent)
    assert (kept.status, kept.retry_count) == ("Failed", 0)
    assert "the lease of its worker ended in attempt 2 of 2" in str(kept.reason)


# --- ends that come from elsewhere


async def test_a_cancelled_job_ends_its_agent_with_a_record(app: Keptwork) -> None:
    agent = await started(app)
    store = await app.open()
    await queries.cancel(store, app.tenant_id, agent.job_id, reason="not wanted any more")
    kept = await record(app, agent)
    assert (kept.status, kept.reason) == ("Failed", "not wanted any more")
    assert json.loads(kept.state_transitions) == ["INIT"]
    job, last = await entity(store, JOB, agent.job_key), (await story(app, agent))[-1]
    assert (job["state"], last.cause) == ("cancelled", agent.job_id)


async def test_a_job_ended_by_hand_ends_its_agent_with_the_next_look_around(app: Keptwork) -> None:
    from keptwork.maintenance.periodic import Outage
    from keptwork.maintenance.reconciler import FollowUp

    agent = await started(app)
    store = await app.open()
    await store.apply([insist(decide(JOB, await entity(store, JOB, agent.job_key), "cancel", reason="by hand"))])
    with pytest.raises(NotFound, match="it is INIT"):
        await agent.audit()
    await FollowUp(store, Outage()).run_once()
    assert (await agent.audit())["reason"] == "by hand"


async def test_a_job_that_succeeded_unheard_completes_its_agent(app: Keptwork) -> None:
    app.provider = Scripted()
    agent = await started(app)
    await work_and_die(app, {agent.job_id: 6})
    store = await app.open()
    job = await entity(store, JOB, agent.job_key)
    token = Token(job["owner"], job["epoch"])
    await store.apply([insist(decide(JOB, job, "succeed", token=token, values={"result": "{}"}))])
    assert await agent_moves.mend(store, 10) == 1
    kept = await agent.audit()
    assert (kept["status"], kept["reason"], kept["state_transitions"]) == ("Completed", None, GOOD)


# --- starting


async def test_the_same_key_starts_one_agent(app: Keptwork) -> None:
    first, second = [await started(app, key="order-17") for _ in range(2)]
    assert (first.key, first.job_key) == (second.key, second.job_key)
    assert len(await (await app.open()).agents(app.tenant_id)) == 1


async def test_a_job_that_is_run_again_is_an_agent_job_of_its_own(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("down"), "fine")
    agent = await started(app, max_retries=0)
    await done(app)
    store = await app.open()
    again = await queries.retry(store, app.tenant_id, agent.job_id)
    await done(app)
    (new,) = await store.agents_of_jobs([again])
    assert (new["state"], new["description"]) == ("COMPLETED", "Fix the typo")
    assert (await row(app, agent))["state"] == "FAILED"


async def test_another_tenant_sees_neither_the_job_nor_its_record(app: Keptwork) -> None:
    app.provider = Scripted()
    agent = await started(app)
    await done(app)
    store = await app.open()
    theirs = await store.add_tenant("other")
    for id in (agent.id, agent.job_id):
        with pytest.raises(NotFound):
            await agents.audit(store, theirs, id)
    assert await store.agent_audits(theirs) == []
    assert await store.agents(theirs) == []


async def test_a_move_whose_answer_was_lost_is_made_once(app: Keptwork) -> None:
    agent = await started(app)
    store = await app.open()
    (job,) = await claim(store, await worker(store), start=True)
    before = await row(app, agent)
    first, second = [await agent_moves.advance(store, job, before) for _ in range(2)]
    assert first == second
    assert await moves(app, agent) == [("success", "DEFINE_AGENT")]


async def test_a_worker_that_lost_the_job_moves_nothing(app: Keptwork) -> None:
    agent = await started(app)
    store = await app.open()
    (job,) = await claim(store, await worker(store), start=True)
    await queries.cancel(store, app.tenant_id, agent.job_id, hard=True)
    before = await row(app, agent)
    with pytest.raises(LeaseLost):
        await agent_moves.advance(store, job, before)
    assert await row(app, agent) == before
