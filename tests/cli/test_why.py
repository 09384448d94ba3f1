"""`keptwork why` as its users meet it."""

from __future__ import annotations

import asyncio
import json

from keptwork.core.ids import public_id
from keptwork.store import NewJob, open_store
from tests.support.command import run


def enqueued(url: str, **fields: object) -> str:
    async def put() -> str:
        store = await open_store(url)
        (key,) = await store.enqueue([NewJob("send", **fields)])  # type: ignore[arg-type]
        await store.set_queue_paused("default", True)
        await store.close()
        return public_id("job", key)

    return asyncio.run(put())


def test_it_tells_everything_in_the_way_and_what_to_do(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    id = enqueued(url, delay_us=3_600_000_000)
    done = run("why", id, "--db", url)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{id} (send) is queued: it was enqueued for later; that clears in ")
    assert lines[1].startswith("  also: its queue 'default' has been paused since ")
    assert lines[2] == "  also: no worker serves its queue 'default'"
    assert lines[3:] == ["  try: keptwork queues resume default", "  try: keptwork work MODULE:APP --queues default"]


def test_as_json(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    id = enqueued(url)
    told = json.loads(run("why", id, "--db", url, "--json").stdout)
    assert (told["id"], told["status"]) == (id, "queued")
    assert [reason["cause"] for reason in told["reasons"]] == ["queue_paused", "no_worker"]


def test_an_unknown_job_is_said_to_be(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    enqueued(url)
    done = run("why", "job_nothing", "--db", url)
    assert done.returncode == 1
    assert "No job 'job_nothing'" in done.stderr
