"""`keptwork workstreams`: flows as graphs of steps, with retries, resumption, and forks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import FlowId, Inputs, Reason, add_common, doer
from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import forks, start
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from keptwork.flows.queries import Story
    from keptwork.store import Store

workstreams_app = typer.Typer()
WORKSTREAM = KINDS["workstream"]
NOW = "{id} is {state}."

add_common(workstreams_app, WORKSTREAM)
workstreams_app.command("retry")(
    doer(
        WORKSTREAM,
        "retry",
        flows.retry,
        NOW,
        "Retry the unsuccessful steps of a failed workstream, even if no retries are left.",
    )
)
workstreams_app.command("resume")(
    doer(WORKSTREAM, "resume", flows.resume, NOW, "Check a whole workstream again, and start every step that can run.")
)
workstreams_app.command("abandon")(
    doer(WORKSTREAM, "abandon", flows.cancel, NOW, "Abandon a workstream with its steps, jobs, and inner flows.")
)


@workstreams_app.command(
    "cancel", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def cancel(id: FlowId) -> None:
    """Point users of `runs cancel` to `workstreams abandon`."""
    raise BadInput(what=f"a workstream is not cancelled but abandoned: keptwork workstreams abandon {id}")


@workstreams_app.command()
def fork(
    id: FlowId,
    from_: Annotated[str, typer.Option("--from", metavar="STEP", help="First step to run again.")],
    inputs: Inputs = None,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Fork a workstream: run it again from a step on, as a new workstream.

    The fork keeps the results of earlier steps. Inputs that you omit keep their values.
    """

    async def make(store: Store, tenant_id: int) -> Story:
        ref = await stories.find(store, WORKSTREAM, tenant_id, id)
        old = await stories.story(store, ref)
        given = {} if old.template is None else start.given(start.flow_of(old.template), inputs or [])
        made = await forks.fork(store, ref, from_, given, actor=Actor(operator(), reason))
        return await stories.story(store, made)

    story = asyncio.run(with_tenant(db, tenant, make))
    kept = sum(row["completed_at"] is not None for row in story.steps)
    said = f"{story.public_id} runs from {from_} on; {kept} of {len(story.steps)} steps are kept."
    screen.emit(stories.story_json(story), lambda: said, as_json)
