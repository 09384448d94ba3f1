"""Keptwork runs agent work durably: a database stores declared lifecycles and enforces them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keptwork.errors import (
    ApprovalExpired,
    ApprovalRejected,
    CrewFailed,
    InvalidTransition,
    JobFailed,
    KeptworkError,
    LeaseLost,
    NoEvent,
)
from keptwork.jobs.breaker import Breaker
from keptwork.outcomes import Cancel, PermanentError, Snooze, TransientError, ValidationError

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.context import Context

__version__ = "0.1.0"

__all__ = [
    "ApprovalExpired",
    "ApprovalRejected",
    "Breaker",
    "Cancel",
    "Context",
    "CrewFailed",
    "InvalidTransition",
    "JobFailed",
    "Keptwork",
    "KeptworkError",
    "LeaseLost",
    "NoEvent",
    "PermanentError",
    "Snooze",
    "TransientError",
    "ValidationError",
    "__version__",
]


_LOADED_WHEN_ASKED_FOR = {"Keptwork": "keptwork.app", "Context": "keptwork.context"}


def __getattr__(name: str) -> Any:
    """Import the application on first use, so that a command that does not need it starts fast."""
    if name in _LOADED_WHEN_ASKED_FOR:
        return getattr(import_module(_LOADED_WHEN_ASKED_FOR[name]), name)
    raise AttributeError(f"module 'keptwork' has no attribute {name!r}")
