"""The progress and steps of a job, as `keptwork jobs show` draws them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from keptwork.cli import screen
from keptwork.jobs.queries_job_steps import size
from keptwork.store.contract.checkpoints import OWN

if TYPE_CHECKING:
    from rich.table import Table

    from keptwork.jobs.queries_job_steps import Said
    from keptwork.store.contract.checkpoints import Checkpoint

BAR = 20
OTHER_CODE = "made by other code than the worker has now; its result stands"


def bar(said: Said | None, now: int) -> str | None:
    """Return the progress that the handler reported last, as a bar.

    >>> from keptwork.jobs.queries_job_steps import Said
    >>> bar(Said(0.42, "page 2", 0), 5_000_000)
    '████████░░░░░░░░░░░░ 42 %  page 2 (5 s ago)'
    """
    if said is None:
        return None
    words = f"  {said.text}" if said.text else ""
    return f"{screen.bar(said.fraction, BAR)} {said.fraction * 100:.3g} %{words} ({screen.ago(said.at, now)})"


def waiting(waits_for: str | None, run_at: int | None, now: int) -> str | None:
    """Return what a suspended job waits for."""
    if waits_for is None:
        return None
    return f"{waits_for}, {screen.ago(run_at, now)}" if waits_for == "sleep" and run_at is not None else waits_for


def table(steps: list[Checkpoint]) -> Table:
    """Return a table of the completed steps, in the order of their completion."""
    drawn = screen.table("step", "done", "size", "epoch", "")
    drawn.columns[1].no_wrap = True
    for one in steps:
        note = OTHER_CODE if one.changed_at is not None else _wait(one)
        drawn.add_row(one.name, screen.moment(one.created_at), screen.size(size(one)), str(one.epoch), note)
    return drawn


def _wait(one: Checkpoint) -> str:
    """Return when a sleep ends. The result of a sleep step is that time."""
    if not one.name.startswith(f"{OWN}sleep "):
        return ""
    try:
        return f"until {screen.moment(int(json.loads(one.result)))}"
    except (ValueError, TypeError, OverflowError):
        return ""
