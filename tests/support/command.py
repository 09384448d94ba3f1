"""The command `detent` as its users run it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import detent

SOURCE = str(Path(detent.__file__).parents[1])
_UNWANTED = ("NO_COLOR", "DETENT_DEBUG", "DETENT_DB", "DETENT_CONNECT_TIMEOUT", "DETENT_LOG", "COLUMNS")

Done = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change the output."""
    clean = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**clean, "PYTHONPATH": SOURCE, "PYTHONUTF8": "1", **more}


def run(
    *arguments: str,
    python: tuple[str, ...] = ("-m", "detent"),
    cwd: Path | None = None,
    stdin: str | None = None,
    **env: str,
) -> Done:
    """Run `detent` with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *python, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        cwd=cwd,
        env=environment(**env),
    )


def start(*arguments: str, stderr: int | IO[str] = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
    """Start `detent` with pipes for its output; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-m", "detent", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        env=environment(**env),
    )
