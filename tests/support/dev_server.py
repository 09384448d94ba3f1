"""`keptwork dev` in a process of its own: where it listens, and ending it."""

from __future__ import annotations

import json
import signal
import subprocess


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
