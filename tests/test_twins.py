"""The list of broken twins (twins.toml) is complete, and names tests that exist, with as many cases as they have.

It reads the files as text, and imports none of them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LISTED: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/twins.toml").read_text("utf-8"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def functions(tree: ast.Module) -> dict[str, Function]:
    return {one.name: one for one in tree.body if isinstance(one, Function)}


REMOVERS = functions(module(ROOT / "tests/support/broken_sql.py")).keys()


def is_twin(test: Function) -> bool:
    """By its name, or because it takes a guard out of the SQL."""
    used = {one.id for one in ast.walk(test) if isinstance(one, ast.Name)}
    return "twin" in test.name or "_caught" in test.name or bool(used & REMOVERS)


def length(tree: ast.Module, table: ast.expr) -> int | None:
    """How many entries the table has; None if that can be known only by running the module."""
    match table:
        case ast.Dict(keys=keys):
            return len(keys)
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            counts = [length(tree, one.value) if isinstance(one, ast.Starred) else 1 for one in entries]
            return None if None in counts else sum(filter(None, counts))
        case ast.Name(id=name):
            return next((length(tree, value) for value in assigned(tree, name)), None)
        case _:
            return None


def assigned(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """What the module gives that name, or the module of the tests that it imports it from."""
    for one in tree.body:
        match one:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                yield value
            case ast.ImportFrom(module=str(source)) if source.startswith("tests.") and name in {
                n.name for n in one.names
            }:
                yield from assigned(module(ROOT / f"{source.replace('.', '/')}.py"), name)


def tables(tree: ast.Module, test: Function) -> list[int | None]:
    """The length of each table that the test is run with."""
    return [
        length(tree, decorator.args[1])
        for decorator in test.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize"
    ]


@pytest.mark.parametrize("where", LISTED)
def test_listed_test_exists_and_has_as_many_cases_as_the_list_says(where: str) -> None:
    path, _, name = where.partition("::")
    tree = module(ROOT / path)
    test = functions(tree).get(name)
    assert test is not None, "the test is gone or has another name"
    listed = LISTED[where]
    assert (
        {"twins", "guard", "caught_by"} <= listed.keys() <= {"twins", "cases", "guard", "caught_by", "weak", "why_weak"}
    )
    assert ("weak" in listed) == ("why_weak" in listed)
    found = tables(tree, test)
    assert not found or None in found or listed.get("cases", len(listed["twins"])) in found


def test_every_test_that_takes_a_guard_away_is_listed() -> None:
    there = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name, test in functions(module(path)).items()
        if name.startswith("test_") and is_twin(test)
    }
    assert there
    assert there - LISTED.keys() == set()


def test_list_is_sorted() -> None:
    assert list(LISTED) == sorted(LISTED)
