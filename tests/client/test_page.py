"""The code in the page about the client runs, against a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.serving import Served
from tests.support import command
from tests.test_readme import blocks

pytestmark = pytest.mark.acceptance


def test_the_python_in_the_page_about_the_client_runs(sqlite_served: Served, tmp_path: Path) -> None:
    key = sqlite_served.key()
    programs = blocks("docs/how-to/client.md", "python")
    assert len(programs) == 4
    for program in programs:
        (tmp_path / "program.py").write_text(program, "utf-8")
        done = command.run(
            python=("program.py",), cwd=tmp_path, KEPTWORK_SERVER=sqlite_served.address, KEPTWORK_KEY=key
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
