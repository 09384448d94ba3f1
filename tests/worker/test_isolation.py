"""Handlers in processes of their own: what they say, how they are stopped, and what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from tests.process import jobs
from tests.process.stage import there, until
from tests.process.survivors import NAME, assert_none, marked, new_mark, survivors
from tests.support.command import environment
from tests.worker.scene import last, moved, reaches, row, triggers, working

pytestmark = pytest.mark.acceptance

ONCE = ["enqueue", "claim", "start"]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One kind of store is enough: none of this depends on it."""
    return sqlite_url


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """On every process of a test; a worker that has ended has left none."""
    new = new_mark()
    monkeypatch.setenv(NAME, new)
    yield new
    assert_none(new)


# --- what they say


async def test_handlers_in_a_process_of_their_own_get_and_say_what_all_others_do(app: Keptwork) -> None:
    add, about = app.job(isolation="process")(jobs.add), app.job(isolation="process")(jobs.about)
    sums = [await add.enqueue(a=1), await add.enqueue(a=1, b=2)]
    told = await about.enqueue(of="æ\0", _correlation_id="order-17", _trace_id="4bf9")
    assert await app.work(until_idle=True) == 3
    assert [(await row(app, job))["result"] for job in sums] == ["2", "3"]
    result = json.loads((await row(app, told))["result"])
    assert result.pop("pid") != os.getpid()
    assert result == {
        "of": "æ\0",
        "job": told.id,
        "attempt": 1,
        "token": 0,
        "correlation": "order-17",
        "trace": "4bf9",
        "key": f"{told.id}:get",
        "asked": False,
        "main": True,
    }


@pytest.mark.parametrize("handler", [jobs.raises, jobs.raises_async])
async def test_whatever_a_handler_raises_travels_as_text_and_is_settled_by_its_kind(
    app: Keptwork, handler: Any
) -> None:
    raises = app.job(isolation="process", max_attempts=1)(handler)
    many = await app.enqueue_many(raises, [{"which": which} for which in range(len(jobs.RAISED))])
    assert await app.work(until_idle=True) == len(jobs.RAISED)
    for job, (error, ending) in zip(many, jobs.RAISED, strict=True):
        if isinstance(error, StopIteration) and handler is jobs.raises_async:
            continue  # asyncio turns it into a RuntimeError
        assert await last(app, job) == ending, error
        assert type(error).__name__ in (await row(app, job))["error"]


SAYINGS = [
    ("snooze", "snooze", None),
    ("cancel", "cancel", "nothing to do"),
    ("huge", "fail", "PermanentError: the handler returned what cannot be kept: a result of 17,825,794 bytes"),
    ("large", "succeed", None),
    ("object", "fail", "PermanentError: the handler returned what cannot be kept: Object of type object"),
    ("nan", "fail", "PermanentError: the handler returned what cannot be kept: Out of range float"),
    ("vague", "fail", "PermanentError: the handler returned what cannot be kept: 'soon' is no duration"),
    ("deep", "fail", "PermanentError: the handler returned what cannot be kept: maximum recursion depth"),
    ("surrogate", "succeed", None),
    ("exit", "fail", "its process ended with exit code 3 and without an answer"),
    ("crash", "fail", "killed by SIGSEGV"),
    ("stray", "fail", "Terminated: SIGTERM came from outside"),
    ("hog", "fail", "MemoryError: it needs more than its 256 MB of memory"),
    ("forged", "fail", "TransientError: its process gave an answer that makes no sense"),
    ("garbage", "fail", "TransientError: its process gave an answer that makes no sense"),
    ("flood", "succeed", None),
]


async def test_whatever_a_process_says_or_how_it_ends_the_worker_survives(app: Keptwork) -> None:
    says = app.job(isolation="process", memory="256MB", max_attempts=1, on_exhausted="fail")(jobs.says)
    many = await app.enqueue_many(says, [{"what": what} for what, _, _ in SAYINGS])
    await app.work(until_idle=True, concurrency=3)
    for job, (what, trigger, reason) in zip(many, SAYINGS, strict=True):
        found = await last(app, job)
        assert found[0] == trigger, (what, found)
        assert (found[1] or "").startswith(reason or ""), (what, found)


async def test_what_a_process_keeps_is_kept_by_its_worker(app: Keptwork, tmp_path: Path) -> None:
    keeps, plain = app.job(isolation="process")(jobs.keeps), app.job(isolation="process")(jobs.keeps_in_plain_code)
    (tmp_path / "file").write_text("of a file")
    kept, other = await keeps.enqueue(size=1 << 22), await plain.enqueue(path=str(tmp_path / "file"))
    await app.work(until_idle=True)
    assert "'no/way' is no name for an artifact" in await kept.result()
    found = {artifact.name: artifact for artifact in await kept.artifacts()}
    assert {name: artifact.size for name, artifact in found.items()} == {
        "page.bin": 1 << 22,
        "note": 5,
        "copy": 1 << 22,
    }
    assert await kept.artifact("copy") == bytes(range(256)) * (1 << 14)
    assert (await other.result(), await other.artifact("file.txt")) == (False, b"of a file")


