"""What Keptwork is to reach beside its peers, and what shows that a peer was not at its best. Pure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.peers.catalogue import SYSTEMS, System
from bench.peers.measurement import Figures

LESS_IS_BETTER = ("p50_ms", "p95_ms", "idle_cpu", "memory_mib")
AT_ITS_BEST = 0.8

Measured = Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Target:
    """Keptwork is to be at least so many times as good as a peer, in one figure, on one engine."""

    figure: str
    ours: str
    peer: str
    at_least: float = 1.0

    def advantage(self, measured: Measured) -> float | None:
        return advantage(measured, self.figure, self.ours, self.peer)

    @property
    def speaks_of(self) -> set[str]:
        return {self.ours, self.peer}

    def met(self, measured: Measured) -> bool:
        """What could not be measured is not met."""
        found = self.advantage(measured)
        return found is not None and found >= self.at_least

    def told(self, columns: Mapping[str, str], measured: Measured) -> tuple[str, str, str]:
        """What it is about, what is wanted and what was found."""
        found = self.advantage(measured)
        what = f"{columns[self.figure].split(',')[0]}, {self.ours} beside {self.peer}"
        return what, f"≥ {self.at_least:.2f}×", "not measured" if found is None else f"{found:.2f}×"


@dataclass(frozen=True, slots=True)
class Limit:
    """A time of Keptwork's is to stay below so much, whatever its peers need. It was seen on some other machine: where
    `systems` reach less of the rates seen there, this one is slower, and the time is longer by as much."""

    figure: str
    ours: str
    below: float
    systems: tuple[System, ...] = ()

    @property
    def speaks_of(self) -> set[str]:
        return {self.ours}

    def here(self, measured: Measured) -> float:
        """What the time is on this machine; never less than it is by the letter."""
        return self.below / min(1.0, speed(self.systems, measured) or 1.0)

    def met(self, measured: Measured) -> bool:
        found = self._found(measured)
        return found is not None and found < self.here(measured)

    def told(self, columns: Mapping[str, str], measured: Measured) -> tuple[str, str, str]:
        found, here = self._found(measured), self.here(measured)
        what = f"{columns[self.figure].split(',')[0]}, {self.ours}"
        wanted = f"< {self.below:g}" if here == self.below else f"< {here:.2g} ({self.below:g} there)"
        return what, wanted, "not measured" if found is None else f"{found:.2f}"

    def _found(self, measured: Measured) -> float | None:
        return measured[self.ours].median(self.figure) if self.ours in measured else None


Wanted = Target | Limit


def _targets() -> Iterator[Target]:
    for figure in ("drain", "drain_two", "bulk"):
        yield Target(figure, "keptwork/postgres", "pgqueuer/postgres")
    yield Target("drain", "keptwork/sqlite", "huey/sqlite", 4.0)
    for system in SYSTEMS:
        if not system.ours and system.engine != "redis":
            yield Target("p50_ms", f"keptwork/{system.engine}", system.label)
    for engine in ("postgres", "sqlite"):
        yield Target("p50_ms", f"keptwork/{engine}", "rq/redis", 1 / 1.25)


TARGETS = tuple(_targets())


def advantage(measured: Measured, figure: str, ours: str, peer: str) -> float | None:
    """How many times as good as the peer's our figure is: 2 is twice the rate, or half the time."""
    if ours not in measured or peer not in measured:
        return None
    mine, theirs = measured[ours].median(figure), measured[peer].median(figure)
    if not mine or not theirs:
        return None
    return theirs / mine if figure in LESS_IS_BETTER else mine / theirs


def speed(systems: Sequence[System], measured: Measured) -> float | None:
    """How fast this machine is: the share that peers reach here of the rates once seen of them, in the middle."""
    shares = [share for system in systems for name, share in _shares(system, measured) if name not in LESS_IS_BETTER]
    return statistics.median(shares) if shares else None


def reference(label: str, figure: str, what: str, systems: Sequence[System], measured: Measured) -> str:
    """A time once seen of a peer beside what it and Keptwork need here, and how fast this machine is."""
    (peer,) = (system for system in systems if system.label == label)
    here = {system.label: measured[system.label].median(figure) for system in systems if system is peer or system.ours}
    found = "; ".join(f"{name} {'not measured' if time is None else f'{time:.2f}'}" for name, time in here.items())
    share = speed(systems, measured)
    machine = "" if share is None else f"; peers here reach {share:.0%} of the rates once seen, in the middle"
    return f"{what}: once seen of {label} {peer.seen[figure]:g}. Here: {found}{machine}"


def not_at_their_best(systems: list[System], measured: Measured) -> list[str]:
    """Peers that reach less of the figure once seen of them than the others reach of theirs: those are misconfigured.

    How much they all reach is the machine's doing; so the middle one of all is what a peer is held to.
    """
    reached = {(system.label, figure): share for system in systems for figure, share in _shares(system, measured)}
    if not reached:
        return []
    machine = statistics.median(reached.values())
    return [
        f"{label} reaches {share:.0%} of the {figure} once seen, the peers here {machine:.0%} in the middle: "
        "it is misconfigured, or the machine was busy"
        for (label, figure), share in reached.items()
        if share < AT_ITS_BEST * machine
    ]


def _shares(system: System, measured: Measured) -> Iterator[tuple[str, float]]:
    for figure, seen in system.seen.items():
        found = measured[system.label].median(figure) if system.label in measured else None
        if found:
            yield figure, seen / found if figure in LESS_IS_BETTER else found / seen
