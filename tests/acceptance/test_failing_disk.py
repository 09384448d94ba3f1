"""A disk that fails for a while, at every single write, by faults that strace puts between SQLite and the kernel.

Nothing acknowledged is lost, every refusal is a clear one, and the same process goes on when the fault is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.store import open_store
from tests.acceptance.fleet import environment_of_tests

CALLS = "pwrite64,write,fsync,fdatasync,ftruncate"
FAILURES_IN_A_ROW = 3
CLEAR = {"StorageFailed", "DiskFull"}


def strace_can_inject() -> bool:
    probe = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO:when=1..2", "true"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False


needs_strace = pytest.mark.skipif(
    not strace_can_inject(), reason="faults are injected by strace, which is not installed or may not trace here"
)


@dataclass(slots=True)
class Run:
    """What one process said, and what it left behind."""

    k: int
    error: str
    code: int
    stderr: str
    injected: int
    told: list[dict[str, object]]
    states: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def refusals(self) -> Counter[str]:
        return Counter(str(line["refused"]) for line in self.told if "refused" in line)

    @property
    def acknowledged(self) -> list[int]:
        return [int(str(line["acknowledged"])) for line in self.told if "acknowledged" in line]

    @property
    def wrong(self) -> list[str]:
        wrong = [*self.problems]
        if self.code or {"done": True} not in self.told:
            wrong.append(f"the process did not resume (exit {self.code}): {self.stderr[-2000:]}")
        if self.states != {"succeeded": len(self.acknowledged)}:
            wrong.append(f"{len(self.acknowledged)} jobs were acknowledged, now there are {dict(self.states)}")
        wrong += [str(line) for line in self.told if line.get("refused", "DiskFull") not in CLEAR]
        return [f"{self.error} at write {self.k}: {what}" for what in wrong]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, to be copied for each run."""
    file = tmp_path_factory.mktemp("prepared") / "keptwork.db"

    async def prepare() -> None:
        await (await open_store(f"sqlite:///{file}")).close()

    asyncio.run(prepare())
    return file


def run(folder: Path, prepared: Path, k: int, error: str, *twin: str) -> Run:
    """The scenario in a process of its own; the k-th to (k+2)-th call of each kind fail in each of its threads."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file, log = folder / "keptwork.db", folder / "strace"
    shutil.copy(prepared, file)
    when = f"{k}..{k + FAILURES_IN_A_ROW - 1}"
    paths = [part for suffix in ("", "-wal", "-shm", "-journal") for part in ("-P", f"{file}{suffix}")]
    faults = ["-e", f"trace={CALLS}", "-e", f"inject={CALLS}:error={error}:when={when}"]
    program = [sys.executable, "-m", "tests.acceptance.disk_scenario", str(file), *twin]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(log), *paths, *faults, *program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment_of_tests(),
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = Run(k, error, done.returncode, done.stderr, log.read_text().count("(INJECTED)"), told)
    asyncio.run(look(file, found))
    return found


async def look(file: Path, found: Run) -> None:
    """Opened again, on a disk that works."""
    store = await open_store(f"sqlite:///{file}", migrate=False, create=False)
    rows = await store.rows(JOB, found.acknowledged, ("id", "state"))
    found.states = Counter(row["state"] for row in rows)
    verdict = await verify.verify(store)
    found.problems = [" ".join(problem) for problem in verdict.problems]
    await store.close()


def sweep(folder: Path, prepared: Path, error: str, *twin: str) -> Iterator[Run]:
    """Every k, until there is no k-th call any more."""
    k = 0
    while True:
        k += 1
        found = run(folder, prepared, k, error, *twin)
        if not found.injected:
            return
        yield found


@needs_strace
@pytest.mark.parametrize(("k", "error"), [(1, "EIO"), (4, "ENOSPC"), (15, "EIO"), (40, "ENOSPC")])
def test_a_write_that_fails_costs_nothing_that_was_acknowledged(
    k: int, error: str, tmp_path: Path, prepared: Path
) -> None:
    found = run(tmp_path / "run", prepared, k, error)
    assert found.injected > 0
    assert found.wrong == []


@needs_strace
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_whichever_write_fails_costs_nothing_that_was_acknowledged(error: str, tmp_path: Path, prepared: Path) -> None:
    runs = list(sweep(tmp_path / "run", prepared, error))
    refusals = sum((found.refusals for found in runs), Counter[str]())
    print(
        f"\n{error}: {len(runs)} runs, {sum(found.injected for found in runs)} writes failed, "
        f"{sum(len(found.acknowledged) for found in runs)} jobs acknowledged, refusals {dict(refusals)}, "
        f"wrong {sum(len(found.wrong) for found in runs)}"
    )
    assert [what for found in runs for what in found.wrong] == []


@needs_strace
def test_a_writer_that_acknowledges_what_failed_is_caught_by_the_same_check(tmp_path: Path, prepared: Path) -> None:
    found = run(tmp_path / "run", prepared, 4, "EIO", "swallow-errors")
    assert found.injected > 0
    assert any("were acknowledged" in what for what in found.wrong), found.wrong


def may_mount() -> bool:
    """As real root only: PostgreSQL does not run as root, not even as the root of a namespace."""
    if os.geteuid():
        return False
    try:
        return subprocess.run([*SMALL_DISK, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


# A disk of its own at /mnt, which nobody else sees and which goes with the program.
SMALL_DISK = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=160m tmpfs /mnt && exec "$0" "$@"']


@pytest.mark.skipif(not may_mount(), reason="only root may mount a small disk for a PostgreSQL server")
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_postgres_server_whose_disk_runs_full_loses_nothing_and_workers_resume() -> None:
    program = [sys.executable, "-m", "tests.acceptance.full_server", "4", "5"]
    environment = {**environment_of_tests(), "TMPDIR": "/mnt"}
    done = subprocess.run([*SMALL_DISK, *program], stdout=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 0
    told = json.loads(done.stdout)
    print(f"\n4 workers, 5 times a full disk, {told}")
    assert told["wrong"] == []
    assert told["died"] == 0
    assert told["refusals"]
    assert told["longest"] <= 10
