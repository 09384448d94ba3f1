"""A worker that holds a share is killed with SIGKILL: its crew stays at work, and another worker does the share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keptwork.audit import verify
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.store import Store
from tests.acceptance.crew_program import application
from tests.conformance.stage import entity, eventually, log


@contextmanager
def workers(url: str, folder: Path, number: int) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Real processes, by their ids, which do not end by themselves."""
    command = [sys.executable, "-m", "tests.acceptance.crew_program", url, str(folder)]
    started = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield {process.pid: process for process in started}
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.timeout(90)
async def test_a_crew_outlives_a_killed_worker_of_its(store: Store, database_url: str, tmp_path: Path) -> None:
    marks = [tmp_path / f"share-{number}" for number in range(2)]

    async def both_begun() -> bool:
        return all(mark.exists() and mark.read_text() for mark in marks)

    async with application(database_url, tmp_path) as app:
        new = crews.new_crew(app.kinds["dig"], {}, 1, task="dig", workers=2)
        crew = await crews.submit(store, new)
    with workers(database_url, tmp_path, 2) as running:
        await eventually(both_begun)
        dead = int(marks[0].read_text())
        running[dead].kill()
        running[dead].wait()
        assert (await entity(store, CREW, crew))["state"] == "RUNNING"
        (tmp_path / "go").touch()
        assert await crews.result(store, 1, public_id(CREW.name, crew), "30s") == [0, 1]
    moves = [event.trigger for event in await log(store, entity=CREW.name, entity_id=crew)]
    assert moves == ["submit", "validate", "allocate_resources", "success"]
    first, _ = await store.shares([crew])
    story = [event.trigger for event in await log(store, entity=JOB.name, entity_id=first.id)]
    assert story.count("expire") == 1
    assert story[-1] == "succeed"
    assert not any(used for _, _, used in await crew_moves.quotas(store, 1))
    assert (await verify.verify(store)).clean
