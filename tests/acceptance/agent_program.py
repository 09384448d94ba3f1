"""A worker with one agent of several turns, each with a tool, that kills itself with -9 where the test says.

Usage: python -m tests.acceptance.agent_program STRIKES FOLDER URL SINK_PORT NAME LEASE [TWIN]. The places of turn n are
`before n` (nobody was asked), `answered n` (the model has answered, and nothing is kept), `kept n` (the turn is
committed), `ran n` (its tool has run, and nothing is kept) and `told n` (what it said is committed). What the model was
asked and what the tool was given is written into files in FOLDER. The twin `forgets-tools` does not look for what was
kept of them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keptwork import Keptwork
from keptwork.agents import tool_loop
from keptwork.agents.conversation import Answer, Request, Role
from keptwork.agents.tool_loop import Limits, Toolbox, converse
from keptwork.store.contract.checkpoints import Checkpoint, Save
from keptwork.workers.steps import Steps
from keptwork.workers.tool_runner import one_run
from tests.acceptance.step_program import Strikes
from tests.acceptance.worker_program import MANY_ATTEMPTS, die_with_the_test
from tests.worker.agent_stage import Scripted, config, kept_turns, question, says, uses

KIND = "agent"
TURNS = 4
PLACES = ("before", "answered", "kept", "ran", "told")


def declare(app: Keptwork, folder: Path, strikes: Strikes) -> None:
    """The kind of job; the test that enqueues it needs nothing else."""
    settings = config(folder, note={})

    def script(request: Request) -> Answer:
        turn = 1 + sum(message.role is Role.ASSISTANT for message in request.messages)
        with (folder / "asked").open("a") as file:
            file.write(f"{turn}\n")
        return uses(("note", {"text": f"{turn}"})) if turn < TURNS else says("done")

    @app.job(name=KIND, max_attempts=MANY_ATTEMPTS)
    async def agent(ctx: Any) -> str:
        ask = kept_turns(ctx, Scripted(script), around=strikes.reached)
        return (await converse(ctx, question(), Toolbox(settings, ("note",)), Limits(), ask)).text


async def work(strikes: Strikes, folder: Path, url: str, name: str, lease: str) -> None:
    app = Keptwork(url)
    declare(app, folder, strikes)
    store = await app.open()
    checkpoint = store.checkpoint

    async def kept(saves: Sequence[Save]) -> list[str | None]:
        stands = await checkpoint(saves)
        for save in saves:
            strikes.reached(save.name.replace("tool 0.", "told ").removesuffix(".1"))
        return stands

    async def ran(ctx: Any, spec: Any) -> Any:
        outcome = await one_run(ctx, spec)
        strikes.reached(f"ran {spec.argv[-1]}")
        return outcome

    store.checkpoint = kept  # type: ignore[method-assign]
    setattr(tool_loop, "one_run", ran)  # noqa: B010 - mypy knows that it is not exported
    await app.work(name=name, lease=lease)


def forget_tools() -> None:
    shipped = Steps.recall

    async def recall(self: Steps, name: str) -> Checkpoint | None:
        return None if name.startswith("tool") else await shipped(self, name)

    Steps.recall = recall  # type: ignore[method-assign]


def main(path: str, folder: str, url: str, port: str, name: str, lease: str, twin: str = "") -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    if twin:
        forget_tools()
    asyncio.run(work(Strikes(Path(path)), Path(folder), url, name, lease))


if __name__ == "__main__":
    main(*sys.argv[1:])
