"""`keptwork jobs show --watch`: follow a job until it finishes.

On a terminal, the job is redrawn in place. Elsewhere, each change is a line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from keptwork.cli import screen
from keptwork.cli.job_details_steps import bar
from keptwork.core.lifecycles import JOB
from keptwork.store.contract.checkpoints import OWN

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.jobs.queries import Story
    from keptwork.store.contract.checkpoints import Checkpoint

GLANCE_SECONDS = 0.25

Look = Callable[[], Awaitable[tuple["Story", int]]]
Draw = Callable[["Story", int], "RenderableType"]


async def watch(look: Look, draw: Draw, shown: Callable[[Story], dict[str, Any]], as_json: bool) -> None:
    """Show a job until it has finished."""
    if as_json:
        await _each_as_json(look, shown)
    elif screen.stdout().is_terminal:
        await _redrawn(look, draw)
    else:
        await _line_by_line(look)


async def _glances(look: Look) -> AsyncIterator[tuple[Story, int]]:
    while True:
        story, now = await look()
        yield story, now
        if JOB.state(story.job["state"]).final:
            return
        await asyncio.sleep(GLANCE_SECONDS)


async def _redrawn(look: Look, draw: Draw) -> None:
    from rich.live import Live

    with Live(console=screen.stdout(), auto_refresh=False, vertical_overflow="crop") as live:
        async for story, now in _glances(look):
            live.update(draw(story, now), refresh=True)


async def _each_as_json(look: Look, shown: Callable[[Story], dict[str, Any]]) -> None:
    before = ""
    async for story, _ in _glances(look):
        line = json.dumps(shown(story))
        if line != before:
            print(line, flush=True)
        before = line


async def _line_by_line(look: Look) -> None:
    told: set[str] = set()
    async for story, _ in _glances(look):
        for line in _lines(story):
            if line not in told:
                print(line, flush=True)
                told.add(line)


def _lines(story: Story) -> Iterator[str]:
    """Yield a line for every event, step, and progress report, in order of time."""
    lines = [(event.ts, 0, f"{event.type}: {event.to_state}") for event in story.events]
    lines += [(step.created_at, 1, _told(step)) for step in story.steps]
    if story.progress is not None:
        lines.append((story.progress.at, 2, str(bar(story.progress, story.progress.at)).removesuffix(" (now)")))
    for at, _, what in sorted(lines):
        yield f"{screen.moment(at)} {what}"


def _told(step: Checkpoint) -> str:
    """Return a line about a step. A wait stores its checkpoint when it starts, other steps when they are done."""
    waits = step.name.startswith(OWN)
    return f"{step.name.removeprefix(OWN)} has begun" if waits else f"step {step.name} is done"
