"""`keptwork tools` as its users meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import run as keptwork

TOML = """
[tools.shell]
command = ["sh", "-c", "echo '[bold]x'"]
timeout = "5m"

[tools.linter]
command = ["./lint"]
cwd = "bin"
idempotent = false
breaker = {failure_threshold = 2, cooldown_seconds = 1.5}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "keptwork.toml").write_text(TOML)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/lint").write_text('#!/bin/sh\necho "lint 1.2 [red]"\necho more\n')
    (tmp_path / "bin/lint").chmod(0o755)
    return tmp_path


def test_list_and_show_tell_the_settings(project: Path) -> None:
    done = keptwork("tools", "list", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()[2:]]
    assert rows == [
        "shell sh -c 'echo '\"'\"'[bold]x'\"'\"'' 5m 0 yes 5 failures, 60 s, 1 to close",
        "linter ./lint 1h 0 no 2 failures, 1.5 s, 1 to close",
    ]
    shown = json.loads(keptwork("tools", "show", "linter", "--json", "--config", f"{project}/keptwork.toml").stdout)
    assert (shown["name"], shown["cwd"], shown["breaker"]["success_threshold"]) == ("linter", f"{project}/bin", 1)
    assert [one["name"] for one in json.loads(keptwork("tools", "list", "--json", cwd=project).stdout)["tools"]] == [
        *("shell", "linter")
    ]
    told = keptwork("tools", "show", "linter", cwd=project).stdout
    assert "breaker.cooldown_seconds" in told
    assert "\n output 1 MiB" in "\n ".join(" ".join(line.split()) for line in told.splitlines())


def test_check_finds_the_programs_and_asks_for_versions_if_told_to(project: Path) -> None:
    done = keptwork("tools", "check", cwd=project)
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, f"linter: {project}/bin/./lint")
    done = keptwork("tools", "check", "linter", "--versions", cwd=project)
    assert (done.returncode, done.stdout) == (0, f"linter: {project}/bin/./lint, lint 1.2 [red]\n")


def test_check_says_what_is_wrong_and_ends_with_1(project: Path) -> None:
    (project / "bin/lint").chmod(0o644)
    with (project / "keptwork.toml").open("a") as file:
        file.write('[tools.gone]\ncommand = ["nosuch"]\ncwd = "nowhere"\n')
    done = keptwork("tools", "check", cwd=project)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1:] == [
        "linter: there is no program './lint' that may be run",
        f"gone: there is no folder {project}/nowhere to run in",
        f"gone: there is no program 'nosuch' that may be run; it was looked for in {os.environ['PATH']}",
    ]
    found = json.loads(keptwork("tools", "check", "--json", cwd=project).stdout)["tools"]
    assert [one["ok"] for one in found] == [True, False, False]


def test_without_tools_that_is_said_and_what_is_unknown_or_wrong_is_refused(project: Path, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    done = keptwork("tools", "list", cwd=empty)
    assert (done.returncode, done.stdout) == (0, "No tools: keptwork.toml declares none. Add one as [tools.NAME].\n")
    assert keptwork("tools", "check", cwd=empty).returncode == 0
    done = keptwork("tools", "check", "nosuch", cwd=project)
    assert (done.returncode, done.stderr) == (
        *(1, "keptwork: No tool called nosuch in keptwork.toml; list them with: keptwork tools list\n"),
    )
    done = keptwork("tools", "list", "--config", "gone.toml", cwd=project)
    assert (done.returncode, done.stderr) == (2, "keptwork: gone.toml: it cannot be read: No such file or directory\n")
