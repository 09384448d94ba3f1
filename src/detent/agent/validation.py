"""Whether an answer is what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def check(text: str, schema: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with an answer, in words for the one who gave it; none if nothing is."""
    if schema is None:
        return None
    try:
        json.loads(text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    return None


def parsed(text: str) -> Any:
    """The JSON an answer consists of."""
    return json.loads(text)
