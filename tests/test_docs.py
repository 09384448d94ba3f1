"""The generated pages: current, complete, and checked by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from keptwork import errors
from keptwork.core.lifecycles import LIFECYCLES
from tools import docs

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    docs.write(tmp_path)
    return tmp_path


def test_the_generated_pages_are_current():
    assert docs.stale(DOCS) == []


def test_what_was_just_written_is_current(written, capsys):
    assert docs.main(["--check", str(written)]) == 0
    assert capsys.readouterr().err == ""


def test_every_generated_file_says_so_in_its_first_line(written):
    assert all(path.read_text().startswith(docs.MARK) for path in written.rglob("*.md"))


def test_a_missing_a_stale_and_a_leftover_page_are_named(written, capsys):
    (written / "lifecycles/job.md").unlink()
    with (written / "reference/errors.md").open("a") as file:
        file.write("| `Surprise` |\n")
    (written / "lifecycles/gone.md").write_text(f"{docs.MARK}\n")
    assert docs.main(["--check", str(written)]) == 1
    complaints = capsys.readouterr().err
    assert f"{written}/lifecycles/job.md is missing" in complaints
    assert f"{written}/reference/errors.md is out of date" in complaints
    assert f"{written}/lifecycles/gone.md is no longer generated" in complaints
    assert "worker.md" not in complaints


def test_writing_removes_what_is_no_longer_generated_and_nothing_else(written):
    gone, by_hand = written / "lifecycles/gone.md", written / "reference/by-hand.md"
    gone.write_text(f"{docs.MARK}\n")
    by_hand.write_text("# By hand\n")
    assert docs.main([str(written)]) == 0
    assert not gone.exists()
    assert by_hand.exists()
    assert docs.stale(written) == []


def test_a_folder_that_is_not_there_is_refused_not_made(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        docs.main([str(tmp_path / "docs")])
    assert caught.value.code == 2
    assert not (tmp_path / "docs").exists()


def test_every_command_and_option_is_on_the_page_of_the_command_line():
    page = docs.cli_page()
    commands = dict(docs.commands())
    assert {"keptwork", "keptwork lifecycles list", "keptwork lifecycles show"} <= commands.keys()
    for path, command in commands.items():
        assert f"## `{path}" in page
        assert command.help in page
        for option in (name for p in command.params for name in p.opts if name.startswith("--")):
            assert f"`{option}" in page


def test_every_command_takes_json():
    for path, command in docs.commands():
        if not getattr(command, "commands", None) or path == "keptwork":
            assert any("--json" in parameter.opts for parameter in command.params), path


def test_the_pages_do_not_depend_on_the_terminal(written, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert docs.stale(written) == []


@pytest.mark.parametrize("name", LIFECYCLES)
def test_a_lifecycle_page_has_its_diagram_and_table(name):
    page = docs.lifecycle_page(LIFECYCLES[name])
    assert page.startswith(f"# The {name} lifecycle\n\n")
    assert "```mermaid\nstateDiagram-v2\n" in page
    assert "| trigger | verb | from | to | when | event |" in page
    assert f"({name}.md)" in docs.lifecycle_index()


def test_every_error_is_on_its_page():
    page = docs.errors_page()
    assert f"| `InvalidTransition` | {errors.InvalidTransition.__doc__} | 409 | 1 |" in page
    assert f"| `BadInput` | {errors.BadInput.__doc__} | 422 | 2 |" in page
