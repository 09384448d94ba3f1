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
    """A peer cannot be installed here; the message is pip's."""


def python(system: System) -> Path:
    """The interpreter that runs this system's program."""
    if system.ours:
        return Path(sys.executable)
    requirements = ROOT / "bench" / "peers" / system.name / "requirements.txt"
    home = HOME / system.name
    stamp, wanted = home / "installed.txt", requirements.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        _install(home, requirements)
        stamp.write_text(wanted)
    return home / "bin" / "python"


def _install(home: Path, requirements: Path) -> None:
    print(f"· installing {home.name}", file=sys.stderr)
    venv.create(home, clear=True, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "-r", requirements], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr.strip().splitlines()[-1])


def command(system: System, *words: str) -> list[str]:
    return [str(python(system)), "-m", f"bench.peers.{system.name}.program", *words]


def surroundings(target: str, tally: Path) -> dict[str, str]:
    """The environment variables of a program."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_TARGET": target, "BENCH_TALLY": str(tally)}
