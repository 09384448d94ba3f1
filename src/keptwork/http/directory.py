"""The directory: which route an address leads to, found by the noun in it and by its length.

The framework tries one router after the other, and in each one route after the other, so that a route at the end of a
hundred would be found late. An address begins with its noun (`/api/jobs/…`), and few routes of the same are as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

API = "api"
CHOSEN = "keptwork.route"
ANY_LENGTH = ":path}"
"""Of a part of an address that may have slashes in it."""


class Directory(BaseRoute):
    """All routes. Those of one noun and length are tried in their order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_noun: dict[str, list[Route]] = {}
        for route in routes:
            self._by_noun.setdefault(noun(route.path), []).append(route)
        self._by_length = {
            (about, length): [route for route in found if length in _lengths(route, most)]
            for about, found in self._by_noun.items()
            for most in [max(route.path.count("/") for route in found)]
            for length in range(most + 1)
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The route of the address and method; else the first of the address, which then refuses the method."""
        other: tuple[Match, Scope] = Match.NONE, {}
        if scope["type"] != "http":
            return other
        for route in self._candidates(scope["path"]):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, CHOSEN: route}
            if match is Match.PARTIAL and other[0] is Match.NONE:
                other = match, {**child, CHOSEN: route}
        return other

    def _candidates(self, path: str) -> Sequence[Route]:
        """A longer address than any route has is for those with a part of any length, if for anybody."""
        about = noun(path)
        found = self._by_length.get((about, path.count("/")))
        return self._by_noun.get(about, ()) if found is None else found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[CHOSEN].handle(scope, receive, send)


def _lengths(route: Route, most: int) -> range:
    """How many parts an address of the route may have."""
    own = route.path.count("/")
    return range(own, most + 1 if ANY_LENGTH in route.path else own + 1)


def noun(path: str) -> str:
    """What an address is about.

    >>> noun("/api/jobs/{id}/cancel"), noun("/api/jobs"), noun("/healthz"), noun("/")
    ('jobs', 'jobs', 'healthz', '')
    """
    first, _, rest = path[1:].partition("/")
    return rest.partition("/")[0] if first == API else first
