"""`keptwork jobs show`: steps, waits and progress, once and while they go on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.store import Store
from keptwork.store.contract.checkpoints import Save
from tests.cli.queue_scene import answer, said
from tests.conformance.stage import claim, moved, queued, worker
from tests.support.command import environment

pytestmark = pytest.mark.acceptance


async def _sleeping(url: str) -> str:
    """A job that has done two steps, said how far it is, and sleeps; one of its steps is of other code by now."""
    async with Keptwork(url) as app:

        @app.job()
        async def report(ctx: Any) -> None:
            await ctx.step("get page", lambda: "x" * 20_000)
            await ctx.step("parse", str, "y")
            ctx.progress(0.4, "page 2 of 5")
            await ctx.sleep("1h")

        job = await report.enqueue()
        await app.work(until_idle=True)
        await (await app.open()).checkpoint_changed(1, job.key, "parse")
        return job.id


def test_a_job_shows_its_steps_its_progress_and_what_it_waits_for(database_url: str) -> None:
    id = asyncio.run(_sleeping(database_url))
    shown = answer(database_url, "jobs", "show", id)
    assert [(one["name"], one["size"], one["epoch"]) for one in shown["steps"]][:2] == [
        ("get page", 20_002, 0),
        ("parse", 3, 0),
    ]
    assert shown["steps"][2]["name"] == "#sleep 1"
    assert [one["code_changed_at"] is not None for one in shown["steps"]] == [False, True, False]
    assert shown["waits_for"] == "sleep"
    assert (shown["progress"]["fraction"], shown["progress"]["text"]) == (0.4, "page 2 of 5")
    drawn = said(database_url, "jobs", "show", id)
    assert "████████░░░░░░░░░░░░ 40 %  page 2 of 5" in drawn
    assert "waits for       sleep, in 60 min" in drawn
    assert "made by other code than the worker has now; its result stands" in drawn
    assert "19.5 KiB" in drawn


def test_a_job_without_steps_shows_none_of_it(sqlite_url: str) -> None:
    answer(sqlite_url, "migrate")
    id = answer(sqlite_url, "jobs", "enqueue", "plain")["job"]["id"]
    shown = answer(sqlite_url, "jobs", "show", id)
    assert (shown["steps"], shown["progress"], shown["waits_for"]) == ([], None, None)
    drawn = said(sqlite_url, "jobs", "show", id)
    assert not any(word in drawn for word in ("progress", "waits for", "size", "held because"))


class Watcher:
    """The command beside the test."""

    def __init__(self, url: str, id: str, *options: str) -> None:
        command = [sys.executable, "-m", "keptwork", "jobs", "show", id, "--watch", "--db", url, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        self.heard: list[str] = []

    async def tells_of(self, word: str) -> None:
        while not self.heard or word not in self.heard[-1]:
            line = await asyncio.to_thread(self._line)
            assert line, f"it ended before it told of {word}"
            self.heard.append(line)

    async def ends(self) -> None:
        assert await asyncio.to_thread(self._line) == ""
        assert await asyncio.to_thread(self.process.wait, 20) == 0

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_watching_tells_each_change_until_the_job_has_ended(
    store: Store, database_url: str, options: Any
) -> None:
    """The watcher tells of one step, and only then is the next one done."""
    (key,) = await queued(store)
    with closing(Watcher(database_url, public_id("job", key), *options)) as watcher:
        await watcher.tells_of("queued")
        (job,) = await claim(store, await worker(store), 1, start=True)
        await watcher.tells_of("running")
        for name in ("first", "second"):
            await store.checkpoint([Save(job, name, "1")])
            await watcher.tells_of(name)
        await moved(store, JOB, key, "succeed", by="holder")
        await watcher.tells_of("succeeded")
        await watcher.ends()
    assert len(set(watcher.heard)) == len(watcher.heard)
    if options:
        assert [one["name"] for one in json.loads(watcher.heard[-1])["steps"]] == ["first", "second"]
    else:
        assert sum("step first is done" in line for line in watcher.heard) == 1
