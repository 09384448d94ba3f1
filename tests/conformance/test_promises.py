"""The contract itself: no sentence of it stands without a test that says it keeps it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from keptwork.store.contract import store
from tests.conformance.promises import KEPT, clauses, name_of

HERE = Path(__file__).parent


def promised() -> Iterator[tuple[str, str]]:
    """Every clause of every docstring of the protocol, with the verb it is said of."""
    for kind in (store.Reader, store.Writer, store.Transaction, store.Store):
        yield from ((kind.__name__, clause) for clause in clauses(kind))
        for name, verb in vars(kind).items():
            if not name.startswith("_") and (inspect.isfunction(verb) or isinstance(verb, property)):
                yield from ((name_of(verb), clause) for clause in clauses(verb))


def kept() -> set[tuple[str, str]]:
    """Every clause that a test is marked with."""
    for file in HERE.glob("test_*.py"):
        import_module(f"tests.conformance.{file.stem}")
    return KEPT


def test_every_sentence_of_the_protocol_is_kept_by_a_test() -> None:
    untested = sorted(set(promised()) - kept())
    assert not untested, "write a conformance test for each and mark it with @keeps: " + "; ".join(map(str, untested))


def test_the_check_above_sees_the_whole_protocol() -> None:
    assert {"now", "enqueue", "follow", "url", "Writer"} <= {name for name, _ in promised()}
    assert len(set(promised())) > 50
