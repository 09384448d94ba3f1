"""Steps that one job carries out along with its own, and hands in together: a stretch of a flow.

A step with `inline: true` is a short function without effects of its own, so that nobody notices if it is called twice.
Its worker therefore need not wait for the database between two of them: having carried out one, it goes on with those
that come next (worker/ahead.py), and all that came of them is written in one transaction, here. Each of them still has
its row, its moves and its events; what it does not have is a job. Whatever is out of the ordinary gets one: a function
that raises, takes long or wants a context is called again by a job of its own, with its own attempts.

Steps that begin at the same time share a job as well. Those beside the one it is of are its companions: they are named
in its payload, and when it ends, whatever became of it, they have been carried out or begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from detent.flow.phase import Phase
from detent.lifecycle import JOB, Change
from detent.lifecycle.job import RUNNING
from detent.service.flow_scene import Row, Scene
from detent.service.step_jobs import step_job
from detent.store import Job

STRETCH = "stretch"
"""Under which name it comes with the values of a move; no column is called so."""

MOST_TOGETHER = 100
MOST_AHEAD = 200


class Carried(NamedTuple):
    """What came of a step: as JSON, how long ago, and how long that took."""

    name: str
    output: str
    ago_us: int
    took_us: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a worker hands in with the step its job is of, whose `output` was there `ago_us` before.

    `companions` were not carried out. `alone` are those that must not be carried out along with others again: they have
    raised, or taken too long. `at_once` is how many can be carried out together in good time. `careful` is how many
    steps after this one are to go one by one: a worker has died, and one of them may have been the reason.
    """

    output: Any
    ago_us: int = 0
    carried: tuple[Carried, ...] = ()
    companions: tuple[str, ...] = ()
    alone: frozenset[str] = frozenset()
    at_once: int = MOST_TOGETHER
    careful: int = 0


def companions_of(payload: str) -> tuple[str, ...]:
    """The steps a job carries out along with its own."""
    return tuple(json.loads(payload).get("along", ())) if '"along":' in payload else ()


def carries(job: Job) -> bool:
    """Whether it still carries out its companions: only in its first attempt. Later they begin by themselves."""
    return job.attempts <= (job.state == RUNNING.name)


def worked_on(steps: Mapping[str, Row], jobs: Iterable[Job]) -> Iterator[tuple[int, Job]]:
    """The keys of steps of a flow for which a job is there, and that job."""
    mine = {row["id"] for row in steps.values()}
    for job in jobs:
        if job.step_id is not None and job.step_id in mine:
            yield job.step_id, job
            yield from ((steps[name]["id"], job) for name in companions_of(job.payload) if name in steps)


def begin(scene: Scene, names: Sequence[str], rows: Mapping[str, Row]) -> None:
    """These steps begin, several of them with one job."""
    alone = [name for name in names if name in scene.alone or scene.careful]
    together = [name for name in names if name not in alone]
    size = scene.at_once or MOST_TOGETHER
    for first, *others in [
        *([name] for name in alone),
        *(together[place : place + size] for place in range(0, len(together), size)),
    ]:
        scene.jobs.append(step_job(scene, rows[first], scene.shape.steps[first], along=others))


def firsts(scene: Scene, names: Sequence[str]) -> Sequence[str]:
    """Of steps that begin so, those whose rows are needed."""
    return names if scene.alone or scene.careful else names[:: scene.at_once or MOST_TOGETHER]


def ended_ago(change: Change) -> int:
    """How long ago the step of a job has ended, where others were carried out after it."""
    stretch: Stretch | None = change.values.get(STRETCH)
    return 0 if stretch is None else stretch.ago_us


async def handed_in(scene: Scene, change: Change) -> tuple[list[Row], list[str]]:
    """What came with the end of a job: the steps that have ended with it, moved, and the companions that have not. One
    that is no longer as it was when the worker looked stays as it is."""
    stretch: Stretch | None = change.values.get(STRETCH)
    if stretch is None:
        return [], await _left(scene, change)
    scene.alone |= stretch.alone
    scene.at_once = min(scene.at_once or MOST_TOGETHER, stretch.at_once)
    scene.careful = max(scene.careful, stretch.careful)
    return await _moved(scene, change, stretch.carried), list(stretch.companions)


async def _left(scene: Scene, change: Change) -> list[str]:
    """A job that did not succeed, or was carried out by somebody who does not know of companions."""
    rows = await scene.tx.rows(JOB, [change.id], ("payload",))
    return [name for row in rows for name in companions_of(row["payload"])]


async def _moved(scene: Scene, change: Change, carried: Sequence[Carried]) -> list[Row]:
    before = scene.shape.before
    await scene.look_at({name for one in carried for name in (one.name, *before[one.name])})
    done = []
    for one in carried:
        row = scene.steps[one.name]
        ready = all(scene.phase(scene.steps[name]) is Phase.SATISFIED for name in before[one.name])
        if ready and scene.phase(row) is Phase.WAITING:
            times = {"ago_us": one.ago_us, "took_us": one.took_us}
            scene.move_through(row, **await scene.kept(one.output), **times, job_id=change.id)
            done.append(row)
    return done
