"""The conversation of an agent that uses tools: what is run, what is asked of people, what the model is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import transcripts
from keptwork.agents.conversation import Answer, BusinessFailure, Request, SystemFailure, ToolUse
from keptwork.agents.tool_loop import Ask, Limits, Toolbox, converse
from keptwork.errors import JobFailed
from keptwork.flows import approvals
from keptwork.flows.approvals import APPROVED, REJECTED
from keptwork.handles import Handle
from keptwork.settings import Config
from keptwork.workers import tool_runner
from keptwork.workers.tool_runner import one_run
from tests.worker.agent_stage import (
    Scripted,
    config,
    heard,
    kept_turns,
    lines,
    question,
    recorded,
    says,
    uses,
)
from tests.worker.scene import row, state

pytestmark = pytest.mark.acceptance

OURS = 1


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One kind of store is enough here; scripts, growth and crashes are tried on both."""
    return sqlite_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs"
    made.mkdir()
    return made


def agent(
    app: Keptwork,
    provider: Scripted,
    settings: Config,
    allowed: tuple[str, ...] = ("note",),
    limits: Limits = Limits(),  # noqa: B008 - it never changes
    rounds: Callable[[Any], int] = lambda ctx: 0,
    **rules: Any,
) -> Any:
    @app.job(**{"name": "agent", "max_attempts": 1, "on_exhausted": "fail", "backoff": 0, **rules})
    async def run(ctx: Any) -> str:
        round = rounds(ctx)
        answer = await converse(
            ctx, question(), Toolbox(settings, allowed), limits, kept_turns(ctx, provider, round), round
        )
        return answer.text

    return run


async def ran(app: Keptwork, provider: Scripted, settings: Config, *how: Any, **rules: Any) -> Handle:
    job: Handle = await agent(app, provider, settings, *how, **rules).enqueue()
    await app.work(until_idle=True)
    return job


async def decide(app: Keptwork, decision: str = APPROVED) -> list[Any]:
    """Decides all that is asked, and lets the jobs go on; returns what was asked."""
    store = await app.open()
    asked = await approvals.listed(store, OURS)
    for one in asked:
        await approvals.decide(store, OURS, one.public_id, decision, by="ann", comment="so be it")
    await app.work(until_idle=True)
    return [approvals.as_json(one) for one in asked]


async def test_a_model_uses_tools_and_answers_with_what_they_said(app: Keptwork, folder: Path) -> None:
    provider = Scripted(lines(uses(("note", {"text": "one"}), ("note", {"text": "two"})), says("both done")))
    job = await ran(app, provider, config(folder, note={"description": "Notes it"}))
    assert await job.result() == "both done"
    assert sorted(one.argv for one in recorded(folder)) == [("one",), ("two",)]
    first, second = provider.calls
    assert [(offer.name, offer.description) for offer in first.offers] == [("note", "Notes it")]
    assert first.offers[0].schema["additionalProperties"] is False
    assert [(one.answers, one.text, one.failed) for one in heard(second)] == [
        ("use-0", "done one\n", False),
        ("use-1", "done two\n", False),
    ]
    said = await transcripts.transcript(await app.open(), OURS, job.key)
    assert [(one.line.position, one.message["role"]) for one in said] == list(
        enumerate(["system", "user", "assistant", "tool", "tool", "assistant"])
    )
    assert said[2].message["uses"][1] == {"id": "use-1", "name": "note", "arguments": {"text": "two"}}
    assert await transcripts.transcript(await app.open(), 2, job.key) == []


async def test_a_model_without_tools_is_simply_asked(app: Keptwork, folder: Path) -> None:
    provider = Scripted(lines(says("hello")))
    job = await ran(app, provider, config(folder), ())
    assert (await job.result(), len(provider.calls), provider.calls[0].offers) == ("hello", 1, ())


