"""Every command that runs jobs shows where a handler failed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.support import command
from tests.support.dev_server import announced

SHOP = """
from keptwork import Keptwork

app = Keptwork()


def price(of):
    return {"hat": 9}[of]


@app.job(max_attempts=1)
async def buy(ctx):
    await ctx.step("price", price, "shoes")
"""
FLOW = "name: shop\nsteps: [{id: one, call: 'shop:price', with: {of: shoes}, retries: 1, backoff: 1ms}]\n"
LINE = 'return {"hat": 9}[of]'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop.yaml").write_text(FLOW)
    return tmp_path


@pytest.fixture
def db(folder: Path) -> str:
    url = f"sqlite:///{folder}/shop.db"
    assert command.run("migrate", "--db", url).returncode == 0
    assert command.run("jobs", "enqueue", "buy", "--db", url).returncode == 0
    return url


@pytest.mark.parametrize("form", ["text", "json"])
def test_work_logs_the_traceback_of_a_failed_attempt(folder: Path, db: str, form: str) -> None:
    done = command.run("work", "shop:app", "--until-idle", "--log", form, "--db", db, cwd=folder)
    if form == "text":
        assert LINE in done.stderr
    else:
        told = [json.loads(line) for line in done.stderr.splitlines()]
        failed = next(line for line in told if "traceback" in line)
        assert LINE in failed["traceback"]
        assert failed["move"] in ("retry", "dead_letter")


@pytest.mark.acceptance
def test_supervise_passes_on_the_tracebacks_of_its_workers(folder: Path, db: str) -> None:
    path = f"{command.SOURCE}:{folder}"
    with (folder / "err").open("w") as err:
        process = command.start("supervise", "shop:app", "--workers", "1", "--db", db, stderr=err, PYTHONPATH=path)
        _until_written(folder / "err")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=command.SECONDS)
    assert "[1]   File" in (folder / "err").read_text()


@pytest.mark.acceptance
def test_dev_logs_the_traceback_of_a_failed_attempt(folder: Path, db: str) -> None:
    path = f"{command.SOURCE}:{folder}"
    with (folder / "err").open("w") as err:
        options = ("--port", "0", "--db", db, "--json")
        process = command.start("dev", "shop:app", *options, stderr=err, PYTHONPATH=path)
        assert httpx.get(announced(process)["address"], follow_redirects=True).status_code < 500
        _until_written(folder / "err")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=command.SECONDS)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_run_shows_the_traceback_of_every_failed_attempt_of_a_step(folder: Path, form: tuple[str, ...]) -> None:
    done = command.run("run", "shop.yaml", *form, "--db", f"sqlite:///{folder}/run.db", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.count(LINE) == 2
    assert "in attempt 1 of" in done.stderr


def test_run_shows_no_traceback_for_a_program_that_failed(folder: Path) -> None:
    (folder / "f.yaml").write_text("name: f\nsteps: [{id: one, command: ['false']}]\n")
    done = command.run("run", "f.yaml", "--db", f"sqlite:///{folder}/run.db", cwd=folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def _until_written(file: Path) -> None:
    ends = time.monotonic() + command.SECONDS
    while LINE not in file.read_text():
        assert time.monotonic() < ends, file.read_text()
        time.sleep(0.05)
