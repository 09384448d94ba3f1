"""Search lists for a text.

No index covers the text, so each call reads a limited number of rows.

It returns the matching rows and a cursor for the next call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from keptwork.errors import BadInput

MOST_LOOKED_AT = 5_000
AT_ONCE = 500
LONGEST_TEXT = 200

T = TypeVar("T")
P = TypeVar("P")


class Searched(NamedTuple, Generic[T, P]):
    """The matching rows, and the cursor of the last row that was read, or None at the end."""

    found: list[T]
    next: P | None


async def search(
    read: Callable[[P | None, int], Awaitable[list[T]]],
    place: Callable[[T], P],
    texts: Callable[[T], Iterable[str | None]],
    text: str,
    *,
    after: P | None,
    limit: int,
) -> Searched[T, P]:
    """Return rows from `read` after a cursor that contain the text, regardless of case.

    At most `limit` rows are returned.
    """
    wanted, found = _wanted(text), list[T]()
    for _ in range(MOST_LOOKED_AT // AT_ONCE):
        rows = await read(after, AT_ONCE)
        for row in rows:
            after = place(row)
            if any(wanted in one.casefold() for one in texts(row) if one):
                found.append(row)
            if len(found) == limit:
                return Searched(found, after)
        if len(rows) < AT_ONCE:
            return Searched(found, None)
    return Searched(found, after)


def _wanted(text: str) -> str:
    if not text or len(text) > LONGEST_TEXT:
        raise BadInput(what=f"a text to search for has 1 to {LONGEST_TEXT} characters, not {len(text):,}")
    return text.casefold()