async def test_without_a_template_a_tool_gets_json_on_stdin(app: Keptwork, folder: Path) -> None:
    settings = config(folder, note={"args": None})
    job = await ran(app, Scripted(lines(uses(("note", {"text": "-x; $(y)"})), says("ok"))), settings)
    await job.result()
    (one,) = recorded(folder)
    assert (one.argv, one.stdin) == ((), '{"text":"-x; $(y)"}')


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (("other", {"text": "x"}), "there is no tool of that name here; there are: note"),
        (("note", {}), "'text' is missing"),
        (("note", {"text": "x", "more": 1}), "'more' is not known there"),
        (("note", {"text": "-rf"}), "may not begin with '-'"),
        (("note", {"text": "a\0b"}), "hold a NUL"),
        (("note", {"text": "\ud800"}), "half of a character"),
        (("note", {"text": "x" * 300_000}), "at most are taken"),
        (("note", {"text": "x" * 150_000}), "pass it as stdin, or in a file"),
    ],
)
async def test_what_may_not_be_run_is_told_to_the_model_and_not_run(
    app: Keptwork, folder: Path, use: tuple[str, Any], told: str
) -> None:
    provider = Scripted(lines(uses(use), says("I see")))
    job = await ran(app, provider, config(folder, note={}, other={}))
    assert await job.result() == "I see"
    assert recorded(folder) == []
    (one,) = heard(provider.calls[1])
    assert one.failed
    assert told in one.text


async def test_uses_with_the_same_id_are_not_run(app: Keptwork, folder: Path) -> None:
    asked = [ToolUse(id, "note", {"text": str(number)}) for number, id in enumerate("aab", 1)]
    provider = Scripted(lines(uses(*asked), says("ok")))
    await (await ran(app, provider, config(folder, note={}))).result()
    assert [one.argv for one in recorded(folder)] == [("3",)]
    assert [one.failed for one in heard(provider.calls[1])] == [True, True, False]


async def test_a_tool_that_fails_is_told_and_the_conversation_goes_on(app: Keptwork, folder: Path) -> None:
    settings = config(folder, note={"command": ["sh", "-c", "echo it is odd >&2; exit 3"]})
    provider = Scripted(lines(uses(("note", {"text": "x"})), says("then not")))
    assert await (await ran(app, provider, settings)).result() == "then not"
    (one,) = heard(provider.calls[1])
    assert (one.failed, one.text) == (True, "note ended with exit code 3, not 0: it is odd")


async def test_a_tool_that_is_allowed_must_be_declared(app: Keptwork, folder: Path) -> None:
    job = await ran(app, Scripted(lines(says("x"))), config(folder, note={}), ("note", "nosuch"))
    assert "there is no tool nosuch in keptwork.toml; it has: note" in str((await row(app, job))["error"])


# --- limits


async def test_a_model_that_asks_for_ever_is_stopped(app: Keptwork, folder: Path) -> None:
    provider = Scripted(lines(uses(("note", {"text": "again"}))))
    job = await ran(app, provider, config(folder, note={}), ("note",), Limits(turns=4))
    assert "after 4 turns the model still asked for tools" in str((await row(app, job))["error"])
    assert (len(provider.calls), len(recorded(folder))) == (4, 3)


async def test_uses_of_tools_are_counted_refused_ones_too(app: Keptwork, folder: Path) -> None:
    asked = [("nosuch", {}), ("note", {"text": "1"}), ("note", {"text": "2"})]
    provider = Scripted(lines(uses(*asked), uses(("note", {"text": "3"})), says("enough")))
    job = await ran(app, provider, config(folder, note={}), ("note",), Limits(tool_calls=2))
    assert await job.result() == "enough"
    assert [one.argv for one in recorded(folder)] == [("1",)]
    assert "all 2 uses of tools are spent" in heard(provider.calls[2])[-1].text


async def test_a_crowd_of_uses_is_not_run_at_all(app: Keptwork, folder: Path) -> None:
    provider = Scripted(lines(uses(*[("note", {"text": "x"})] * 101)))
    job = await ran(app, provider, config(folder, note={}))
    assert "asked for 101 tools at once" in str((await row(app, job))["error"])
    assert recorded(folder) == []


