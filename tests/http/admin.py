"""Callers beside those every test has: one of ours who may do everything, and one for each scope alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from keptwork.access.scopes import Scope, scopes_of
from keptwork.http.auth import Caller
from tests.http.conftest import Running

ADMIN = "kw_admin"


@contextmanager
def admin(running: Running) -> Iterator[httpx.Client]:
    """One of ours who may do everything."""
    running.keys.known[ADMIN] = Caller(running.ours, frozenset(Scope), "key:admin")
    with running.client(ADMIN) as opened:
        yield opened


@contextmanager
def only(running: Running, *scopes: str) -> Iterator[httpx.Client]:
    """One of ours whose key is for these alone."""
    token = f"kw_only_{'_'.join(scopes).replace(':', '_')}"
    running.keys.known[token] = Caller(running.ours, frozenset(scopes_of(scopes)), "key:only")
    with running.client(token) as opened:
        yield opened


def refused_without(running: Running, scope: str, method: str, path: str, body: object = None) -> None:
    """That all other scopes together do not open this, and the one alone does: it is then not a matter of scopes."""
    others = [one for one in Scope if one not in (scope, Scope.ADMIN)]
    with only(running, *others) as without, only(running, scope) as alone:
        answer = without.request(method, path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:keptwork:problem:missing-scope"), path
        assert repr(scope) in answer.json()["detail"]
        assert alone.request(method, path, json=body).status_code != 403, path
