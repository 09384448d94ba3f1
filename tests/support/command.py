"""The command `keptwork` as its users run it: in a process of its own."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import keptwork
from tests.support.forked_command import ForkedCommands

SOURCE = str(Path(keptwork.__file__).parents[1])
_UNWANTED = ("NO_COLOR", "KEPTWORK_DEBUG", "KEPTWORK_DB", "KEPTWORK_CONNECT_TIMEOUT", "KEPTWORK_LOG", "COLUMNS")

SECONDS = 60

Done = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change the output."""
    clean = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**clean, "PYTHONPATH": SOURCE, "PYTHONUTF8": "1", **more}


def run(
    *arguments: str,
    python: tuple[str, ...] = ("-m", "keptwork"),
    cwd: Path | None = None,
    stdin: str | None = None,
    **env: str,
) -> Done:
    """Run `keptwork` with these arguments to its end. What an interpreter is told as it starts takes a new one."""
    if python == ("-m", "keptwork") and not any(name.startswith("PYTHON") for name in env):
        return _forked(arguments, cwd, stdin, environment(**env))
    return subprocess.run(
        [sys.executable, *python, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
        cwd=cwd,
        env=environment(**env),
    )


def _forked(arguments: tuple[str, ...], cwd: Path | None, stdin: str | None, env: dict[str, str]) -> Done:
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
        given.write(stdin or "")
        given.seek(0)
        files = [0 if stdin is None else given.fileno(), out.fileno(), err.fileno()]
        code = _commands().run(arguments, cwd, env, files, SECONDS)
        out.seek(0)
        err.seek(0)
        return Done(["keptwork", *arguments], code, out.read(), err.read())


@cache
def _commands() -> ForkedCommands:
    commands = ForkedCommands(environment())
    atexit.register(commands.close)
    return commands


def start(*arguments: str, stderr: int | IO[str] = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
    """Start `keptwork` with pipes for its output; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-m", "keptwork", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        env=environment(**env),
    )