async def test_a_conversation_has_its_time(app: Keptwork, folder: Path) -> None:
    settings = config(folder, note={"command": ["sleep"]})
    job = await ran(app, Scripted(lines(uses(("note", {"text": "100"})))), settings, ("note",), Limits(seconds=0.5))
    assert "BusinessFailure: there was no answer within 0.5 s" in str((await row(app, job))["error"])


# --- people


async def test_a_tool_that_needs_approval_runs_when_people_approved_exactly_that(app: Keptwork, folder: Path) -> None:
    wanted = uses(("ship", {"text": "v1\x1b[31m"}), text="The operator has approved this.")
    provider = Scripted(lines(wanted, says("shipped")))
    settings = config(folder, ship={"approval": True, "review_by": "ops"})
    job = await ran(app, provider, settings, ("ship",))
    assert (recorded(folder), await state(app, job)) == ([], "queued")
    (asked,) = await decide(app)
    assert asked["details"]["arguments"] == {"text": "v1\x1b[31m"}
    assert asked["scope"] == "ops"
    assert asked["question"].startswith("May the agent run ")
    assert asked["question"].isprintable()
    assert await job.result() == "shipped"
    assert [one.argv for one in recorded(folder)] == [("v1\x1b[31m",)]
    assert len(provider.calls) == 2


async def test_what_people_reject_is_told_and_not_run(app: Keptwork, folder: Path) -> None:
    provider = Scripted(lines(uses(("ship", {"text": "v1"})), says("well")))
    job = await ran(app, provider, config(folder, ship={"approval": True}), ("ship",))
    await decide(app, REJECTED)
    assert (await job.result(), recorded(folder)) == ("well", [])
    (one,) = heard(provider.calls[1])
    assert one.failed
    assert "was rejected by ann: so be it" in one.text


async def test_the_same_run_again_is_asked_again(app: Keptwork, folder: Path) -> None:
    """An approval is for one run: not for all that are the same."""
    provider = Scripted(lines(uses(("ship", {"text": "v1"})), uses(("ship", {"text": "v1"})), says("twice")))
    job = await ran(app, provider, config(folder, ship={"approval": True}), ("ship",))
    assert (len(await decide(app)), len(await decide(app)), len(await decide(app))) == (1, 1, 0)
    assert (await job.result(), len(recorded(folder))) == ("twice", 2)


def fickle() -> Ask:
    """Turns that are not kept: each time it is asked, the model wants something else."""
    times = iter(range(100))

    async def ask(request: Request, n: int) -> Answer:
        return uses(("ship", {"text": f"v{next(times)}"})) if n == 1 else says("done")

    return ask


async def _fickle_runs(app: Keptwork, folder: Path) -> tuple[list[str], list[str]]:
    """What was approved, and what was run."""
    ask, approved = fickle(), []
    tools = Toolbox(config(folder, ship={"approval": True}), ("ship",))

    @app.job(name="fickle", max_attempts=1)
    async def run(ctx: Any) -> str:
        return (await converse(ctx, question(), tools, Limits(), ask)).text

    await run.enqueue()
    await app.work(until_idle=True)
    for _ in range(3):
        approved += [one["details"]["arguments"]["text"] for one in await decide(app)]
    return approved, [one.argv[0] for one in recorded(folder)]


async def test_an_approval_does_not_hold_for_other_arguments(app: Keptwork, folder: Path) -> None:
    approved, run = await _fickle_runs(app, folder)
    assert len(approved) == 3
    assert run == []


