"""Kill -9 of workers that reach a server over HTTP only, in two languages: nothing is lost, and nothing done twice.

What they do is counted by a sink outside that honours the idempotency key it is sent.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.acceptance.remote_scene import EXAMPLE, Scene, figures, scene

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="the example is for Node")

HONEST = """    const result = await handlers[job.kind](job);
    await say(job, "succeed", { result });
"""
HASTY = """    await say(job, "succeed", { result: null });
    await handlers[job.kind](job);
"""


def check(on: Scene, began: float) -> None:
    print(f"\n{figures(on, began)}")
    assert on.left() == 0, "not every job has ended"
    assert (on.lost(), on.doubled()) == ([], [])
    assert on.faults() == []


@pytest.mark.timeout(150)
def test_killed_workers_and_a_killed_server_lose_nothing_and_double_nothing(database_url: str) -> None:
    began = time.monotonic()
    with scene(database_url, seed=1) as on:
        on.feed(80)
        for kind in ("node", "node", "python"):
            on.start(kind)
        on.run(kills=6, pause=0.1, patience=100, restarts=1)
        assert on.drain() == [0, 0, 0]
        check(on, began)
        assert on.kills == 6
        assert on.restarts == 1


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_150_killed_workers_and_eight_killed_servers_lose_nothing_and_double_nothing(database_url: str) -> None:
    began = time.monotonic()
    with scene(database_url, seed=2) as on:
        on.feed(2_000)
        for kind in ("node", "node", "node", "python", "python"):
            on.start(kind)
        on.run(kills=150, pause=0.3, patience=1600, restarts=8)
        check(on, began)
        assert on.kills == 150


@pytest.mark.timeout(150)
def test_the_check_catches_a_worker_that_acknowledges_before_it_has_done_the_work(
    sqlite_url: str, tmp_path: Path
) -> None:
    twin = tmp_path / "worker.mjs"
    honest = EXAMPLE.read_text("utf-8")
    assert HONEST in honest
    twin.write_text(honest.replace(HONEST, HASTY), "utf-8")
    with scene(sqlite_url, seed=3, example=twin) as on:
        on.feed(40)
        for _ in range(2):
            on.start("node")
        on.run(kills=4, pause=0.1, patience=60)
        for _, process in on.workers:
            process.kill()
        assert on.lost()
