"""Count phrases that a native engineer would not write, per 1,000 words of prose in each folder.

`banned.txt` has the phrases, one regular expression on a line. `marks.toml` has the limit of each folder, which only
ever falls. `make check` fails when a folder gets worse. To see the hits: `python -m tools.prose --show [PATH …]`.

Prose is: string literals of two words or more, docstrings, comments and test names in Python; text outside code in
Markdown; visible text and comments in HTML; comments in SQL. Whitespace is collapsed first, so that a phrase is found
although a line ends in it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.marks import GENERATED, ROOT

PATHS = ("src", "tools", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
HERE = Path(__file__).parent
SQL = re.compile(
    r"^\s*(WITH|SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|FROM|WHERE|AND|SET|PRAGMA|RETURNING|JOIN)\b"
    r"|\b(SELECT|FROM|WHERE|VALUES)\b.*\b(SELECT|FROM|WHERE|VALUES|AS)\b"
)
NO_PROSE = re.compile(r"#\s*(noqa|type:|pragma|fmt:|ruff:|!)")


class Unit(NamedTuple):
    """A piece of prose and where it stands."""

    line: int
    text: str


def python(text: str) -> Iterator[Unit]:
    tree = ast.parse(text)
    parts = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.BinOp) for part in halves(node)
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Unit(node.lineno, node.name.removeprefix("test_").replace("_", " "))
        said = literal(node)
        if said is None or id(node) in parts:
            continue
        if id(node) in docstrings:
            yield Unit(node.lineno, re.split(r"\n\s*>>> ", said)[0])  # type: ignore[attr-defined]
        elif re.search(r"[a-z]{2,},? [a-z({<]", said) and not SQL.search(said):
            yield Unit(node.lineno, said)  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not NO_PROSE.match(token.string):
            yield Unit(token.start[0], token.string.lstrip("# "))


def literal(node: ast.AST) -> str | None:
    """Return the text of a string, a formatted string (with gaps), or a sum of strings. Return None otherwise."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left), literal(node.right)
        return None if left is None or right is None else left + right
    return None


def halves(node: ast.JoinedStr | ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    elif literal(node) is not None:
        yield from (node.left, node.right)


def markdown(text: str) -> Iterator[Unit]:
    """Yield each paragraph, list item and table row outside fenced blocks, without code spans and link targets."""
    fenced, start, gathered = False, 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        shown = "" if fence or fenced or line.startswith("    ") else line.strip()
        if gathered and (not shown or re.match(r"[|#>]|[-*] |\d+\. ", shown)):
            yield Unit(start, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`x`", " ".join(gathered))))
            gathered = []
        if shown:
            start = start if gathered else number
            gathered.append(shown)


def html(text: str) -> Iterator[Unit]:
    comments = re.sub(r"\{#(.*?)#\}", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    for match in re.finditer(r"\{#(.*?)#\}", text, re.DOTALL):
        yield Unit(text.count("\n", 0, match.start()) + 1, match[1])
    for number, line in enumerate(comments.splitlines(), 1):
        plain = re.sub(r"<[^>]*>|\{%.*?%\}", " | ", re.sub(r"\{\{.*?\}\}", "{}", line))
        for said in (plain, *re.findall(r'(?:title|aria-label|placeholder)="([^"]+)"', line)):
            if re.search(r"[a-z] [a-z]", said):
                yield Unit(number, said)


def sql(text: str) -> Iterator[Unit]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("--"):
            yield Unit(number, line.strip(" -"))


READERS = {".py": python, ".md": markdown, ".html": html, ".sql": sql}


def files(paths: list[str]) -> Iterator[Path]:
    for path in map(ROOT.joinpath, paths):
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.suffix in READERS and file.is_file())


def units(file: Path) -> Iterator[Unit]:
    text = file.read_text("utf-8")
    if not (file.suffix == ".py" and text.startswith(GENERATED)):
        for line, said in READERS[file.suffix](text):
            yield Unit(line, " ".join(said.split()))


def folder(file: Path) -> str:
    """Return the folder that a file is counted in: a room of the package, a part of the docs, or the page itself."""
    parts = file.relative_to(ROOT).parts
    depth = {"src": 3, "docs": 2}.get(parts[0], 1)
    return "/".join(parts[:depth]) if len(parts) > depth else "/".join(parts[: depth - 1]) or parts[0]


def phrases() -> list[re.Pattern[str]]:
    lines = (HERE / "banned.txt").read_text("utf-8").splitlines()
    return [re.compile(line, re.IGNORECASE) for line in lines if line.strip() and not line.startswith("#")]


def show(paths: list[str]) -> None:
    for file in files(paths):
        for line, said in units(file):
            for match in (match for phrase in phrases() for match in phrase.finditer(said)):
                around = said[max(0, match.start() - 50) : match.end() + 50]
                print(f"{file.relative_to(ROOT)}:{line} [{match[0]}] …{around}…")


def counted() -> dict[str, float]:
    """Return the hits per 1,000 words in each folder."""
    hits, words = Counter[str](), Counter[str]()
    listed = phrases()
    for file in files(list(PATHS)):
        for _, said in units(file):
            words[folder(file)] += len(said.split())
            hits[folder(file)] += sum(len(phrase.findall(said)) for phrase in listed)
    return {name: round(1000 * hits[name] / count, 1) for name, count in sorted(words.items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", nargs="*", metavar="PATH", help="Print each hit in these files and folders.")
    parser.add_argument("--figures", action="store_true", help="Print the figures in the form that marks.toml has.")
    given = parser.parse_args()
    if given.show is not None:
        return show(given.show or list(PATHS))
    found = counted()
    if given.figures:
        print(*(f'"{name}" = {figure}' for name, figure in found.items()), sep="\n")
        return None
    limits = tomllib.loads((HERE / "marks.toml").read_text("utf-8"))["prose"]
    worse = {name: figure for name, figure in found.items() if figure > limits.get(name, limits["new folders"])}
    print(f"  {max(found.values()):6}  banned phrases in 1,000 words, in the worst of {len(found)} folders (goal: 0.5)")
    for name, figure in worse.items():
        print(f"  {figure:6}  in {name}: WORSE than {limits.get(name, limits['new folders'])}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
