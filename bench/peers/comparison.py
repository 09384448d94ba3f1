"""The comparison as a whole: every system in turn, those that targets speak of once more in every round."""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.lifecycle import prepared, run
from bench.peers.catalogue import ALL, SYSTEMS, System
from bench.peers.engine import Engines
from bench.peers.environment import NotInstalled
from bench.peers.measurement import Effort, Figures, measure
from bench.peers.report import show
from bench.peers.targets import TARGETS, Measured

FLOOR_BATCH = 500


def compare(names: Sequence[str] | None, effort: Effort, rounds: int, keep: Path | None) -> bool:
    """Prints the report; whether every target that speaks only of chosen systems is met."""
    busy = os.getloadavg()[0]
    systems = [system for system in SYSTEMS if not names or system.name in names]
    measured = {system.label: Figures() for system in systems}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder, Engines(Path(folder)) as engines:
        for number in range(rounds):
            for system in systems:
                _measure_once(system, engines, effort, measured[system.label], number)
    engines_of_ours: list[str] = [system.engine for system in systems if system.ours]
    floors = {engine: _floor(engine, effort.seconds, rounds) for engine in engines_of_ours}
    targets = [target for target in TARGETS if {target.ours, target.peer} <= measured.keys()]
    show(_console(), systems, measured, floors, targets, _doubts(busy))
    if keep:
        _keep(keep, measured, floors, busy)
    return all(target.met(measured) for target in targets)


def _measure_once(system: System, engines: Engines, effort: Effort, figures: Figures, number: int) -> None:
    parts = system.every_round if number else ALL
    if not parts or (number and not figures.values):
        return
    print(f"· {system.label}", file=sys.stderr, flush=True)
    try:
        measure(system, parts, engines, effort, figures)
    except NotInstalled as error:
        figures.trouble.append(f"skipped: {error}")


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
