"""The IDs of children that were created together, in compact form: increasing IDs as runs of (first, count)."""

from __future__ import annotations

import json
from collections.abc import Sequence


def told(keys: Sequence[int]) -> str:
    """Return the IDs as the JSON stored with the step.

    >>> told([5, 6, 7, 64, 65])
    '{"children":[[5,3],[64,2]]}'
    """
    runs: list[list[int]] = []
    for key in keys:
        if runs and key == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([key, 1])
    return json.dumps({"children": runs}, separators=(",", ":"))


def keys_of(text: str) -> list[int]:
    """Return the IDs from that JSON.

    >>> keys_of('{"children":[[5,3],[64,2]]}')
    [5, 6, 7, 64, 65]
    """
    return [key for first, count in json.loads(text)["children"] for key in range(first, first + count)]