async def test_a_process_that_asks_for_nonsense_is_refused_and_its_worker_survives(app: Keptwork) -> None:
    job = await app.job(isolation="process")(jobs.asks_for_nonsense).enqueue()
    await app.work(until_idle=True)
    assert (await job.result(), await job.artifacts()) == ("survived", [])


async def test_a_process_of_its_own_is_told_that_it_cannot_wait_for_others(app: Keptwork) -> None:
    job = await app.job(isolation="process")(jobs.spawns).enqueue()
    async with working(app):
        await reaches(app, job, "failed")
    assert "leave out isolation='process'" in (await row(app, job))["error"]


async def test_a_process_over_its_cpu_time_is_killed_and_its_job_tried_again(app: Keptwork) -> None:
    spins = app.job(isolation="process", cpu="1s", backoff=0)(jobs.spins)
    job = await spins.enqueue()
    await app.work(until_idle=True)
    assert await triggers(app, job) == [*ONCE, "retry", *ONCE[1:], "succeed"]
    assert (await row(app, job))["error"] == "killed by SIGXCPU: it used more than its 1 s of CPU time"


async def test_a_handler_that_holds_the_interpreters_lock_keeps_its_lease(app: Keptwork) -> None:
    holds = app.job(isolation="process", lease="1s")(jobs.holds_the_lock)
    job = await holds.enqueue(seconds=2.2)
    assert await app.work(until_idle=True) == 1
    assert await triggers(app, job) == [*ONCE, "succeed"]


# --- how they are stopped


@pytest.mark.parametrize("handler", [jobs.patient, jobs.patient_async])
async def test_a_soft_cancel_reaches_the_process(app: Keptwork, tmp_path: Path, handler: Any) -> None:
    job = await app.job(isolation="process")(handler).enqueue(path=str(tmp_path / "begun"))
    async with working(app):
        await until((tmp_path / "begun").exists)
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
    assert await last(app, job) == ("cancel", "asked to stop", None)


