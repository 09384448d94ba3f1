"""A request as one text. It is the same for equal requests, and never shorter than the text that a provider
receives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from keptwork.agents.conversation import Request


def spelled(request: Request) -> str:
    """Return everything that affects the answer as JSON. The idempotency key of the call is not part of it."""
    said = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "key"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=_plain)


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no part of a request")
