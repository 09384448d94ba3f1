"""Agents as steps of flows and as shares of crews: the same path, and what comes of them is a step's output."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import budget_caps, transcripts
from keptwork.agents.conversation import Answer, Request, SystemFailure, Usage
from keptwork.core.ids import resolve
from keptwork.core.lifecycles import JOB
from tests.worker.agent_scene import Scripted, said, texts
from tests.worker.test_agent_jobs import done

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def flow(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "notes", "steps": list(steps), **more}


async def carried_out(app: Keptwork, what: dict[str, Any]) -> Any:
    handle = await app.start_flow(what)
    await done(app)
    return await handle.report(), await handle.outputs() if (await handle.report()).word == "succeeded" else None


async def test_an_agent_step_is_an_agent_job_with_its_output_as_the_steps(app: Keptwork) -> None:
    app.provider = Scripted(said('{"n": 3}', "offline-sonnet"))
    first = {"id": "count", "agent": "Count the tests", "tier": "sonnet", "skill": "testing", "output_schema": SCHEMA}
    then = {"id": "say", "agent": "There are ${count.json.n}", "depends_on": ["count"]}
    report, outputs = await carried_out(app, flow(first, then))
    assert report.word == "succeeded"
    counted = outputs["count"]
    assert (counted["json"], counted["tier"], counted["skill"]) == ({"n": 3}, "sonnet", "testing")
    assert {"text", "model", "cost_micros", "cost_usd", "input_tokens", "output_tokens"} <= set(counted)
    assert texts(app.provider.asked)[1] == ["There are 3"]
    store = await app.open()
    rows = await store.agents(app.tenant_id)
    assert [(row["state"], row["description"]) for row in rows] == [
        ("COMPLETED", "There are 3"),
        ("COMPLETED", "Count the tests"),
    ]
    assert len(await store.agent_audits(app.tenant_id)) == 2


async def test_a_retry_of_an_agent_step_is_one_of_the_step_the_job_and_the_agent(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("busy"), "fine")
    report, _ = await carried_out(app, flow({"id": "ask", "agent": "Fix it", "retries": 1, "backoff": "1ms"}))
    assert report.word == "succeeded"
    (agent,) = await (await app.open()).agents(app.tenant_id)
    (step,) = await (await app.open()).steps(resolve(report.id).key)
    assert (agent["retry_count"], step["retry_count"]) == (1, 1)


@pytest.mark.parametrize("retries", [0, 2])
async def test_an_agent_step_that_fails_for_good_fails_its_flow_and_leaves_a_record(
    app: Keptwork, retries: int
) -> None:
    app.provider = Scripted(SystemFailure("down"))
    report, _ = await carried_out(
        app, flow({"id": "ask", "agent": "Fix it", "retries": retries, "backoff": "1ms"}, abandon_after="0s")
    )
    assert report.word in ("failed", "cancelled")
    (record,) = await (await app.open()).agent_audits(app.tenant_id)
    assert (record.status, record.retry_count, len(app.provider.asked)) == ("Failed", retries, retries + 1)


async def test_a_cancelled_flow_ends_the_agent_of_its_step_with_a_record(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("busy"), "fine")
    handle = await app.start_flow(flow({"id": "ask", "agent": "Fix it", "backoff": "1h"}))
    await app.work(until_idle=True)
    await handle.cancel("not wanted")
    (record,) = await (await app.open()).agent_audits(app.tenant_id)
    assert (record.status, record.reason, record.retry_count) == ("Failed", "not wanted", 1)


async def test_shares_of_a_crew_are_agent_jobs(app: Keptwork) -> None:
    app.provider = Scripted()
    report, outputs = await carried_out(app, flow({"id": "dig", "crew": {"task": "Fix it", "workers": 2}}))
    assert report.word == "succeeded"
    assert [share["text"] for share in outputs["dig"]["shares"]] == ["fine", "fine"]
    rows = await (await app.open()).agents(app.tenant_id)
    assert {row["description"] for row in rows} == {f"Fix it\n\nYou do share {n} of 2." for n in (1, 2)}


async def test_a_model_that_fails_again_and_again_is_left_alone(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("down"))
    for _ in range(3):
        await app.agent("Fix it", retry_base="1ms")
    await app.work(until_idle=True, concurrency=1)
    store = await app.open()
    async with store.transaction() as tx:
        await tx.execute("UPDATE jobs SET run_at = 0 WHERE completed_at IS NULL")
    await app.work(until_idle=True, concurrency=1)
    breaker = await store.breaker(app.tenant_id, "model:offline:offline-haiku")
    assert breaker is not None
    assert breaker["state"] == "OPEN"
    held = [row for row in await store.jobs(limit=10) if row["completed_at"] is None]
    assert {row["held_by"] for row in held} == {"breaker:model:offline:offline-haiku"}
    assert 5 <= len(app.provider.asked) <= 7  # one or two more may be under way when it opens


async def test_a_job_without_money_is_held_and_goes_on_when_it_gets_some(app: Keptwork, tmp_path: Path) -> None:
    app._config = _settings(
        tmp_path, 'haiku = "m"\n[models.prices."m"]\ninput_per_million_usd = 1\noutput_per_million_usd = 1'
    )
    app.provider = Scripted(said("fine", "m"), name="anthropic")
    agent = await app.agent("Fix it", budget_usd="0.000001")
    await app.work(until_idle=True)
    store = await app.open()
    (job,) = await store.rows(JOB, [agent.job_key])
    assert (job["held_by"], job["attempts"]) == (f"budget:job:{agent.job_id}", 0)
    assert app.provider.asked == []
    await budget_caps.set_cap(store, app.tenant_id, agent.job_id, 1_000_000, actor="ann")
    await done(app)
    kept = await agent.audit()
    assert (kept["status"], kept["calls"], kept["cost_micros"]) == ("Completed", 1, 15)


def _settings(folder: Path, text: str) -> str:
    file = folder / "keptwork.toml"
    file.write_text(f"[models]\n{text}\n")
    return str(file)


async def test_a_business_failure_may_move_one_tier_up_within_the_budget(app: Keptwork, tmp_path: Path) -> None:
    app._config = _settings(tmp_path, "escalate = true")
    app.provider = Scripted("no JSON", "again none", '{"n": 1}')
    agent = await app.agent("Count", schema=SCHEMA, tier="haiku", retry_base="1ms")
    await done(app)
    assert [request.model for request in app.provider.asked] == ["offline-haiku", "offline-sonnet", "offline-opus"]
    kept = await agent.audit()
    assert (kept["agent"]["tier"], kept["status"]) == ("opus", "Completed")
    assert [step["to"] for step in kept["agent"]["reasons"]["escalated"]] == ["sonnet", "opus"]


async def test_where_the_rules_have_nothing_to_say_a_cheap_model_may_choose_the_tier(
    app: Keptwork, tmp_path: Path
) -> None:
    app._config = _settings(tmp_path, "classifier = true")
    app.provider = Scripted("Opus, I think", "fine")
    agent = await app.agent("Fix it")
    await done(app)
    assert [request.model for request in app.provider.asked] == ["offline-haiku", "offline-opus"]
    kept = await agent.audit()
    assert (kept["agent"]["reasons"]["tier"], kept["calls"]) == ("the classifier says so", 2)
    asked: list[Request] = app.provider.asked
    assert "one word" in asked[0].system


async def test_a_flow_without_money_waits_and_completes_when_it_gets_more(app: Keptwork, tmp_path: Path) -> None:
    price = "input_per_million_usd = 1\noutput_per_million_usd = 1"
    app._config = _settings(tmp_path, f'haiku = "m"\n[models.prices."m"]\n{price}')
    app.provider = Scripted(Answer("fine", "m", Usage(3_000, 3_000)), name="anthropic")
    steps = [{"id": f"ask{n}", "agent": f"Fix it {n}", "tier": "haiku"} for n in range(3)]
    handle = await app.start_flow(flow(*steps, budget_usd=0.01))
    await app.work(until_idle=True, concurrency=1)
    store = await app.open()
    spent = (await store.budgets(app.tenant_id, scope="flow"))[0].budget.spent_micros
    assert 0 < spent <= 10_000
    waiting = [job for job in await store.jobs(limit=10) if job["completed_at"] is None]
    assert {job["held_by"] for job in waiting} == {f"budget:flow:{handle.id}"}
    await budget_caps.set_cap(store, app.tenant_id, handle.id, 1_000_000, actor="ann")
    await done(app)
    assert (await handle.report()).word == "succeeded"
    assert len(app.provider.asked) == 3


async def test_what_a_long_answer_cost_is_kept_with_its_step(app: Keptwork, tmp_path: Path) -> None:
    """What came of the step is a blob then; the cost used to be lost with it."""
    price = "input_per_million_usd = 1\noutput_per_million_usd = 1"
    app._config = _settings(tmp_path, f'haiku = "m"\n[models.prices."m"]\n{price}')
    app.provider = Scripted(Answer("long " * 20_000, "m", Usage(3_000, 4_000)), name="anthropic")
    handle = await app.start_flow(flow({"id": "ask", "agent": "Fix it", "tier": "haiku"}))
    await done(app)
    (view,) = (await handle.report()).steps
    assert view.cost == 7_000


async def test_record_of_an_agent_step_has_the_beginning_length_and_digest_of_what_was_sent(app: Keptwork) -> None:
    """It had the text of the file, with the reference in it."""
    app.provider = Scripted("fine")
    big = "One line of the report.\n" * 5_000
    step = {"id": "ask", "agent": "Summarise ${inputs.big}", "tier": "haiku"}
    handle = await app.start_flow(flow(step, inputs={"big": {}}), {"big": big})
    await done(app)
    sent, store = f"Summarise {big}", await app.open()
    (row,) = await store.agents(app.tenant_id)
    (record,) = await store.agent_audits(app.tenant_id)
    assert (row["state"], row["skill"]) == ("COMPLETED", "documentation")  # chosen by what is written in the file
    digest = sha256(sent.encode()).hexdigest()
    assert row["description"] == record.description == f"{sent[:2_000]}… [{len(sent):,} bytes, sha256 {digest}]"
    said = await transcripts.transcript(store, app.tenant_id, row["job_id"])
    assert [one.message["text"] for one in said if one.message["role"] == "user"] == [sent]
    assert (await handle.report()).word == "succeeded"


async def test_digest_on_record_is_that_of_the_transcript_from_which_secrets_were_taken_out(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.provider = Scripted("fine")
    step = {"id": "ask", "agent": "Summarise ${inputs.big}"}
    await app.start_flow(flow(step, inputs={"big": {}}), {"big": "correct-horse-battery-staple-17 " * 1_000})
    monkeypatch.setenv("SHOP_API_KEY", "correct-horse-battery-staple-17")
    await done(app)
    store = await app.open()
    (row,) = await store.agents(app.tenant_id)
    said = await transcripts.transcript(store, app.tenant_id, row["job_id"])
    (sent,) = [one.message["text"] for one in said if one.message["role"] == "user"]
    assert "horse" not in sent + row["description"]
    assert row["description"].endswith(f"… [{len(sent):,} bytes, sha256 {sha256(sent.encode()).hexdigest()}]")


async def test_transcript_has_what_was_sent_to_a_model_that_did_not_answer(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("busy"))
    await app.start_flow(flow({"id": "ask", "agent": "Fix the parser", "retries": 0}))
    await done(app)
    store = await app.open()
    (row,) = await store.agents(app.tenant_id)
    said = await transcripts.transcript(store, app.tenant_id, row["job_id"])
    assert row["state"] == "FAILED"
    assert [(one.message["role"], one.message["text"]) for one in said[1:]] == [("user", "Fix the parser")]


async def test_answer_after_a_failed_call_follows_what_was_sent_once(app: Keptwork) -> None:
    app.provider = Scripted(SystemFailure("busy"), "fine")
    await app.start_flow(flow({"id": "ask", "agent": "Fix the parser", "retries": 1, "backoff": "1ms"}))
    await done(app)
    store = await app.open()
    (row,) = await store.agents(app.tenant_id)
    said = await transcripts.transcript(store, app.tenant_id, row["job_id"])
    assert [one.message["role"] for one in said] == ["system", "user", "assistant"]


async def test_transcript_has_the_prompt_also_where_a_classifier_chose_the_tier(app: Keptwork, tmp_path: Path) -> None:
    """The exchange with the classifier took the places of the conversation."""
    app._config = _settings(tmp_path, "classifier = true")
    app.provider = Scripted("Opus, I think", "fine")
    agent = await app.agent("Fix it")
    await done(app)
    store = await app.open()
    (row,) = await store.agents(app.tenant_id)
    said = await transcripts.transcript(store, app.tenant_id, row["job_id"])
    first, *others = [(one.message["role"], one.message["text"]) for one in said]
    assert "one word" not in first[1]
    assert others == [("user", "Fix it"), ("assistant", "fine")]
    assert (await agent.audit())["calls"] == 2
