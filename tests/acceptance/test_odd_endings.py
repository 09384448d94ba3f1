"""Hundreds of handlers that end in every documented way, at random, under a supervisor: each job becomes what the table
says, and at any time a job enqueued beside them is done soon. KEPTWORK_ENDING_ROUNDS says how many batches of eight."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keptwork.store import EventFilter, NewJob
from tests.acceptance.supervision import Database
from tests.process.survivors import NAME, assert_none, new_mark
from tests.support.command import SOURCE, environment
from tests.worker.odd_endings import PLAIN, REAL
from tests.worker.test_endings import TABLE, TIMED, Wanted

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(3_000),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal of Linux"),
]

ROUNDS = int(os.environ.get("KEPTWORK_ENDING_ROUNDS", "40"))
PATIENCE = 600.0
LONGEST_WAIT = 30.0
"""For a job beside them, on a machine that does much else; the figures printed are those of a quiet one."""

OF_A_WORKER = {"cannot start its thread", "starts threads until it reaches the limit"}
"""Needs a worker in a certain state, which others here may have ended."""

DIED = "its worker's process"


def drawn(chance: random.Random) -> tuple[str, NewJob]:
    ending = chance.choice([*PLAIN, *TIMED, *(REAL.keys() - OF_A_WORKER)])
    payload = json.dumps({"how": ending})
    if ending in REAL:
        return ending, NewJob(REAL[ending], max_attempts=100)
    if ending in TIMED:
        return ending, NewJob("out_of_time", payload, max_attempts=100)
    return ending, NewJob(chance.choice(["in_a_task", "in_a_thread"]), payload, max_attempts=100)


def has_ended(database: Database, job: int, wanted: Wanted) -> bool:
    """Whether the job has left a slot as the table says; deaths of jobs beside it may have cost it attempts before. One
    that ends its process in its first attempt may have been beside another that did."""
    reason = DIED if wanted.reason.startswith(DIED) else wanted.reason
    events = database.using(lambda store: store.events(EventFilter(entity="job", entity_id=job)))
    return any(
        event.from_state == "running" and event.to_state == wanted.state and (event.reason or "").startswith(reason)
        for event in events
    )


def enqueued(database: Database, jobs: list[NewJob]) -> list[int]:
    made: list[int] = database.using(lambda store: store.enqueue(jobs))
    return made


def waited(database: Database) -> float:
    """How long a job enqueued now waits until it is done."""
    (probe,) = database.enqueue("after")
    began = time.monotonic()
    while database.jobs([probe])[0]["state"] != "succeeded":
        assert time.monotonic() - began < LONGEST_WAIT, "a job beside them is not done"
        time.sleep(0.02)
    return time.monotonic() - began


def test_every_job_becomes_what_its_ending_makes_of_it_and_others_are_done_meanwhile(
    database_url: str, tmp_path: Path
) -> None:
    database, mark, seed = Database(database_url), new_mark(), random.randrange(1 << 30)
    database.using(lambda store: store.now())  # it is migrated before the first worker comes
    env = environment(**{NAME: mark, "PYTHONPATH": f"{SOURCE}:{Path(__file__).parents[2]}"})
    options = ["--workers", "2", "--concurrency", "4", "--grace", "1s", "--db", database_url, "--json"]
    command = [sys.executable, "-m", "keptwork", "supervise", "tests.worker.odd_endings:app", *options]
    log = tmp_path / "log"
    with log.open("w") as out, (tmp_path / "err").open("w") as err:
        supervisor = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=err)
        try:
            chance, made, waits = random.Random(seed), dict[int, str](), list[float]()
            for _ in range(ROUNDS):
                batch = [drawn(chance) for _ in range(8)]
                ids = enqueued(database, [job for _, job in batch])
                made |= dict(zip(ids, [ending for ending, _ in batch], strict=True))
                waits.append(waited(database))
            insist_all_end(database, made)
        finally:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait(60)
            assert_none(mark)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert not [event for event in told if event["event"] == "backing off"], "a death with a job is no failed start"
    codes: Counter[Any] = Counter(event["exit_code"] for event in told if event["event"] == "ended")
    figures = f"median {statistics.median(waits):.2f} s, longest {max(waits):.2f} s"
    print(f"\nseed {seed}: {len(made)} jobs, processes ended with {dict(codes)}; a job beside them took {figures}")


def insist_all_end(database: Database, made: dict[int, str]) -> None:
    ends, left = time.monotonic() + PATIENCE, dict(made)
    while left:
        left = {job: ending for job, ending in left.items() if not has_ended(database, job, TABLE[ending])}
        assert time.monotonic() < ends, f"not as documented: {Counter(left.values())}"
        time.sleep(0.2)
