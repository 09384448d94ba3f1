"""The client of the HTTP API: every route as a typed method, with retries where they are safe.

It needs `pip install 'keptwork[client]'`, and no database.

    from keptwork.client import Client

    with Client("https://keptwork.example") as client:
        client.jobs.enqueue(kind="fetch", payload={"url": "…"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keptwork.client.client import AsyncClient, Client
    from keptwork.client.retry import Patience
    from keptwork.client.wire import Wire

__all__ = ["AsyncClient", "Client", "Patience", "Wire"]

_HOMES = {"AsyncClient": "client", "Client": "client", "Patience": "retry", "Wire": "wire"}


def __getattr__(name: str) -> Any:
    """Import the classes that need the extra only when they are used."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"keptwork.client.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'keptwork.client' has no attribute {name!r}")
