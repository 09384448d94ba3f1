"""A cage: what runs in it has a process tree of its own, within limits, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from keptwork.process.pool import CageLost, Cages
from keptwork.process.resource_limits import Limits
from tests.process.programs import MB
from tests.process.stage import LARGEST, PROGRAM, TWIN, WEAK, answer, run, there, until
from tests.process.survivors import NAME, SECONDS, assert_none, marked, new_mark, survivors
from tests.support.command import environment

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere process groups are all there is"),
]


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """On every process the test starts; none of them may be alive when it is over."""
    new = new_mark()
    monkeypatch.setenv(NAME, new)
    yield new
    assert_none(new)


@pytest.fixture
async def cages(mark: str) -> AsyncIterator[Cages]:
    opened = Cages(PROGRAM, [])
    yield opened
    await opened.close()


def owner(mark: str, deed: str, argument: str) -> subprocess.Popen[bytes]:
    """A worker in a process of its own, to be killed."""
    command = [sys.executable, "-m", "tests.process.owner", deed, argument]
    return subprocess.Popen(command, env=environment(**{NAME: mark}))


async def test_each_errand_has_a_process_of_its_own_and_a_keeper_is_used_again(cages: Cages) -> None:
    assert await answer(cages, "echo", {"æ\0": [1, None]}) == {"æ\0": [1, None]}
    first, second = await answer(cages, "who"), await answer(cages, "who")
    assert first["pid"] == first["group"] != second["pid"]
    assert first["parent"] == second["parent"]
    assert first["zygote"] == second["zygote"] != os.getpid()
    both = await asyncio.gather(answer(cages, "who"), answer(cages, "who"))
    assert both[0]["parent"] != both[1]["parent"]


async def test_a_process_has_none_of_the_workers_files_and_sockets(cages: Cages, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        await asyncio.gather(answer(cages, "echo"), answer(cages, "echo"))  # other keepers have lines too
        standard = [os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in (1, 2)]
        assert await answer(cages, "descriptors") == sorted(["/dev/null", *standard, "socket"])


async def test_how_it_ended_is_reported(cages: Cages) -> None:
    assert (await run(cages, "leave", 3)).code == 3
    assert (await run(cages, "die", signal.SIGSEGV)).code == -signal.SIGSEGV
    refused = await run(cages, "unknown")
    assert refused.refused == "ImportError: there is no such thing\0 here"
    assert await answer(cages, "echo", "still there") == "still there"


async def test_an_answer_that_is_too_long_is_not_read(cages: Cages) -> None:
    assert len(await answer(cages, "flood", LARGEST - 2)) == LARGEST - 2
    with pytest.raises(ValueError, match="over the limit of 1,048,576"):
        await run(cages, "flood", LARGEST)
    assert await answer(cages, "echo", 1) == 1


# --- nothing is left behind


async def test_what_outlives_its_leader_is_ended_before_the_answer_counts(
    cages: Cages, mark: str, tmp_path: Path
) -> None:
    before = None
    for number in range(3):
        assert await answer(cages, "flee", str(tmp_path / f"escaped-{number}")) == "left one behind"
        pid = int((tmp_path / f"escaped-{number}").read_text())
        assert pid not in marked(mark)
        assert before in (None, len(marked(mark)))
        before = len(marked(mark))


async def test_without_adopting_orphans_one_would_be_left_behind(mark: str, tmp_path: Path) -> None:
    twin = Cages(TWIN, [])
    try:
        assert await answer(twin, "flee", str(tmp_path / "escaped")) == "left one behind"
        pid = int((tmp_path / "escaped").read_text())
        assert pid in survivors(mark, 0.2)
    finally:
        await twin.close()
    assert survivors(mark) == [pid]
    os.kill(pid, signal.SIGKILL)


async def test_what_cannot_be_killed_holds_up_nobody(mark: str, tmp_path: Path) -> None:
    weak = Cages(WEAK, [])
    try:
        assert await answer(weak, "flee", str(tmp_path / "escaped")) == "left one behind"
        assert int((tmp_path / "escaped").read_text()) in marked(mark)
        assert await answer(weak, "echo", "next") == "next"
    finally:
        os.kill(int((tmp_path / "escaped").read_text()), signal.SIGKILL)
        await weak.close()


@pytest.mark.parametrize("deed", ["flee_and_wait", "bomb", "chain", "wait_deaf"])
async def test_a_cancelled_errand_is_gone_with_all_it_started(
    cages: Cages, mark: str, tmp_path: Path, deed: str
) -> None:
    task = asyncio.create_task(run(cages, deed, str(tmp_path / "begun")))
    await there(tmp_path / "begun")
    await asyncio.sleep(0.1)  # so that a bomb has grown
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(marked(mark)) <= 2  # the zygote and its one keeper


async def test_a_cancelled_errand_may_clean_up_first(cages: Cages, tmp_path: Path) -> None:
    task = asyncio.create_task(run(cages, "clean_up", str(tmp_path / "begun")))
    await there(tmp_path / "begun")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "begun.clean").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("victim", ["parent", "zygote"])
async def test_when_a_keeper_or_the_zygote_is_killed_nothing_is_left_and_the_next_errand_works(
    cages: Cages, mark: str, tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    who = await answer(cages, "who")
    task = asyncio.create_task(run(cages, "flee_and_wait", str(tmp_path / "begun")))
    escaped = await there(tmp_path / "begun")
    os.kill(who[victim], number)
    with contextlib.suppress(CageLost):
        assert (await task).answer is None
    await until(lambda: escaped not in marked(mark), SECONDS)
    assert await answer(cages, "echo", "again") == "again"


async def test_when_an_idle_zygote_is_killed_its_keepers_end_and_nobody_notices(cages: Cages, mark: str) -> None:
    who = await answer(cages, "who")
    os.kill(who["zygote"], signal.SIGKILL)
    await until(lambda: not marked(mark), SECONDS)
    assert await answer(cages, "echo", "again") == "again"


async def test_an_errand_that_a_dying_keeper_never_read_is_given_to_another(cages: Cages) -> None:
    keeper = (await answer(cages, "who"))["parent"]
    os.kill(keeper, signal.SIGSTOP)  # as one is that is being killed: its line is open, and nobody reads it
    task = asyncio.create_task(answer(cages, "echo", "again"))
    await asyncio.sleep(0)
    os.kill(keeper, signal.SIGKILL)
    assert await task == "again"


async def test_an_errand_for_which_a_dying_zygote_made_no_keeper_is_given_to_another(
    cages: Cages, tmp_path: Path
) -> None:
    zygote = (await answer(cages, "who"))["zygote"]
    busy = asyncio.create_task(run(cages, "flee_and_wait", str(tmp_path / "begun")))
    await there(tmp_path / "begun")  # so that the next one needs a new keeper
    os.kill(zygote, signal.SIGSTOP)
    task = asyncio.create_task(answer(cages, "echo", "again"))
    await asyncio.sleep(0)
    os.kill(zygote, signal.SIGKILL)
    assert await task == "again"
    with contextlib.suppress(CageLost):
        assert (await busy).answer is None


async def test_a_zygote_that_cannot_begin_is_not_tried_for_ever(mark: str) -> None:
    hopeless = Cages("tests.process.nowhere", [])
    with pytest.raises(CageLost, match="could not be started"):
        await run(hopeless, "echo")
    await hopeless.close()


@pytest.mark.parametrize("deed", ["flee_and_wait", "wait_deaf", "bomb"])
async def test_kill_9_of_the_worker_leaves_no_process_behind(mark: str, tmp_path: Path, deed: str) -> None:
    worker = owner(mark, deed, str(tmp_path / "begun"))
    begun = await there(tmp_path / "begun")
    assert {begun, worker.pid} < set(marked(mark))
    worker.kill()
    worker.wait()
    assert survivors(mark) == []


def test_an_idle_cage_dies_with_a_worker_that_forgot_it(mark: str) -> None:
    assert owner(mark, "echo", "idle").wait(60) == 0
    assert survivors(mark) == []


# --- limits


async def test_more_memory_than_allowed_is_refused_to_one_and_ends_a_tree(cages: Cages) -> None:
    limits = Limits(memory_bytes=200 * MB)
    assert (await run(cages, "eat", 100 * MB, limits)).answer == str(100 * MB).encode()
    assert (await run(cages, "eat", 300 * MB, limits)).answer is None
    ending = await run(cages, "eat_in_two", 120 * MB, limits)
    assert (ending.why, ending.code) == ("memory", -signal.SIGKILL)


async def test_more_cpu_time_than_allowed_ends_one_and_a_tree(cages: Cages) -> None:
    limits = Limits(cpu_seconds=1)
    one, three = await asyncio.gather(run(cages, "spin", None, limits), run(cages, "spin_in_three", None, limits))
    assert one.code == -signal.SIGXCPU
    assert 0.5 < one.cpu_seconds < 2
    assert three.code in (-signal.SIGKILL, -signal.SIGXCPU)
