"""Tools run for jobs: what their endings mean, what they are told, and how they are stopped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork, PermanentError
from keptwork.core.lifecycles import JOB
from keptwork.errors import JobFailed
from keptwork.flows.definition import Step
from keptwork.handles import Handle
from keptwork.jobs.queries import said
from keptwork.process.resource_limits import Limits
from keptwork.settings import Config
from keptwork.workers.tool_runner import ToolSpec, parsed, run_tool, spec_of
from tests.process.stage import there, until
from tests.process.survivors import NAME, assert_none, marked, new_mark
from tests.process.tool_stage import GRACE, PATH, RUNAWAY
from tests.worker.scene import eventually, last, moved, reaches, row, triggers, working

pytestmark = pytest.mark.acceptance

ONCE = ["enqueue", "claim", "start"]
NO_TOOLS = Config.model_validate({})


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One kind of store is enough: none of this depends on it."""
    return sqlite_url


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.process.tool.GRACE_SECONDS", GRACE)


@pytest.fixture
def mark() -> Iterator[str]:
    new = new_mark()
    yield new
    assert_none(new)


def step(**said: Any) -> Step:
    return Step.model_validate(said)


def tool(app: Keptwork, spec: ToolSpec, **rules: Any) -> Any:
    @app.job(**{"name": "tool", "max_attempts": 1, "on_exhausted": "fail", "backoff": 0, **rules})
    async def run(ctx: Any) -> dict[str, Any]:
        return await run_tool(ctx, spec)

    return run


def shell(script: str, **how: Any) -> ToolSpec:
    """A script for the tests' own convenience: the shell is the tool."""
    return ToolSpec(("sh", "-c", script), "build", {"PATH": PATH, **how.pop("env", {})}, **how)


async def ran(app: Keptwork, spec: ToolSpec, **rules: Any) -> Handle:
    job: Handle = await tool(app, spec, **rules).enqueue(_correlation_id="run-1", _trace_id="4bf9")
    await app.work(until_idle=True, concurrency=1)
    return job


async def error(app: Keptwork, job: Handle) -> str:
    return str((await row(app, job))["error"])


# --- endings


async def test_a_tool_that_ends_as_expected_leaves_what_it_wrote(app: Keptwork) -> None:
    job = await ran(app, shell("cat; echo odd >&2; exit 5", stdin=b'{"n": [1]}\n', expected_exit_codes=(0, 5)))
    result = await job.result()
    assert 0 < result.pop("seconds") < 60
    assert result == {
        "stdout": '{"n": [1]}\n',
        "stderr": "odd\n",
        "exit_code": 5,
        "json": {"n": [1]},
        "truncated": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
    }
    assert await job.artifacts() == []


@pytest.mark.parametrize(
    ("retry", "ending", "kind"), [(True, ["retry", *ONCE[1:], "fail"], "Transient"), (False, ["fail"], "Permanent")]
)
async def test_an_unexpected_exit_code_is_tried_again_if_it_may_be_and_its_output_kept(
    app: Keptwork, retry: bool, ending: list[str], kind: str
) -> None:
    spec = shell("seq 9; echo; printf '\\033[31mbad\\033[0m' >&2; exit 3", retry_on_failure=retry)
    job = await ran(app, spec, max_attempts=2)
    assert await triggers(app, job) == [*ONCE, *ending]
    assert await error(app, job) == f"{kind}Error: build ended with exit code 3, not 0: bad"
    assert (await job.artifact("stdout"), await job.artifact("stderr")) == (
        b"1\n2\n3\n4\n5\n6\n7\n8\n9\n\n",
        b"\x1b[31mbad\x1b[0m",
    )


async def test_without_a_word_on_stderr_the_last_lines_of_stdout_are_told(app: Keptwork) -> None:
    job = await ran(app, shell("seq 9; exit 1", expected_exit_codes=(0, 2)))
    assert (await error(app, job)).endswith("build ended with exit code 1, not 0 or 2: 5 | 6 | 7 | 8 | 9")


ENDINGS = [
    (shell("echo up; sleep 100", timeout_us=300_000), "TimeoutError: build took longer than 0.3 s: up"),
    (shell("kill -SEGV $$"), "TransientError: build: killed by SIGSEGV"),
    (shell("kill -SEGV $$", retry_on_failure=False), "PermanentError: build: killed by SIGSEGV"),
    (
        ToolSpec((sys.executable, "-S", "-c", "while True: pass"), "spin", limits=Limits(cpu_seconds=1)),
        "TransientError: spin: killed by SIGXCPU: it used more than its 1 s of CPU time",
    ),
    (
        ToolSpec(("nosuch",), "x", {"PATH": PATH}),
        "PermanentError: x cannot be run: there is no program 'nosuch'; it was looked for in /usr/bin, /bin",
    ),
    (
        ToolSpec(("true", "\0"), "x", {"PATH": PATH}),
        "PermanentError: x cannot be run: argument 1 holds a NUL, which no program can be given",
    ),
]


