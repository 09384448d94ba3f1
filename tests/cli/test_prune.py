"""`keptwork prune` as its users run it, on a database with jobs in every state."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.store import open_store
from tests.cli.queue_scene import answer, fill, said
from tests.support.command import run
from tests.support.ended_flows import ended_flows

BAD = {
    ("--states", "idle"): "'idle' is no final state of a job; there are: succeeded, failed, cancelled, dead_lettered",
    ("--older-than", "soon"): "'soon' is no duration; write one like 30s, 10m, 1h30m or 7d",
}


def test_what_has_ended_is_counted_then_deleted_and_the_audit_is_clean(database_url: str) -> None:
    fill(database_url)
    some = ("--older-than", "0s", "--states", "failed,dead_lettered")
    kinds = ("jobs", "workers", "runs", "workstreams", "crews", "agent_jobs")
    nothing = {**{kind: {} for kind in kinds}, "requests": 0, "telemetry": 0, "blobs": 0, "signals": 0}
    assert answer(database_url, "prune") == {"dry_run": False, **nothing}
    assert said(database_url, "prune") == "Nothing ended more than 7d ago that may go.\n"
    gone = {**nothing, "jobs": {"failed": 1, "dead_lettered": 2}}
    assert answer(database_url, "prune", *some, "--dry-run") == {"dry_run": True, **gone}
    assert said(database_url, "prune", *some, "--dry-run") == "Would delete: 2 dead_lettered, 1 failed.\n"
    assert answer(database_url, "prune", *some) == {"dry_run": False, **gone}
    assert len(answer(database_url, "jobs", "list")["jobs"]) == 2
    assert answer(database_url, "audit", "verify")["clean"]


def test_flows_that_have_ended_go_and_their_events_can_still_be_read(database_url: str) -> None:
    asyncio.run(_flows(database_url))
    (flow, *_) = answer(database_url, "workstreams", "list")["workstreams"]
    some = ("--older-than", "0s")
    assert said(database_url, "prune", *some, "--dry-run") == "Would delete: 3 workstreams.\n"
    assert answer(database_url, "prune", *some)["workstreams"] == {"S_SUCCESS": 3}
    assert answer(database_url, "workstreams", "list")["workstreams"] == []
    assert len(answer(database_url, "events", "list", "--id", flow["id"])["events"]) == 3
    assert answer(database_url, "audit", "verify")["clean"]


async def _flows(url: str) -> None:
    store = await open_store(url)
    await ended_flows(store, 3, 2)
    await store.close()


@pytest.mark.parametrize("options", BAD)
def test_what_cannot_be_pruned_is_refused_in_one_line(sqlite_url: str, options: tuple[str, str]) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    done = run("prune", *options, "--db", sqlite_url)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"keptwork: {BAD[options]}\n")
