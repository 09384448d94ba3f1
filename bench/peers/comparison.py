"""The comparison as a whole: every system in turn, those that targets speak of once more in every round."""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from bench.lifecycle import prepared, run
from bench.peers.catalogue import SYSTEMS, Part, System
from bench.peers.engine import Engines
from bench.peers.environment import NotInstalled
from bench.peers.measurement import PARTS, Effort, Figures, Measure, measure
from bench.peers.report import JOBS, Sheet, show
from bench.peers.targets import TARGETS, Measured, Wanted

FLOOR_BATCH = 500


@dataclass(frozen=True, slots=True)
class Comparison:
    """Who is compared, by which measurements, what is wanted of Keptwork, and what is told."""

    systems: Sequence[System]
    parts: Mapping[Part, Measure]
    targets: Sequence[Wanted]
    sheet: Sheet
    beside_floor: bool = False


OF_JOBS = Comparison(SYSTEMS, PARTS, TARGETS, JOBS, beside_floor=True)


def compare(
    comparison: Comparison, names: Sequence[str] | None, effort: Effort, rounds: int, keep: Path | None
) -> bool:
    """Prints the report; whether every target that speaks only of chosen systems is met."""
    busy = os.getloadavg()[0]
    systems = [system for system in comparison.systems if not names or system.name in names]
    measured = {system.label: Figures() for system in systems}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder, Engines(Path(folder)) as engines:
        for number in range(rounds):
            for system in systems:
                parts = _of_round(comparison, system, number)
                _measure_once(system, parts, engines, effort, measured[system.label])
    engines_of_ours: list[str] = [system.engine for system in systems if system.ours and comparison.beside_floor]
    floors = {engine: _floor(engine, effort.seconds, rounds) for engine in engines_of_ours}
    targets = [target for target in comparison.targets if target.speaks_of <= measured.keys()]
    show(_console(), comparison.sheet, systems, measured, floors, targets, _doubts(busy))
    if keep:
        _keep(keep, measured, floors, busy)
    return all(target.met(measured) for target in targets)


def _of_round(comparison: Comparison, system: System, number: int) -> dict[Part, Measure]:
    """Everything in the first round, and then what targets speak of."""
    return {part: found for part, found in comparison.parts.items() if not number or part in system.every_round}


def _measure_once(
    system: System, parts: Mapping[Part, Measure], engines: Engines, effort: Effort, figures: Figures
) -> None:
    if not parts or (figures.trouble and not figures.values):
        return
    print(f"· {system.label}", file=sys.stderr, flush=True)
    try:
        measure(system, parts, engines, effort, figures)
    except NotInstalled as error:
        figures.trouble.append(f"not installed: {error}")


def _floor(engine: str, seconds: float, rounds: int) -> float:
    """Jobs per second of the bare statements that claim, start and settle."""
    with prepared(engine) as (url, worker):
        return statistics.median(run("bench.floor_drain", url, worker, FLOOR_BATCH, seconds) for _ in range(rounds))


def _doubts(busy: float) -> list[str]:
    if busy < 0.5 * (os.cpu_count() or 1):
        return []
    return [f"other programs kept the machine busy (load {busy:.1f} before the start): figures are low and uneven"]


def _console() -> Console:
    """Wide enough for the tables where nobody looks: in a file."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def _keep(path: Path, measured: Measured, floors: dict[str, float], busy: float) -> None:
    systems = {label: asdict(figures) for label, figures in measured.items()}
    path.write_text(json.dumps({"systems": systems, "floors": floors, "load_before": busy}, indent=2) + "\n")
