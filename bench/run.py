"""What a step of `keptwork run` costs over its program alone: 50 × `true`, one after the other and side by side.

The whole command is measured, its start and the making of the database included, against the same programs started by
themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

STEPS = 50
AT_ONCE = 8
MOST_MS = 30.0


def measure(seconds: float, rounds: int) -> bool:
    """Prints the milliseconds a step costs over bare; whether both shapes stay within the limit."""
    print(f"\n{STEPS} × true by keptwork run, over {STEPS} bare processes; the limit is {MOST_MS:.0f} ms a step")
    met = [_within(shape, rounds) for shape in SHAPES]
    return all(met)


def _within(shape: str, rounds: int) -> bool:
    steps, bare = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flow.yaml"
        file.write_text(json.dumps({"name": "true", "steps": steps()}), "utf-8")
        pairs = [(_seconds(bare), *_run(file, number)) for number in range(rounds)]
    over = [1_000 * (whole - alone) / STEPS for alone, whole, _ in pairs]
    inside = [1_000 * (own - alone) / STEPS for alone, _, own in pairs]
    alone = 1_000 * median(one for one, _, _ in pairs) / STEPS
    met = median(over) <= MOST_MS
    print(
        f"  {shape:<9} bare {alone:5.1f} ms a step · keptwork run {median(over):+5.1f} ms over it"
        f" ({median(inside):+.1f} without its start) · {'met' if met else 'NOT met'}"
    )
    return met


def _run(file: Path, number: int) -> tuple[float, float]:
    """How long the command takes, and of that the flow itself."""
    database = f"sqlite:///{file.parent}/{number}.db"
    command = [sys.executable, "-m", "keptwork", "run", str(file), "--json", "--db", database]
    began = time.perf_counter()
    done = subprocess.run([*command, "--concurrency", str(AT_ONCE)], capture_output=True, check=True)
    return time.perf_counter() - began, float(json.loads(done.stdout)["seconds"])


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _true(_: object = None) -> None:
    subprocess.run(["true"], check=True)


def _one_by_one() -> None:
    for _ in range(STEPS):
        _true()


def _side_by_side() -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_true, range(STEPS)))


def _chain() -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "command": ["true"], **({"depends_on": [f"s{n - 1}"]} if n else {})} for n in range(STEPS)]


def _wide() -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "command": ["true"]} for n in range(STEPS)]


SHAPES: dict[str, tuple[Callable[[], list[dict[str, Any]]], Callable[[], None]]] = {
    "chain": (_chain, _one_by_one),
    "parallel": (_wide, _side_by_side),
}
