"""Read flow definitions in requests, and check whether this server accepts them from this key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import Depends, Request

from keptwork.errors import BadFlow, ProgramsRefused
from keptwork.flows.definition import Flow, Step
from keptwork.flows.document import Document
from keptwork.flows.files import ENDINGS
from keptwork.flows.validation import checked
from keptwork.http.auth import authenticated, may

# Flows that users submit, and what they can contain.
#
# Workers run the steps of a flow. A step that names a tool runs that tool from the worker's own keptwork.toml. A step
# that defines a program, a function, a directory, or environment variables itself would allow any user who can start
# flows to run any program on the workers. This module finds such steps; the edge decides who can submit them.


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


WHERE = "body.definition"
MOST_NAMED = 10


class Definitions:
    """A reader of definitions for one request."""

    def __init__(self, taken: bool, admin: bool) -> None:
        self._taken = taken
        self._admin = admin

    async def flow(self, data: Mapping[str, Any], kind: str | None = None) -> Flow:
        """Return the defined flow, which must be of this kind.

        Raise `ProgramsRefused` if the flow defines programs to run, unless the server accepts such flows and the key
        has the admin scope. A flow with thousands of steps takes a second to check, so a thread does it.
        """
        return await asyncio.to_thread(self._read, data, kind)

    def _read(self, data: Mapping[str, Any], kind: str | None) -> Flow:
        said = data if kind is None else {"kind": kind, **data}
        flow = read(said, WHERE)
        if kind is not None and flow.kind != kind:
            raise BadFlow.of(WHERE, [("kind", f"this is a {flow.kind}; here {kind}s are started")])
        if named := programs(flow):
            self._insist(named)
        return flow

    def _insist(self, named: list[str]) -> None:
        many = len(named) > 1
        steps = f"The step{'s' * many} {', '.join(named[:MOST_NAMED])} say{'s' * (not many)}"
        if not self._taken:
            raise ProgramsRefused(steps=steps, whom="nobody (keptwork serve --programs would)")
        if not self._admin:
            raise ProgramsRefused(steps=steps, whom="keys with the scope 'admin' alone")


async def _definitions(request: Request) -> Definitions:
    return Definitions(request.app.state.limits.programs, may(await authenticated(request), "admin"))


Defines = Annotated[Definitions, Depends(_definitions)]
"""The dependency of routes that read a definition: `defines.flow(asked.definition)`."""
