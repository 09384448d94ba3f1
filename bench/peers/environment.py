"""An environment for each peer, made from its pinned requirements and kept until they change."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.catalogue import System

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".bench"


class NotInstalled(Exception):
    """What is to be measured cannot be had here; the message says why."""


def installed(name: str) -> Path:
    """The environment of that name, as its requirements say."""
    requirements = ROOT / "bench" / "peers" / name / "requirements.txt"
    home = HOME / name
    stamp, wanted = home / "installed.txt", requirements.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        _install(home, requirements)
        stamp.write_text(wanted)
    return home


def _install(home: Path, requirements: Path) -> None:
    print(f"· installing {home.name}", file=sys.stderr)
    venv.create(home, clear=True, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "-r", str(requirements)], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"pip: {done.stderr.strip().splitlines()[-1]}")


def command(system: System, *words: str) -> list[str]:
    """How the program of a system is run: our own where the benchmark runs, a peer's where it is installed."""
    python = sys.executable if system.ours else str(installed(system.name) / "bin" / "python")
    return [python, "-m", f"bench.peers.{system.name}.program", *words]


def surroundings(target: str, tally: Path) -> dict[str, str]:
    """The environment variables of a program."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_TARGET": target, "BENCH_TALLY": str(tally)}
