"""Find the route of a path by the noun and the length of the path.

The framework tries every router and route in order, so the last of a hundred routes would be slow. A path starts with
its noun (`/api/jobs/…`), and few routes share both noun and length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

API = "api"
CHOSEN = "keptwork.route"
ANY_LENGTH = ":path}"
"""Marks a path parameter that can contain slashes."""


class Directory(BaseRoute):
    """All routes. Routes with the same noun and length are tried in order."""

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
        """Return the route of the path and method, otherwise the first route of the path, which rejects the method."""
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
        """Return the routes to try. A path longer than every route can match only a parameter with slashes."""
        about = noun(path)
        found = self._by_length.get((about, path.count("/")))
        return self._by_noun.get(about, ()) if found is None else found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[CHOSEN].handle(scope, receive, send)


def _lengths(route: Route, most: int) -> range:
    """Return the possible numbers of slashes in a path of this route."""
    own = route.path.count("/")
    return range(own, most + 1 if ANY_LENGTH in route.path else own + 1)


def noun(path: str) -> str:
    """Return the noun that a path is about.

    >>> noun("/api/jobs/{id}/cancel"), noun("/api/jobs"), noun("/healthz"), noun("/")
    ('jobs', 'jobs', 'healthz', '')
    """
    first, _, rest = path[1:].partition("/")
    return rest.partition("/")[0] if first == API else first
