"""What is logged: the ids, the forms, and what must not be in it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.errors import BadInput
from keptwork.observability import logs
from tests.support import command

CANARY = "canary-7f3a9c51e2"
shop = logging.getLogger("shop")


async def logged(url: str, handler: Callable[..., Any], formatter: logging.Formatter) -> tuple[str, list[str]]:
    """The id of a job and what its handler logs, as this formatter writes it."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(formatter.format(record))

    app, kept = Keptwork(url), Kept()
    job = app.job(name="talk", max_attempts=1)(handler)
    shop.addHandler(kept)
    shop.setLevel(logging.INFO)
    try:
        async with app:
            made = await job.enqueue(_trace_id="order-17", _correlation_id="c-1")
            await app.work(until_idle=True)
        shop.info("afterwards")
    finally:
        shop.removeHandler(kept)
    return made.id, lines


async def in_a_task(ctx: Any) -> None:
    shop.info("hello")
    await asyncio.create_task(asyncio.to_thread(shop.info, "from deep inside"))


def in_a_thread(ctx: Any) -> None:
    shop.info("hello")
    shop.info("from deep inside")


@pytest.mark.parametrize("handler", [in_a_task, in_a_thread])
async def test_what_a_handler_logs_carries_the_ids_of_its_job(sqlite_url: str, handler: Callable[..., Any]) -> None:
    id, lines = await logged(sqlite_url, handler, logs.JsonLines())
    first, second, last = (json.loads(line) for line in lines)
    about = {"job": id, "kind": "talk", "attempt": 1, "tenant": 1, "trace": "order-17", "correlation": "c-1"}
    assert first.items() >= {"message": "hello", "level": "info", "logger": "shop", **about}.items()
    assert second.items() >= {"message": "from deep inside", "worker": first["worker"], **about}.items()
    assert set(last) == {"at", "level", "logger", "message"}, "what is logged after a job belongs to none"


async def test_for_people_a_line_names_its_job_once(sqlite_url: str) -> None:
    def named(ctx: Any) -> None:
        shop.info("hello")
        shop.info("this is %s", ctx.job_id)

    id, lines = await logged(sqlite_url, named, logs.Text("%(message)s"))
    assert lines == [f"hello ({id})", f"this is {id}", "afterwards"]


async def test_secrets_are_taken_out_of_messages_and_errors(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", CANARY)

    def careless(ctx: Any) -> None:
        try:
            raise ValueError(CANARY)
        except ValueError:
            shop.exception("with %s", CANARY)

    _, lines = await logged(sqlite_url, careless, logs.JsonLines())
    first = json.loads(lines[0])
    assert first["message"] == "with [redacted: SHOP_API_KEY]"
    assert "ValueError: [redacted: SHOP_API_KEY]" in first["error"]
    _, plain = await logged(sqlite_url, careless, logging.Formatter("%(message)s"))
    assert CANARY in plain[0], "a formatter that is not ours would have told it"


def test_a_form_or_level_that_is_none_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = command.run("serve", "--log", "xml")
    assert done.stderr == "keptwork: there is no form 'xml' to log in; --log and KEPTWORK_LOG know: text, json\n"
    assert done.returncode == 2
    done = command.run("work", "nowhere:app", "--log", "json")
    assert json.loads(done.stderr)["error"]["type"] == "BadInput", "what ends a process is a line of JSON as well"
    monkeypatch.setenv(logs.LEVEL, "loud")
    with pytest.raises(BadInput, match="there is no level 'LOUD'"), logs.to_stderr(logs.TEXT):
        pass


def test_logging_is_afterwards_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.LEVEL, "debug")
    root = logging.getLogger()
    before = root.level, list(root.handlers), logs.requests.level
    with logs.to_stderr(logs.JSON):
        assert root.level == logging.DEBUG
        assert logs.form_wanted() == logs.JSON, "processes started from here log like this one"
    assert (root.level, root.handlers, logs.requests.level) == before
    assert logs.form_wanted() == logs.TEXT


CHATTY = """
import logging
from keptwork import Keptwork
logging.basicConfig(level=logging.INFO, format="mine: %(message)s")
app = Keptwork()

@app.job()
def talk(ctx):
    logging.getLogger("shop").info("hello")
"""


@pytest.mark.acceptance
@pytest.mark.parametrize(("form", "wanted"), [("text", "mine: hello"), ("json", '"message": "hello"')])
def test_an_application_that_set_up_logging_is_heard_once(
    tmp_path: Path, sqlite_url: str, form: str, wanted: str
) -> None:
    (tmp_path / "shop.py").write_text(CHATTY)
    path = f"{command.SOURCE}:{tmp_path}"
    assert command.run("migrate", "--db", sqlite_url).returncode == 0
    assert command.run("jobs", "enqueue", "talk", "--db", sqlite_url).returncode == 0
    done = command.run("work", "shop:app", "--db", sqlite_url, "--until-idle", "--log", form, PYTHONPATH=path)
    heard = [line for line in done.stderr.splitlines() if "hello" in line]
    assert len(heard) == 1
    assert wanted in heard[0]
    assert form == "text" or all(json.loads(line) for line in done.stderr.splitlines())


SHOP = """
from keptwork import Keptwork
app = Keptwork()
print("not JSON", flush=True, file=__import__("sys").stderr)
"""


@pytest.mark.acceptance
def test_a_supervisor_and_its_workers_write_lines_of_json(tmp_path: Path, sqlite_copy: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "keptwork",
            "supervise",
            "shop:app",
            "--workers",
            "1",
            "--db",
            sqlite_copy,
            "--log",
            "json",
        ],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=command.environment(),
    )
    lines: list[dict[str, Any]] = []
    try:
        assert supervisor.stderr is not None
        while not any("serving default" in line["message"] for line in lines):
            lines.append(json.loads(supervisor.stderr.readline()))
        supervisor.send_signal(signal.SIGTERM)
        _, rest = supervisor.communicate(timeout=30)
    finally:
        supervisor.kill()
    lines += [json.loads(line) for line in rest.splitlines()]
    assert any(line.get("event") for line in lines), "what a supervisor does has a name"
    assert [line["place"] for line in lines if line["message"] == "not JSON"] == [1]


def test_trouble_is_told_through_whoever_draws_on_the_terminal_and_not_past_them() -> None:
    """Written past a picture that is redrawn in place, it left a torn one behind."""
    trouble, told = logs.Beside(), io.StringIO()
    with contextlib.redirect_stderr(told):
        trouble.handle(logging.makeLogRecord({"msg": "the database is out of reach"}))
    assert told.getvalue() == "the database is out of reach\n"
