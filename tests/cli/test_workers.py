"""`keptwork workers` as its users run it: one story over one database, without any process that works."""

from __future__ import annotations

import asyncio
import json

from keptwork.core.ids import public_id
from keptwork.store import open_store
from tests.cli.queue_scene import answer, said
from tests.conformance.stage import running, worker
from tests.support.command import run


async def fill(url: str) -> tuple[str, str]:
    store = await open_store(url)
    serves = json.dumps({"queues": ["default", "mail"], "kinds": ["send"], "concurrency": 8, "version": "0.1"})
    at_work = await worker(store, "RUNNING", host="north", pid=4711, serves=serves, supervisor="north-1")
    idle = await worker(store, host="south", pid=4712)
    for one in (at_work, idle):
        await store.beat(one)
    await running(store, at_work, 2)
    await store.close()
    return public_id("worker", at_work), public_id("worker", idle)


def test_workers_are_listed_shown_paused_resumed_drained_and_terminated(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "workers", "list").startswith("No workers at the moment")
    busy, idle = asyncio.run(fill(sqlite_url))

    told = said(sqlite_url, "workers", "list")
    assert all(words in told for words in (busy, idle, "RUNNING", "IDLE", "north", "4711", "default, mail", "2 of 8"))
    assert "now" in told or "s ago" in told
    assert [one["id"] for one in answer(sqlite_url, "workers", "list", "--host", "south")["workers"]] == [idle]
    assert [one["id"] for one in answer(sqlite_url, "workers", "list", "--state", "running")["workers"]] == [busy]
    shown = said(sqlite_url, "workers", "show", busy)
    assert all(words in shown for words in ("north-1", "send", "worker_start_task", "4711 on north"))
    assert len(answer(sqlite_url, "workers", "show", busy)["jobs"]) == 2

    wish = ("--reason", "look at it", "--request-id", "r-1")
    first = answer(sqlite_url, "workers", "pause", busy, *wish)
    assert (first["from_state"], first["to_state"], first["worker"]["reason"]) == ("RUNNING", "PAUSED", "look at it")
    assert answer(sqlite_url, "workers", "pause", busy, *wish) == first
    assert said(sqlite_url, "workers", "resume", busy) == f"{busy} was PAUSED and is RUNNING.\n"
    assert said(sqlite_url, "workers", "drain", idle).startswith(f"{idle} is asked to drain; see it end with: ")
    assert said(sqlite_url, "workers", "terminate", busy) == f"{busy} was RUNNING and is TERMINATED.\n"
    hard = said(sqlite_url, "workers", "terminate", busy, "--hard", "--cancel-jobs")
    assert hard == f"{busy} is TERMINATED, and is now ended hard.\n"
    assert {job["state"] for job in answer(sqlite_url, "jobs", "list")["jobs"]} == {"cancelled"}
    assert [one["id"] for one in answer(sqlite_url, "workers", "list")["workers"]] == [idle]
    assert len(answer(sqlite_url, "workers", "list", "--all")["workers"]) == 2


def test_what_is_not_allowed_says_what_is(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    _, idle = asyncio.run(fill(sqlite_url))
    refused = run("workers", "pause", idle, "--db", sqlite_url)
    assert refused.returncode == 1
    assert refused.stderr == f"keptwork: worker {idle} is IDLE: cannot pause; allowed: start_task, terminate\n"
    unknown = run("workers", "show", "w_nonsense", "--db", sqlite_url)
    assert unknown.returncode == 1
    assert "No worker 'w_nonsense'; list them with: keptwork workers list" in unknown.stderr
    wrong = run("workers", "list", "--state", "asleep", "--db", sqlite_url)
    assert wrong.returncode == 2
    assert "a worker is never 'ASLEEP'" in wrong.stderr


def test_a_size_that_is_none_is_refused_before_any_worker_is_started(tmp_path):
    done = run("supervise", "shop:app", "--max-memory", "much", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'much' is no amount of memory" in done.stderr
