"""Flows that somebody submits from outside, and what they may say.

Workers run the steps of a flow. A step that names a tool runs the tool of that name in the worker's own keptwork.toml;
one that names a program or a function itself, or the folder and the variables a tool runs with, would let whoever may
start flows run anything where workers run. Such steps are told apart here; who may submit them is for the edge to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keptwork.errors import BadFlow
from keptwork.flow.check import checked
from keptwork.flow.definition import Flow, Step
from keptwork.flow.document import Document
from keptwork.flow_files import ENDINGS

OF_PROGRAMS = ("command", "call", "env", "cwd")


def read(data: Mapping[str, Any], source: str) -> Flow:
    """The flow that came as data; one that cannot be is `BadFlow`, which names every problem and its place. No file of
    this machine is read: flows inside it are templates."""
    document = Document(source, dict(data), None)
    flow = checked(document)
    if files := [(document.line(place), what) for place, what in _files(flow)]:
        raise BadFlow.of(source, files)
    return flow


def _files(flow: Flow) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for place, step in enumerate(flow.steps):
        if step.flow is not None and step.flow.endswith(ENDINGS):
            yield ("steps", place, "flow"), f"{step.id} names a file; a flow inside this one is named by its template"


def programs(flow: Flow) -> list[str]:
    """The steps that say themselves what is run, by name.

    >>> programs(Flow.model_validate({"name": "f", "steps": [{"id": "a", "command": ["true"]},
    ...     {"id": "b", "tool": "ruff"}, {"id": "c", "tool": "ruff", "env": {"PATH": "."}}]}))
    ['a', 'c']
    """
    return [step.id for step in flow.steps if _says_what_runs(step)]


def _says_what_runs(step: Step) -> bool:
    return any(getattr(step, name) for name in OF_PROGRAMS) or (step.crew is not None and step.crew.call is not None)
