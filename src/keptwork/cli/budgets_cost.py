"""`keptwork cost`: show the cost of model calls, with bars."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.agents import budget_caps_costs as service
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.core.durations import moment_us
from keptwork.core.money import dollars
from keptwork.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from keptwork.agents.budget_caps_costs import Costs
    from keptwork.store import Store
    from keptwork.store.contract.budgets import Cost

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
