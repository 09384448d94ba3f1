"""The directory: which route an address leads to, found by the noun in it.

The framework tries one router after the other, and in each one route after the other, so that a route at the end of a
hundred would be found late. An address begins with its noun (`/api/jobs/…`), and few routes have the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

API = "api"
CHOSEN = "detent.route"


class Directory(BaseRoute):
    """All routes. Those of one noun are tried in their order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_noun: dict[str, list[Route]] = {}
        for route in routes:
            self._by_noun.setdefault(noun(route.path), []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The route of the address and method; else the first of the address, which then refuses the method."""
        other: tuple[Match, Scope] = Match.NONE, {}
        if scope["type"] != "http":
            return other
        for route in self._by_noun.get(noun(scope["path"]), ()):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, CHOSEN: route}
            if match is Match.PARTIAL and other[0] is Match.NONE:
                other = match, {**child, CHOSEN: route}
        return other

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[CHOSEN].handle(scope, receive, send)


def noun(path: str) -> str:
    """What an address is about.

    >>> noun("/api/jobs/{id}/cancel"), noun("/api/jobs"), noun("/healthz"), noun("/")
    ('jobs', 'jobs', 'healthz', '')
    """
    first, _, rest = path[1:].partition("/")
    return rest.partition("/")[0] if first == API else first
