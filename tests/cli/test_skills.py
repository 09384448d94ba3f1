"""`keptwork skills` as its users run it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import run

SKILL = """---
name: haiku
description: writes haikus
keywords: [haiku]
---
Write a haiku.
"""


def test_skills_are_found_where_keptwork_toml_says_as_workers_do(tmp_path: Path) -> None:
    """Only ./skills was looked at."""
    (tmp_path / "our/haiku").mkdir(parents=True)
    (tmp_path / "our/haiku/SKILL.md").write_text(SKILL)
    (tmp_path / "keptwork.toml").write_text('[agents]\nskills = "our"\n')
    listed = json.loads(run("skills", "list", "--json", cwd=tmp_path).stdout)
    assert listed[0]["name"] == "haiku"
    assert "Write a haiku." in run("skills", "show", "haiku", cwd=tmp_path).stdout
    assert run("skills", "show", "haiku", "--skills", "none", cwd=tmp_path).returncode == 1
