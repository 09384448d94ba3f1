"""`keptwork flows`: check and draw flow files, and print their JSON Schema."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.errors import BadFlow, BadInput
from keptwork.flows import graph, graph_drawing
from keptwork.flows.definition import Flow
from keptwork.flows.files import read, read_flow

flows_app = typer.Typer()

File = Annotated[str, typer.Argument(metavar="FILE", help="Flow file. Use - to read stdin.")]


@flows_app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Flow files. Use - to read stdin.")],
    as_json: screen.Json = False,
) -> None:
    """Check flow files and the flows inside them.

    Every problem is listed with its line and what was expected. Exit code 2 if there are problems.
    """
    found = [(file, *_checked(file)) for file in files]
    for _, flow, error in found:
        if not as_json:
            screen.stdout().print(_summary(flow) if flow else str(error), soft_wrap=True)
    if as_json:
        print(json.dumps([_as_json(*one) for one in found], indent=2))
    if any(error for _, _, error in found):
        raise typer.Exit(BadFlow.exit_code)


@flows_app.command("graph")
def graph_(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: screen.Json = False,
) -> None:
    """Draw the steps of a flow, level by level. Steps of one level can run concurrently."""
    if mermaid and as_json:
        raise BadInput(what="--mermaid and --json exclude each other")
    flow = read_flow(file)
    human = (lambda: graph_drawing.mermaid(flow).rstrip()) if mermaid else (lambda: _drawn(flow))
    levels = graph.levels(flow.dependencies)
    screen.emit({"name": flow.name, "levels": levels, "dependencies": flow.dependencies}, human, as_json)


@flows_app.command()
def schema(as_json: screen.Json = False) -> None:
    """Print the JSON Schema of flow files, for editors and programs."""
    print(json.dumps(Flow.published_schema(), indent=2))


def _checked(file: str) -> tuple[Flow | None, Exception | None]:
    try:
        return read(file).flow, None
    except (BadFlow, BadInput) as error:
        return None, error


def _as_json(file: str, flow: Flow | None, error: Exception | None) -> dict[str, Any]:
    problems: list[dict[str, Any]]
    problems = [{"line": line, "what": what} for line, what in error.problems] if isinstance(error, BadFlow) else []
    if error is not None and not problems:
        problems = [{"line": None, "what": str(error)}]
    return {"file": file, "ok": flow is not None, "name": flow.name if flow else None, "problems": problems}


def _summary(flow: Flow) -> str:
    count = len(flow.steps)
    return f"{flow.name}: {flow.kind} of {count} {'step' if count == 1 else 'steps'}, nothing wrong."


def _drawn(flow: Flow) -> str:
    return "\n".join([f"{flow.name} ({flow.kind})", *graph_drawing.lines(flow)])
