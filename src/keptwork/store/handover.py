"""What must still be so when a flow is handed over from one step to the next."""

from __future__ import annotations

from typing import NamedTuple


class Unmoved(NamedTuple):
    """A row that must be as it was read. A flow must not be held, either, which is no move of it."""

    table: str
    id: int
    seq: int

    @property
    def is_flow(self) -> bool:
        return self.table != "steps"
