"""A search looks at rows one after the other, and never at more than its bound."""

from __future__ import annotations

import pytest

from keptwork.errors import BadInput
from keptwork.store.contract.operations_search import AT_ONCE, LONGEST_TEXT, MOST_LOOKED_AT, Searched, search


class Table:
    """Numbers from 0 on, each with its name, read in pages; counts how many were read."""

    def __init__(self, rows: int) -> None:
        self.rows, self.read = rows, 0

    async def page(self, after: int | None, most: int) -> list[int]:
        start = 0 if after is None else after + 1
        found = list(range(start, min(start + most, self.rows)))
        self.read += len(found)
        return found

    async def search(self, text: str, after: int | None = None, limit: int = 10) -> Searched[int, int]:
        return await search(
            self.page, lambda row: row, lambda row: (None, f"Row {row}."), text, after=after, limit=limit
        )


async def test_a_table_of_millions_is_not_read_for_one_request() -> None:
    table = Table(10_000_000)
    assert await table.search("row 9999999.") == ([], MOST_LOOKED_AT - 1)
    assert table.read == MOST_LOOKED_AT


async def test_what_the_bound_cuts_off_is_found_by_going_on() -> None:
    table, found, after = Table(3 * MOST_LOOKED_AT), list[int](), None
    for _ in range(4):
        some, after = await table.search("77.", after, limit=MOST_LOOKED_AT)
        found += some
    assert after is None
    assert found == [row for row in range(table.rows) if str(row).endswith("77")]
    assert table.read == table.rows


async def test_a_full_page_ends_the_search_at_its_last_row() -> None:
    table = Table(100)
    assert await table.search("ROW", limit=3) == ([0, 1, 2], 2)
    assert await table.search("row 5", limit=3, after=2) == ([5, 50, 51], 51)
    assert table.read <= 2 * AT_ONCE


@pytest.mark.parametrize("text", ["", "x" * (LONGEST_TEXT + 1)])
async def test_a_text_has_a_length(text: str) -> None:
    with pytest.raises(BadInput, match="1 to 200"):
        await Table(1).search(text)