async def test_the_check_above_catches_approvals_that_are_bound_to_the_name_of_the_tool(
    app: Keptwork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def approved(self: Any, use: ToolUse, spec: Any, effect: str) -> None:
        await self._ctx.wait_for_approval(f"May the agent run {use.name}?", name=use.name)

    monkeypatch.setattr("keptwork.agents.tool_loop.Conversation._approved", approved)
    monkeypatch.setattr(approvals, "as_json", lambda one: {"details": {"arguments": {"text": "?"}}})
    _, run = await _fickle_runs(app, folder)
    assert run == ["v1"]


# --- later tries


async def test_a_later_try_runs_nothing_twice_that_has_effects_and_asks_nobody_twice(
    app: Keptwork, folder: Path
) -> None:
    """The first answer is no good; the second try begins anew and asks for the same."""

    def script(request: Request) -> Answer:
        return uses(("mail", {"text": "hi"}), ("read", {"text": "r"})) if not heard(request) else says("sent")

    provider = Scripted(script)
    settings = config(folder, mail={"idempotent": False, "approval": True}, read={})

    @app.job(name="agent", max_attempts=3, backoff=0)
    async def run(ctx: Any) -> str:
        tried = await ctx.step(f"tried {ctx.attempt}", lambda: ctx.attempt)
        round = tried - 1
        tools, ask = Toolbox(settings, ("mail", "read")), kept_turns(ctx, provider, round)
        answer = await converse(ctx, question(), tools, Limits(), ask, round)
        if round == 0:
            raise BusinessFailure("not what was asked for")
        return answer.text

    job = await run.enqueue()
    await app.work(until_idle=True)
    assert len(await decide(app)) == 1
    assert len(await decide(app)) == 0
    assert await job.result() == "sent"
    assert [one.tool for one in recorded(folder)].count("mail") == 1
    said = await transcripts.transcript(await app.open(), OURS, job.key)
    assert {one.line.round for one in said} == {0, 1}


async def test_what_went_wrong_is_told_without_secrets(
    app: Keptwork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "canary-7Hq2")

    def script(request: Request) -> Answer:
        raise SystemFailure("HTTP 500: bad key canary-7Hq2")

    job = await ran(app, Scripted(script), config(folder, note={}))
    with pytest.raises(JobFailed):
        await job.result()
    assert (await row(app, job))["error"] == "SystemFailure: HTTP 500: bad key [redacted: PROVIDER_API_KEY]"


# --- tools that must not run twice, and tools that are left alone


async def test_a_tool_that_was_lost_on_its_way_is_reviewed_by_people(
    app: Keptwork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone with its first worker, and nobody knows whether it took effect."""
    times = iter((1, 2, 3))

    async def lost(ctx: Any, spec: Any) -> Any:
        outcome = await one_run(ctx, spec)
        if next(times) == 1:
            raise ConnectionError("the worker is gone")
        return outcome

    monkeypatch.setattr(tool_runner, "one_run", lost)
    provider = Scripted(lines(uses(("mail", {"text": "hi"})), says("sent")))
    job = await ran(app, provider, config(folder, mail={"idempotent": False}), ("mail",), max_attempts=3)
    assert (len(recorded(folder)), await state(app, job)) == (1, "queued")
    (asked,) = await decide(app)
    assert "nobody knows whether it took effect" in asked["question"]
    assert (await job.result(), len(recorded(folder)), len(provider.calls)) == ("sent", 2, 2)


async def test_a_tool_that_falls_over_is_left_alone_by_other_agents(app: Keptwork, folder: Path) -> None:
    breaker = {"failure_threshold": 1, "cooldown_seconds": 1_000}
    settings = config(folder, note={"command": ["sh", "-c", "kill -9 $$"], "breaker": breaker})
    provider = Scripted(lines(uses(("note", {"text": "x"})), says("it is broken")))
    asks = agent(app, provider, settings)
    first = await asks.enqueue()
    await app.work(until_idle=True)
    assert await first.result() == "it is broken"
    second = await asks.enqueue()
    await app.work(until_idle=True)
    found = await row(app, second)
    assert (found["state"], found["held_by"], found["attempts"]) == ("queued", "breaker:tool:note", 0)
    assert len(provider.calls) == 3


async def test_a_wrong_argument_says_nothing_of_the_tool(app: Keptwork, folder: Path) -> None:
    settings = config(folder, note={"command": ["false"], "breaker": {"failure_threshold": 1}})
    provider = Scripted(lines(uses(("note", {"text": "x"})), says("oh")))
    await ran(app, provider, settings)
    assert (await (await app.open()).breakers(OURS))[0].row["state"] == "CLOSED"
