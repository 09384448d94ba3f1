"""Queries for lists of jobs: filters, order, and cursors."""

# ruff: noqa: S608 - the conditions are fixed texts chosen by name, the states declared ones; every value is a parameter.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from keptwork.core.lifecycles.job import ASSIGNED, JOB, RUNNING
from keptwork.store.contract.records import JobFilter, QueueSummary
from keptwork.store.dialect import SQLITE, Dialect
from keptwork.store.trigger_rules import literal, literals

_CONDITIONS = {
    "tenant_id": "tenant_id = {}",
    "queue": "queue = {}",
    "kind": "kind = {}",
    "correlation_id": "correlation_id = {}",
    "reason": "reason = {}",
    "owner": "owner = {}",
    "made_since": "created_at >= {}",
    "made_before": "created_at < {}",
    "ended_since": "completed_at >= {}",
    "ended_before": "completed_at < {}",
}
LEASED = (ASSIGNED.name, RUNNING.name)
"""The states of claimed jobs."""

_DECLARED = frozenset(state.name for state in JOB.states)
_RUN_AGAIN = "EXISTS (SELECT 1 FROM jobs AS later WHERE later.redriven_from = jobs.id)"


def page(
    dialect: Dialect, wanted: JobFilter, after: int | None, limit: int, newest_first: bool, columns: Sequence[str]
) -> tuple[str, list[Any]]:
    """Return the query for one page of jobs and its values."""
    values: list[Any] = []

    def bound(value: Any) -> str:
        values.append(value)
        return f"?{len(values)}" if dialect is SQLITE else f"${len(values)}"

    chosen = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    conditions = [_CONDITIONS[name].format(bound(value)) for name, value in chosen.items()]
    if wanted.states is not None:
        conditions.append(_in_states(wanted.states))
    if wanted.redriven_from is not None:
        conditions.append(f"redriven_from IN ({', '.join(map(bound, wanted.redriven_from)) or 'NULL'})")
    if wanted.redriven is not None:
        conditions.append(_RUN_AGAIN if wanted.redriven else f"NOT {_RUN_AGAIN}")
    if after is not None:
        conditions.append(f"id {'<' if newest_first else '>'} {bound(after)}")
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    order = f"{_key(dialect, wanted)} {'DESC' if newest_first else 'ASC'}"
    return f"SELECT {', '.join(columns)} FROM jobs {where}ORDER BY {order} LIMIT {bound(limit)}", values


def _key(dialect: Dialect, wanted: JobFilter) -> str:
    """Return the sort key of jobs.

    To avoid a sort, SQLite would read all jobs in the order of their IDs. Claimed jobs are few and have an index of
    their own, which SQLite uses when the sort key is not a plain column.
    """
    return "+id" if dialect is SQLITE and wanted.states == LEASED else "id"


def _in_states(states: Sequence[str]) -> str:
    """Return a condition with the states as literals. A partial index is not used for states that are parameters."""
    for name in states:
        if name not in _DECLARED:
            raise KeyError(f"a job has no state {name!r}")
    if len(states) == 1:
        return f"state = {literal(states[0])}"
    return f"state IN ({literals(states) or 'NULL'})"


def summaries(rows: Iterable[Sequence[Any]]) -> list[QueueSummary]:
    """Return the summaries for the rows of the statement `queues`. It has a row per queue and state, and one per paused
    queue."""
    found: dict[str, QueueSummary] = {}
    for name, state, count, oldest_due, paused_at, held in rows:
        queue = found.get(name) or QueueSummary(name, {}, None, None)
        jobs = {**queue.jobs, state: queue.jobs.get(state, 0) + count} if state is not None else queue.jobs
        due = queue.oldest_due if oldest_due is None else oldest_due
        paused = queue.paused_at if paused_at is None else paused_at
        found[name] = QueueSummary(name, jobs, due, paused, queue.held + held)
    return [found[name] for name in sorted(found)]
