"""`keptwork jobs result|artifacts|artifact` as its users run it, and large results in `show` and `wait`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from keptwork import Keptwork
from keptwork.context import Context
from tests.cli.queue_scene import answer, said
from tests.cli.refusals import refused
from tests.support.command import environment, run

BINARY = bytes(range(256)) * 10
LARGE = {"text": "x" * 100_000}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('output')}/keptwork.db"


@pytest.fixture(scope="module")
def ids(url: str) -> dict[str, str]:
    """A job of each kind: one with a large result and artifacts, one with a small result, one that broke."""

    async def fill() -> dict[str, str]:
        async with Keptwork(url) as app:

            @app.job()
            async def large(ctx: Context) -> dict[str, str]:
                await ctx.keep("data.bin", BINARY)
                await ctx.keep("notes.txt", "Grüße\n")
                return LARGE

            @app.job()
            async def small(ctx: Context) -> int:
                return 42

            @app.job(max_attempts=1)
            async def breaks(ctx: Context) -> None:
                raise RuntimeError("no luck")

            made = {job.kind.name: (await job.enqueue()).id for job in (large, small, breaks)}
            await app.work(until_idle=True)
            return {**made, "waiting": (await small.enqueue()).id}

    return asyncio.run(fill())


def raw(url: str, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    """The command with its output byte for byte."""
    command = [sys.executable, "-m", "keptwork", *arguments, "--db", url]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=environment(COLUMNS="200"), timeout=60, check=False
    )


def test_a_result_is_printed_whole_whatever_its_size(url, ids):
    assert json.loads(run("jobs", "result", ids["large"], "--db", url).stdout) == LARGE
    assert said(url, "jobs", "result", ids["small"]) == "42\n"
    refused(
        run("jobs", "result", ids["breaks"], "--db", url), 1, "ended dead_lettered: exhausted_retries: RuntimeError"
    )
    refused(run("jobs", "result", ids["waiting"], "--db", url), 124, f"{ids['waiting']} is still queued after 0s")


def test_a_large_result_is_whole_as_json_and_a_head_for_people(url, ids):
    for verb in ("show", "wait"):
        assert answer(url, "jobs", verb, ids["large"])["result"] == LARGE
        told = run("jobs", verb, ids["large"], "--db", url).stdout
        assert f"(97.7 KiB, the whole of it with: keptwork jobs result {ids['large']})" in told
        assert len(told) < 3000
    assert len(answer(url, "jobs", "show", ids["large"])["result_hash"]) == 64
    assert "42" in said(url, "jobs", "show", ids["small"])


def test_artifacts_are_listed_for_people_and_as_json(url, ids):
    told = said(url, "jobs", "artifacts", ids["large"])
    for words in ("data.bin", "2.5 KiB", "application/octet-stream", "notes.txt", "8 bytes", "text/plain"):
        assert words in told
    listed = answer(url, "jobs", "artifacts", ids["large"])["artifacts"]
    assert [(kept["name"], kept["size"]) for kept in listed] == [("data.bin", 2560), ("notes.txt", 8)]
    assert answer(url, "jobs", "show", ids["large"])["artifacts"] == listed
    assert "data.bin (2.5 KiB), notes.txt (8 bytes)" in said(url, "jobs", "show", ids["large"])
    assert said(url, "jobs", "artifacts", ids["small"]) == "No artifacts.\n"


@pytest.mark.acceptance
def test_an_artifact_is_written_byte_for_byte(url, ids, tmp_path):
    assert raw(url, "jobs", "artifact", ids["large"], "data.bin").stdout == BINARY
    assert raw(url, "jobs", "artifact", ids["large"], "data.bin", "--out", "-").stdout == BINARY
    file = tmp_path / "copy"
    assert said(url, "jobs", "artifact", ids["large"], "data.bin", "--out", str(file)) == f"{file} has 2.5 KiB.\n"
    assert file.read_bytes() == BINARY
    told = answer(url, "jobs", "artifact", ids["large"], "notes.txt", "--out", str(tmp_path))
    assert (told["file"], (tmp_path / "notes.txt").read_text()) == (f"{tmp_path}/notes.txt", "Grüße\n")
    assert answer(url, "jobs", "artifact", ids["large"], "data.bin")["artifact"]["size"] == 2560


def on_a_terminal(url: str, *arguments: str) -> tuple[int, bytes, bytes]:
    ours, theirs = pty.openpty()
    done = raw(url, *arguments, stdout=theirs)
    os.close(theirs)
    try:
        shown = os.read(ours, 100_000)
    except OSError:  # nothing was written, and nobody can write any more
        shown = b""
    os.close(ours)
    return done.returncode, shown, done.stderr


@pytest.mark.acceptance
def test_a_terminal_gets_text_and_no_binary_unless_asked_for(url, ids):
    code, shown, error = on_a_terminal(url, "jobs", "artifact", ids["large"], "data.bin")
    assert (code, shown) == (2, b"")
    assert b"not fit for a terminal; use --out FILE" in error
    assert on_a_terminal(url, "jobs", "artifact", ids["large"], "notes.txt")[:2] == (0, "Grüße\r\n".encode())
    code, shown, _ = on_a_terminal(url, "jobs", "artifact", ids["large"], "data.bin", "--out", "-")
    assert (code, len(shown) >= len(BINARY)) == (0, True)


def test_a_name_put_into_the_database_by_hand_does_not_lead_out_of_the_folder(url, ids, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.execute(
        "INSERT INTO artifacts SELECT tenant_id, job_id, epoch, size, created_at, '../outside', hash, media_type "
        "FROM artifacts WHERE name = 'notes.txt'"
    )
    done = run("jobs", "artifact", ids["large"], "../outside", "--out", str(inside), "--db", url)
    db.execute("DELETE FROM artifacts WHERE name = '../outside'")
    db.close()
    refused(done, 2, "'../outside' is no name for an artifact")
    assert list(tmp_path.rglob("*")) == [inside]


def test_what_is_not_there_is_one_clear_line(url, ids, tmp_path):
    listing = f"list them with: keptwork jobs artifacts {ids['small']}"
    refused(run("jobs", "artifact", ids["small"], "data.bin", "--db", url), 1, f"No artifact 'data.bin'; {listing}")
    refused(run("jobs", "artifacts", "job_123", "--db", url), 1, "No job 'job_123'")
    refused(run("jobs", "result", "job_123", "--db", url), 1, "No job 'job_123'")
    nowhere = str(Path(tmp_path) / "no" / "where")
    refused(run("jobs", "artifact", ids["large"], "data.bin", "--out", nowhere, "--db", url), 1, "Cannot write")
