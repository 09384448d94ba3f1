"""`keptwork dev` and `keptwork serve`, in processes of their own."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.support import command
from tests.support.dev_server import announced, ended

pytestmark = pytest.mark.acceptance

SHOP = """
from keptwork import Keptwork

app = Keptwork()


@app.job()
async def greet(ctx, name: str) -> dict:
    return {"hello": name}
"""


def test_dev_serves_whoever_has_its_token_and_ends_cleanly(tmp_path: Path) -> None:
    process = command.start("dev", "--port", "0", "--db", f"sqlite:///{tmp_path}/dev.db", "--json")
    try:
        place = announced(process)
        assert place["address"].startswith("http://127.0.0.1:")
        assert httpx.get(f"{place['address']}/api/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {place['token']}"}
        made = httpx.post(f"{place['address']}/api/jobs", json={"kind": "fetch"}, headers=headers)
        assert made.status_code == 201
        assert made.json()["job"]["state"] == "queued"
    finally:
        code = ended(process)
    assert code == 0


def test_dev_runs_the_jobs_of_an_application(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    options = ("--port", "0", "--db", f"sqlite:///{tmp_path}/dev.db", "--json")
    process = command.start("dev", "shop:app", *options, PYTHONPATH=f"{command.SOURCE}:{tmp_path}")
    try:
        place = announced(process)
        with httpx.Client(base_url=place["address"], headers={"Authorization": f"Bearer {place['token']}"}) as client:
            asked = {"kind": "greet", "payload": {"name": "Ann"}}
            id = client.post("/api/jobs", json=asked).raise_for_status().json()["job"]["id"]
            ends = time.monotonic() + 30
            while (job := client.get(f"/api/jobs/{id}").json())["state"] != "succeeded":
                assert time.monotonic() < ends, job
                time.sleep(0.02)
    finally:
        code = ended(process)
    assert job["result"] == {"hello": "Ann"}
    assert code == 0


def test_serve_takes_flows_that_say_what_is_run_only_if_it_is_told_to_and_from_who_administers(tmp_path: Path) -> None:
    db = ("--db", f"sqlite:///{tmp_path}/serve.db")
    assert command.run("migrate", *db).returncode == 0
    keys = [
        command.run("keys", "create", "--name", "k", "--scopes", one, *db).stdout.strip() for one in ("admin", "write")
    ]
    flow = {"definition": {"name": "f", "steps": [{"id": "a", "command": ["true"]}]}}
    found = []
    for options in ((), ("--programs",)):
        process = command.start("serve", "--port", "0", *options, *db, "--json")
        try:
            address = announced(process)["address"]
            for key in keys:
                asked = httpx.post(f"{address}/api/templates", json=flow, headers={"Authorization": f"Bearer {key}"})
                found.append(asked.status_code)
        finally:
            assert ended(process) == 0
    assert found == [403, 403, 201, 403]


def test_dev_serves_no_network(tmp_path: Path) -> None:
    done = command.run("dev", "--host", "0.0.0.0", "--db", f"sqlite:///{tmp_path}/dev.db")  # noqa: S104 - it is refused
    assert done.returncode == 2
    assert "this machine only" in done.stderr
    assert not list(tmp_path.iterdir())


def test_serve_refuses_a_database_that_is_not_there_in_one_line(tmp_path: Path) -> None:
    done = command.run("serve", "--port", "0", "--db", f"sqlite:///{tmp_path}/none.db")
    assert done.returncode == 2
    assert "keptwork migrate" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_other_command_loads_the_server() -> None:
    modules = "keptwork, keptwork.cli.main, keptwork.cli.serve, keptwork.cli.serve"
    done = command.run(python=("-c", f"import sys, {modules}; print({{'fastapi', 'uvicorn'}} & {{*sys.modules}})"))
    assert done.stdout == "set()\n"
