"""Show spending: the ledger's sums by model, tenant, flow, or day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import RUN, WORKSTREAM
from keptwork.core.money import MICROS, day_name, dollars
from keptwork.errors import BadInput
from keptwork.store import EventFilter, Store
from keptwork.store.contract.budgets import NO_COST, Cost
from keptwork.store.contract.store import Reader

BY = ("model", "tenant", "flow", "day")
"""Dimensions by which spending can be summed."""

NO_FLOW = "no flow"


class Line(NamedTuple):
    """The spending of one subject, with its name and, if it has one, its public ID."""

    name: str
    id: str | None
    cost: Cost


class Costs(NamedTuple):
    """Spending by subject, and the total. Days are in order; other subjects start with the largest."""

    by: str
    since: int
    lines: list[Line]
    total: Cost


async def read(store: Store, tenant_id: int, by: str, since: int, *, own_only: bool = False) -> Costs:
    """Return the spending of a tenant. By tenant, return that of all tenants, unless `own_only` is set."""
    if by not in BY:
        raise BadInput(what=f"costs are not added up by {by!r}, but by {', '.join(BY)}")
    found = await store.costs(by, None if by == "tenant" and not own_only else tenant_id, since)
    names = await _names(store, by, found)
    lines = [Line(*names[cost.subject], cost) for cost in found]
    if by == "day":
        lines.sort(key=lambda line: line.name)
    return Costs(by, since, lines, _total(found))


def _total(found: list[Cost]) -> Cost:
    sums = [sum(column) for column in zip(*(cost[1:] for cost in found), strict=True)]
    return Cost("total", *sums) if found else NO_COST._replace(subject="total")


async def _names(store: Store, by: str, found: list[Cost]) -> dict[str, tuple[str, str | None]]:
    subjects = [cost.subject for cost in found]
    if by == "day":
        return {subject: (day_name(int(subject)), None) for subject in subjects}
    if by == "tenant":
        known = {str(tenant.id): tenant.name for tenant in await store.tenants()}
        return {subject: (known.get(subject, f"tenant {subject}"), None) for subject in subjects}
    return await _flows(store, subjects) if by == "flow" else {subject: (subject, None) for subject in subjects}


async def _flows(store: Store, subjects: list[str]) -> dict[str, tuple[str, str | None]]:
    """Return the names and IDs of flows.

    A deleted flow has no name any more, but its events have its ID. Spending outside flows has neither.
    """
    named: dict[str, tuple[str, str | None]] = {"0": (NO_FLOW, None)}
    for kind in (RUN, WORKSTREAM):
        rows = await store.rows(kind, [int(subject) for subject in subjects], ("id", "name")) if subjects else []
        named |= {str(row["id"]): (row["name"] or kind.name, public_id(kind.name, row["id"])) for row in rows}
    return named | {subject: await _gone(store, int(subject)) for subject in subjects if subject not in named}


async def _gone(store: Store, key: int) -> tuple[str, str | None]:
    born = await store.events(EventFilter(entity_id=key), limit=1)
    return (f"deleted {born[0].entity}", public_id(born[0].entity, key)) if born else (f"flow {key}", None)


async def of_steps(store: Reader, flow: Mapping[str, Any]) -> dict[int, Cost]:
    """Return the costs of a flow's steps by the ledger, without steps that made no calls."""
    return await store.step_costs(flow["id"], flow["tree_id"] or flow["id"])


async def of_flow(store: Reader, flow: Mapping[str, Any], steps: Mapping[int, Cost], own: Iterable[int]) -> Cost:
    """Return the cost of a flow: its tree if it is outermost, otherwise its `own` steps."""
    if flow["tree_id"] in (None, flow["id"]):
        return await store.tree_cost(flow["tenant_id"], flow["id"])
    return _total([steps[id] for id in own if id in steps])


def lost_words(cost: Cost) -> str | None:
    """Return a text about the lost calls in a sum, or None if there are none.

    >>> lost_words(NO_COST._replace(lost=1, lost_micros=42_000))
    '1 lost call counts with $0.0420, because nobody knows its cost'
    """
    if not cost.lost:
        return None
    calls, their = ("1 lost call counts", "its") if cost.lost == 1 else (f"{cost.lost:,} lost calls count", "their")
    return f"{calls} with {dollars(cost.lost_micros)}, because nobody knows {their} cost"


def spent_json(found: Costs) -> dict[str, Any]:
    """Return spending in the form that commands print."""
    lines = [{"name": line.name, "id": line.id, **cost_json(line.cost)} for line in found.lines]
    return {"by": found.by, "since": rfc3339(found.since), "costs": lines, "total": cost_json(found.total)}


def usd(amount: int) -> str:
    """Return an exact amount in dollars, for programs.

    >>> usd(12_300)
    '0.012300'
    """
    return f"{Decimal(amount) / MICROS:.6f}"


def cost_json(cost: Cost) -> dict[str, Any]:
    """Return a sum in the form that commands print."""
    return {
        "calls": cost.calls,
        "lost_calls": cost.lost,
        "cost_micros": cost.micros,
        "cost_usd": usd(cost.micros),
        "lost_micros": cost.lost_micros,
        "reserved_micros": cost.open_micros,
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
        "cache_read_tokens": cost.cache_read_tokens,
        "cache_write_tokens": cost.cache_write_tokens,
    }
