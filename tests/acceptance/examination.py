"""What became of the jobs: the rows, the log and the sink held against one another after the chaos is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import JOB, LIFECYCLES, WORKER
from keptwork.store import Event, EventFilter, Store
from tests.acceptance.effects import Delivery, Sink

PAGE = 5000
# Typed out again on purpose: the product's own order is what is being examined.
RANK = {"queued": 0, "assigned": 1, "running": 2, "succeeded": 3, "failed": 3, "cancelled": 3, "dead_lettered": 3}
STEPS = ("first", "second")

Row = dict[str, Any]
Effects = dict[tuple[int, str], Delivery]
Absences = Mapping[int, Sequence[tuple[float, float]]]
"""When processes were dead or stopped, by their pid."""


@dataclass(slots=True)
class Findings:
    """What is wrong, by kind, and a few figures."""

    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    events: int = 0
    job_events: int = 0
    transitions: int = 0
    observed: int = 0
    recoveries: list[float] = field(default_factory=list)
    expired_under_the_living: int = 0
    deliveries: int = 0
    refused: int = 0

    @property
    def wrong(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.overwritten, *self.backward, *self.unexplained, *self._miscounted]

    @property
    def _miscounted(self) -> list[str]:
        """Events must be as many as the rows say there were moves, and as many as the test saw itself."""
        counts = (self.events, self.transitions), (self.job_events, self.observed)
        return [f"{events} events, but {moves} transitions" for events, moves in counts if events != moves]

    @property
    def recovery_p99(self) -> float:
        return sorted(self.recoveries)[int(len(self.recoveries) * 0.99)] if self.recoveries else 0.0

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, lost {len(self.lost)}, doubled {len(self.doubled)}, overwritten "
            f"{len(self.overwritten)}, backward {len(self.backward)}, {self.events} events = {self.transitions} "
            f"transitions ({self.observed} of jobs seen from outside), "
            f"{self.deliveries} deliveries ({self.refused} with an old token refused), "
            f"{len(self.recoveries)} jobs recovered, p99 {self.recovery_p99:.2f} s, "
            f"{self.expired_under_the_living} leases ended under living workers"
        )


async def examine(store: Store, ids: list[int], sink: Sink, absences: Absences) -> Findings:
    """Every job that was enqueued, in the order of its number, against everything that was recorded."""
    found = Findings(len(ids), deliveries=len(sink.deliveries), refused=len(sink.refused))
    rows = {row["id"]: row for row in await store.rows(JOB, ids)}
    workers = {row["id"]: row for row in await _workers(store)}
    found.lost += [
        f"job {number} is {_state(rows.get(id))}" for number, id in enumerate(ids) if not _done(rows.get(id))
    ]
    found.doubled += _doubled(sink)
    effects = {(effect.job, effect.step): effect for effect in sink.kept.values()}
    for number, id in enumerate(ids):
        if _done(rows.get(id)):
            found.overwritten += _overwritten(number, rows[id], workers, effects)
    await _examine_log(store, found, workers, absences)
    verdict = await verify(store)
    found.unexplained += [" ".join(problem) for problem in verdict.problems]
    return found


def _state(row: Row | None) -> str:
    return "gone" if row is None else str(row["state"])


def _done(row: Row | None) -> bool:
    return _state(row) == "succeeded"


def _doubled(sink: Sink) -> Iterator[str]:
    """A step with two effects, or one claim that was carried out twice."""
    effects = Counter((effect.job, effect.step) for effect in sink.kept.values())
    yield from (f"job {job} has {count} effects in step {step}" for (job, step), count in effects.items() if count > 1)
    runs = Counter((one.job, one.step, one.token) for one in sink.deliveries)
    yield from (f"job {job} ran step {step} {n} times under {t}" for (job, step, t), n in runs.items() if n > 1)


def _overwritten(number: int, row: Row, workers: dict[int, Row], effects: Effects) -> Iterator[str]:
    """The result, the effects and the row must all name the same claim: the winner's."""
    result = row["result"] if isinstance(row["result"], dict) else json.loads(row["result"])
    winner = row["epoch"], workers[row["owner"]]["pid"]
    if (result["token"], result["pid"]) != winner:
        yield f"job {number}: the result is of {result}, the job was won by {winner}"
    if row["actor"] != f"w:{row['owner']}":
        yield f"job {number} was ended by {row['actor']}, though w:{row['owner']} held it"
    for step in STEPS:
        effect = effects.get((number, step))
        if effect is None or (effect.token, effect.pid) != winner:
            yield f"job {number}: step {step} has the effect {effect}, the job was won by {winner}"


async def _workers(store: Store) -> list[Row]:
    log = await read_log(store, EventFilter(entity=WORKER.name))
    return await store.rows(WORKER, sorted({event.entity_id for event in log}))


async def _examine_log(store: Store, found: Findings, workers: dict[int, Row], absences: Absences) -> None:
    log = await read_log(store, EventFilter())
    found.events, found.job_events = len(log), sum(event.entity == JOB.name for event in log)
    for name, ids in groupby(sorted({(event.entity, event.entity_id) for event in log}), key=lambda one: one[0]):
        rows = await store.rows(LIFECYCLES[name], [id for _, id in ids], ("seq",))
        found.transitions += sum(row["seq"] for row in rows)
    absent = {f"w:{id}": absences.get(row["pid"], ()) for id, row in workers.items()}
    jobs = sorted((event for event in log if event.entity == JOB.name), key=lambda event: (event.entity_id, event.seq))
    for _, events in groupby(jobs, key=lambda event: event.entity_id):
        _examine_job(list(events), absent, found)


def _examine_job(events: list[Event], absent: Mapping[str, Sequence[tuple[float, float]]], found: Findings) -> None:
    for before, after in pairwise(events):
        if (after.epoch, RANK[after.to_state]) <= (before.epoch, RANK[before.to_state]):
            found.backward.append(f"{after.entity_public_id} went from {before.to_state} to {after.to_state}")
    for held, expired, *later in (events[at : at + 3] for at in range(len(events) - 1)):
        if expired.trigger != "expire":
            continue
        at = expired.ts / 1_000_000
        since = [begins for begins, ends in absent.get(str(held.actor), ()) if begins <= at <= ends]
        if not since:
            found.expired_under_the_living += 1
        elif later:
            found.recoveries.append(later[0].ts / 1_000_000 - since[-1])


async def read_log(store: Store, wanted: EventFilter) -> list[Event]:
    log = page = await store.events(wanted, limit=PAGE)
    while page:
        page = await store.events(wanted, after=page[-1].cursor, limit=PAGE)
        log = log + page
    return log
