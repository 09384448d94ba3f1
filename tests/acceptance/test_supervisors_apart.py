"""Two supervisors on two machines that share nothing but a PostgreSQL: commands reach workers of the other one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.supervision import Ground, exists, ground, until
from tests.process.survivors import NAME
from tests.support import namespaces
from tests.support.command import environment
from tests.support.namespaces import Machine, machines
from tests.support.postgres_server import PostgresServer

WHY_NOT = namespaces.why_not()

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

PROMPT = 60.0


class Apart:
    """Two machines with a supervisor of one worker each."""

    def __init__(self, scene: Ground, here: Machine, there: Machine, port: int, *options: str) -> None:
        self.scene = scene
        self.machines = (here, there)
        self._port = port
        self.supervised = [
            scene.supervise("--workers", "1", *options, url=self.url(machine), prefix=machine.prefix)
            for machine in self.machines
        ]
        scene.up(2)
        for machine in self.supervised:
            until(lambda: machine.events("changed"), "each supervisor sees its worker")  # noqa: B023

    def url(self, machine: Machine) -> str:
        return machine.url(self.scene.database.url, self._port)

    def workers_of(self, number: int) -> list[dict[str, Any]]:
        pids = [event["pid"] for event in self.supervised[number].events("started")]
        return [worker for worker in self.scene.database.alive() if worker["pid"] in pids]

    def command(self, number: int, *arguments: str) -> float:
        """A command typed on that machine; when it was done, by the monotonic clock."""
        machine = self.machines[number]
        done = subprocess.run(
            [*machine.prefix, sys.executable, "-m", "keptwork", "workers", *arguments, "--db", self.url(machine)],
            capture_output=True,
            text=True,
            env=environment(**{NAME: self.scene.mark}),
        )
        assert done.returncode == 0, done.stderr
        return time.monotonic()


@pytest.fixture
def scene(postgres_copy: str, tmp_path: Path) -> Iterator[Ground]:
    with ground(postgres_copy, tmp_path) as made:
        yield made


def test_each_can_pause_resume_and_end_the_others_worker_within_a_second(
    scene: Ground, postgres_server: PostgresServer
) -> None:
    took: dict[str, float] = {}
    with machines(postgres_server.port) as (here, there):
        apart = Apart(scene, here, there, postgres_server.port)
        (job,) = scene.database.enqueue("block")
        holder = scene.database.holder(job)
        mine = 0 if any(worker["id"] == holder["id"] for worker in apart.workers_of(0)) else 1
        other = 1 - mine
        until(lambda: scene.database.worker(holder["pid"])["state"] == "RUNNING", "its first move is written")

        at = apart.command(other, "pause", holder["id"], "--reason", "from afar")
        paused = lambda: ("PAUSED", "from afar") in changes(apart, mine)  # noqa: E731
        until(paused, "its own supervisor saw it", PROMPT)
        took["pause seen there"] = time.monotonic() - at
        at = apart.command(other, "resume", holder["id"])
        until(lambda: changes(apart, mine)[-1][0] == "RUNNING", "its own supervisor saw it", PROMPT)
        took["resume seen there"] = time.monotonic() - at

        at = apart.command(other, "terminate", holder["id"], "--hard", "--reason", "from afar")
        until(lambda: not exists(holder["pid"]), "its process is gone", PROMPT)
        took["hard end of a blocked loop"] = time.monotonic() - at
        until(lambda: len(apart.workers_of(mine)) == 1, "it is replaced by its own supervisor", PROMPT)
        took["replaced"] = time.monotonic() - at
        assert apart.workers_of(mine)[0]["id"] != holder["id"]
        assert scene.database.story(holder)[-1].reason == "from afar"
        scene.end()
    print("\n" + ", ".join(f"{what}: {seconds:.2f} s" for what, seconds in took.items()))


@pytest.mark.chaos
def test_a_machine_that_is_cut_off_loses_its_worker_and_its_jobs_when_their_leases_end(
    scene: Ground, postgres_server: PostgresServer
) -> None:
    with machines(postgres_server.port) as (here, there):
        apart = Apart(scene, here, there, postgres_server.port, "--supervisor-timeout", "6s")
        (job,) = scene.database.enqueue("wait")
        holder = scene.database.holder(job)
        mine = 0 if any(worker["id"] == holder["id"] for worker in apart.workers_of(0)) else 1
        apart.machines[mine].unplug()
        silent = until(lambda: scene.database.worker(holder["pid"])["state"] == "TERMINATED", "it is given up")
        until(lambda: scene.database.jobs([job])[0]["owner"] not in (None, holder["key"]), "the other has its job")
        assert scene.database.story(holder)[-1].reason == "supervisor_timeout"
        assert exists(holder["pid"]), "the process itself is beyond reach"
        apart.machines[mine].plug_in()
        back = until(lambda: not exists(holder["pid"]), "it finds out and ends")
        until(lambda: len(apart.workers_of(mine)) == 1, "it is replaced")
        state, epoch = (scene.database.jobs([job])[0][name] for name in ("state", "epoch"))
        assert (state, epoch) == ("running", 1), "what was cut off has changed nothing"
        scene.end()
    print(f"\ngiven up after {silent:.1f} s, gone {back:.1f} s after the cable was back")


def changes(apart: Apart, number: int) -> list[tuple[str, str | None]]:
    return [(event["state"], event["reason"]) for event in apart.supervised[number].events("changed")]
