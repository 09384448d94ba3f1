"""A request as one text: always the same for the same request, and never shorter than what a provider is sent of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from keptwork.agent.conversation import Request


def spelled(request: Request) -> str:
    """Everything that decides what is answered, as JSON. The key of a try is no part of it."""
    said = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "key"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=_plain)


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no part of a request")
