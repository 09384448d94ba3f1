"""The systems under measurement, and what was seen of each on a machine of two cores."""

from dataclasses import dataclass, field
from typing import Literal

# "server": a server that the peer brings along, with a storage of its own; "processes", "threads": no database at all;
# "unsynced": a SQLite file whose commits outlive the process, and reach the disk soon after
Engine = Literal["postgres", "sqlite", "unsynced", "redis", "server", "processes", "threads"]
Part = Literal["singles", "drain_by_one", "drain_by_two", "workflows", "wide", "chain"]
ALL: tuple[Part, ...] = ("singles", "drain_by_one", "drain_by_two")


@dataclass(frozen=True, slots=True)
class System:
    """One row of the report. `seen` holds figures that a well configured peer reached; `every_round` what is measured
    in each round and not only in the first, because a target speaks of it; `form` how work is written, where a system
    has more than one way."""

    name: str
    engine: Engine
    expected_rate: float
    seen: dict[str, float] = field(default_factory=dict)
    every_round: tuple[Part, ...] = ()
    note: str = ""
    program: str = "program"
    form: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}{self.form and f' {self.form}'}/{self.engine}"

    @property
    def ours(self) -> bool:
        return self.name == "keptwork"


SYSTEMS = (
    System("keptwork", "postgres", 20_000, every_round=ALL),
    System(
        "pgqueuer",
        "postgres",
        20_400,
        {"drain": 20_400, "drain_two": 30_900, "bulk": 60_000, "p50_ms": 2.8},
        every_round=ALL,
        note="keeps one log row per change of status, deletes the job; commits durable",
    ),
    System(
        "absurd",
        "postgres",
        1_200,
        {"drain": 1_200},
        note="polls every 10 ms; no call for many tasks: single ones in transactions",
    ),
    System("dbos", "postgres", 600, {"drain": 600, "p50_ms": 540}, note="polls every 50 ms instead of every second"),
    System("procrastinate", "postgres", 580, {"drain": 580}),
    System("keptwork", "sqlite", 20_000, every_round=ALL),
    System(
        "huey",
        "sqlite",
        4_500,
        {"drain": 4_500},
        every_round=ALL,
        note="polls every 10 ms; no call for many tasks; takes a job off the queue before it runs: a crash loses it",
    ),
    System("dbos", "sqlite", 200, note="polls every 50 ms instead of every second"),
    System("celery", "redis", 1_400, {"drain": 1_400, "p50_ms": 1.6}, note="Redis in memory only; a crash loses jobs"),
    System("rq", "redis", 1_000, {"p50_ms": 1.7}, every_round=("singles",), note="Redis in memory only"),
)