async def test_every_other_ending_is_an_error_in_words(app: Keptwork) -> None:
    many = [await tool(app, spec, name=f"tool-{number}").enqueue() for number, (spec, _) in enumerate(ENDINGS)]
    await app.work(until_idle=True)
    for job, (_, complaint) in zip(many, ENDINGS, strict=True):
        assert await error(app, job) == complaint
        kept = [artifact.name for artifact in await job.artifacts()]
        assert kept == ([] if "cannot be run" in complaint else ["stderr", "stdout"])


async def test_a_tool_over_its_time_is_a_timeout_like_any_other(app: Keptwork) -> None:
    job = await ran(app, shell("sleep 100", timeout_us=100_000), on_exhausted="dead_letter")
    assert await last(app, job) == ("dead_letter", "timeout", "exec")


async def test_a_flood_is_cut_and_said_to_be(app: Keptwork) -> None:
    job = await ran(app, shell("echo '['; seq -s, 100000; echo ']'", most_output=1 << 16))
    result = await job.result()
    assert (result["truncated"], result["json"], len(result["stderr"])) == (True, None, 0)
    assert len(result["stdout"]) < (1 << 16) + 100
    assert result["stdout"].startswith("[\n1,2,")
    assert result["stdout"].endswith(",100000\n]\n")


async def test_the_most_hostile_output_can_be_kept(app: Keptwork) -> None:
    noise = "import os; os.write(1, bytes(range(256)) * 4096); os.write(2, b'\\1\\xff' * (1 << 19))"
    job = await ran(app, ToolSpec((sys.executable, "-S", "-c", noise), "noise"))
    result = await job.result()
    assert (len(result["stdout"]), len(result["stderr"])) == (1 << 20, 1 << 20)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": [1, null]}\n', {"a": [1, None]}),
        ("17\n", 17),
        ('"x"', "x"),
        ("", None),
        ("done", None),
        ('{"a": 1} {"b": 2}', None),
        ("NaN", None),
        ("[Infinity]", None),
        ("1e999", None),
        ("9" * 5000, None),
        ("[" * 100_000, None),
        ("[" * 100_000 + "]" * 100_000, None),
    ],
)
def test_what_is_json_is_read_as_such_and_what_could_not_be_kept_is_not(text: str, value: Any) -> None:
    assert parsed(text) == value


# --- what it is told