async def test_a_soft_cancel_that_is_ignored_becomes_hard(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await app.job(isolation="process")(jobs.deaf).enqueue(path=str(tmp_path / "begun"))
    async with working(app, grace="200ms"):
        escaped = await there(tmp_path / "begun")
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
        assert escaped not in marked(mark)
    assert await last(app, job) == ("cancel", "it was asked to stop, and did not within 0.2 s", None)
    assert await triggers(app, job) == [*ONCE, "cancel"]


async def test_a_hard_cancel_ends_the_process_tree(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await app.job(isolation="process")(jobs.deaf).enqueue(path=str(tmp_path / "begun"))
    async with working(app, concurrency=1):
        escaped = await there(tmp_path / "begun")
        await moved(await app.open(), JOB, job.key, "cancel", reason="operator")
        await until(lambda: escaped not in marked(mark))
    assert await triggers(app, job) == [*ONCE, "cancel"]


async def test_a_lost_lease_ends_the_process_tree_and_the_next_claim_does_the_job(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    job = await app.job(isolation="process")(jobs.once_deaf).enqueue(path=str(tmp_path / "begun"))
    async with working(app, concurrency=1):
        escaped = await there(tmp_path / "begun")
        await moved(await app.open(), JOB, job.key, "release")
        await reaches(app, job, "succeeded")
        assert escaped not in marked(mark)
    assert await triggers(app, job) == [*ONCE, "release", *ONCE[1:], "succeed"]


async def test_a_process_over_its_time_is_ended_after_it_had_a_moment_to_tidy_up(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    declared = [
        app.job(isolation="process", timeout="2s", max_attempts=1)(handler) for handler in (jobs.tidy, jobs.deaf)
    ]
    many = [await one.enqueue(path=str(tmp_path / one.kind.name)) for one in declared]
    await app.work(until_idle=True)
    assert [await last(app, job) for job in many] == [("dead_letter", "timeout", "exec")] * 2
    assert (await row(app, many[0]))["error"] == "TimeoutError: it took longer than 2 s"
    assert (tmp_path / "tidy.tidy").exists()


async def test_after_the_grace_of_a_drain_the_process_tree_is_ended_and_the_job_given_back(
    app: Keptwork, tmp_path: Path
) -> None:
    job = await app.job(isolation="process")(jobs.deaf).enqueue(path=str(tmp_path / "begun"))
    async with working(app, grace="100ms"):
        await there(tmp_path / "begun")
    found = await row(app, job)
    assert (found["state"], found["attempts"], found["epoch"]) == ("queued", 0, 1)


async def test_kill_9_of_a_worker_takes_its_handlers_along(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await app.job(isolation="process")(jobs.once_deaf).enqueue(path=str(tmp_path / "begun"))
    code = f"""
        import asyncio
        from keptwork import Keptwork
        from tests.process import jobs
        app = Keptwork({app.url!r})
        app.job(isolation="process")(jobs.once_deaf)
        asyncio.run(app.work(lease="1s"))
    """
    worker = _program(code, mark)
    both = {await there(tmp_path / "begun"), worker.pid}
    await until(lambda: both < set(marked(mark)))
    worker.kill()
    worker.wait()
    assert survivors(mark) == []
    async with working(app):
        await reaches(app, job, "succeeded")
    assert await triggers(app, job) == [*ONCE, "expire", *ONCE[1:], "succeed"]


# --- what can be found by another process


SCRIPT = """
import asyncio
import sys

from keptwork import Cancel, Keptwork

app = Keptwork("sqlite:///elsewhere.db")


class Shop:
    @staticmethod
    def sell(ctx):
        return __name__


@app.job(isolation="process")
async def first(ctx, left: int):
    if left:
        await first.enqueue(left=left - 1)  # in the worker's database
    return __name__


sell = app.job(isolation="process", name="sell")(Shop.sell)


async def main():
    app.url = sys.argv[1]
    async with app:
        await first.enqueue(left=1)
        await sell.enqueue()
        print(await app.work(until_idle=True, grace="1s"))
        store = await app.open()
        print(sorted((row["state"], row["result"], row["error"]) for row in await store.jobs()))
"""


def _run_script(tmp_path: Path, text: str, *how: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "shop.py").write_text(text)
    command = [sys.executable, *how, f"sqlite:///{tmp_path}/keptwork.db"]
    return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("how", "name"), [(("shop.py",), "__keptwork_main__"), (("-m", "shop"), "shop")])
def test_the_jobs_of_a_script_are_found_and_use_the_workers_database(
    tmp_path: Path, how: tuple[str, ...], name: str
) -> None:
    done = _run_script(tmp_path, SCRIPT + '\n\nif __name__ == "__main__":\n    asyncio.run(main())\n', *how)
    assert done.stdout.splitlines() == ["3", str([("succeeded", f'"{name}"', None)] * 3)], done.stderr
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_script_that_works_while_it_is_imported_is_told_so(tmp_path: Path) -> None:
    unguarded = (
        SCRIPT.replace('isolation="process"', 'isolation="process", max_attempts=1') + "\n\nasyncio.run(main())\n"
    )
    done = _run_script(tmp_path, unguarded, "shop.py")
    assert done.stdout.startswith("2\n"), done.stderr
    assert done.stdout.count('put that under if __name__ == "__main__":') == 2
    assert done.stdout.count("it could not be started in a process of its own") == 2


async def test_what_no_other_process_could_find_or_make_sense_of_is_refused(app: Keptwork) -> None:
    def local(ctx: Any) -> None: ...

    for rules, function, complaint in [
        ({"isolation": "process"}, local, "this one exists only where it was made"),
        ({"isolation": "process"}, lambda ctx: None, "this one exists only where it was made"),
        ({"isolation": "thread"}, jobs.nothing, "isolation is 'thread'; say 'process', or leave it out"),
        ({"memory": "1GB"}, jobs.nothing, "say isolation='process' too"),
        ({"cpu": "30s"}, local, "say isolation='process' too"),
        ({"isolation": "process", "memory": "lots"}, jobs.nothing, "'lots' is no amount of memory"),
        ({"isolation": "process", "memory": "1MB"}, jobs.nothing, "does not start in 1,000,000 bytes"),
        ({"isolation": "process", "cpu": "1ms"}, jobs.nothing, "at least 1s"),
    ]:
        with pytest.raises(BadInput, match=complaint):
            app.job(**rules)(function)
    await app.work(until_idle=True)


async def test_a_function_that_was_replaced_is_refused_when_the_worker_starts(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job(isolation="process")(jobs.nothing)
    with monkeypatch.context() as changed:
        changed.setattr(jobs, "nothing", jobs.spins)
        with pytest.raises(BadInput, match=r"tests.process.jobs has another thing, or nothing, called nothing"):
            await app.work(until_idle=True)
    assert await app.work(until_idle=True) == 0


@pytest.mark.chaos
async def test_how_many_isolated_jobs_are_done_in_a_second(app: Keptwork) -> None:
    for handler in (jobs.nothing, jobs.add):
        declared = app.job(isolation="process")(handler)
        await app.enqueue_many(declared, [{"a": 1} if handler is jobs.add else {}] * 2000)
        begun = time.perf_counter()
        assert await app.work(until_idle=True, concurrency=8) == 2000
        print(f"\nisolated no-op jobs, {handler.__name__}: {2000 / (time.perf_counter() - begun):,.0f} a second")


def _program(code: str, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment(**{NAME: mark}))
