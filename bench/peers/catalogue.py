"""The systems under measurement, and what was seen of each on a machine of two cores."""

from dataclasses import dataclass, field
from typing import Literal

Engine = Literal["postgres", "sqlite", "redis"]


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures a well configured peer reached: drain in jobs/s by one and two processes, bulk enqueue in jobs/s, and
    milliseconds to start."""

    drain: float | None = None
    drain_two: float | None = None
    bulk: float | None = None
    p50_ms: float | None = None


@dataclass(frozen=True, slots=True)
class System:
    """One row of the report. Rivals are what a target speaks of: they run in every round."""

    name: str
    engine: Engine
    seen: Seen = field(default_factory=Seen)
    rival: bool = False
    singles_per_second: float = 1000
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.engine}"

    @property
    def ours(self) -> bool:
        return self.name == "detent"


SYSTEMS = (
    System("detent", "postgres", Seen(20_000, 25_000), rival=True),
    System("pgqueuer", "postgres", Seen(20_400, 30_900, 60_000, 2.8), rival=True),
    System("detent", "sqlite", Seen(20_000, 20_000), rival=True),
    System("huey", "sqlite", Seen(4_500), rival=True, note="takes a job off the queue before it runs: a crash loses it"),
)