async def test_a_tool_knows_its_job_and_none_of_our_secrets(app: Keptwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPTWORK_DB", "postgresql://u:canary@host/db")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    shows = step(id="show", command=["env"], env={"LEVEL": 3, "DEEP": True})
    job = await ran(app, spec_of(shows, NO_TOOLS))
    result = await job.result()
    found = dict(line.split("=", 1) for line in result["stdout"].splitlines())
    assert "canary" not in json.dumps(result)
    assert {name: value for name, value in found.items() if name.startswith("KEPTWORK_")} == {
        "KEPTWORK_JOB_ID": job.id,
        "KEPTWORK_IDEMPOTENCY_KEY": f"{job.id}:show",
        "KEPTWORK_CORRELATION_ID": "run-1",
        "KEPTWORK_TRACE_ID": "4bf9",
        "KEPTWORK_FENCING_TOKEN": "0",
    }
    assert (found["LEVEL"], found["DEEP"], found["PATH"]) == ("3", "true", os.environ["PATH"])


async def test_while_it_runs_its_last_line_is_told(app: Keptwork, tmp_path: Path) -> None:
    script = "echo one; echo; printf '\\033[1mtwo of 3\\033[0m\\n' >&2; while [ ! -e done ]; do sleep 0.02; done"
    job = await tool(app, shell(script, cwd=str(tmp_path))).enqueue()

    async def told() -> bool:
        found = await said(await app.open(), 1, job.key)
        return found is not None and found.text == "two of 3"

    async with working(app):
        await eventually(told)
        (tmp_path / "done").touch()
        await reaches(app, job, "succeeded")


# --- stopping


def runaway(mark: str, begun: Path, **how: Any) -> ToolSpec:
    return ToolSpec((sys.executable, "-S", RUNAWAY, str(begun), "quiet"), "away", {"PATH": PATH, NAME: mark}, **how)


async def test_a_job_asked_to_stop_ends_its_tool_at_once(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await tool(app, shell("echo > begun; sleep 100", cwd=str(tmp_path), env={NAME: mark})).enqueue()
    async with working(app, grace="30s"):
        await until((tmp_path / "begun").exists)
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
        assert marked(mark) == []
    trigger, reason, _ = await last(app, job)
    assert (trigger, "build was ended, as it was asked to stop" in str(reason)) == ("cancel", True)


async def test_a_hard_cancel_ends_all_of_a_runaway_tool(app: Keptwork, tmp_path: Path, mark: str) -> None:
    job = await tool(app, runaway(mark, tmp_path / "begun")).enqueue()
    async with working(app, concurrency=1):
        await there(tmp_path / "begun")
        await moved(await app.open(), JOB, job.key, "cancel", reason="operator")
        await until(lambda: not marked(mark))
    assert await triggers(app, job) == [*ONCE, "cancel"]


async def test_a_worker_that_drains_takes_its_tools_along_and_gives_the_job_back(
    app: Keptwork, tmp_path: Path, mark: str
) -> None:
    job = await tool(app, runaway(mark, tmp_path / "begun")).enqueue()
    async with working(app, grace="100ms"):
        await there(tmp_path / "begun")
    assert marked(mark) == []
    assert (await row(app, job))["state"] == "queued"


async def test_in_a_process_of_its_own_a_handler_is_told_that_there_are_no_tools(app: Keptwork) -> None:
    from tests.process import jobs

    job = await app.job(isolation="process")(jobs.uses_tools).enqueue()
    await app.work(until_idle=True)
    with pytest.raises(JobFailed, match="leave out isolation='process'"):
        await job.result()


# --- from a step and a profile

PROFILE = {
    "command": ["ruff", "check"],
    "timeout": "5m",
    "expected_exit_codes": [0, 1],
    "retry_on_failure": False,
    "env": ["RUFF_CACHE"],
    "cwd": "src",
    "idempotent": False,
    "review_by": "ops",
    "memory": "512MB",
    "cpu": "1500ms",
    "output": "64KiB",
}


def test_a_profile_gives_a_step_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUFF_CACHE", "/cache")
    monkeypatch.setenv("OTHER", "x")
    config = Config.model_validate({"tools": {"ruff": PROFILE}})
    config._path = tmp_path / "keptwork.toml"
    spec = spec_of(step(id="lint", tool="ruff", args=["--fix", 3, True, 1.5], retries=2), config)
    assert spec == ToolSpec(
        argv=("ruff", "check", "--fix", "3", "true", "1.5"),
        label="lint",
        env=spec.env,
        cwd=str(tmp_path / "src"),
        timeout_us=300_000_000,
        expected_exit_codes=(0, 1),
        retry_on_failure=False,
        idempotent=False,
        tries=3,
        review_by="ops",
        limits=Limits(512_000_000, 2),
        most_output=65_536,
    )
    assert (spec.env["RUFF_CACHE"], "OTHER" in spec.env) == ("/cache", False)


def test_what_a_step_says_wins_over_the_profile() -> None:
    config = Config.model_validate({"tools": {"ruff": PROFILE}})
    lint = step(
        id="lint",
        tool="ruff",
        cwd="/srv",
        timeout="1s",
        expected_exit_codes=[2],
        idempotent=True,
        stdin="é",
        env={"RUFF_CACHE": "mine"},
    )
    spec = spec_of(lint, config)
    assert (
        spec.cwd,
        spec.timeout_us,
        spec.expected_exit_codes,
        spec.idempotent,
        spec.stdin,
        spec.env["RUFF_CACHE"],
    ) == (
        *("/srv", 1_000_000, (2,), True),
        *("é".encode(), "mine"),
    )


def test_a_command_has_the_usual_settings_and_values_filled_in_become_text() -> None:
    filled = {"command": ["a", {"n": [1]}, None, "b"], "stdin": [1, "é"]}
    spec = spec_of(step(id="x", command=["a"]).model_copy(update=filled), NO_TOOLS)
    assert spec.argv == ("a", '{"n": [1]}', "null", "b")
    assert spec.stdin == '[1, "é"]'.encode()
    assert (spec.timeout_us, spec.expected_exit_codes, spec.idempotent) == (3_600_000_000, (0,), True)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (step(id="a", tool="ruff"), r"there is no tool ruff in keptwork.toml; it has: none. Add it as \[tools.ruff\]"),
        (step(id="a", command=["x"], env={"KEPTWORK_DB": "y"}), "env: KEPTWORK_DB is kept from tools"),
        (step(id="a", command=["x"], env={"a b": "y"}), "env: 'a b' names no variable"),
        (step(id="a", command=["x"]).model_copy(update={"env": {"A": "\ud800"}}), "the variable A is no text"),
        (step(id="a", command=["x"]).model_copy(update={"stdin": "\udcff"}), "stdin is no text"),
    ],
)
def test_a_step_that_cannot_be_run_is_refused_for_good(wrong: Step, complaint: str) -> None:
    with pytest.raises(PermanentError, match=complaint):
        spec_of(wrong, NO_TOOLS)
