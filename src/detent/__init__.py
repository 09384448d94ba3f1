"""Detent runs agent work durably: declared lifecycles, kept and enforced by a database."""

from __future__ import annotations

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

__version__ = "0.1.0"

__all__ = [
    "ApprovalExpired",
    "ApprovalRejected",
    "Breaker",
    "Cancel",
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


def __getattr__(name: str) -> Any:
    """The application is loaded when it is asked for, so that a command that needs none starts at once."""
    if name == "Detent":
        from detent.app import Detent

        return Detent
    raise AttributeError(f"module 'detent' has no attribute {name!r}")
