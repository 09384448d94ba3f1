"""Which sentence of the store's contract a test holds it to. `test_promises` finds the sentences nobody tests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])

KEPT: set[tuple[str, str]] = set()
"""(verb, clause) of every test that was imported."""


def name_of(promise: object) -> str:
    """The verb a docstring belongs to, or the protocol itself."""
    return str(getattr(promise.fget if isinstance(promise, property) else promise, "__name__", promise))


def clauses(promise: object) -> list[str]:
    """What a docstring promises, piece by piece: it is cut after full stops, semicolons and colons."""
    text = " ".join((inspect.getdoc(promise) or "").split())
    return [piece.rstrip(".;:") for piece in re.split(r"(?<=[.;:]) ", text)]


def keeps(promise: object, *quoted: str) -> Callable[[Test], Test]:
    """Says that a test shows these clauses of a docstring; one that is not there (any more) is an error at import."""
    for clause in quoted:
        if clause not in clauses(promise):
            raise LookupError(f"{name_of(promise)} does not promise {clause!r}, but: {clauses(promise)}")
        KEPT.add((name_of(promise), clause))

    def mark(test: Test) -> Test:
        return test

    return mark
