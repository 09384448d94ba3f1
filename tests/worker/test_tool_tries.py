"""The last try of a tool that is a step: it fails with what was wrong, and its breaker hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from tests.worker.test_approvals import the_question

pytestmark = pytest.mark.acceptance

PROFILES = """
[tools.exits]
command = ["false"]

[tools.hangs]
command = ["sleep", "60"]
timeout = "200ms"

[tools.once]
command = ["false"]
idempotent = false

[tools.lost]
command = ["sh", "-c", "kill -KILL $$"]
idempotent = false
retry_on_failure = false

[tools.stubborn]
command = ["false"]
retry_on_failure = false
"""

WRONG = {
    "exits": "s ended with exit code 1, not 0",
    "hangs": "s took longer than 0.2 s",
    "once": "s ended with exit code 1, not 0",
    "stubborn": "s ended with exit code 1, not 0",
}


@pytest.fixture
def workshop(tmp_path: Path, database_url: str) -> Keptwork:
    (tmp_path / "keptwork.toml").write_text(PROFILES)
    return Keptwork(database_url, config=str(tmp_path / "keptwork.toml"))


async def found(app: Keptwork, tool: str) -> dict[str, Any]:
    row = await (await app.open()).breaker(app.tenant_id, f"tool:{tool}")
    assert row is not None
    return row


@pytest.mark.parametrize("tool", WRONG)
async def test_the_only_try_of_a_tool_says_what_was_wrong_and_counts_for_its_breaker(
    workshop: Keptwork, tool: str
) -> None:
    async with workshop as app:
        flow = await app.start_flow({"name": "f", "steps": [{"id": "s", "tool": tool}]})
        await app.work(until_idle=True)
        assert (await flow.ended("10s")).error == f"s: PermanentError: {WRONG[tool]}"
        assert (await found(app, tool))["failures"] == 1


async def test_a_tool_whose_steps_are_not_tried_again_opens_its_breaker_all_the_same(workshop: Keptwork) -> None:
    async with workshop as app:
        for _ in range(5):
            await app.start_flow({"name": "f", "steps": [{"id": "s", "tool": "exits"}]})
        await app.work(until_idle=True, concurrency=1)
        assert (await found(app, "exits"))["state"] == "OPEN"


async def test_people_who_reject_a_second_run_say_nothing_of_the_tool(workshop: Keptwork) -> None:
    async with workshop as app:
        flow = await app.start_flow({"name": "f", "steps": [{"id": "s", "tool": "lost"}]})
        await app.work(until_idle=True)
        await app.reject((await the_question(app)).public_id, by="ann")
        await app.work(until_idle=True)
        assert "rejected by ann" in str((await flow.ended("10s")).error)
        assert (await found(app, "lost"))["failures"] == 0
