"""A tool: its arguments arrive as they are, it gets what it is given and nothing else, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keptwork.errors import BadInput
from keptwork.process.output import CHUNK, Kept, Stream
from keptwork.process.resource_limits import Limits
from keptwork.process.tool import LONGEST_ARGUMENT, MOST_OUTPUT, PROGRAM, Command, NotStarted, Output, Tools, passed_on
from keptwork.process.tree import signal_all
from tests.process.programs import MB
from tests.process.stage import there, until
from tests.process.survivors import assert_none, marked, new_mark, survivors
from tests.process.tool_stage import (
    GRACE,
    PATH,
    TWIN,
    argv_seen,
    elapsed,
    expected,
    outlived,
    over_the_cap,
    run,
    runaway,
)
from tests.support.command import environment

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere process groups are all there is"),
]


@pytest.fixture
def mark() -> Iterator[str]:
    """On every process of a tool; none of them may be alive when the test is over."""
    new = new_mark()
    yield new
    assert_none(new)


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    opened = Tools(grace=GRACE)
    yield opened
    await opened.close()


# --- arguments

HOSTILE = [
    ("a; touch /tmp/x", "&& id", "| id", "> /dev/full"),
    ("$(id)", "`id`", "${HOME}", "$HOME", "%s%n", "~", "*", "?", "[a-z]", "{a,b}", "!!"),
    ("-rf", "--", "-", "--help", "--version", "-c", "-e"),
    ("new\nline", "\r\n", "\t", "\x1b[31m", "\x01\x7f", "'", '"', "\\", "\\\\n", ""),
    ("æøå", "日本", "\U0001f600", "\ufeff", "\u202e", "\ufffd", "e\u0301"),
    ("x" * LONGEST_ARGUMENT,),
    ("",) * 500,
]


@pytest.mark.parametrize("argv", HOSTILE)
async def test_arguments_arrive_byte_for_byte_whatever_a_shell_would_make_of_them(
    tools: Tools, argv: tuple[str, ...]
) -> None:
    assert await argv_seen(tools, argv) == expected(argv)


async def test_the_check_of_arguments_would_notice_a_shell(tools: Tools) -> None:
    async def through_a_shell(argv: tuple[str, ...]) -> bytes:
        _, output = await run(tools, "sh", "-c", " ".join(("exec", "printf", "'%s\\0'", *argv)))
        return output.stdout.content

    assert await through_a_shell(("a", "b")) == b"a\0b\0"
    for argv in (HOSTILE[0], HOSTILE[1], HOSTILE[3]):
        assert await through_a_shell(argv) != b"".join(part.encode() + b"\0" for part in argv)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(TEXTS, max_size=8), min_size=1, max_size=20))
def test_any_text_arrives_as_it_is(many: list[list[str]]) -> None:
    async def all_of_them() -> list[bytes]:
        tools = Tools()
        try:
            return [await argv_seen(tools, argv) for argv in many]
        finally:
            await tools.close()

    assert asyncio.run(all_of_them()) == [expected(argv) for argv in many]


REFUSED = [
    (("true", "a\0b"), "argument 1 holds a NUL, which no program can be given"),
    (("true", "x", "\udcff"), r"argument 2 holds '\\udcff' at 0, half of a character"),
    (("true", "ab\ud800"), r"argument 1 holds '\\ud800' at 2, half of a character"),
    (("true", "x" * MB), "argument 1 is 1,048,576 bytes long; .* pass it as stdin, or in a file"),
    (("true", "é" * (LONGEST_ARGUMENT // 2 + 1)), "argument 1 is 131,072 bytes long"),
    (("true", *["x" * 100_000] * 50), "5,000,0.. bytes together, more than this system passes to a program"),
    (("tr\0ue",), "the program holds a NUL"),
    ((), "the command is empty"),
    (("",), "the command is empty"),
]


@pytest.mark.parametrize(("argv", "complaint"), REFUSED)
async def test_what_could_not_arrive_as_it_is_is_refused_in_one_line(
    tools: Tools, argv: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint) as refusal:
        await run(tools, *argv)
    assert "\n" not in str(refusal.value)


async def test_more_arguments_than_the_system_takes_are_an_error_that_says_so(tools: Tools) -> None:
    with pytest.raises(NotStarted, match=r"2,100,0.. bytes together, more than this system passes") as error:
        await run(tools, "true", *["x" * 100_000] * 21)
    assert not error.value.may_pass


async def test_a_variable_or_a_folder_that_could_not_arrive_is_refused(tools: Tools) -> None:
    for command, complaint in [
        (Command(("true",), {"A": "\0"}), "the variable A holds a NUL"),
        (Command(("true",), {"A=B": "c"}), "'A=B' names no variable"),
        (Command(("true",), {"A": "x" * MB}), "the variable A is 1,048,578 bytes long"),
        (Command(("true",), cwd="/\0"), "the working directory holds a NUL"),
        (Command(("true",), stdin=b"x" * (17 * MB)), "stdin of 17,825,792 bytes is over the limit of 16 MiB"),
    ]:
        with pytest.raises(BadInput, match=complaint):
            await tools.run(command, Output())


# --- what it gets


async def test_it_has_its_streams_its_folder_and_nothing_else_open(tools: Tools, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        ending, output = await run(tools, "ls", "/proc/self/fd")
        assert output.stdout.text.split() == ["0", "1", "2", "3"]  # the last is the folder it lists
    ending, output = await run(tools, "sh", "-c", "cat; cat >&2; exit 7", stdin=b"\0\xff in\n" * 100)
    assert (ending.code, output.stdout.content, output.stderr.content) == (7, b"\0\xff in\n" * 100, b"")
    folder = Output()
    await tools.run(Command(("pwd",), {"PATH": PATH}, cwd=str(tmp_path)), folder)
    assert folder.stdout.text == f"{tmp_path}\n"


async def test_no_signal_is_ignored_or_blocked_in_it(tools: Tools) -> None:
    _, output = await run(tools, "cat", "/proc/self/status")
    found = dict(line.split(":\t") for line in output.stdout.text.splitlines() if line.startswith("Sig"))
    settable = sum(1 << (number - 1) for number in signal.valid_signals())  # the C library keeps two for itself
    assert (int(found["SigIgn"], 16) & settable, int(found["SigBlk"], 16) & settable) == (0, 0)
    _, output = await run(tools, "sh", "-c", "yes | head -1")
    assert output.stderr.text == ""


CANARY = "canary-5f1d"


def leaks(environment_text: str) -> bool:
    return CANARY in environment_text


async def test_of_our_environment_it_gets_only_what_is_listed(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("KEPTWORK_DB", f"postgresql://u:{CANARY}@host/db")
    monkeypatch.setenv("WANTED", "yes")
    os.environb[b"ODD"] = b"\xff\xfe"
    try:
        output, twin = Output(), Output()
        await tools.run(Command(("env",), passed_on(["WANTED", "ODD", "NOT_SET"])), output)
        await tools.run(Command(("env",), dict(os.environ)), twin)  # what a careless runner does
    finally:
        del os.environb[b"ODD"]
    lines = output.stdout.content.splitlines()
    assert b"WANTED=yes" in lines
    assert b"ODD=\xff\xfe" in lines
    assert {line.partition(b"=")[0] for line in lines} <= {
        *(b"PATH", b"HOME", b"LANG", b"LC_ALL", b"TZ", b"TMPDIR"), b"WANTED", b"ODD"
    }  # fmt: skip
    assert not leaks(output.stdout.text)
    assert leaks(twin.stdout.text)


async def test_a_program_that_cannot_be_started_is_named_with_where_it_was_looked_for(
    tools: Tools, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "odd").write_text("no program")
    (tmp_path / "odd").chmod(0o755)
    (tmp_path / "script").write_text("#!/nowhere/python\n")
    (tmp_path / "script").chmod(0o755)
    for argv, cwd, complaint in [
        ("nosuch", None, "there is no program 'nosuch'; it was looked for in /usr/bin, /bin"),
        ("./nosuch", None, "there is no program ./nosuch"),
        ("./plain", str(tmp_path), "./plain could not be started: it is not executable"),
        ("./odd", str(tmp_path), "./odd could not be started: it is no program; a script begins with a line like #!"),
        ("./script", str(tmp_path), r"./script could not be started: what its first line \(#!\) names"),
        (str(tmp_path), None, "could not be started: it is not executable"),
        ("true", str(tmp_path / "gone"), "true cannot run in .*/gone: No such file or directory"),
        ("true", str(tmp_path / "plain"), "true cannot run in .*/plain: Not a directory"),
    ]:
        with pytest.raises(NotStarted, match=complaint) as error:
            await tools.run(Command((argv,), {"PATH": PATH}, cwd=cwd), Output())
        assert not error.value.may_pass
    with pytest.raises(NotStarted, match="no folder: PATH has none"):
        await tools.run(Command(("true",), {"PATH": ".:"}, cwd="/bin"), Output())  # never where it happens to be


async def test_its_limits_hold_for_all_of_it(tools: Tools) -> None:
    eats, spins = "x = bytearray(300 << 20)", "while True: pass"
    heavy, busy = await asyncio.gather(
        *(
            tools.run(Command((sys.executable, "-S", "-c", code), limits=limits), Output())
            for code, limits in ((eats, Limits(memory_bytes=100 * MB)), (spins, Limits(cpu_seconds=1)))
        )
    )
    assert (heavy.code, busy.code) == (1, -signal.SIGXCPU)


async def test_many_at_once_keep_apart_and_leave_no_file_open(tools: Tools) -> None:
    async def one(number: int) -> str:
        if number % 4 == 3:
            with pytest.raises(NotStarted):
                await run(tools, "nosuch")
        return (await run(tools, "sh", "-c", f"cat; echo {number}", stdin=b"in "))[1].stdout.text

    await asyncio.gather(*map(one, range(8)))
    before = len(os.listdir("/proc/self/fd"))
    assert await asyncio.gather(*map(one, range(8))) == [f"in {number}\n" for number in range(8)]
    assert len(os.listdir("/proc/self/fd")) == before


# --- what it writes


def test_of_a_stream_the_beginning_and_the_end_are_kept() -> None:
    for most, sizes in [(10, [10]), (10, [11]), (10, [3, 3, 3, 3]), (1000, [999, 1, 1, 64_000, 1])]:
        kept, whole = Kept(most), b""
        for size in sizes:
            chunk = bytes(range(33, 100)) * 1000
            kept.add(chunk[:size])
            whole += chunk[:size]
        cut = max(len(whole) - most, 0)
        note = f"\n[… {cut:,} bytes are left out here …]\n".encode() if cut else b""
        assert kept.cut == cut
        assert kept.content == (whole[: most // 2] + note + whole[most // 2 + cut :] if cut else whole)


def test_last_lines_are_harmless_and_few() -> None:
    kept = Kept(1 << 20)
    kept.add(b"x" * 100_000 + b"\n\x1b]0;title\x07one\n\n\x1b[31mtwo\x1b[0m\n \xff\xc3\x07three\n\n")
    assert kept.last_lines(3) == ["one", "two", "\ufffd\ufffd three"]
    assert len(Kept(10).last_lines(2)) == 0


async def test_a_flood_is_cut_in_the_middle_and_fills_neither_pipe_nor_memory(tools: Tools) -> None:
    lines = 200_000
    ending, output = await run(tools, "sh", "-c", f"seq {lines}; seq {lines} >&2; echo end")
    total = sum(len(f"{n}\n") for n in range(1, lines + 1))
    assert ending.code == 0
    assert output.truncated
    assert (output.stdout.cut, output.stderr.cut) == (total + 4 - MOST_OUTPUT, total - MOST_OUTPUT)
    assert output.stdout.text.startswith("1\n2\n")
    assert output.stdout.text.endswith(f"{lines}\nend\n")
    assert over_the_cap(output, MOST_OUTPUT) == []
    assert over_the_cap(output, MOST_OUTPUT // 2) == ["stdout", "stderr"]  # as it finds when more is kept than may be


@pytest.mark.parametrize(("rest", "taken"), [(0.5, 1), (0.0, 2)])  # without a rest, it takes the next at once
async def test_after_all_it_could_take_a_reader_rests_so_that_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, rest: float, taken: int
) -> None:
    monkeypatch.setattr("keptwork.process.output.REST_SECONDS", rest)
    heard: list[Kept] = []
    stream = Stream(Kept(MOST_OUTPUT), heard.append)
    try:
        os.write(stream.writing, b"x" * CHUNK)
        await until(lambda: bool(heard))
        os.write(stream.writing, b"y")
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(heard) == taken
        await until(lambda: len(heard) == 2)
    finally:
        stream.close()


# --- nothing is left


async def test_what_a_tool_leaves_running_ends_with_it(tools: Tools, mark: str) -> None:
    ending, output = await run(
        tools, "sh", "-c", "setsid sleep 1000 & (trap '' TERM; sleep 1000) & echo done", mark=mark
    )
    assert (ending.code, output.stdout.text) == (0, "done\n")
    assert marked(mark) == []


async def test_a_runaway_tool_is_gone_in_time_and_its_output_capped(tools: Tools, mark: str, tmp_path: Path) -> None:
    output = Output()
    task = asyncio.create_task(tools.run(runaway(mark, tmp_path / "begun"), output))
    await there(tmp_path / "begun")
    assert len(marked(mark)) == 4
    await asyncio.sleep(0.3)  # some of the flood
    began = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    assert marked(mark) == []
    assert GRACE <= elapsed(began) < GRACE + 2
    assert over_the_cap(output, MOST_OUTPUT) == []
    assert output.truncated
    ending, _ = await run(tools, "true")
    assert ending.code == 0


async def test_the_check_would_notice_survivors_where_process_groups_are_all_there_is(
    mark: str, tmp_path: Path
) -> None:
    twin = Tools(TWIN, GRACE)
    try:
        task = asyncio.create_task(twin.run(runaway(mark, tmp_path / "begun", "quiet"), Output()))
        await there(tmp_path / "begun")
        task.cancel()
        await asyncio.wait([task])
        left = survivors(mark, 0.5)
        assert len(left) == 2
        signal_all(left, signal.SIGKILL)
    finally:
        await twin.close()


async def test_a_tool_that_minds_sigterm_has_its_grace(tools: Tools, tmp_path: Path) -> None:
    output = Output()
    script = "trap 'echo bye; exit 0' TERM; echo up > begun; while :; do sleep 0.01; done"
    task = asyncio.create_task(tools.run(Command(("sh", "-c", script), {"PATH": PATH}, cwd=str(tmp_path)), output))
    await until((tmp_path / "begun").exists)
    task.cancel()
    await asyncio.wait([task])
    assert output.stdout.text == "bye\n"


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


def _owner(program: str, mark: str, begun: Path, *quiet: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.process.tool_owner", program, mark, str(begun), *quiet]
    return subprocess.Popen(command, env=environment())


@pytest.mark.parametrize("quiet", [(), ("quiet",)])  # who writes learns at once that nobody reads
async def test_kill_9_of_the_worker_leaves_nothing_of_a_runaway_tool(
    mark: str, tmp_path: Path, quiet: tuple[str, ...]
) -> None:
    worker = _owner(PROGRAM, mark, tmp_path / "begun", *quiet)
    await there(tmp_path / "begun")
    worker.kill()
    worker.wait()
    assert outlived(mark) == []


async def test_the_check_would_notice_what_outlives_a_killed_worker(mark: str, tmp_path: Path) -> None:
    worker = _owner(TWIN, mark, tmp_path / "begun")
    await there(tmp_path / "begun")
    worker.kill()
    worker.wait()
    left = survivors(mark, GRACE + 0.7)
    signal_all(left, signal.SIGKILL)
    assert len(left) >= 1


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.chaos)])
def test_at_whatever_moment_the_worker_is_killed_nothing_is_left(mark: str, tmp_path: Path, rounds: int) -> None:
    dice, begun, slowest = random.Random(rounds), 0, 0.0
    for number in range(rounds):
        worker = _owner(PROGRAM, mark, tmp_path / f"begun-{number}", *["quiet"][: number % 4 // 2])
        if number % 2:
            _wait_for(tmp_path / f"begun-{number}")
        time.sleep(dice.uniform(0, 0.4))  # before the zygote is up, in between, amid the flood
        worker.kill()
        worker.wait()
        killed = time.monotonic()
        assert outlived(mark) == []
        begun, slowest = begun + (tmp_path / f"begun-{number}").exists(), max(slowest, elapsed(killed))
    assert begun >= rounds // 2
    print(f"\n{rounds} workers killed, {begun} of them amid a runaway tool: all gone within {slowest:.2f} s")


@pytest.mark.parametrize("victim", ["keeper", "zygote"])
async def test_when_what_watches_over_a_tool_is_killed_the_tool_is_too(
    tools: Tools, mark: str, tmp_path: Path, victim: str
) -> None:
    task = asyncio.create_task(tools.run(runaway(mark, tmp_path / "begun", "quiet"), Output()))
    leader = await there(tmp_path / "begun")
    keeper = _parent(leader)
    os.kill(keeper if victim == "keeper" else _parent(keeper), signal.SIGKILL)
    await until(lambda: not marked(mark), GRACE + 2)
    await asyncio.wait([task])
    ending, _ = await run(tools, "true")
    assert ending.code == 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.chaos
async def test_what_a_tool_costs_over_running_the_program_bare(tools: Tools) -> None:
    count = 200
    await run(tools, "true")
    began = time.perf_counter()
    for _ in range(count):
        await run(tools, "true")
    ours = (time.perf_counter() - began) / count
    began = time.perf_counter()
    for _ in range(count):
        subprocess.run(["true"], capture_output=True, check=True)  # noqa: ASYNC221 - the time it takes is the point
    bare = (time.perf_counter() - began) / count
    print(f"\none `true`: {ours * 1e3:.2f} ms as a tool, {bare * 1e3:.2f} ms bare")
    assert ours - bare < 0.030
