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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keptwork.flow.phase import Phase
from keptwork.lifecycle import JOB, Change, Verb
from keptwork.service.flow_scene import Row, Scene, cost_of
from keptwork.service.step_jobs import step_job
from keptwork.store import Job

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

    `along` are the companions of the step, carried out or not. `alone` are those that are not to be carried out with
    others again: they have raised, or taken too long. `at_once` is how many can be carried out together in good time.
    `careful` is how many steps after this one are to go one by one: a worker has died, and one of them may have been
    the reason.
    """

    output: Any
    ago_us: int = 0
    carried: tuple[Carried, ...] = ()
    along: tuple[str, ...] = ()
    alone: frozenset[str] = frozenset()
    at_once: int = MOST_TOGETHER
    careful: int = 0


def companions_of(payload: str) -> tuple[str, ...]:
    """The steps a job carries out along with its own."""
    return tuple(json.loads(payload).get("along", ())) if '"along":' in payload else ()


def worked_on(flow: str, jobs: Iterable[Job]) -> Iterator[tuple[str, Job]]:
    """The names of the steps of a flow that are carried out by a job, and that job. Companions are so only under its
    first claim: whatever becomes of that, they are done then, or begin anew."""
    for job in jobs:
        if job.step_id is None:
            continue
        said = json.loads(job.payload)
        if said.get("flow") == flow:
            yield said["step"], job
            if job.epoch == 0:
                yield from ((name, job) for name in said.get("along", ()))


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


async def look_at(scene: Scene, changes: Iterable[Change]) -> None:
    """Reads what came with the ends of these jobs, and what that waited for, at one go."""
    handed = (change.values.get(STRETCH) for change in changes)
    carried = {one.name for stretch in handed if stretch is not None for one in stretch.carried}
    await scene.look_at(carried.union(*map(scene.shape.before.__getitem__, carried)))


async def handed_in(scene: Scene, change: Change) -> tuple[list[Row], list[str]]:
    """What came with the end of a job, and was looked at: the steps that have ended with it, moved, and the companions
    that have not."""
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
    """The companions of a job that did not succeed, that came too late for its own step, or that was carried out by
    somebody who does not know of them. After the death of a worker they go one by one."""
    for row in await scene.tx.rows(JOB, [change.id], ("payload",)):
        careful = MOST_AHEAD if change.move.verb is Verb.EXPIRE else json.loads(row["payload"]).get("careful", 0)
        scene.careful = max(scene.careful, careful)
        return list(companions_of(row["payload"]))
    return []


async def _moved(scene: Scene, change: Change, stretch: Stretch) -> tuple[list[Row], list[str]]:
    """One that is no longer as it was when the worker looked stays as it is, and so does what comes after it: that was
    carried out with what the worker had made of it. After the first claim companions have jobs of their own."""
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
    """Whether all of these steps are done, each as the worker knew it."""
    return not before or all(one not in refused and scene.phase(scene.steps[one]) is Phase.SATISFIED for one in before)
