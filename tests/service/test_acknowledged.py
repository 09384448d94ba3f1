"""Every use-case that writes, and that can refuse after a plain read, waits for the rows its refusal rests on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import keptwork
from keptwork.store.contract.reader import Reader
from keptwork.store.postgres.standby_acknowledgement import verbs

PACKAGE = Path(keptwork.__file__).parent
ROOMS = ("jobs", "flows", "crews", "agents", "webhooks", "access", "audit", "maintenance", "diagnostics")
"""The rooms whose functions are use-cases."""

WRITES = {*verbs(), "atomically", "transaction"}
READS = {name for name, _ in inspect.getmembers(Reader, inspect.isfunction)} - WRITES

EXEMPT = {
    "diagnostics.doctor.job_checks.repair_orphaned_lease": "`runner.treat`, which calls it, has the mark.",
    "diagnostics.doctor.job_checks.repair_stuck_breaker": "`runner.treat`, which calls it, has the mark.",
    "audit.seals.seal": "A duty of the workers, which the next round repeats; the command waits by itself.",
}
"""Use-cases that look as if they needed the mark, and why they need none."""


class UseCase:
    """A function of a service module, and what it does by itself or through others."""

    def __init__(self, module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.module, self.name = module, f"{module}.{node.name}"
        first = next(iter([*node.args.posonlyargs, *node.args.args]), None)
        takes_store = first is not None and first.annotation is not None and "Store" in ast.unparse(first.annotation)
        self.is_async = isinstance(node, ast.AsyncFunctionDef)
        self.is_entry = takes_store and self.is_async and not node.name.startswith("_")
        self.is_marked = any(ast.unparse(one) == "acknowledged" for one in node.decorator_list)
        self.events: list[tuple[str, str]] = []
        for part in sorted(own(node), key=lambda part: (part.end_lineno or 0, part.end_col_offset or 0)):
            if isinstance(part, ast.Raise) and part.exc is not None:
                self.events.append(("raise", ""))
            elif isinstance(part, ast.Call):
                called = ast.unparse(part.func)
                of, _, verb = called.rpartition(".")
                on_store = takes_store and first is not None and of == first.arg
                self.events.append(
                    (("read" if verb in READS else "write" if verb in WRITES else ""), "")
                    if on_store
                    else ("call", called)
                )
        self.reads = self.raises = self.refuses = self.writes = False

    def learn(self, use_cases: dict[str, UseCase], names: dict[str, str]) -> bool:
        """Follow the calls one level deeper; return whether anything new was found out."""
        before = self.reads, self.raises, self.refuses, self.writes
        has_read = False
        for what, called in self.events:
            module, _, name = called.rpartition(".")
            other = use_cases.get(names.get(called) or f"{names.get(module, self.module)}.{name}") if called else None
            self.writes |= what == "write" or (other is not None and other.writes)
            raises = what == "raise" or (other is not None and other.raises and not other.is_async)
            self.raises |= raises
            self.refuses |= (raises and has_read) or (other is not None and other.refuses and not other.is_marked)
            has_read |= what == "read" or (other is not None and other.reads and not other.is_marked)
        self.reads |= has_read
        return before != (self.reads, self.raises, self.refuses, self.writes)


def own(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Walk through a function, but not through those inside it: what they do in a transaction waits with it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if isinstance(child, ast.stmt | ast.expr):
                yield child
            yield from own(child)


def unmarked(sources: dict[str, str]) -> set[str]:
    """Return the use-cases in these modules that write, can refuse after a plain read, and lack the mark."""
    use_cases: dict[str, UseCase] = {}
    names: dict[str, dict[str, str]] = {}
    for module, source in sources.items():
        tree = ast.parse(source)
        names[module] = {
            alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("keptwork.")
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keptwork.")
            for alias in node.names
        }
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        use_cases |= {f"{module}.{node.name}": UseCase(module, node) for node in functions}
    while sum(one.learn(use_cases, names[one.module]) for one in use_cases.values()):
        pass
    entries = [one for one in use_cases.values() if one.is_entry and one.name.split(".")[0] in ROOMS]
    return {one.name for one in entries if one.writes and one.refuses and not one.is_marked}


def services() -> dict[str, str]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8")
        for room in ROOMS
        for path in [*(PACKAGE / room).rglob("*.py"), *(PACKAGE / "store").glob("*.py")]  # these decide for the rooms
    }


def test_every_use_case_that_refuses_by_a_plain_read_has_the_mark_or_a_reason() -> None:
    assert unmarked(services()) == EXEMPT.keys()


def test_check_finds_use_cases_whose_mark_is_taken_away() -> None:
    bare = {module: source.replace("@acknowledged\n", "") for module, source in services().items()}
    found = {name.rpartition(".")[2] for name in unmarked(bare)}
    assert {"cancel", "revoke", "delete", "add"} <= found
