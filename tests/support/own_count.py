"""A count of the log made by reading it event by event: what the counters must say, worked out another way."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from keptwork.core import metrics
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.core.metrics import bucket_of
from keptwork.observability.stats import Readout
from keptwork.store import Event, Reader

NOTES = {note.trigger for lifecycle in LIFECYCLES.values() for note in lifecycle.notes}


@dataclass
class OwnCount:
    """Moves by (entity, from, to, trigger), and how long each state lasted, entity by entity."""

    moves: Counter[tuple[str, ...]] = field(default_factory=Counter)
    lasted: defaultdict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    _since: dict[int, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        if event.trigger in NOTES:
            return
        before, from_state = self._since.get(event.entity_id), event.from_state or ""
        self.moves[event.entity, from_state, event.to_state, event.trigger] += 1
        if before is not None:
            self.lasted[event.entity, from_state].append(event.ts - before)
        self._since[event.entity_id] = event.ts

    def faults(self, readout: Readout) -> list[str]:
        """Where the counters say something else."""
        counted = dict(readout.counts[metrics.TRANSITIONS])
        found = [
            f"{'/'.join(labels)}: {self.moves[labels]} events, {counted.get(labels, 0)} counted"
            for labels in self.moves.keys() | counted.keys()
            if self.moves[labels] != counted.get(labels, 0)
        ]
        for labels, times in self.lasted.items():
            time = readout.times[metrics.TIME_IN_STATE][labels]
            if time.buckets != Counter(map(bucket_of, times)) or time.sum_us != sum(times):
                found.append(f"{'/'.join(labels)}: lasted otherwise than {len(times)} events tell")
        return found


async def own_count(store: Reader, tenant_id: int = 1) -> OwnCount:
    """Of one tenant, read in the order of the log."""
    count, after = OwnCount(), None
    while page := await store.events(after=after, limit=5_000):
        after = page[-1].cursor
        for event in page:
            if event.tenant_id == tenant_id:
                count.see(event)
    return count
