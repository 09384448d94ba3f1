"""The list of variables against the code that reads them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import keptwork
from tools import variables
from tools.variables import VARIABLES

SOURCE = Path(keptwork.__file__).parent
ELSEWHERE = {"NO_COLOR"}
"""Read by the library that draws on terminals."""

LISTED = {one.name for one in VARIABLES}


def sources() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path != Path(variables.__file__):
            yield path.read_text("utf-8")


@pytest.fixture(scope="module")
def trees() -> list[ast.Module]:
    return [ast.parse(source) for source in sources() if re.search(r"environ|KEPTWORK_|OTEL_|TRACEPARENT", source)]


def constants(trees: list[ast.Module]) -> set[str]:
    """Every text that stands in the code by itself."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def asked_for(tree: ast.Module) -> Iterator[str]:
    """What is asked of an environment outright: `environ.get("NAME")`, `environ["NAME"]`, `"NAME" in environ`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=where, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]
            ):
                pass
            case ast.Subscript(value=where, slice=ast.Constant(value=str(name))):
                pass
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[where]):
                pass
            case _:
                continue
        if ast.unparse(where) in ("os.environ", "environ"):
            yield name


def test_every_variable_of_ours_that_the_code_names_is_listed() -> None:
    named = {word for source in sources() for word in re.findall(r"\bKEPTWORK_[A-Z][A-Z_]*[A-Z]\b", source)}
    assert {"KEPTWORK_DB", "KEPTWORK_SEAL_KEY"} <= named
    assert sorted(named - LISTED) == []


def test_every_variable_of_others_that_the_code_reads_is_listed(trees: list[ast.Module]) -> None:
    asked = {name for tree in trees for name in asked_for(tree)}
    asked |= {text for text in constants(trees) if re.fullmatch(r"OTEL_[A-Z_]+|[A-Z]+_API_KEY", text)}
    assert {"COLUMNS", "PGTARGETSESSIONATTRS", "OTEL_SDK_DISABLED", "OPENAI_API_KEY"} <= asked
    assert sorted(asked - LISTED) == []


def test_every_variable_that_is_listed_is_in_the_code(trees: list[ast.Module]) -> None:
    assert sorted(LISTED - constants(trees) - ELSEWHERE) == []


def test_a_variable_is_listed_once_and_its_meaning_is_a_sentence() -> None:
    assert len(LISTED) == len(VARIABLES)
    assert [one.name for one in VARIABLES if not one.meaning.endswith(".")] == []
