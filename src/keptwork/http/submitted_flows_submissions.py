"""Flows that users submit, and what they can contain.

Workers run the steps of a flow. A step that names a tool runs that tool from the worker's own keptwork.toml. A step
that defines a program, a function, a directory, or environment variables itself would allow any user who can start
flows to run any program on the workers. This module finds such steps; the edge decides who can submit them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keptwork.errors import BadFlow
from keptwork.flows.definition import Flow, Step
from keptwork.flows.document import Document
from keptwork.flows.files import ENDINGS
from keptwork.flows.validation import checked

OF_PROGRAMS = ("command", "call", "env", "cwd")


def read(data: Mapping[str, Any], source: str) -> Flow:
    """Return the flow in this data.

    Raise `BadFlow`, with every problem and its place, if it is invalid. It reads no file of this host: nested flows
    must be templates.
    """
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
    """Return the names of the steps that define what they run.

    >>> programs(Flow.model_validate({"name": "f", "steps": [{"id": "a", "command": ["true"]},
    ...     {"id": "b", "tool": "ruff"}, {"id": "c", "tool": "ruff", "env": {"PATH": "."}}]}))
    ['a', 'c']
    """
    return [step.id for step in flow.steps if _says_what_runs(step)]


def _says_what_runs(step: Step) -> bool:
    return any(getattr(step, name) for name in OF_PROGRAMS) or (step.crew is not None and step.crew.call is not None)
