"""Flow files for tests of `keptwork run`, and the command run on them: to its end, on a terminal, or to be killed."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keptwork.cli.main import _outcome
from tests.support.command import Done, environment, run

DEADLINE = 60.0

SINK = """
import fcntl, os, sys, time
sink, name, seconds = sys.argv[1:]
key = os.environ["KEPTWORK_IDEMPOTENCY_KEY"]
with open(sink, "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    if not any(line.split()[0] == key for line in file):
        file.write(f"{key} {name}\\n")
print("took effect", flush=True)
time.sleep(float(seconds))
"""
"""A program with an effect outside: it honours the key it is given."""


class Stage:
    """A folder with flow files, and a database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.command = "run"
        self._started: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """Nothing that was started outlives a test."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def write(self, name: str, *steps: dict[str, Any], **more: Any) -> Path:
        """A flow file; JSON is YAML."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": path.stem, "steps": list(steps), **more}, indent=1))
        return path

    def run(self, *arguments: str) -> Done:
        return run("run", *arguments, "--db", self.url, cwd=self.folder, stdin="")

    def told(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and the document."""
        done = self.run(*arguments, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start(self, *arguments: str, env: dict[str, str] | None = None, **files: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "keptwork", self.command, *arguments, "--db", self.url]
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **files}
        process = subprocess.Popen(command, cwd=self.folder, text=True, env=environment(**env or {}), **given)
        self._started.append(process)
        return process

    def effect(self, name: str, *after: str, seconds: float = 0.0, **more: Any) -> dict[str, Any]:
        """A step whose effect is counted."""
        (self.folder / "sink.py").write_text(SINK)
        command = ["python3", "sink.py", "effects", name, str(seconds)]
        return {"id": name, "command": command, "depends_on": list(after), **more}

    @property
    def effects(self) -> list[str]:
        """The steps that took effect, as the sink has them."""
        path = self.folder / "effects"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, *effects: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not set(effects) <= set(self.effects):
            assert time.monotonic() < deadline, f"{effects} did not come; there are {self.effects}"
            time.sleep(0.01)


def flow_id(text: str) -> str:
    """The flow that a command talks of."""
    found = re.search(r"--(?:resume|correlation) ((?:ws|run)_[0-9a-f-]+)", text)
    assert found is not None, text
    return found[1]


def refusal(capsys: pytest.CaptureFixture[str], stage: Stage, *arguments: str) -> str:
    """What the command says to what cannot be; in this process, because nothing of it gets as far as a database."""
    code = _outcome(["run", *arguments, "--db", stage.url])
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    assert not (stage.folder / "keptwork.db").exists()
    return said.err


class Terminal:
    """The command on a terminal of its own: what it writes, and what is typed."""

    def __init__(self, stage: Stage, *arguments: str, **env: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = stage.start(*arguments, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.written = ""

    def until(self, text: str) -> str:
        """Everything up to there."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.written:
            assert time.monotonic() < deadline, f"no {text!r} in {self.written!r}"
            self._read()
        return self.written

    def _read(self) -> None:
        if select.select([self.ours], [], [], 0.05)[0]:
            self.written += os.read(self.ours, 65536).decode("utf-8", "replace")

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def ended(self) -> int:
        """The exit code, when all is read."""
        try:
            while self.process.poll() is None or select.select([self.ours], [], [], 0)[0]:
                self._read()
        except OSError:  # nobody can write any more
            pass
        return self.process.wait(DEADLINE)
