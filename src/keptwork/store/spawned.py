"""The keys of children that were made together, in few words: growing keys as runs of (first, how many)."""

from __future__ import annotations

import json
from collections.abc import Sequence


def told(keys: Sequence[int]) -> str:
    """As it is kept with the step.

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
    """Read back.

    >>> keys_of('{"children":[[5,3],[64,2]]}')
    [5, 6, 7, 64, 65]
    """
    return [key for first, count in json.loads(text)["children"] for key in range(first, first + count)]
