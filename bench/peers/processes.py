"""A system's program at work on one target: asked in processes that answer, and working in processes that stay."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.peers.catalogue import System
from bench.peers.environment import command, surroundings
from bench.peers.tally import counted

ANSWER_SECONDS = 180
STOP_SECONDS = 10


class Failed(Exception):
    """A program did not do what it was asked; the message says what it said."""


def end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes, each the first of a process group of its own, with all they have started."""
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class Workers:
    """Worker processes, each the first of a process group of its own."""

    started: list[subprocess.Popen[bytes]]
    log: Path

    def check(self) -> None:
        for worker in self.started:
            if worker.poll() is not None:
                raise Failed(f"a worker ended with {worker.returncode}: {last_line(self.log.read_text())}")

    def peak_mib(self) -> float:
        """The most memory the workers held, child processes included."""
        return sum(_peak_kib((process / "status").read_text()) for process in self._processes()) / 1024

    def idle_cpu(self, seconds: float) -> float:
        """Percent of one core they take in that time."""
        before = self._cpu_seconds()
        time.sleep(seconds)
        return (self._cpu_seconds() - before) / seconds * 100

    def _cpu_seconds(self) -> float:
        return sum(_ticks((process / "stat").read_text()) for process in self._processes()) / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> Iterator[Path]:
        groups = {worker.pid for worker in self.started}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(process.name)) in groups:
                    yield process

    def end(self) -> None:
        end(self.started)


@dataclass(frozen=True, slots=True)
class Station:
    """One system, the target under it, and the folder its jobs leave their marks in."""

    system: System
    target: str
    folder: Path

    def ask(self, *words: str) -> str:
        argv, env = command(self.system, *words), self._environment
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words)}: no answer within {ANSWER_SECONDS} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(words)}: {last_line(done.stderr)}")
        return done.stdout.strip()

    def rate(self, verb: str, jobs: int) -> float:
        """Jobs per second, by the program's own measure: without its start."""
        return jobs / float(self.ask(verb, str(jobs)))

    @contextmanager
    def workers(self, number: int) -> Iterator[Workers]:
        path, argv = self.folder / "workers.log", command(self.system, "work")
        with path.open("ab") as log:
            start = [
                subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log, start_new_session=True)
                for _ in range(number)
            ]
        workers = Workers(start, path)
        try:
            yield workers
        finally:
            workers.end()

    def wait_for(self, jobs: int, seconds: float, workers: Workers) -> bool:
        """Whether so many jobs have started within that time."""
        deadline = time.monotonic() + seconds
        while counted(self.folder) < jobs:
            workers.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    @property
    def _environment(self) -> dict[str, str]:
        return surroundings(self.target, self.folder)


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def _ticks(stat: str) -> int:
    """User and system time; the fields are counted behind the name, which may hold blanks."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _peak_kib(status: str) -> int:
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
