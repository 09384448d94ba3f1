"""`keptwork budgets`: list, show, set, and raise budgets for model calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import budget_caps as service
from keptwork.agents.budget_rules import called
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.core.durations import moment_us
from keptwork.core.money import Scope, dollars, micros
from keptwork.errors import BadInput
from keptwork.store.contract.budgets import BudgetView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from keptwork.agents.budget_caps import Costs, Raised
    from keptwork.store import Store
    from keptwork.store.contract.budgets import Budget, Charge, Cost


MOST_CALLS = 20
NO_CAP = "none"

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Budget: tenant, today, a date, or the ID of a job or flow.")]


@app.command("list")
def list_(
    scope: Annotated[
        str | None, typer.Option("--scope", metavar="|".join(Scope), help="Only budgets with this scope.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Maximum number of results.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List budgets: spent and reserved amounts, caps, and held jobs."""
    if scope is not None and scope not in list(Scope):
        raise BadInput(what=f"--scope {scope}: a budget is for a {', '.join(Scope)}")

    async def read(store: Store, tenant_id: int) -> list[BudgetView]:
        return await store.budgets(tenant_id, scope=scope, limit=limit)

    found = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"budgets": [service.as_json(standing) for standing in found]},
        lambda: _table(found) if found else "No budgets: no call to a model was ever paid for.",
        as_json,
    )


