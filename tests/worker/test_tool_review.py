"""A tool that must not run twice: after a crash people decide, on either store, with real workers killed by -9."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.handles import Handle
from keptwork.workers.tool_runner import ToolSpec, run_tool
from tests.process.stage import until
from tests.process.survivors import NAME, assert_none, new_mark, survivors
from tests.process.tool_stage import PATH
from tests.support.command import environment
from tests.worker.scene import last, reaches, row, triggers, working
from tests.worker.test_approvals import the_question

pytestmark = pytest.mark.acceptance

ONCE = ["enqueue", "claim", "start"]
ONE_STORE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def mark() -> Iterator[str]:
    new = new_mark()
    yield new
    assert_none(new)


def pays(folder: str, mark: str, idempotent: bool, script: str) -> ToolSpec:
    """Leaves a line in `effects` each time it runs."""
    env = {"PATH": PATH, NAME: mark}
    command = ("sh", "-c", f"echo paid >> effects; {script}")
    return ToolSpec(command, "pay", env, folder, idempotent=idempotent, review_by="ops", tries=3)


HANGS = "if [ ! -e go ]; then sleep 1000; fi"


def declare(app: Keptwork, folder: str, mark: str, idempotent: bool, script: str = HANGS) -> Any:
    @app.job(name="pay", max_attempts=9, backoff=0)
    async def pay(ctx: Any) -> str:
        return str((await run_tool(ctx, pays(folder, mark, idempotent, script)))["stdout"])

    return pay


def _program(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment())


async def killed(app: Keptwork, folder: Path, mark: str, idempotent: bool) -> Handle:
    """A job whose worker is killed while its tool runs, after it took effect."""
    job: Handle = await declare(app, str(folder), mark, idempotent).enqueue()
    code = f"""
        import asyncio
        from keptwork import Keptwork
        from tests.worker.test_tool_review import declare
        app = Keptwork({app.url!r})
        declare(app, {str(folder)!r}, {mark!r}, {idempotent})
        asyncio.run(app.work(lease="1s"))
    """
    worker = _program(code)
    try:
        await until((folder / "effects").exists)
    finally:
        worker.kill()
        worker.wait()
    assert survivors(mark, 4) == []
    (folder / "go").touch()
    return job


def effects(folder: Path) -> int:
    return len((folder / "effects").read_text().splitlines())


async def test_after_kill_9_a_tool_that_must_not_run_twice_waits_for_people(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    job = await killed(app, tmp_path, mark, idempotent=False)
    async with working(app, concurrency=1):
        asked = await the_question(app)
        assert asked.question.startswith("pay was started on 20")
        assert asked.question.endswith(" and nobody knows whether it took effect. Run it again?")
        assert asked.scope == "ops"
        assert '"command":"sh -c ' in str(asked.details)
        assert effects(tmp_path) == 1
        await app.approve(asked.public_id, by="ann")
        assert await job.result("60s") == ""
    assert effects(tmp_path) == 2
    steps = await (await app.open()).checkpoints(1, job.key)
    assert [one.name for one in steps if "approval" not in one.name] == [
        "started",
        "started again (2)",
        "ended again (2)",
    ]


@ONE_STORE
async def test_one_that_may_run_twice_does_so_and_asks_nobody(app: Keptwork, tmp_path: Path, mark: str) -> None:
    """The twin of the test above: without the mark the effect is doubled, and the count shows it."""
    job = await killed(app, tmp_path, mark, idempotent=True)
    async with working(app, concurrency=1):
        assert await job.result("60s") == ""
    assert effects(tmp_path) == 2


@ONE_STORE
async def test_rejected_it_does_not_run_again_and_the_job_fails(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await declare(app, str(tmp_path), mark, False, "kill -KILL $$").enqueue()
    async with working(app, concurrency=1):
        await app.reject((await the_question(app)).public_id, by="ann", comment="it was paid")
        await reaches(app, job, "failed")
    assert (effects(tmp_path), (await last(app, job))[0]) == (1, "fail")
    assert "was rejected by ann: it was paid" in (await row(app, job))["error"]


@ONE_STORE
async def test_what_ended_before_the_crash_is_not_run_again_nor_asked_about(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    handler = declare(app, str(tmp_path), mark, False, "echo receipt").kind.function

    @app.job(name="crashes", max_attempts=9, backoff=0)
    async def crashes(ctx: Any) -> str:
        said = await handler(ctx)
        if ctx.attempt == 1:
            raise ConnectionError("after the tool has ended, before the job has")
        return str(said)

    job = await crashes.enqueue()
    await app.work(until_idle=True, concurrency=1)
    assert await job.result("1s") == "receipt\n"
    assert effects(tmp_path) == 1


async def test_a_failure_that_is_known_is_tried_again_and_one_that_is_not_is_asked_about_each_time(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    """An exit code is an ending like success; being killed, or being out of time, says nothing."""
    script = "case $(wc -l < effects) in 1) exit 3;; 2) kill -KILL $$;; 3) kill -KILL $$;; *) echo receipt;; esac"
    job = await declare(app, str(tmp_path), mark, False, script).enqueue()
    async with working(app, concurrency=1):
        for times in (2, 3):
            asked = await the_question(app)
            assert effects(tmp_path) == times
            assert "killed by SIGKILL" in str(asked.details)
            await app.approve(asked.public_id, by="ann")
            await until(lambda: effects(tmp_path) > times)  # noqa: B023 - it is over before the next turn
        assert await job.result("60s") == "receipt\n"
    assert effects(tmp_path) == 4


@ONE_STORE
async def test_out_of_time_in_the_last_attempt_it_does_not_fail_but_is_asked_about(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    spec = replace(pays(str(tmp_path), mark, False, HANGS), timeout_us=500_000)

    @app.job(max_attempts=1)
    async def pay_soon(ctx: Any) -> str:
        return str((await run_tool(ctx, spec))["stdout"])

    job = await pay_soon.enqueue()
    async with working(app, concurrency=1):
        asked = await the_question(app)
        assert "pay took longer than 0.5 s" in str(asked.details)
        assert effects(tmp_path) == 1
        (tmp_path / "go").touch()
        await app.approve(asked.public_id, by="ann")
        assert await job.result("60s") == ""
    assert (await triggers(app, job))[:4] == [*ONCE, "snooze"]
    assert (effects(tmp_path), (await row(app, job))["attempts"]) == (2, 1)


@ONE_STORE
async def test_known_failures_are_counted_by_the_tool_however_many_attempts_the_job_has(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    job = await declare(app, str(tmp_path), mark, False, "exit 3").enqueue()
    await app.work(until_idle=True, concurrency=1)
    assert (await row(app, job))["error"] == "PermanentError: pay ended with exit code 3, not 0"
    assert effects(tmp_path) == 3
