"""Count the lines of each room that no test runs: `make coverage` compares them with the figures in `uncovered.toml`.

A figure is a count of lines, not a percentage, so that deleting covered code does not make a room look worse. With
`--write`, the measured figures replace those in the file.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import coverage

FIGURES = Path(__file__).with_suffix(".toml")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "keptwork"


def room_of(file: Path) -> str:
    """Return the room of a module: its first folder, or `keptwork` for the public face.

    >>> room_of(PACKAGE / "http" / "routes" / "jobs.py")
    'http'
    """
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "keptwork"


def measured() -> dict[str, int]:
    """Return the uncovered lines of each room, by the data of the last run."""
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    data.load()
    counts: Counter[str] = Counter()
    for file in sorted(PACKAGE.rglob("*.py")):
        _, _, _, missing, _ = data.analysis2(str(file))
        counts[room_of(file)] += len(missing)
    return dict(sorted(counts.items()))


def main() -> None:
    found = measured()
    if "--write" in sys.argv[1:]:
        lines = [f"{room} = {count}" for room, count in found.items()]
        about = "# Lines of each room that no test runs, measured by `make coverage`. A figure only falls."
        FIGURES.write_text("\n".join([about, *lines, ""]), "utf-8")
    limits = tomllib.loads(FIGURES.read_text("utf-8"))
    for room, count in found.items():
        print(f"{room:16} {count:6} uncovered lines, at most {limits.get(room, 0)}")
    if worse := [room for room, count in found.items() if count > limits.get(room, 0)]:
        sys.exit(f"more uncovered lines than before: {', '.join(worse)}")


if __name__ == "__main__":
    main()
