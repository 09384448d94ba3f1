"""Detent runs agent work durably: declared lifecycles, kept and enforced by a database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from detent.breaker import Breaker
from detent.errors import (
    ApprovalExpired,
    ApprovalRejected,
    CrewFailed,
    DetentError,
    InvalidTransition,
    JobFailed,
    LeaseLost,
    NoEvent,
)
from detent.outcomes import Cancel, PermanentError, Snooze, TransientError, ValidationError

if TYPE_CHECKING:
    from detent.app import Detent
    from detent.worker.context import Context

__version__ = "0.1.0"

__all__ = [
    "ApprovalExpired",
    "ApprovalRejected",
    "Breaker",
    "Cancel",
    "Context",
    "CrewFailed",
    "Detent",
    "DetentError",
    "InvalidTransition",
    "JobFailed",
    "LeaseLost",
    "NoEvent",
    "PermanentError",
    "Snooze",
    "TransientError",
    "ValidationError",
    "__version__",
]


_LOADED_WHEN_ASKED_FOR = {"Detent": "detent.app", "Context": "detent.worker.context"}


def __getattr__(name: str) -> Any:
    """The application is loaded when it is asked for, so that a command that needs none starts at once."""
    if name in _LOADED_WHEN_ASKED_FOR:
        return getattr(import_module(_LOADED_WHEN_ASKED_FOR[name]), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")
