"""Read flow definitions in requests, and check whether this server accepts them from this key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request

from keptwork.errors import BadFlow, ProgramsRefused
from keptwork.flows.definition import Flow
from keptwork.http import submitted_flows_submissions
from keptwork.http.auth import authenticated, may

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
        flow = submitted_flows_submissions.read(said, WHERE)
        if kind is not None and flow.kind != kind:
            raise BadFlow.of(WHERE, [("kind", f"this is a {flow.kind}; here {kind}s are started")])
        if named := submitted_flows_submissions.programs(flow):
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
