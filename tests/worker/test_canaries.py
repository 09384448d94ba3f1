"""Secrets that go in at every door of an agent: none of them rests anywhere."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents.conversation import Answer, Request, SystemFailure
from keptwork.agents.tool_loop import Limits, Toolbox, converse
from keptwork.core.secrets import Redactor
from keptwork.flows import approvals
from keptwork.flows.approvals import APPROVED
from keptwork.workers.tool_runner import ToolSpec, run_tool
from tests.process.tool_stage import PATH
from tests.support.at_rest import everything
from tests.support.command import run
from tests.worker.agent_stage import Scripted, config, heard, kept_turns, question, says, uses

pytestmark = pytest.mark.acceptance

OURS = 1
KNOWN = "canary-Zx81-known-to-the-environment"
SHAPED = "ghp_canary0123456789abcdefghijklmnop"
BEARER = "canary.bearer.0123456789"
CANARIES = (KNOWN, SHAPED, BEARER, base64.b64encode(KNOWN.encode()).decode()[:40])
LEAK = f"known {KNOWN}, shaped {SHAPED}, Authorization: Bearer {BEARER}"
SHELL = f"echo '{LEAK}'; echo '{LEAK}' >&2; sleep 0.3; "


def treacherous(request: Request) -> Answer:
    """A model that says all it should not, and gives it to tools."""
    match len(heard(request)):
        case 0:
            return uses(("leak", {"text": "x"}), ("fail", {"text": "x"}), ("ship", {"text": LEAK}), text=LEAK)
        case 3:
            return says(f"I was told: {LEAK} {request.messages[-1].text}")
    raise AssertionError("it is told of three tools")


async def spread(app: Keptwork, folder: Path) -> None:
    """Lets secrets in at every door: prompt, reply, arguments, tools in agents and in flows, failures."""
    settings = config(
        folder,
        leak={"command": ["sh", "-c", SHELL]},
        fail={"command": ["sh", "-c", f"{SHELL} exit 1"]},
        ship={"approval": True},
    )
    tools = Toolbox(settings, ("leak", "fail", "ship"))

    @app.job(name="agent", max_attempts=1, on_exhausted="fail")
    async def agent(ctx: Any) -> str:
        ask = kept_turns(ctx, Scripted(treacherous))
        return (await converse(ctx, question(f"Do it with {LEAK}", LEAK), tools, Limits(), ask)).text

    @app.job(name="broken", max_attempts=1, on_exhausted="fail")
    async def broken(ctx: Any) -> str:
        def script(request: Request) -> Answer:
            raise SystemFailure(f"HTTP 401: {LEAK}")

        return (await converse(ctx, question(), None, Limits(), kept_turns(ctx, Scripted(script)))).text

    @app.job(name="tool", max_attempts=1, on_exhausted="fail")
    async def tool(ctx: Any, ending: str) -> Any:
        return await run_tool(ctx, ToolSpec(("sh", "-c", f"{SHELL}{ending}"), "build", {"PATH": PATH}))

    await agent.enqueue()
    await broken.enqueue()
    await app.enqueue_many(tool, [{"ending": "true"}, {"ending": "exit 3"}])
    await app.work(until_idle=True)
    store = await app.open()
    (asked,) = await approvals.listed(store, OURS)
    await approvals.decide(store, OURS, asked.public_id, APPROVED, by="ann")
    await app.work(until_idle=True)


def shown(url: str) -> str:
    """What the command line tells of these jobs."""
    listed = _told("approvals", "list", "--all", "--json", "--db", url)
    (asked,) = json.loads(listed)["approvals"]
    return listed + _told("jobs", "show", asked["job_id"], "--db", url)


def _told(*command: str) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def found(text: str) -> list[str]:
    return [canary for canary in CANARIES if canary in text]


async def test_no_secret_rests_in_the_database_the_logs_or_on_the_screen(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", KNOWN)
    with caplog.at_level(logging.DEBUG):
        async with Keptwork(database_url) as app:
            await spread(app, tmp_path)
    kept = await everything(database_url)
    assert kept.count("[redacted: CANARY_TOKEN]") > 10
    assert found(kept) == found(caplog.text) == []
    assert found(await asyncio.to_thread(shown, database_url)) == []


async def test_the_check_above_finds_them_where_nothing_is_taken_out(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Redactor, "text", lambda self, text: text)
    async with Keptwork(sqlite_url) as app:
        await spread(app, tmp_path)
    assert set(found(await everything(sqlite_url))) >= {KNOWN, SHAPED, BEARER}
