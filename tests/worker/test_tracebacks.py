"""The traceback of a failed attempt, as the log shows it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import types
from collections.abc import Callable
from typing import Any

import pytest

from keptwork import Keptwork, PermanentError
from keptwork.context import Context
from keptwork.observability import logs
from keptwork.workers.tracebacks import LONGEST, shown, traceback_of
from tests.process import jobs

SECRET = "canary-7f3a9c51e2"
OWN_FRAME = re.compile(r"src/keptwork/|/asyncio/(runners|base_events)|concurrent/futures")


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The log does not depend on the kind of database."""
    return sqlite_url


def look_up(key: str) -> str:
    return {"a": "b"}[key]


async def in_a_task(ctx: Context) -> None:
    try:
        await ctx.step("price", look_up, "shoes")
    except KeyError as error:
        raise RuntimeError("no price") from error


def in_a_thread(ctx: Context) -> None:
    try:
        look_up("shoes")
    except KeyError as error:
        raise RuntimeError("no price") from error


async def logged(app: Keptwork, handler: Any, formatter: logging.Formatter | None = None, **declared: Any) -> list[str]:
    """Run one job and return what is logged of its attempts, as this formatter writes it."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    kept, ours = Kept(), logging.getLogger("keptwork")
    kept.setFormatter(formatter or logs.Text("%(message)s"))
    level = ours.level
    ours.addHandler(kept)
    ours.setLevel(logging.INFO)
    try:
        job = app.job(name="price", backoff="1ms", **declared)(handler)
        await job.enqueue()
        await app.work(until_idle=True)
    finally:
        ours.removeHandler(kept)
        ours.setLevel(level)
    return lines


@pytest.mark.parametrize(
    ("handler", "declared"),
    [
        (in_a_task, {}),
        (in_a_thread, {}),
        pytest.param(jobs.looks_up, {"isolation": "process"}, marks=pytest.mark.acceptance),
    ],
    ids=["task", "thread", "process"],
)
async def test_every_failed_attempt_is_logged_with_the_frames_of_the_user_and_the_causes(
    app: Keptwork, handler: Any, declared: dict[str, Any]
) -> None:
    first, last = await logged(app, handler, max_attempts=2, **declared)
    assert "failed in attempt 1 of 2" in first
    assert "is a dead letter" in last
    for line in (first, last):
        assert "return {" in line, "the line of code that failed is missing"
        assert "KeyError: 'shoes'" in line
        assert "The above exception was the direct cause of the following exception" in line
        assert f", in {handler.__name__}\n" in line
        assert line.endswith("RuntimeError: no price")
        assert not OWN_FRAME.search(line), line


async def test_a_traceback_is_a_field_of_its_own_in_json(app: Keptwork) -> None:
    (line,) = await logged(app, in_a_task, logs.JsonLines(), max_attempts=1)
    told = json.loads(line)
    assert told["message"].endswith("is a dead letter (exhausted_retries): RuntimeError: no price")
    assert told["traceback"].startswith("Traceback (most recent call last):\n")
    assert told["move"] == "dead_letter"


async def test_a_formatter_of_the_application_shows_the_traceback_too(app: Keptwork) -> None:
    (line,) = await logged(app, in_a_thread, logging.Formatter("%(module)s: %(message)s"), max_attempts=1)
    assert line.startswith("heartbeat: job_")
    assert ", in in_a_thread\n" in line


async def test_members_of_a_task_group_are_shown_with_their_own_frames(app: Keptwork) -> None:
    async def one(key: str) -> None:
        look_up(key)

    async def buy(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one("shoes"))
            group.create_task(one("hat"))

    (line,) = await logged(app, buy, max_attempts=1)
    assert "KeyError: 'shoes'" in line
    assert "KeyError: 'hat'" in line
    assert line.count("return {") == 2
    assert "+---------------- 2 ----------------" in line


async def test_a_traceback_shows_where_a_handler_was_when_its_time_was_up(app: Keptwork) -> None:
    async def waits(ctx: Context) -> None:
        await asyncio.sleep(3600)

    (line,) = await logged(app, waits, max_attempts=1, timeout="10ms")
    assert "await asyncio.sleep(3600)" in line
    assert line.endswith("TimeoutError: it took longer than 0.01 s")


@pytest.mark.parametrize(
    "declared",
    [{}, pytest.param({"isolation": "process"}, marks=pytest.mark.acceptance)],
    ids=["thread", "process"],
)
async def test_a_traceback_holds_no_secret_whichever_formatter_writes_it(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any]
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    (line,) = await logged(app, jobs.gives_away, logging.Formatter(""), max_attempts=1, **declared)
    assert SECRET not in line.partition("\n")[2]
    assert "ValueError: with [redacted: SHOP_API_KEY]" in line


async def test_a_retry_that_nobody_logs_formats_no_traceback(app: Keptwork, monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[object] = []
    monkeypatch.setattr("keptwork.workers.heartbeat.traceback_of", formatted.append)
    monkeypatch.setattr(logging.getLogger("keptwork"), "level", logging.WARNING)
    logging.getLogger("keptwork").manager._clear_cache()  # type: ignore[attr-defined]  # as setLevel does
    job = app.job(name="price", backoff="1ms", max_attempts=2)(in_a_thread)
    await job.enqueue()
    await app.work(until_idle=True)
    assert len(formatted) == 1, "the dead letter alone is logged at this level"


# --- the text itself


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_of_ours_that_passed_no_frame_of_the_users_has_no_traceback() -> None:
    assert traceback_of(PermanentError("the program ended with exit code 3")) is None


def test_an_unexpected_error_keeps_our_frames_when_there_are_no_others() -> None:
    error = raised(lambda: json.loads("{"))
    assert error.__traceback__ is not None
    inside = error.with_traceback(error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next)
    assert "json" in str(traceback_of(inside))


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    def fails(left: int) -> None:
        try:
            if left:
                fails(left - 1)
        finally:
            raise ValueError(f"number {left} {'x' * 200}")

    text = str(traceback_of(raised(lambda: fails(100))))
    assert "number 0 " in text
    assert text.endswith("number 100 " + "x" * 200)
    assert LONGEST < len(text) < LONGEST + 100
    assert re.search(r"\n… [\d,]+ characters left out …\n", text)


def test_secrets_are_taken_out_before_a_traceback_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    cut = "x" * (LONGEST // 2 - len(SECRET) // 2) + SECRET + "y" * LONGEST
    assert SECRET[:8] not in shown(cut)


def test_control_characters_and_surrogates_of_a_message_do_not_reach_the_log() -> None:
    def fails() -> None:
        raise ValueError("\x1b[2J\r\udcff")

    text = str(traceback_of(raised(fails)))
    assert text.endswith("ValueError: \ufffd[2J\ufffd?")


def test_an_exception_that_cannot_be_read_is_no_error_of_the_worker() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError

    def fails() -> None:
        raise Hostile

    error: BaseException | None = None
    try:
        fails()
    except Hostile as caught:
        error = caught
    assert error is not None
    assert isinstance(traceback_of(error), str | types.NoneType)
