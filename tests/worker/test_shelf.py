"""What handlers keep: artifacts and large results, from async functions and from threads, while the job is held."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from keptwork import JobFailed, Keptwork, KeptworkError, LeaseLost
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, NotFound, StillUnfinished
from keptwork.handles import Handle
from keptwork.jobs.outcome import LARGEST_IN_ROW
from keptwork.jobs.results_artifacts import LARGEST_ARTIFACT
from tests.conformance.by_hand import hand_on
from tests.worker.scene import moved, row, working

BINARY = bytes(range(256)) * 100


async def test_an_async_handler_keeps_bytes_text_and_files(app: Keptwork, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(BINARY)

    @app.job()
    async def report(ctx: Context) -> str:
        kept = await ctx.keep("data", BINARY)
        await ctx.keep("notes.md", "Grüße", media_type="text/markdown")
        await ctx.keep("page.html", tmp_path / "page.html")
        await ctx.keep("plain", "text")
        return kept.hash

    job = await report.enqueue()
    await app.work(until_idle=True)
    assert await job.result() == hashlib.sha256(BINARY).hexdigest()
    found = {kept.name: (kept.media_type, kept.size) for kept in await job.artifacts()}
    assert found == {
        "data": ("application/octet-stream", len(BINARY)),
        "notes.md": ("text/markdown", 7),
        "page.html": ("text/html", len(BINARY)),
        "plain": ("text/plain; charset=utf-8", 4),
    }
    assert [await job.artifact(name) for name in ("data", "page.html")] == [BINARY, BINARY]
    assert (await app.artifact(job.id, "notes.md")).decode() == "Grüße"
    with pytest.raises(NotFound, match=f"No artifact 'other'; list them with: keptwork jobs artifacts {job.id}"):
        await job.artifact("other")


async def test_a_handler_in_a_thread_keeps_something_by_calling_only(app: Keptwork) -> None:
    @app.job()
    def report(ctx: Context) -> None:
        ctx.keep("report", BINARY)

    @app.job()
    async def through_a_thread(ctx: Context) -> str:
        return (await (await asyncio.to_thread(ctx.keep, "report", BINARY))).name

    jobs = [await report.enqueue(), await through_a_thread.enqueue()]
    await app.work(until_idle=True)
    assert [await job.result() for job in jobs] == [None, "report"]
    assert [await job.artifact("report") for job in jobs] == [BINARY, BINARY]


async def test_a_later_attempt_replaces_what_an_earlier_one_kept_and_the_rest_stays(app: Keptwork) -> None:
    @app.job(backoff="1ms")
    async def twice(ctx: Context) -> None:
        await ctx.keep("log", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            await ctx.keep("trace", "what went wrong")
            raise RuntimeError("again")

    job = await twice.enqueue()
    async with working(app):
        await job.result("60s")
    assert [kept.name for kept in await job.artifacts()] == ["log", "trace"]
    assert await job.artifact("log") == b"attempt 2"


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_worker_that_has_lost_the_job_keeps_nothing_and_lives(app: Keptwork, in_thread: bool) -> None:
    refused: list[BaseException] = []

    @app.job()
    async def slow(ctx: Context) -> None:
        await moved(await app.open(), JOB, job.key, "cancel")
        try:
            await (await asyncio.to_thread(ctx.keep, "late", BINARY) if in_thread else ctx.keep("late", BINARY))
        except LeaseLost as lost:
            refused.append(lost)

    job = await slow.enqueue()
    await app.work(until_idle=True)
    assert [type(error) for error in refused] == [LeaseLost]
    assert await job.artifacts() == []


@pytest.mark.parametrize(
    ("name", "data", "media_type", "said"),
    [
        ("", b"", None, "is no name for an artifact"),
        ("a/b", b"", None, "is no name for an artifact"),
        ("..", b"", None, "is no name for an artifact"),
        ("a\\b", b"", None, "is no name for an artifact"),
        ("a\0b", b"", None, "is no name for an artifact"),
        ("a\nb", b"", None, "is no name for an artifact"),
        ("x" * 201, b"", None, "at most 200 printable characters"),
        ("a", b"", "nonsense", "'nonsense' is no media type"),
        ("a", b"", "text/plain\r\nX: y", "is no media type"),
        ("a", 5, None, "give bytes, text or a Path"),
        ("a", "\ud800", None, "give bytes, text or a Path"),
        ("a", Path("/"), None, "is no ordinary file"),
        ("a", bytes(LARGEST_ARTIFACT + 1), None, "67,108,865 bytes are over the limit of 64 MiB"),
    ],
)
async def test_what_cannot_be_kept_is_refused_in_a_line(
    name: str, data: Any, media_type: str | None, said: str
) -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job()
        async def wrong(ctx: Context) -> str:
            with pytest.raises(BadInput) as caught:
                await ctx.keep(name, data, media_type)
            return str(caught.value)

        job = await wrong.enqueue()
        await app.work(until_idle=True)
        told = await job.result()
        assert said in told
        assert "\n" not in told
        assert await job.artifacts() == []


async def test_an_artifact_of_several_megabytes_is_kept_whole(app: Keptwork) -> None:
    data = os.urandom(1 << 20) * 8

    @app.job()
    async def large(ctx: Context) -> None:
        await ctx.keep("large", data)

    job = await large.enqueue()
    await app.work(until_idle=True)
    assert await job.artifact("large") == data


# --- results


async def test_results_of_any_size_are_read_the_same_way(app: Keptwork) -> None:
    @app.job()
    async def echo(ctx: Context, size: int) -> dict[str, Any] | None:
        return {"blob": "sha256:0", "size": size, "text": "ü" * size} if size else None

    sizes = (0, 1, LARGEST_IN_ROW // 8, LARGEST_IN_ROW, 1 << 20)
    jobs = await app.enqueue_many(echo, [{"size": size} for size in sizes])
    await app.work(until_idle=True)
    assert [(await job.result() or {"size": 0})["size"] for job in jobs] == list(sizes)
    assert (await app.result(jobs[-1].id))["text"] == "ü" * (1 << 20)
    rows = [await row(app, job) for job in jobs]
    assert [found["result_hash"] is not None for found in rows] == [False, False, False, True, True]
    assert all(len(found["result"] or "") <= LARGEST_IN_ROW for found in rows)


async def test_the_same_large_result_is_stored_once(app: Keptwork, database_url: str) -> None:
    @app.job()
    async def same(ctx: Context) -> str:
        return "x" * 100_000

    jobs = await app.enqueue_many(same, [{}] * 20)
    await app.work(until_idle=True)
    assert {await job.result() for job in jobs} == {"x" * 100_000}
    hand = await hand_on(database_url)
    assert await hand.run("SELECT count(*), sum(size) FROM blobs") == [(1, 100_002)]
    await hand.close()


async def test_many_wait_for_results_while_a_worker_works(app: Keptwork) -> None:
    @app.job()
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    async with working(app):
        jobs = await app.enqueue_many(double, [{"n": n} for n in range(100)])
        assert await asyncio.gather(*(job.result("60s") for job in jobs)) == [2 * n for n in range(100)]


async def test_a_job_without_success_tells_why_when_it_is_asked_for_its_result(app: Keptwork) -> None:
    @app.job(max_attempts=1)
    async def breaks(ctx: Context) -> None:
        raise RuntimeError("no luck")

    @app.job(max_attempts=1, on_exhausted="fail")
    async def fails(ctx: Context) -> None:
        raise RuntimeError("no luck")

    waiting, *ended = [await job.enqueue() for job in (breaks, breaks, fails, breaks)]
    await moved(await app.open(), JOB, ended[2].key, "cancel", reason="no more")
    await moved(await app.open(), JOB, waiting.key, "cancel")
    await app.work(until_idle=True)
    said = [await _failure(job) for job in (*ended, waiting)]
    assert [error.state for error in said] == ["dead_lettered", "failed", "cancelled", "cancelled"]
    assert [error.error for error in said] == ["RuntimeError: no luck"] * 2 + [None] * 2
    see = [f"; see: keptwork jobs show {job.id}" for job in (*ended, waiting)]
    assert str(said[0]) == f"{ended[0].id} ended dead_lettered: exhausted_retries: RuntimeError: no luck{see[0]}"
    assert str(said[1]) == f"{ended[1].id} ended failed: RuntimeError: no luck{see[1]}"
    assert str(said[2]) == f"{ended[2].id} ended cancelled: no more{see[2]}"
    assert str(said[3]) == f"{waiting.id} ended cancelled: no reason was given{see[3]}"


async def _failure(job: Handle) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        await job.result("60s")
    return caught.value


async def test_a_result_that_is_not_there_in_time_or_not_ours_is_refused(app: Keptwork) -> None:
    @app.job()
    async def never(ctx: Context) -> None: ...

    job = await never.enqueue()
    with pytest.raises(StillUnfinished, match=f"{job.id} is still queued after 20ms"):
        await job.result("20ms")
    for wrong in ("job_123", "nonsense"):
        with pytest.raises(KeptworkError, match=f"No job '{wrong}'"):
            await app.result(wrong)


async def test_content_that_was_changed_behind_the_back_is_reported_not_returned(
    app: Keptwork, database_url: str
) -> None:
    @app.job()
    async def large(ctx: Context) -> str:
        return "x" * 100_000

    jobs = [await large.enqueue() for _ in range(2)]
    await app.work(until_idle=True)
    hand = await hand_on(database_url)
    changed = "X'22'" if database_url.startswith("sqlite") else "'\"'"
    await hand.run(f"UPDATE blobs SET content = {changed}")
    with pytest.raises(KeptworkError, match=r"is damaged \(the content sha256:\w+ has changed\)"):
        await jobs[0].result()
    await hand.run("DELETE FROM blobs")
    with pytest.raises(KeptworkError, match=r"is damaged \(the content sha256:\w+ is gone\)"):
        await jobs[1].result()
    await hand.close()
