"""Draw a flow: level by level for a terminal, or as a Mermaid diagram."""

from __future__ import annotations

from keptwork.flows import graph
from keptwork.flows.definition import Flow, Step

_SHAPES = {"approval": ("{{", "}}"), "agent": ("([", "])"), "flow": ("[[", "]]"), "crew": ("[/", "/]")}
_LONGEST = 60


def about(step: Step) -> str:
    """Describe a step in a few words.

    >>> about(Step(id="lint", tool="ruff", args=["check", "src"]))
    'tool ruff check src'
    """
    match step.kind:
        case "tool":
            return _short("tool", step.tool, *step.args)
        case "command":
            return _short(*(step.command or ()))
        case "approval":
            by = step.approval.by if step.approval else None
            return f"approval by {by}" if by else "approval"
        case "crew":
            return _short("crew of", step.crew.workers if step.crew else 1, step.crew.task if step.crew else "")
    return _short(step.kind, getattr(step, step.kind))


def _short(*words: object) -> str:
    text = " ".join(" ".join(map(str, words)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def lines(flow: Flow) -> list[str]:
    """Return the lines that show the steps level by level. Steps of one level can run concurrently."""
    steps, width = {step.id: step for step in flow.steps}, max(len(step.id) for step in flow.steps)
    found = []
    for number, level in enumerate(graph.levels(flow.dependencies), 1):
        for place, name in enumerate(level):
            mark = f"{number:>3} " if place == 0 else "    "
            branch = "─" if len(level) == 1 else "┌" if place == 0 else "└" if place == len(level) - 1 else "├"
            found.append(f"{mark}{branch} {name:<{width}}  {about(steps[name])}{_remarks(flow, steps[name])}")
    return found


def _remarks(flow: Flow, step: Step) -> str:
    said = []
    if flow.kind == "workstream" and step.depends_on:
        said.append(f"after {', '.join(step.depends_on)}")
    if step.when:
        said.append(f"when {step.when}")
    if step.for_each:
        said.append(f"for each of {step.for_each.items if isinstance(step.for_each.items, str) else 'a list'}")
    if step.retries:
        said.append(f"{step.retries} {'retry' if step.retries == 1 else 'retries'}")
    return f"  ({'; '.join(said)})" if said else ""


def mermaid(flow: Flow) -> str:
    """Return a Mermaid diagram of the flow."""
    number = {step.id: f"s{place}" for place, step in enumerate(flow.steps)}
    out = ["flowchart TD"]
    for step in flow.steps:
        left, right = _SHAPES.get(step.kind, ("[", "]"))
        out.append(f'    {number[step.id]}{left}"{step.id}<br/>{_plain(about(step))}"{right}')
    for name, after in flow.dependencies.items():
        out += [f"    {number[one]} --> {number[name]}" for one in after]
    return "\n".join(out) + "\n"


def _plain(text: str) -> str:
    """Escape characters that would end a label or be markup in it."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
