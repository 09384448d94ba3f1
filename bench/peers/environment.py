"""An environment for each peer, made from its pinned requirements and kept until they change.

Python packages by pip, those for Node by npm, without running what they bring to be run at their installation.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.catalogue import System

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "bench" / "peers"
HOME = ROOT / ".bench"
PACKAGES = "package.json"


class NotInstalled(Exception):
    """What is to be measured cannot be had here; the message says why."""


def installed(name: str) -> Path:
    """The environment of that name, as its requirements say."""
    for_node = (PEERS / name / PACKAGES).exists()
    requirements = PEERS / name / (PACKAGES if for_node else "requirements.txt")
    home = HOME / name
    stamp, wanted = home / "installed.txt", requirements.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"· installing {name}", file=sys.stderr)
        (_install_for_node if for_node else _install)(home, requirements)
        stamp.write_text(wanted)
    return home


def _install(home: Path, requirements: Path) -> None:
    venv.create(home, clear=True, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    _call([*pip, "-r", str(requirements)])


def _install_for_node(home: Path, requirements: Path) -> None:
    if not (npm := shutil.which("npm")):
        raise NotInstalled("there is no npm; install Node")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(requirements, home)
    _call([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", str(home)])


def _call(installer: list[str]) -> None:
    done = subprocess.run(installer, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise NotInstalled(f"{Path(installer[0]).name}: {said[-1]}")


def command(system: System, *words: str) -> list[str]:
    """How the program of a system is run: our own where the benchmark runs, a peer's where it is installed."""
    if system.ours:
        return [sys.executable, "-m", _module(system), *words]
    home, for_node = installed(system.name), PEERS / system.name / f"{system.program}.mjs"
    if not for_node.exists():
        return [str(home / "bin" / "python"), "-m", _module(system), *words]
    if not (node := shutil.which("node")):
        raise NotInstalled("there is no node; install Node")
    # Node looks for packages beside the file that wants them.
    return [node, shutil.copy(str(for_node), str(home)), *words]


def _module(system: System) -> str:
    return f"bench.peers.{system.name}.{system.program}"


def surroundings(target: str, tally: Path) -> dict[str, str]:
    """The environment variables of a program."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_TARGET": target, "BENCH_TALLY": str(tally)}
