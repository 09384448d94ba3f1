"""The rows that must not have changed when a flow is handed over from one step to the next."""

from __future__ import annotations

from typing import NamedTuple


class Unmoved(NamedTuple):
    """A row that must be as it was read. If it is a flow, it must not be held either, since a hold is not a move."""

    table: str
    id: int
    seq: int

    @property
    def is_flow(self) -> bool:
        return self.table != "steps"
