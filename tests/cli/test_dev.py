"""`detent dev` and `detent serve`, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx

from tests.support import command


def announced(process: subprocess.Popen[str]) -> dict[str, str]:
    """What a server says as soon as it listens."""
    assert process.stdout is not None
    lines = ""
    while not lines.endswith("}\n"):
        line = process.stdout.readline()
        assert line, f"it ended: {process.communicate()}"
        lines += line
    found: dict[str, str] = json.loads(lines)
    return found


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    return process.returncode


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


def test_dev_serves_no_network(tmp_path: Path) -> None:
    done = command.run("dev", "--host", "0.0.0.0", "--db", f"sqlite:///{tmp_path}/dev.db")  # noqa: S104 - it is refused
    assert done.returncode == 2
    assert "this machine only" in done.stderr
    assert not list(tmp_path.iterdir())


def test_serve_refuses_a_database_that_is_not_there_in_one_line(tmp_path: Path) -> None:
    done = command.run("serve", "--port", "0", "--db", f"sqlite:///{tmp_path}/none.db")
    assert done.returncode == 1
    assert "detent migrate" in done.stderr
    assert "Traceback" not in done.stderr
