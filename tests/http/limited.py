"""Tenants with limits of their own, which a running server obeys at once."""

from __future__ import annotations

import json

from tests.http.conftest import Running


def limit(running: Running, **own: int) -> None:
    """From now on our tenant has these; the server reads them with the next request."""
    running.do(lambda store: store.set_tenant_limits(running.ours, json.dumps(own)))
    running.app.state.turnstile._guests.pop(running.ours, None)
