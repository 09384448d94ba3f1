"""Every hint that a user can paste names something that exists: extras, commands and options, make targets, files.

Hints are read from the strings and docstrings of the package, from its templates, and from the pages and examples.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from keptwork.cli.main import COMMANDS, app, load

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SHELL = [ROOT / "Makefile", ROOT / ".ci" / "run"]
FILLED = "…"  # stands for the part of a string that is filled in when the program runs
OTHERS_PACKAGES = {"apsw", "tzdata"}
"""Packages of other projects that a hint may install by themselves."""


class Hint(NamedTuple):
    """A text that might contain hints, and where it stands."""

    place: str
    text: str


def source_texts() -> Iterator[Hint]:
    for path in sorted((ROOT / "src" / "keptwork").rglob("*")):
        if path.suffix == ".py":
            yield from (Hint(f"{path.relative_to(ROOT)}:{line}", text) for line, text in strings(path))
        elif path.suffix in {".html", ".js"}:
            yield Hint(str(path.relative_to(ROOT)), path.read_text("utf-8"))


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a program, with its line. The filled-in parts of a formatted one are replaced."""
    tree = ast.parse(path.read_text("utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else FILLED for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, re.sub(r"\{\w*\}", FILLED, node.value)


def page_texts() -> Iterator[Hint]:
    """Code of the pages: fenced blocks line by line, and spans."""
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield from (Hint(str(page.relative_to(ROOT)), line) for line in block.splitlines())
        spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
        yield from (Hint(str(page.relative_to(ROOT)), " ".join(span.split())) for span in spans)


def example_texts() -> Iterator[Hint]:
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield from (Hint(str(path.relative_to(ROOT)), line) for line in path.read_text("utf-8").splitlines())


@cache
def texts() -> tuple[Hint, ...]:
    return (*source_texts(), *page_texts(), *example_texts())


# --- packages and extras ------------------------------------------------------------------------------------


def unknown_package(named: str) -> str | None:
    """Return what is wrong with a requirement that a hint installs, or None."""
    match = re.fullmatch(r"([A-Za-z][\w-]*|\.)(?:\[([^\]]*)\])?", named.replace("\\", ""))
    if not match:
        return f"not a requirement: {named}"
    if match[1] not in {PROJECT["name"], ".", *OTHERS_PACKAGES}:
        return f"a package of another project: {match[1]}"
    extras = [extra for extra in (match[2] or "").split(",") if extra not in {"", FILLED}]
    unknown = [extra for extra in extras if extra not in PROJECT["optional-dependencies"]]
    return f"no extra of ours: {unknown[0]}" if unknown else None


def installed(text: str) -> Iterator[str]:
    for rest in re.findall(r"pip install ((?:-[\w-]+ )*'[^']*'|(?:-[\w-]+ )*[\w.\[\],\\-]+)", text):
        yield rest.split()[-1].strip("'")


def test_every_pip_hint_names_our_package_and_an_extra_that_exists():
    named = [(hint.place, package) for hint in texts() for package in installed(hint.text)]
    assert len(named) > 10
    assert [(place, fault) for place, package in named if (fault := unknown_package(package))] == []


def test_every_extra_that_a_message_fills_in_exists():
    extras = re.compile(r"""\bextra=["'](?!allow|forbid)(\w+)["']""")
    named = {match for path in (ROOT / "src").rglob("*.py") for match in extras.findall(path.read_text("utf-8"))}
    assert named
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_console_script_and_the_module_have_the_name_of_the_package():
    assert PROJECT["scripts"] == {"keptwork": "keptwork.cli.main:run"}
    assert PROJECT["name"] == "keptwork"


# --- commands and options -----------------------------------------------------------------------------------


@cache
def commands() -> Any:
    """The command tree with every stand-in replaced by the command itself."""
    root = get_command(app)
    for name, entry in COMMANDS.items():
        root.commands[name] = load(name, entry)  # type: ignore[attr-defined]
    return root


def options(command: Any) -> set[str]:
    return {"--help", *(name for param in command.params for name in (*param.opts, *param.secondary_opts))}


def called(text: str) -> Iterator[list[str]]:
    """The words after each `keptwork` that stands where a command does, up to the end of the command."""
    for rest in re.findall(r"(?<![\w./:@\[=-])(?<!from )keptwork((?: [^\s`'\"|;&<>()#]+)+)", text):
        words = []
        for word in rest.split():
            words.append(word.rstrip(".,:"))
            if word != words[-1]:
                break
        yield words


def fault(words: list[str]) -> str | None:
    """Return what is wrong with a command line, or None."""
    command, rest = commands(), list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-") and not open_ended(rest[0]):
        names = rest.pop(0).split("|")
        if unknown := [name for name in names if name not in command.commands]:
            return f"no command: keptwork {' '.join(words)} ({unknown[0]})"
        command = command.commands[names[0]]
    named = {word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
    unknown = sorted(named - options(command))
    return f"no option: keptwork {' '.join(words)} ({unknown[0]})" if unknown and not open_end(command, rest) else None


def open_ended(word: str) -> bool:
    """Whether a word stands for any command: COMMAND, … or [-h]."""
    return FILLED in word or word.isupper() or word.startswith(("[", "{", "<", "*"))


def open_end(command: Any, rest: list[str]) -> bool:
    """Whether the command is not known: its name is filled in."""
    return hasattr(command, "commands") and any(open_ended(word) for word in rest)


def test_every_command_and_option_in_a_hint_exists():
    lines = [(hint.place, words) for hint in texts() for words in called(hint.text)]
    assert len(lines) > 300
    assert [(place, wrong) for place, words in lines if (wrong := fault(words))] == []


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("jobs show ID --watch", False),
        ("jobs shows ID", True),
        ("jobs show ID --wach", True),
        ("workers pause|resume|drain|terminate", False),
        ("workers pause|resum", True),
        ("--version", False),
        ("--versoin", True),
        ("… show ID --json", False),
        ("nonsense", True),
    ],
)
def test_a_hint_with_a_command_or_option_that_does_not_exist_is_found(words: str, wrong: bool):
    assert bool(fault(words.split())) is wrong


# --- make targets and files ---------------------------------------------------------------------------------


def test_every_make_target_in_a_hint_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    shell = [Hint(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in SHELL]
    named = [
        (hint.place, name)
        for hint in (*page_texts(), *shell)
        for name in re.findall(r"(?:^|\$ |\|\| |&& )make ([a-z-]+)\b", hint.text, re.MULTILINE)
    ]
    assert len(named) > 10
    assert [(place, name) for place, name in named if name not in targets] == []


def test_every_file_in_a_hint_exists():
    path = re.compile(
        r"(?<![\w/.$}-])((?:docs|examples|src/keptwork|bench|requirements)/[\w./-]*\w)(?![\w*{<]|/?[A-Z*{])"
    )
    pages = [Hint(str(page.relative_to(ROOT)), page.read_text("utf-8")) for page in PAGES]
    named = {(hint.place, name) for hint in (*source_texts(), *pages) for name in path.findall(hint.text)}
    relative = re.compile(r"\]\([^)]*\)")
    linked = {(h.place, name) for h in pages for link in relative.findall(h.text) for name in path.findall(link)}
    written = [(place, name) for place, name in sorted(named - linked) if not name.rpartition("/")[2].isupper()]
    missing = [(place, name) for place, name in written if not (ROOT / name).exists()]
    assert len(named) > 30
    assert missing == []
