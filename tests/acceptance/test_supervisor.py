"""A supervisor and its workers, all real processes: paused, resumed, terminated, killed, stopped, replaced."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from keptwork.store import Event
from keptwork.store.migrations import newest
from keptwork.workers import commands as service
from keptwork.workers.commands import Wish
from tests.acceptance.observer import write_locked
from tests.acceptance.supervision import Ground, exists, ground, kill, until
from tests.cli.test_bad_server import closed_port
from tests.store.hands import SqliteHand

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal of Linux"),
]

PROMPT = 60.0
"""Seconds, on a machine that does much else; the figures printed are those of a quiet one."""


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Ground]:
    with ground(database_url, tmp_path) as made:
        yield made


@pytest.fixture
def lite(sqlite_url: str, tmp_path: Path) -> Iterator[Ground]:
    """For what has nothing to do with the kind of database."""
    with ground(sqlite_url, tmp_path) as made:
        yield made


def test_pause_resume_and_both_kinds_of_termination_reach_workers_at_work(lite: Ground) -> None:
    commanded(lite)


@pytest.mark.chaos
def test_commands_reach_workers_at_work_on_either_database(scene: Ground) -> None:
    commanded(scene)


def commanded(scene: Ground) -> None:
    took: dict[str, float] = {}
    database, supervised = scene.database, scene.supervise("--workers", "1", "--grace", "20s")
    (waiting,) = database.enqueue("wait", seconds=3)
    worker = database.holder(waiting)
    id = worker["id"]
    until(lambda: database.worker(worker["pid"])["state"] == "RUNNING", "its first move is written")

    database.using(lambda store: service.pause(store, 1, id, Wish("cli:ann", "look")))
    (quick,) = database.enqueue("quick")
    time.sleep(1.1)
    assert database.jobs([quick])[0]["state"] == "queued", "a paused worker has claimed"
    assert database.jobs([waiting])[0]["state"] == "running", "a pause must not stop what runs"
    database.using(lambda store: service.resume(store, 1, id, Wish("cli:ann")))
    took["resumed"] = until(lambda: database.jobs([quick])[0]["state"] == "succeeded", "it works again", PROMPT)

    database.using(lambda store: service.terminate(store, 1, id, Wish("cli:ann", "soft")))
    took["soft, with a handler of 3 s"] = until(lambda: not exists(worker["pid"]), "it ends by itself", PROMPT)
    assert database.jobs([waiting])[0]["state"] == "succeeded", "its grace was not granted"

    (blocking,) = database.enqueue("block")
    (others,) = database.enqueue("start_others")
    second = database.holder(blocking)
    database.holder(others)
    assert second["pid"] != worker["pid"]
    before = len(scene.processes())
    database.using(lambda store: service.terminate(store, 1, second["id"], Wish("cli:ann", "hard"), hard=True))
    took["hard, with a blocked loop"] = until(lambda: not exists(second["pid"]), "it is killed", PROMPT)
    third = database.holder(blocking)
    took["its job is another's"] = until(lambda: database.holder(others)["id"] == third["id"], "taken over", PROMPT)
    assert third["id"] not in (second["id"], id)
    assert database.jobs([blocking])[0]["attempts"] == 1, "a released job has lost no attempt"
    until(lambda: len(scene.processes()) <= before, "what its handlers started is gone", PROMPT)

    assert [event.to_state for event in database.story(worker)][-3:] == ["PAUSED", "RUNNING", "TERMINATED"]
    changes = [(event["state"], event["reason"]) for event in supervised.events("changed")]
    assert ("TERMINATED", "soft") in changes
    print("\n" + ", ".join(f"{what}: {seconds:.2f} s" for what, seconds in took.items()))


def test_killed_worker_is_replaced_and_its_jobs_do_not_wait_for_their_leases(scene: Ground) -> None:
    database, supervised = scene.database, scene.supervise("--workers", "2")
    first = {worker["id"] for worker in scene.up(2)}
    jobs = [*database.enqueue("wait_long", 2), *database.enqueue("start_caged")]
    victim = database.holder(jobs[0])
    held = {job for job in jobs if database.holder(job)["id"] == victim["id"]}
    kill(victim["pid"], signal.SIGKILL)
    seconds = until(lambda: len({w["id"] for w in database.alive()} - first) == 1, "a new worker is there", PROMPT)
    assert supervised.events("ended")[0]["exit_code"] == -9
    assert database.story(victim)[-1].reason == "its process was killed by SIGKILL"
    back = until(lambda: all(database.jobs([job])[0]["epoch"] == 1 for job in held), "its jobs are reclaimed", PROMPT)
    expired = [event for event in database.using(lambda s: s.events()) if event.type == "job_lease_expired"]
    assert {event.entity_id for event in expired} == held, "jobs of a worker that lives were touched"
    assert expired[0].reason == "its worker's process was killed by SIGKILL in attempt 1 of 50"
    print(f"\nreplaced after {seconds:.2f} s, its jobs were back {back:.2f} s later")


@pytest.mark.parametrize("code", [0, 7])
def test_handler_that_ends_its_process_is_no_failed_start_and_the_next_job_starts(lite: Ground, code: int) -> None:
    database, supervised = lite.database, lite.supervise("--workers", "1")
    lite.up(1)
    (deadly,) = database.enqueue("exits", code=code)
    until(lambda: database.jobs([deadly])[0]["state"] == "dead_lettered", "its attempts are used up")
    assert database.jobs([deadly])[0]["attempts"] == 2
    (quick,) = database.enqueue("quick")
    seconds = until(lambda: database.jobs([quick])[0]["state"] == "succeeded", "the next job is done", PROMPT)
    assert not supervised.events("backing off"), "a death with a job in hand is not a failed start"
    assert [event["exit_code"] for event in supervised.events("ended")] == [code or 1] * 2
    assert f"called os._exit({code})" in supervised.words
    print(f"\nthe next job was done {seconds:.2f} s after it was enqueued")


def test_nothing_survives_a_killed_supervisor(lite: Ground) -> None:
    supervised = lite.supervise("--workers", "3")
    lite.up(3)
    (job,) = lite.database.enqueue("start_caged")
    lite.database.holder(job)
    until(lambda: len(lite.processes()) >= 10, "the handler has started others")
    supervised.process.kill()
    seconds = until(lambda: not lite.processes(), "nothing is left", PROMPT)
    print(f"\nnothing is left after {seconds:.2f} s")


def test_a_module_that_dies_at_import_is_tried_ever_more_rarely_and_the_error_is_told(lite: Ground) -> None:
    (lite.folder / "shop.py").write_text("raise RuntimeError('no such price list')")
    supervised = lite.supervise("--workers", "1")
    until(lambda: len(supervised.events("backing off")) >= 2, "it dies twice")
    assert [event["seconds"] for event in supervised.events("backing off")[:2]] == [0.5, 1.0]
    assert len(supervised.events("started")) <= 3, "it loops"
    assert any("no such price list" in line for line in supervised.events("ended")[0]["last_words"])
    (lite.folder / "shop.py").write_text("from keptwork import Keptwork\napp = Keptwork()\n")
    lite.up(1)
    supervised.send(signal.SIGTERM)
    assert supervised.process.wait(PROMPT) == 0


def test_a_stopped_worker_is_given_up_its_jobs_are_not_and_when_it_wakes_it_ends(lite: Ground) -> None:
    given_up(lite, 3)


@pytest.mark.chaos
def test_a_stopped_worker_is_given_up_on_either_database(scene: Ground) -> None:
    given_up(scene, 5)


def given_up(scene: Ground, timeout: int) -> None:
    database = scene.database
    supervised = scene.supervise("--workers", "2", "--supervisor-timeout", f"{timeout}s")
    scene.up(2)
    (job,) = database.enqueue("wait")
    victim = database.holder(job)
    kill(victim["pid"], signal.SIGSTOP)
    while write_locked(database.url):  # stopped in the middle of a write, it would stop everybody
        kill(victim["pid"], signal.SIGCONT)
        time.sleep(0.05)
        kill(victim["pid"], signal.SIGSTOP)
    seconds = until(lambda: database.worker(victim["pid"])["state"] == "TERMINATED", "it is given up")
    assert database.story(victim)[-1].reason == "supervisor_timeout"
    moves = {event.trigger for event in database.using(lambda s: s.events()) if event.entity == "job"}
    assert moves <= {"enqueue", "claim", "start", "expire"}, "a timeout must not touch jobs, only their leases may end"
    if exists(victim["pid"]):
        kill(victim["pid"], signal.SIGCONT)
    until(lambda: not exists(victim["pid"]), "it ends when it wakes", PROMPT)
    until(lambda: database.jobs([job])[0]["owner"] not in (None, victim["key"]), "another has its job")
    assert [worker["state"] for worker in database.workers()].count("TERMINATED") == 1
    assert supervised.process.poll() is None
    print(f"\ngiven up after {seconds:.2f} s of silence or more")


def test_sigterm_lets_workers_finish_and_a_second_one_kills_them(lite: Ground) -> None:
    database, first = lite.database, lite.supervise("--workers", "2", "--grace", "20s")
    (job,) = database.enqueue("wait", seconds=2)
    database.holder(job)
    first.send(signal.SIGTERM)
    assert first.process.wait(PROMPT + 5) == 0
    assert database.jobs([job])[0]["state"] == "succeeded"
    assert database.alive() == []

    second = lite.supervise("--workers", "2", "--grace", "60s")
    (job,) = database.enqueue("wait")
    database.holder(job)
    second.send(signal.SIGTERM)
    time.sleep(0.5)
    assert second.process.poll() is None
    second.send(signal.SIGTERM)
    assert second.process.wait(PROMPT) == 0
    assert database.alive() == []


def test_sighup_replaces_every_worker_and_the_new_one_is_up_before_the_old_one_goes(lite: Ground) -> None:
    database, supervised = lite.database, lite.supervise("--workers", "2")
    old = {worker["id"] for worker in lite.up(2)}
    supervised.send(signal.SIGHUP)
    until(lambda: supervised.events("restarted"), "all are restarted")
    new = lite.up(2)
    assert not old & {worker["id"] for worker in new}
    counts = count_over_time(database.using(lambda s: s.events()))
    assert min(counts[2:]) >= 2, "there were fewer workers than asked for"
    (lite.folder / "shop.py").write_text("raise RuntimeError('a broken release')")
    supervised.send(signal.SIGHUP)
    until(lambda: supervised.events("restart given up"), "the broken release is noticed")
    assert {worker["id"] for worker in database.alive()} == {worker["id"] for worker in new}


def count_over_time(events: list[Event]) -> list[int]:
    """How many workers were alive after each event that began or ended one."""
    counts, alive = [], 0
    for event in sorted((event for event in events if event.entity == "worker"), key=lambda event: event.ts):
        alive += {"register": 1, "terminate": -1, "complete_tasks": -1}.get(event.trigger, 0)
        counts.append(alive)
    return counts


@pytest.mark.chaos
def test_twenty_killed_workers_are_all_replaced_and_no_job_is_lost(scene: Ground) -> None:
    """The oldest each time: one that is killed young counts as dying at start, and is replaced ever more slowly."""
    database, took = scene.database, []
    scene.supervise("--workers", "4", "--concurrency", "8")
    jobs = database.enqueue("wait", 3000, seconds=0.5)
    for _ in range(20):
        victim, before = scene.up(4)[-1], {worker["id"] for worker in database.workers()}
        time.sleep(1.5)
        kill(victim["pid"], signal.SIGKILL)
        took.append(until(lambda: {w["id"] for w in database.alive()} - before, "replaced"))  # noqa: B023
    until(lambda: {row["state"] for row in database.jobs(jobs)} == {"succeeded"}, "all jobs are done", 120)
    print(f"\n20 kills: replaced after {min(took):.2f} to {max(took):.2f} s")


@pytest.mark.chaos
def test_a_crash_loop_of_a_minute_starts_few_processes(lite: Ground) -> None:
    (lite.folder / "shop.py").write_text("import os; os.abort()")
    supervised = lite.supervise("--workers", "2")
    time.sleep(60)
    waits = [event["seconds"] for event in supervised.events("backing off") if event["place"] == 1]
    print(f"\n{len(supervised.events('started'))} starts in a minute, waits {waits}")
    assert all(after == min(before * 2, 30) for before, after in pairwise(waits))
    assert len(supervised.events("started")) <= 2 * 8


def test_a_supervisor_waits_for_a_server_that_is_out_of_reach(lite: Ground) -> None:
    with closed_port() as port:
        waiting = lite.supervise("--workers", "1", url=f"postgresql://ann@127.0.0.1:{port}/work")
        until(lambda: len(waiting.events("backing off")) >= 2, "it waits for the server")
        waiting.send(signal.SIGTERM)
        assert waiting.process.wait(PROMPT) == 0


def test_a_supervisor_retries_a_replacement_that_is_refused_after_the_first_workers_were_up(lite: Ground) -> None:
    """Workers that still run may outlive a release that cannot start on their database."""
    supervised = lite.supervise("--workers", "2")
    _, victim = lite.up(2)
    hand = SqliteHand(lite.database.url.removeprefix("sqlite:///"))
    hand.run(f"INSERT INTO keptwork_migrations (number, name, applied_at) VALUES ({newest() + 1}, 'later', 0)")
    hand.close()
    kill(victim["pid"], signal.SIGKILL)
    until(lambda: len(supervised.events("backing off")) >= 2, "the replacement is refused and retried")
    assert any("upgrade Keptwork" in line for line in supervised.events("ended")[-1]["last_words"])
    supervised.send(signal.SIGTERM)
    assert supervised.process.wait(PROMPT) == 0
