"""Inline batches: steps that one job runs in addition to its own, and reports with it.

A step with `inline: true` is a short function without side effects, so that it can run twice. Its worker need not wait
for the database between two such steps: after one step, it runs the next ones (workers/inline_runner.py), and this
module writes
all outputs in one transaction. Each batched step still has its row, moves, and events; it has no job. A function that
raises, takes long, or needs a context runs again in its own job, with its own attempts.

Steps that start at the same time also share a job. The payload of the job names the other steps, its companions. When
the job ends, however it ends, its companions have run or they start again.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keptwork.core.lifecycles import JOB, Change, Verb
from keptwork.flows.plan import Phase
from keptwork.flows.steps.kind import step_job
from keptwork.flows.transaction import Row, Scene, cost_of
from keptwork.store import Job

STRETCH = "stretch"
"""The key of a batch in the values of a move. No column has this name."""

MOST_TOGETHER = 100
MOST_AHEAD = 200


class Carried(NamedTuple):
    """The output of a batched step as JSON, how long ago it finished, and how long it ran."""

    name: str
    output: str
    ago_us: int
    took_us: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a worker reports with the step of its job, whose `output` is from `ago_us` before.

    `along` are the companions of the step, whether they have run or not. `alone` are steps that must not run in a batch
    again, because they raised or took too long. `at_once` is how many steps can run in one batch in reasonable time.
    `careful` is how many of the next steps must run one by one, because a worker has died and one of them might be the
    cause.
    """

    output: Any
    ago_us: int = 0
    carried: tuple[Carried, ...] = ()
    along: tuple[str, ...] = ()
    alone: frozenset[str] = frozenset()
    at_once: int = MOST_TOGETHER
    careful: int = 0


def companions_of(payload: str) -> tuple[str, ...]:
    """Return the companions that a job runs with its own step."""
    return tuple(json.loads(payload).get("along", ())) if '"along":' in payload else ()


def worked_on(flow: str, jobs: Iterable[Job]) -> Iterator[tuple[str, Job]]:
    """Yield the names of the steps of a flow that a job works on, with that job.

    Companions count only during the first claim of the job. However that claim ends, they have finished then or start
    again.
    """
    for job in jobs:
        if job.step_id is None:
            continue
        said = json.loads(job.payload)
        if said.get("flow") == flow:
            yield said["step"], job
            if job.epoch == 0:
                yield from ((name, job) for name in said.get("along", ()))


def begin(scene: Scene, names: Sequence[str], rows: Mapping[str, Row]) -> None:
    """Start these inline steps, several of them in one job."""
    alone = [name for name in names if name in scene.alone or scene.careful]
    together = [name for name in names if name not in alone]
    size = scene.at_once or MOST_TOGETHER
    for first, *others in [
        *([name] for name in alone),
        *(together[place : place + size] for place in range(0, len(together), size)),
    ]:
        scene.jobs.append(step_job(scene, rows[first], scene.shape.steps[first], along=others))


def firsts(scene: Scene, names: Sequence[str]) -> Sequence[str]:
    """Return those of these inline steps whose rows are needed: the first of each batch."""
    return names if scene.alone or scene.careful else names[:: scene.at_once or MOST_TOGETHER]


def ended_ago(change: Change) -> int:
    """Return how long ago a job's own step finished, if other steps ran after it."""
    stretch: Stretch | None = change.values.get(STRETCH)
    return 0 if stretch is None else stretch.ago_us


async def look_at(scene: Scene, changes: Iterable[Change]) -> None:
    """Read the steps that came with the ends of these jobs, and the steps before them.

    It takes one query.
    """
    handed = (change.values.get(STRETCH) for change in changes)
    carried = {one.name for stretch in handed if stretch is not None for one in stretch.carried}
    await scene.look_at(carried.union(*map(scene.shape.before.__getitem__, carried)))


async def handed_in(scene: Scene, change: Change) -> tuple[list[Row], list[str]]:
    """Move the steps that came with the end of a job.

    Return them, and the names of the companions that did not finish. `look_at` must have read the steps.
    """
    stretch: Stretch | None = change.values.get(STRETCH)
    if stretch is None:
        return [], await left(scene, change)
    scene.alone |= stretch.alone
    scene.at_once = min(scene.at_once or MOST_TOGETHER, stretch.at_once)
    scene.careful = max(scene.careful, stretch.careful)
    moved, refused = await _moved(scene, change, stretch)
    done = {row["name"] for row in moved}
    return moved, [*(name for name in stretch.along if name not in done), *refused]


async def left(scene: Scene, change: Change) -> list[str]:
    """Return the companions that a job left unfinished, and prepare their restart.

    The job did not succeed, was late for its own step, or its worker does not report batches. If its worker died, the
    companions run one by one.
    """
    for row in await scene.tx.rows(JOB, [change.id], ("payload",)):
        careful = MOST_AHEAD if change.move.verb is Verb.EXPIRE else json.loads(row["payload"]).get("careful", 0)
        scene.careful = max(scene.careful, careful)
        return list(companions_of(row["payload"]))
    return []


async def _moved(scene: Scene, change: Change, stretch: Stretch) -> tuple[list[Row], list[str]]:
    """Move the batched steps that are as the worker saw them.

    Return them, and the names of the others. If a step has changed since the worker read it, it does not move, and
    neither do the steps after it, because they used its output. After the job's first claim, its companions have jobs
    of their own.
    """
    before = scene.shape.before
    done, refused = [], dict.fromkeys(stretch.along if change.epoch else ())
    for name, output, ago_us, took_us in stretch.carried:
        row = scene.steps[name]
        if name not in refused and scene.phase(row) is Phase.WAITING and _led_up_to(scene, before[name], refused):
            kept = await scene.kept(output)
            scene.move_through(
                row, **kept, cost_micros=cost_of(output), ago_us=ago_us, took_us=took_us, job_id=change.id
            )
            done.append(row)
        else:
            refused[name] = None
    return done, list(refused)


def _led_up_to(scene: Scene, before: Sequence[str], refused: Container[str]) -> bool:
    """Return whether all of these steps are satisfied with the output that the worker used."""
    return not before or all(one not in refused and scene.phase(scene.steps[one]) is Phase.SATISFIED for one in before)
