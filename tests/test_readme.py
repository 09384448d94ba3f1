"""The code in the README and in the pages about writing jobs runs, and no link leads nowhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from keptwork import settings
from keptwork.access.scopes import Allowance
from keptwork.agents.settings import TIERS, Agents, Budgets, Models, Price
from keptwork.agents.skills import Tier
from keptwork.flows.files import read_flow
from keptwork.settings import Server

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
INDEXES = [DOCS / "README.md", DOCS / "decisions" / "README.md", DOCS / "lifecycles" / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.acceptance
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
        "docs/quickstart.md",
    ],
)
def test_the_python_in_a_page_runs_as_it_stands(tmp_path: Path, page: str) -> None:
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        (tmp_path / "program.py").write_text(program, "utf-8")
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.acceptance
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_heading_that_are_there(page: Path) -> None:
    assert [link for link in links(page) if not is_there(page, link)] == []


def test_every_page_is_reached_from_the_index_of_the_documentation() -> None:
    assert all(index in targets(INDEXES[0]) for index in INDEXES[1:])
    reached = {target for index in INDEXES for target in targets(index)}
    assert [page for page in DOCS.rglob("*.md") if page not in {*reached, INDEXES[0]}] == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Job, epoch, lease", "job-epoch-lease"),
        ("What is promised, and what is not", "what-is-promised-and-what-is-not"),
        ("`keptwork jobs show ID`", "keptwork-jobs-show-id"),
        ("[Run](run.md) *and* look_at it", "run-and-look_at-it"),
        ("Tokens – per minute", "tokens--per-minute"),
    ],
)
def test_a_heading_has_the_anchor_that_github_gives_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_of_headings_that_are_alike_each_has_an_anchor_and_those_in_code_have_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Twice\n```sh\n# a comment\n```\n## Twice\n", "utf-8")
    assert list(anchors(page)) == ["twice", "twice-1"]


def test_links_are_found_in_prose_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](a.md#b) `[b](b.md)` ![c](c.svg)\n```\n[d](d.md)\n```\n[e](https://example.org)\n", "utf-8")
    assert links(page) == ["a.md#b", "c.svg"]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Where its links lead within the repository; those with a scheme lead out of it."""
    found = re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [link for link in found if not re.match(r"[a-z][a-z0-9+.-]*:", link)]


def target(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return (page.parent / unquote(path)).resolve() if path else page.resolve(), anchor


def targets(page: Path) -> set[Path]:
    return {target(page, link)[0] for link in links(page)}


def is_there(page: Path, link: str) -> bool:
    file, anchor = target(page, link)
    return file.exists() and (not anchor or (file.suffix == ".md" and anchor in anchors(file)))


def anchors(page: Path) -> Iterator[str]:
    """By which its headings are found; of those that are alike the second ends with -1, and so on."""
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", prose(page), re.MULTILINE):
        anchor = slug(heading)
        seen[anchor] = seen.get(anchor, -1) + 1
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor


def slug(heading: str) -> str:
    """As GitHub makes it: what is shown, in small letters, without punctuation, and a hyphen for every space."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def test_the_glossary_is_in_alphabetical_order_and_has_each_word_once() -> None:
    words = [
        word.lower()
        for word in re.findall(r"^\*\*(.+?)\.\*\*", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    ]
    assert len(words) > 50
    assert words == sorted(set(words))


def test_what_the_quickstart_names_as_a_flow_is_one(tmp_path: Path) -> None:
    assert flow_names(blocks("docs/quickstart.md", "yaml"), tmp_path) == ["orders"]


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert listed == {page.name for page in folder.glob("0*.md")}


def test_the_flow_in_the_page_about_flows_is_one(tmp_path: Path) -> None:
    flow, short, inputs, each = blocks("docs/how-to/flows.md", "yaml")
    readme = blocks("README.md", "yaml")
    fetched = "name: short\nsteps:\n  - {id: fetch, command: [cat, orders]}\n"
    listed = "name: each\nsteps:\n  - {id: files, call: 'shop.files:names'}\n"
    found = flow_names([flow + inputs, fetched + short, listed + each, *readme], tmp_path)
    assert found == ["release-check", "short", "each", "release"]


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
    (tmp_path / "keptwork.toml").write_text(block)
    settings.read(tmp_path / "keptwork.toml")
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
        settings.read(tmp_path / f"{place}.toml")
    for table in (Models, Budgets, Agents, Price):
        assert [
            key for key in table.model_fields if not re.search(rf"^{key} = |^\[models\.{key}", text, re.MULTILINE)
        ] == []
    for tier, models in ((tier, [TIERS[name][tier] for name in TIERS]) for tier in Tier):
        assert f"| `{tier}` | {' | '.join(f'`{model}`' for model in models)} |" in text
