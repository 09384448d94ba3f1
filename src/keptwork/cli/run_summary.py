"""Print the summary of `keptwork run`: the outcome, duration, and cost of each step, and further commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from keptwork.agents import budget_caps
from keptwork.cli import screen
from keptwork.flows.report import plain_error

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from keptwork.flows.report import FlowReport, StepReport

MOST_SHOWN = 40
SLOWEST = 10
LONGEST_ERROR = 300
NARROW = 80
WRONG = ("failed", "retrying")

GLYPHS = {
    "succeeded": ("✓", "green"),
    "cut": ("!", "yellow"),
    "skipped": ("–", "dim"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "yellow"),
    "retrying": ("↻", "yellow"),
    "running": ("▸", "cyan"),
    "asking": ("?", "magenta"),
    "waiting": ("·", "dim"),
    "held": ("‖", "yellow"),
    "unfinished": ("…", "yellow"),
}


def cost(micros: int) -> str:
    """Return an amount of money as text.

    >>> cost(0), cost(1_234), cost(2_500_000)
    ('$0', '$0.001234', '$2.50')
    """
    if not micros:
        return "$0"
    return f"${micros / 1_000_000:.2f}" if micros % 10_000 == 0 else f"${micros / 1_000_000:.6f}".rstrip("0")


def drawn(found: FlowReport, written: Sequence[tuple[str, list[str]]]) -> RenderableType:
    """Return the outcome of a flow and its steps.

    `written` is the last output of the programs of failed steps. On a narrow terminal, errors are below the table.
    """
    from rich.console import Group

    shown, wrong = _shown(found.steps), [step for step in _shown(found.steps) if step.word in WRONG]
    beside = screen.stdout().width >= NARROW
    parts: list[RenderableType] = [_title(found), "", _table(shown, bool(wrong) and beside, beside)]
    hidden = len(found.steps) - len(shown)
    if hidden:
        parts.append(f"and {hidden:,} more that succeeded, none of them slower")
    if wrong and not beside:
        parts += ["", *(f"{GLYPHS[step.word][0]} {step.name}: {_short(step.error)}" for step in wrong)]
    if not beside:
        parts += [f"{GLYPHS['cut'][0]} {step.name}: {step.cut}" for step in shown if step.cut]
    for name, lines in written:
        parts += ["", f"{name} wrote last:", *(f"  {line}" for line in lines)]
    return Group(*parts, "")


def _title(found: FlowReport) -> Text:
    from rich.text import Text

    glyph, style = GLYPHS["asking" if found.word == "waiting" else found.word]
    word = {"waiting": "waits for approval", "unfinished": "is not done yet", "held": "is held"}.get(
        found.word, found.word
    )
    title = Text.assemble((f"{glyph} ", style), (found.name, "bold"), f" {word}")
    title.append(f" after {screen.took(found.took)}" if found.word not in ("held",) else "")
    if found.error and found.word != "succeeded":
        title.append(f": {_short(found.error)}", style)
    return title


def _shown(steps: list[StepReport]) -> list[StepReport]:
    """Return all steps, or of many steps the unsuccessful and the slowest."""
    if len(steps) <= MOST_SHOWN:
        return steps
    slow = sorted(steps, key=lambda step: -(step.took or 0))[:SLOWEST]
    chosen = [step for step in steps if step.word != "succeeded"][:MOST_SHOWN]
    names = {step.name for step in (*slow, *chosen)}
    return [step for step in steps if step.name in names]


def _table(steps: list[StepReport], wrong: bool, wide: bool) -> RenderableType:
    from rich.text import Text

    table = screen.table("", "step", "state", "took", "attempts", "cost", *[""] * wrong)
    for place in (3, 4, 5):
        table.columns[place].justify = "right"
    for column in table.columns[:6]:
        column.no_wrap = True
    table.columns[1].no_wrap = screen.stdout().width >= NARROW
    for step in steps:
        glyph, style = GLYPHS["cut" if step.cut else step.word]
        table.add_row(
            Text(glyph, style),
            step.name,
            Text(f"{step.word}, {step.cut}" if step.cut and wide else step.word, style),
            screen.took(step.took),
            str(step.attempts or "–"),
            _cost(step),
            *[Text(_short(step.error) if step.word in WRONG else "", style)] * wrong,
        )
    return table


def _cost(step: StepReport) -> str:
    if step.kind != "agent" and not step.spent.calls:
        return "–"
    return cost(step.cost) + (f" ({step.spent.lost:,} lost)" if step.spent.lost else "")


def _short(text: str | None) -> str:
    line = plain_error(text)
    return line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 1]}…"


def footer(found: FlowReport, database: Sequence[str]) -> Iterator[str]:
    """Yield the totals, what the flow waits for, and commands to see more."""
    done = sum(step.word in ("succeeded", "skipped") for step in found.steps)
    facts = [f"{done:,} of {len(found.steps):,} steps", screen.took(found.took), cost(found.cost)]
    yield " · ".join([*facts, f"{found.events:,} events"])
    if (lost := budget_caps.lost_words(found.spent)) is not None:
        yield f"{lost}; see: {command('budgets', 'show', 'today', *database)}"
    yield from found.waits
    for question in found.questions:
        yield f"{question.step} asks: {question.question}"
        yield f"  {command('approvals', 'approve', question.public_id, *database)}"
    yield f"log: {command('events', 'list', '--correlation', found.id, *database)}"


def command(*words: str) -> str:
    """Return a command line, quoted for the shell."""
    return shlex.join(["keptwork", *words])
