"""The code in the README and in the pages about writing jobs runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from detent import config
from detent.agent.routing import Tier
from detent.agent_settings import TIERS, Agents, Budgets, Models, Price
from detent.allowance import Allowance
from detent.flow_files import read_flow
from detent.server_settings import Server

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/breakers.md",
        "docs/how-to/durable-steps.md",
        "docs/how-to/flows.md",
        "docs/how-to/schedules.md",
        "docs/how-to/waiting.md",
        "docs/how-to/webhooks.md",
    ],
)
def test_the_python_in_a_page_runs_as_it_stands(tmp_path: Path, page: str) -> None:
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        (tmp_path / "program.py").write_text(program, "utf-8")
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_tests_in_the_page_about_tests_pass(tmp_path: Path) -> None:
    for program in blocks("docs/how-to/testing.md", "python"):
        name = program.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(program, "utf-8")
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_every_page_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert listed == {page.name for page in folder.glob("0*.md")}


def test_the_flow_in_the_page_about_flows_is_one(tmp_path: Path) -> None:
    flow, short, inputs = blocks("docs/how-to/flows.md", "yaml")
    readme = blocks("README.md", "yaml")
    fetched = "name: short\nsteps:\n  - {id: fetch, command: [cat, orders]}\n"
    assert flow_names([flow + inputs, fetched + short, *readme], tmp_path) == ["release-check", "short", "release"]


def flow_names(texts: list[str], folder: Path) -> list[str]:
    found = []
    for place, text in enumerate(texts):
        file = folder / f"{place}.yaml"
        file.write_text(text)
        found.append(read_flow(file).name)
    return found


def test_the_page_about_the_server_has_every_setting_and_the_usual_ones(tmp_path: Path) -> None:
    page = "docs/how-to/http.md"
    text = (ROOT / page).read_text("utf-8")
    (block,) = blocks(page, "toml")
    (tmp_path / "detent.toml").write_text(block)
    config.read(tmp_path / "detent.toml")
    assert [key for key in Server.model_fields if not re.search(rf"^{key} = ", block, re.MULTILINE)] == []
    usual = Allowance()
    assert f"| `requests_per_second`, `burst` | {usual.requests_per_second:,}, {usual.burst:,} |" in text
    for key in ("max_in_flight", "max_streams", "max_queued"):
        assert f"| `{key}` | {getattr(usual, key):,} |" in text


def test_the_page_about_agents_has_every_setting_and_the_models_that_are_used(tmp_path: Path) -> None:
    page = "docs/how-to/agents.md"
    text = (ROOT / page).read_text("utf-8")
    for place, block in enumerate(blocks(page, "toml")):
        (tmp_path / f"{place}.toml").write_text(block)
        config.read(tmp_path / f"{place}.toml")
    for table in (Models, Budgets, Agents, Price):
        assert [
            key for key in table.model_fields if not re.search(rf"^{key} = |^\[models\.{key}", text, re.MULTILINE)
        ] == []
    for tier, models in ((tier, [TIERS[name][tier] for name in TIERS]) for tier in Tier):
        assert f"| `{tier}` | {' | '.join(f'`{model}`' for model in models)} |" in text