@app.command()
def show(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one budget, its latest calls, and how long lost calls count against it."""

    async def read(store: Store, tenant_id: int) -> tuple[BudgetView, dict[str, Any], list[Charge]]:
        standing = await service.find(store, tenant_id, name)
        unsure = service.uncertain_json(standing.budget, await store.uncertain(standing.budget))
        return standing, unsure, await service.last_calls(store, standing.budget, MOST_CALLS)

    standing, unsure, calls = asyncio.run(with_tenant(db, tenant, read))
    shown = {**service.as_json(standing), **unsure, "calls": [service.call_json(call) for call in calls]}
    screen.emit(shown, lambda: _story(standing, unsure, calls), as_json)


@app.command("set")
def set_(
    name: Name,
    usd: Annotated[str, typer.Argument(metavar="USD", help="Cap in US dollars, such as 2.50, or none.")],
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Set the cap of a budget, over the configuration or the flow file. Held jobs that now fit resume."""
    cap = None if usd == NO_CAP else micros(usd)

    async def write(store: Store, tenant_id: int) -> Raised:
        return await service.set_cap(store, tenant_id, name, cap, actor=operator())

    _told(asyncio.run(with_tenant(db, tenant, write)), as_json)


@app.command("raise")
def raise_(
    name: Name,
    usd: Annotated[str, typer.Argument(metavar="USD", help="Amount to add in US dollars, such as 1.00.")],
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Raise the cap of a budget. Concurrent raises add up. Held jobs that now fit resume."""
    by = micros(usd)

    async def write(store: Store, tenant_id: int) -> Raised:
        return await service.raise_cap(store, tenant_id, name, by, actor=operator())

    _told(asyncio.run(with_tenant(db, tenant, write)), as_json)


def _told(raised: Raised, as_json: bool) -> None:
    standing = service.as_json(BudgetView(raised.budget, 0))
    del standing["held"], standing["wanted_micros"]
    screen.emit({**standing, "let_go": raised.let_go}, lambda: _said(raised), as_json)


# --- text output


def _said(raised: Raised) -> str:
    budget, go = raised.budget, raised.let_go
    cap = "no cap" if budget.cap_micros is None else f"a cap of {dollars(budget.cap_micros)}"
    count = "1 held job is" if go == 1 else f"{go:,} held jobs are"
    return f"{called(budget).capitalize()} has {cap}, {dollars(budget.spent_micros)} of it spent; {count} let go."


def _table(found: list[BudgetView]) -> RenderableType:
    table = screen.table("for", "which", "spent", "reserved", "cap", "", "held", "said by")
    for column in (*table.columns[2:5], table.columns[6]):
        column.justify = "right"
    for standing in found:
        one = standing.budget
        amounts = dollars(one.spent_micros), dollars(one.reserved_micros), _cap(one)
        table.add_row(one.scope, one.subject, *amounts, _used(one), f"{standing.held:,}", one.said_by)
    return table


def _cap(budget: Budget) -> str:
    return "–" if budget.cap_micros is None else dollars(budget.cap_micros)


def _used(budget: Budget) -> str:
    if not budget.cap_micros:
        return ""
    part = (budget.spent_micros + budget.reserved_micros) / budget.cap_micros
    return f"{screen.bar(part, 10)} {part * 100:.0f} %"


def _story(standing: BudgetView, unsure: dict[str, Any], calls: list[Charge]) -> RenderableType:
    from rich.console import Group

    one, table = standing.budget, screen.table("", "")
    table.show_header = False
    for name, value in _facts(standing, unsure).items():
        table.add_row(name, value)
    story = Group(f"{one.scope} {one.subject}", "", table)
    return Group(story, "", _calls(calls)) if calls else story


def _facts(standing: BudgetView, unsure: dict[str, Any]) -> dict[str, str]:
    one = standing.budget
    warned = "not yet" if one.warned_at is None else f"given {screen.moment(one.warned_at)}"
    return {
        "cap": f"{_cap(one)}, said by {one.said_by}",
        "spent": dollars(one.spent_micros),
        "of it lost": _lost(unsure),
        "reserved": _reserved(one, unsure["calls_in_flight"]),
        "left": "–" if one.left_micros is None else dollars(max(one.left_micros, 0)),
        "used": _used(one) or "–",
        "warning": f"at {one.warn_percent} %; {warned}",
        "jobs held back": f"{standing.held:,}",
    }


def _lost(unsure: dict[str, Any]) -> str:
    count = unsure["lost_calls"]
    if not count:
        return "–"
    calls = "1 call" if count == 1 else f"{count:,} calls"
    return f"{dollars(unsure['lost_micros'])} in {calls} of unknown cost; counted {unsure['lost_count']}"


def _reserved(budget: Budget, count: int) -> str:
    if not count:
        return dollars(budget.reserved_micros)
    calls = "1 call" if count == 1 else f"{count:,} calls"
    return f"{dollars(budget.reserved_micros)} by {calls} in flight, until the job or its lease ends"


def _calls(calls: list[Charge]) -> RenderableType:
    table = screen.table("when", "call", "model", "state", "tokens in", "tokens out", "may cost", "cost")
    for column in table.columns[4:]:
        column.justify = "right"
    for call in calls:
        model, tokens = f"{call.provider}/{call.model}", (f"{call.input_tokens:,}", f"{call.output_tokens:,}")
        amounts = dollars(call.ceiling_micros), dollars(call.cost_micros)
        table.add_row(screen.moment(call.created_at), call.call, model, call.state, *tokens, *amounts)
    return table


# `keptwork cost`: show the cost of model calls, with bars.


WIDTH = 32
MONTH = "30d"

By = Annotated[str, typer.Option("--by", metavar="|".join(service.BY), help="Grouping of the costs.")]
Since = Annotated[
    str,
    typer.Option("--since", metavar="TIME", help="Start of the period: a time, or a duration before now such as 7d."),
]


def cost(
    by: By = "model",
    since: Since = MONTH,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show the cost of model calls by model, tenant, flow, or day. Lost calls are shown separately."""
    if by not in service.BY:
        raise BadInput(what=f"--by {by}: costs are added up by {', '.join(service.BY)}")

    async def read(store: Store, tenant_id: int) -> Costs:
        return await service.read(store, tenant_id, by, moment_us(since, await store.now()))

    found = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(service.spent_json(found), lambda: _page(found), as_json)


# --- text output


def _page(found: Costs) -> RenderableType:
    from rich.console import Group

    if not found.lines:
        return f"Nothing was spent since {screen.moment(found.since)}."
    return Group(_chart(found), "", *(f"{line}" for line in _sums(found.total, found.since)))


def _chart(found: Costs) -> RenderableType:
    table = screen.table(found.by, "calls", "tokens in", "tokens out", "spent", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    most = max(line.cost.micros for line in found.lines)
    for line in found.lines:
        cost = line.cost
        tokens = cost.input_tokens + cost.cache_read_tokens + cost.cache_write_tokens
        name = line.name if line.id is None else f"{line.name} ({line.id})"
        figures = f"{cost.calls:,}", f"{tokens:,}", f"{cost.output_tokens:,}", dollars(cost.micros)
        table.add_row(name, *figures, bar(cost, most))
    return table


def bar(cost: Cost, most: int) -> Text:
    """Return a bar as long as the cost, with the share of lost calls at its end."""
    from rich.text import Text

    long = 0 if most == 0 else -(-cost.micros * WIDTH // most)
    lost = 0 if cost.micros == 0 else -(-cost.lost_micros * long // cost.micros)
    return Text.assemble(("█" * (long - lost), "green"), ("▒" * lost, "red"))


def _sums(total: Cost, since: int) -> list[str]:
    calls = "1 call" if total.calls == 1 else f"{total.calls:,} calls"
    said = [f"{dollars(total.micros)} in {calls} since {screen.moment(since)}."]
    if total.lost:
        lost = "1 lost call is" if total.lost == 1 else f"{total.lost:,} lost calls are"
        said.append(f"▒ {lost} counted with {dollars(total.lost_micros)}: nobody knows what came of it.")
    if total.open_micros:
        said.append(f"{dollars(total.open_micros)} more is reserved by calls that are under way.")
    return said
