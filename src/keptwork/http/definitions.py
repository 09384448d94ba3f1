"""Definitions of flows in requests: read whole, and held against what this server takes from this key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request

from keptwork.errors import BadFlow, ProgramsRefused
from keptwork.flow.definition import Flow
from keptwork.http.auth import authenticated, may
from keptwork.service import submissions

WHERE = "body.definition"
MOST_NAMED = 10


class Definitions:
    """Reads definitions for one request."""

    def __init__(self, taken: bool, admin: bool) -> None:
        self._taken = taken
        self._admin = admin

    async def flow(self, data: Mapping[str, Any], kind: str | None = None) -> Flow:
        """The flow that is defined, of that kind. One that says what is to be run is `ProgramsRefused`, unless the
        server takes such flows and the key may administer. One of thousands of steps takes a second to look at, in
        which others are served."""
        return await asyncio.to_thread(self._read, data, kind)

    def _read(self, data: Mapping[str, Any], kind: str | None) -> Flow:
        said = data if kind is None else {"kind": kind, **data}
        flow = submissions.read(said, WHERE)
        if kind is not None and flow.kind != kind:
            raise BadFlow.of(WHERE, [("kind", f"this is a {flow.kind}; here {kind}s are started")])
        if named := submissions.programs(flow):
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
"""How a route reads a definition: `defines.flow(asked.definition)`."""
