"""Versions of handlers: a job runs to its end under the one it was begun with, or is held and says why."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork import Keptwork, Snooze
from keptwork.context import Context
from keptwork.errors import BadInput
from keptwork.handles import Handle
from keptwork.job import DeclaredJob
from keptwork.workers.handlers import LIFT_SECONDS
from tests.worker.scene import eventually, row, triggers, working


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIFT_SECONDS == 1.0
    monkeypatch.setattr("keptwork.workers.handlers.LIFT_SECONDS", 0.05)
    monkeypatch.setattr("keptwork.workers.handlers.SELDOM_SECONDS", 0.05)


def with_versions(url: str, *versions: int) -> Keptwork:
    """An application that has these versions of one kind; 0 is the one without."""
    app = Keptwork(url)
    for version in versions:
        rules = {"version": version} if version else {}
        app.job(name="fetch", **rules)(_handler(app, version))
    return app


def _handler(app: Keptwork, version: int) -> Any:
    async def fetch(ctx: Context) -> Any:
        """It goes back into the queue after its first step, and its worker ends, so that another goes on with it. It is
        due after a while: a claim of the first worker may be under way, and would take it."""
        first = await ctx.step("first", lambda: version)
        if ctx.fencing_token == 0:
            app.stop()
            return Snooze("200ms")
        return [version, first, await ctx.step("second", lambda: version)]

    return fetch


def enqueued(app: Keptwork) -> DeclaredJob:
    return DeclaredJob(app, app.kinds["fetch"])


async def begun(url: str, *versions: int) -> Handle:
    """A job with one checkpoint, left in the queue by a worker that has these versions."""
    async with with_versions(url, *versions) as app:
        job = await enqueued(app).enqueue()
        await app.work()
        return job


async def held(app: Keptwork, job: Handle) -> str | None:
    found = await row(app, job)
    return found["held_by"] if found["state"] == "queued" else None


@pytest.mark.parametrize("older", [0, 1])
async def test_a_job_goes_on_under_the_version_it_was_begun_with_and_new_ones_under_the_newest(
    database_url: str, older: int
) -> None:
    job = await begun(database_url, older)
    async with with_versions(database_url, 2, older) as app:
        async with working(app):
            assert await app.result(job.id, "10s") == [older, older, older]
        new = await begun(database_url, 2, older)
        async with working(app):
            assert await app.result(new.id, "10s") == [2, 2, 2]


OLD = "its steps were begun under version 1 of 'fetch', and this worker has "
OLDEST = "its steps were begun under the handler without a version of 'fetch', and this worker has "
TAKES = "it waits for a worker that has @app.job(name='fetch'"


@pytest.mark.parametrize(
    ("begun_with", "here", "reason"),
    [
        (1, (2, 3), f"{OLD}version 2 and version 3; {TAKES}, version=1) as well"),
        (0, (1,), f"{OLDEST}version 1; {TAKES}) as well"),
        (1, (0,), f"{OLD}the handler without a version; {TAKES}, version=1) as well"),
    ],
)
async def test_without_that_version_the_job_is_held_and_says_why_until_somebody_has_it(
    database_url: str, begun_with: int, here: tuple[int, ...], reason: str
) -> None:
    job = await begun(database_url, begun_with)
    async with with_versions(database_url, *here) as app:
        async with working(app):
            await eventually(lambda: _is_held(app, job))
        assert await held(app, job) == f"version:fetch@{begun_with}"
        found = await row(app, job)
        assert (found["reason"], found["attempts"]) == (reason, 0)
        assert await triggers(app, job) == ["enqueue", *["claim", "start"], "snooze", *["claim", "start"], "release"]
    async with with_versions(database_url, begun_with) as app, working(app):
        assert await app.result(job.id, "10s") == [begun_with] * 3


async def _is_held(app: Keptwork, job: Handle) -> bool:
    return await held(app, job) is not None


async def test_a_hold_is_lifted_while_a_worker_works_too(database_url: str) -> None:
    job = await begun(database_url, 1)
    async with with_versions(database_url, 2) as newer, working(newer):
        await eventually(lambda: _is_held(newer, job))
        newer.stop()
    async with with_versions(database_url, 1, 2) as both, working(both):
        assert await both.result(job.id, "10s") == [1, 1, 1]


async def test_an_older_declaration_enqueues_by_the_rules_of_the_newest() -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job(name="fetch", version=2, queue="fast", priority=3)
        async def new(ctx: Context, url: str) -> str:
            return f"new {url}"

        @app.job(name="fetch", version=1)
        async def old(ctx: Context) -> str:
            return "old"

        job = await old.enqueue(url="x")
        with pytest.raises(BadInput, match="missing a required argument: 'url'"):
            await old.enqueue()
        await app.work(until_idle=True)
        assert await job.result() == "new x"
        assert (await row(app, job))["queue"] == "fast"


@pytest.mark.parametrize("version", [0, -1, "2", 1.0, True, 1 << 31])
def test_a_version_that_is_none_is_refused(version: Any) -> None:
    with pytest.raises(BadInput, match=r"job \w+: version is .*; it is a whole number from 1 to 2147483647"):
        Keptwork().job(version=version)(_handler(Keptwork(), 1))


@pytest.mark.parametrize("versions", [(1, 1), (1, 2, 1), (2, 1, 2), (0, 0), (0, 1, 0)])
def test_two_handlers_of_one_name_and_version_are_refused(versions: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="there are two kinds of jobs called 'fetch'"):
        with_versions("sqlite:///:memory:", *versions)
