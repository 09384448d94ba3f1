"""`keptwork workstreams`: flows as graphs of steps, that may be tried again, taken up and forked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import FlowId, Inputs, Reason, add_common, doer
from keptwork.errors import BadInput
from keptwork.service import flow_stories as stories
from keptwork.service import flows, forks, templates
from keptwork.service.definitions import KINDS
from keptwork.service.flow_scene import Actor

if TYPE_CHECKING:
    from keptwork.service.flow_stories import Story
    from keptwork.store import Store

app = typer.Typer()
KIND = KINDS["workstream"]
NOW = "{id} is {state}."

add_common(app, KIND)
app.command("retry")(
    doer(
        KIND,
        "retry",
        flows.retry,
        NOW,
        "Run once more what did not succeed of a workstream that failed, retries left or not.",
    )
)
app.command("resume")(
    doer(KIND, "resume", flows.resume, NOW, "Look at a whole workstream once more: what could run and does not begins.")
)
app.command("abandon")(doer(KIND, "abandon", flows.cancel, NOW, "Abandon a workstream with all that belongs to it."))


@app.command("cancel", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def cancel(id: FlowId) -> None:
    """Only says what it is called here: whoever has cancelled a run will try it."""
    raise BadInput(what=f"a workstream is not cancelled but abandoned: keptwork workstreams abandon {id}")


@app.command()
def fork(
    id: FlowId,
    from_: Annotated[str, typer.Option("--from", metavar="STEP", help="The first step that runs anew.")],
    inputs: Inputs = None,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Run a workstream anew from a step on, as a new one; what was done before that step is kept. Inputs that are not
    given stay as they were."""

    async def make(store: Store, tenant_id: int) -> Story:
        ref = await stories.find(store, KIND, tenant_id, id)
        old = await stories.story(store, ref)
        given = {} if old.template is None else templates.given(templates.flow_of(old.template), inputs or [])
        made = await forks.fork(store, ref, from_, given, actor=Actor(operator(), reason))
        return await stories.story(store, made)

    story = asyncio.run(with_tenant(db, tenant, make))
    kept = sum(row["completed_at"] is not None for row in story.steps)
    said = f"{story.public_id} runs from {from_} on; {kept} of {len(story.steps)} steps are kept."
    screen.emit(stories.story_json(story), lambda: said, as_json)
