"""Detent runs agent work durably: declared lifecycles, kept and enforced by a database."""

from detent.errors import DetentError, InvalidTransition, LeaseLost

__version__ = "0.1.0"

__all__ = ["DetentError", "InvalidTransition", "LeaseLost", "__version__"]
