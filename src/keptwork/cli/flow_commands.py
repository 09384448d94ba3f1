"""Commands that runs and workstreams share: list, show, hold, and release."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import budget_caps
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.jobs import WIDE_ENOUGH, lines
from keptwork.core.ids import actor_name, public_id
from keptwork.errors import InvalidTransition
from keptwork.flows import commands as flows
from keptwork.flows import commands_flow_deeds
from keptwork.flows import queries as stories
from keptwork.flows.compiled import Kind
from keptwork.flows.transaction import Actor
from keptwork.store.contract.flows_steps import FlowFilter

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.commands import FlowRef
    from keptwork.flows.queries import Page, Story
    from keptwork.store import Store
    from keptwork.store.contract.budgets import Cost

Row = dict[str, Any]
Command = Callable[..., None]
CANCELS = {"run": "cancel", "workstream": "abandon"}
"""The command that cancels a flow of each kind."""

Deed = Callable[["Store", "FlowRef", Actor], Awaitable[Any]]

FlowId = Annotated[str, typer.Argument(metavar="ID", help="Public ID.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, recorded in the event log.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help="Value for an input. Repeatable.")
]
States = Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only this state. Repeatable.")]


def lister(kind: Kind) -> Command:
    """Return the command that lists flows of a kind."""

    def list_(
        state: States = None,
        name: Annotated[str | None, typer.Option(metavar="NAME", help="Only flows of this definition.")] = None,
        inside: Annotated[bool, typer.Option("--inside", help="Include flows inside other flows.")] = False,
        text: screen.Search = None,
        limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
        after: Annotated[
            str | None, typer.Option(metavar="ID", help="ID of the last flow of the previous page.")
        ] = None,
        tenant: Tenant = DEFAULT_TENANT_NAME,
        db: Db = None,
        as_json: screen.Json = False,
    ) -> None:
        states = stories.states_named(kind.flow, state or [])

        async def read(store: Store, tenant_id: int) -> tuple[Page, int]:
            wanted = FlowFilter(tenant_id, states, name, inside)
            return await stories.page(store, kind, wanted, after=after, limit=limit, text=text), await store.now()

        page, now = asyncio.run(with_tenant(db, tenant, read))
        screen.emit(
            {f"{kind.name}s": [stories.flow_json(kind, row) for row in page.flows], "next": page.next},
            lambda: _table(kind, page.flows, now) if page.flows else f"No {kind.name}s.",
            as_json,
        )
        if page.next and not as_json:
            screen.complain(f"There are more; go on with: --after {page.next}")

    return _documented(list_, f"List {kind.name}s, newest first.")


def shower(kind: Kind) -> Command:
    """Return the command that shows one flow of a kind."""

    def show(id: FlowId, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
        async def read(store: Store, tenant_id: int) -> tuple[Story, int]:
            return await stories.story(store, await stories.find(store, kind, tenant_id, id)), await store.now()

        story, now = asyncio.run(with_tenant(db, tenant, read))
        screen.emit(stories.story_json(story), lambda: _story(story, now), as_json)

    return _documented(show, f"Show one {kind.name}: its steps, open approvals, and latest events.")


def doer(kind: Kind, word: str, deed: Deed, says: str, doc: str) -> Command:
    """Return the command `word`, which changes one flow of a kind and prints its new state."""

    def do(
        id: FlowId,
        reason: Reason = None,
        tenant: Tenant = DEFAULT_TENANT_NAME,
        db: Db = None,
        as_json: screen.Json = False,
    ) -> None:
        async def change(store: Store, tenant_id: int) -> tuple[Row, str | None]:
            ref = await stories.find(store, kind, tenant_id, id)
            try:
                await deed(store, ref, Actor(operator(), reason))
            except InvalidTransition as refusal:
                raise _in_words(refusal, kind, word, await flows.row_of(store, ref)) from None
            row = await flows.row_of(store, ref)
            ends = word == CANCELS[kind.name] and row["tree_id"] in (None, ref.id)
            return row, await budget_caps.left_counted(store, tenant_id, tree=ref.id) if ends else None

        row, lost = asyncio.run(with_tenant(db, tenant, change))
        said = says.format(id=public_id(kind.flow.name, row["id"]), state=row["state"])
        screen.emit(
            stories.flow_json(kind, row), lambda: f"{said}{_hint(kind, word, row)}{f' {lost}' if lost else ''}", as_json
        )

    return _documented(do, doc)


def _in_words(refusal: InvalidTransition, kind: Kind, word: str, row: Row) -> InvalidTransition:
    """Return a rejection with the names of commands instead of the names of lifecycle triggers."""
    deeds = commands_flow_deeds.of_flow(kind, row)
    return InvalidTransition(
        lifecycle=refusal.lifecycle,
        id=public_id(kind.flow.name, row["id"]),
        from_state=refusal.from_state,
        trigger=word,
        allowed=tuple(sorted(CANCELS[kind.name] if deed == "cancel" else deed for deed in deeds)),
        because=refusal.because,
    )


def _hint(kind: Kind, word: str, row: Row) -> str:
    """Return a hint to retry, if a resumed flow has failed steps."""
    if word != "resume" or "retry" not in commands_flow_deeds.of_flow(kind, row):
        return ""
    id = public_id(kind.flow.name, row["id"])
    return f" What failed is run once more by: keptwork {kind.name}s retry {id}"


def add_common(app: typer.Typer, kind: Kind) -> None:
    """Add the commands that flows of every kind have."""
    app.command("list")(lister(kind))
    app.command("show")(shower(kind))
    app.command("hold")(
        doer(
            kind,
            "hold",
            flows.hold,
            "{id} is held.",
            f"Hold a {kind.name}: no new steps start, and running steps finish.",
        )
    )
    app.command("release")(
        doer(kind, "release", flows.let_go, "{id} goes on; it is {state}.", f"Lift the hold of a {kind.name}.")
    )


def _documented(command: Command, doc: str) -> Command:
    command.__doc__ = doc
    return command


# --- drawing


def lately(row: Row, now: int) -> str:
    """Return when a flow finished, was held, or is due, or how long it has been in its state."""
    if row["completed_at"] is not None:
        return screen.ago(row["completed_at"], now)
    if row["held_at"] is not None:
        return f"held {screen.ago(row['held_at'], now)}"
    if row["wake_at"] is not None and row["error"] is not None:
        return f"due {screen.ago(row['wake_at'], now)}"
    return f"for {screen.span(now - row['updated_at'])}"


def _table(kind: Kind, rows: list[Row], now: int) -> RenderableType:
    wide = screen.stdout().width >= WIDE_ENOUGH
    table = screen.table(kind.name, "name", "state", "", "error") if wide else screen.table(kind.name, "state")
    table.columns[0].no_wrap = True
    for row in rows:
        id, state = public_id(kind.flow.name, row["id"]), row["state"]
        if wide:
            table.add_row(id, row["name"], state, lately(row, now), row["error"] or "")
        else:
            table.add_row(f"{id}\n{row['name']}", f"{state}\n{lately(row, now)}")
    return table


def _story(story: Story, now: int) -> RenderableType:
    from rich.console import Group

    return Group(
        *lines(_facts(story, now)),
        "",
        steps_table(story.steps, now, story),
        *_questions(story, now),
        "",
        _events(story),
        screen.unfolded(
            f"All of it: keptwork events list --correlation {story.flow['correlation_id'] or story.public_id}"
        ),
    )


def _facts(story: Story, now: int) -> Iterator[tuple[str, Any]]:
    row, template = story.flow, story.template
    yield story.kind.name, story.public_id
    yield "name", row["name"] if template is None else f"{row['name']}, version {template.version}"
    yield "state", f"{row['state']}, {lately(row, now)}"
    yield "took", row["completed_at"] and screen.took(stories.took_us(row, now))
    yield "made", f"{screen.moment(row['created_at'])} ({screen.ago(row['created_at'], now)})"
    yield "inputs", (row["inputs"] not in (None, "{}") and row["inputs"]) or None
    yield "retries", f"{row['retry_count']} of {row['max_retries']}" if row.get("max_retries") else None
    yield "error", row["error"]
    yield "reason", row["reason"] if row["error"] is None else None
    yield "cost", money(story.cost) if story.cost.calls else None
    yield "key", row["key"]
    yield "forked from", row.get("forked_from") and public_id(story.kind.name, row["forked_from"])
    for fork in story.forks:
        yield "fork", f"{public_id('workstream', fork['id'])} {fork['state']}"
    if story.around is not None:
        yield "is the step", f"{story.around['name']} of {stories.step_json(story.around)['flow']}"


def money(cost: Cost) -> str:
    """Return a cost as text, with its lost calls."""
    lost = budget_caps.lost_words(cost)
    return f"${cost.micros / 1_000_000:.6f}{f'; {lost}' if lost else ''}"


def steps_table(steps: list[Row], now: int, story: Story | None = None) -> RenderableType:
    """Return a table of steps in the order of their graph: state, attempts, duration, and remarks."""
    table = screen.table("step", "state", "tries", "took", "")
    for row in steps:
        name = row["name"] if row["parent_id"] is None else f"  {row['name']}"
        took = screen.took(stories.took_us(row, now))
        table.add_row(name, row["state"], str(row["attempts"] or ""), took, _said(row, story))
    return table


def _said(row: Row, story: Story | None) -> str:
    inner = [] if story is None else story.inner.get(row["id"], [])
    cost = None if story is None else story.costs.get(row["id"])
    parts = [stories.remark(row), *(ref.public_id for ref in inner)]
    parts += [money(cost)] if cost else []
    return " · ".join(part for part in parts if part)


def _questions(story: Story, now: int) -> Iterator[RenderableType]:
    for one in story.asked:
        until = "" if one.expires_at is None else f", expires {screen.ago(one.expires_at, now)}"
        yield f"\n{one.step} asks {one.scope or 'anyone'}{until}: {one.question}"
        yield screen.unfolded(f"  keptwork approvals approve {one.public_id}")


def _events(story: Story) -> RenderableType:
    """Return a table of the latest moves, each with its step, or a dash for moves of the flow.

    A narrow terminal has no column for the actor.
    """
    names = {row["id"]: str(row["name"]) for row in story.steps}
    days = {screen.moment(event.ts)[:10] for event in story.events}
    one_day, wide = len(days) == 1, screen.stdout().width >= WIDE_ENOUGH
    table = screen.table(days.pop() if one_day else "when", "step", "move", "state", *["by"] * wide, "reason")
    for column in table.columns[:4]:
        column.no_wrap = True
    for event in story.events:
        when, by = screen.moment(event.ts), actor_name(event.actor) or "–"
        cells = names.get(event.entity_id, "–"), event.trigger, event.to_state, *[by] * wide, event.reason or ""
        table.add_row(when[11:] if one_day else when, *cells)
    return table
