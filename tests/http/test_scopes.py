"""Every route asks for the scope that the documentation says, and all other scopes together do not open it."""

from __future__ import annotations

import pytest

from detent.api_key import Scope
from detent.http.auth import Caller, Principal
from detent.http.catalogue import routes
from tests.http.admin import only
from tests.http.conftest import Running

OPEN = ["/healthz", "/readyz"]
ENDLESS = "/api/events/stream"


def opened_by_others(running: Running, *left_out: str) -> list[str]:
    """The routes that a key with every scope but theirs, and not for administration, is let through."""
    found = []
    for scope in Scope:
        others = [one for one in Scope if one not in (scope, Scope.ADMIN)]
        with only(running, *others) as client:
            for route in routes():
                if route.scope == scope and route.path not in left_out:
                    address = route.path.replace("{", "").replace("}", "")
                    found += [route.path] if client.request(route.method, address).status_code != 403 else []
    return found


def test_no_route_is_opened_by_the_scopes_of_others(strict: Running) -> None:
    assert [route.path for route in routes() if route.scope is None] == OPEN
    assert opened_by_others(strict) == []


def test_a_server_to_which_everybody_is_an_administrator_is_noticed(
    strict: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def anybody(token: str) -> Principal:
        return Caller(strict.ours, frozenset(Scope), "key:anybody")

    monkeypatch.setattr(strict.app.state, "authenticate", anybody)
    assert len(opened_by_others(strict, ENDLESS)) == len(list(routes())) - len(OPEN) - 1
