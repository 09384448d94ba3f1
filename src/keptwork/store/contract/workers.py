"""Queries for lists of workers: filters, newest first."""

# ruff: noqa: S608 - the conditions are fixed texts chosen by name, the states declared ones; every value is a parameter.

from __future__ import annotations

from typing import Any

from keptwork.core.lifecycles import WORKER
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.dialect import SQLITE, Dialect
from keptwork.store.trigger_rules import literals

_CONDITIONS = {"tenant_id": "tenant_id = {}", "host": "host = {}", "supervisor": "supervisor = {}"}

ALIVE = tuple(state.name for state in WORKER.states if not state.final)
"""The states of workers that have not ended."""


def page(dialect: Dialect, wanted: WorkerFilter, after: int | None, limit: int) -> tuple[str, list[Any]]:
    """Return the query for one page of workers and its values."""
    chosen = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    texts = [*(_CONDITIONS[name] for name in chosen), *(["id < {}"] if after is not None else [])]
    values = [*chosen.values(), *([after] if after is not None else []), limit]
    mark = "?" if dialect is SQLITE else "$"
    conditions = [text.format(f"{mark}{place}") for place, text in enumerate(texts, 1)]
    if wanted.states is not None:
        if unknown := set(wanted.states) - {state.name for state in WORKER.states}:
            raise KeyError(f"a worker has no state {unknown.pop()!r}")
        conditions.append(f"state IN ({literals(wanted.states) or 'NULL'})")
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return f"SELECT * FROM workers {where}ORDER BY id DESC LIMIT {mark}{len(values)}", values
