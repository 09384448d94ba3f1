"""The first program of the README does what the README shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_readme import blocks


def test_first_program_of_the_readme_resumes_after_kill_without_downloading_again(tmp_path: Path) -> None:
    (program,) = blocks("README.md", "python")
    (tmp_path / "report.py").write_text(program, "utf-8")
    command, env = [sys.executable, "report.py"], os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        seen = [first.stdout.readline(), first.stdout.readline()]
        first.kill()
    assert seen == ["downloading https://example.org\n", "summarizing: kill me now\n"]
    second = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=True)
    assert second.stdout == "summarizing: kill me now\nCONTENTS OF HTTPS://EXAMPLE.ORG\n"
