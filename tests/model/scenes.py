"""The model acted out: the same rules, but everybody has a name and numbers are the row's real ones.

The explorer forgets who is who; a scene remembers, so that a way through the states can be printed, and played to a
real store.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.model.explore import Explorer, State, kind_of
from tests.model.invariants import final
from tests.model.world import Actor, Outcome, Rec, Rules, Step, ticked

MOST_REMNANTS = 3


class Scene(NamedTuple):
    """The row, and everybody by name: reaper, operator, workers, then what crashed workers left behind."""

    rec: Rec
    actors: tuple[tuple[str, Actor], ...]


class Act(NamedTuple):
    """One thing somebody did, and what came of it."""

    name: str
    outcome: Outcome
    scene: Scene

    def __str__(self) -> str:
        rec, accepted = self.outcome.rec, self.outcome.accepted
        answer = "" if accepted is None else " → accepted" if accepted else " → refused"
        row = f"{rec.state} seq {rec.seq} epoch {rec.epoch} attempts {rec.attempts} lease {rec.lease}"
        return f"{self.name:9} {kind_of(self.outcome.step) + answer:48} | {row}"


def opening(workers: int) -> Scene:
    """A queued job, and nobody has done anything."""
    cast = [("reaper", Actor("reaper")), ("operator", Actor("operator"))]
    return Scene(Rec(), (*cast, *((f"w{number}", Actor("worker")) for number in range(1, workers + 1))))


def acts(rules: Rules, scene: Scene) -> Iterator[Act]:
    """Everything that may happen next."""
    later = ticked(scene.rec)
    if later != scene.rec:
        yield Act("clock", Outcome(Step("tick"), later, Actor("clock")), scene._replace(rec=later))
    for place, (name, actor) in enumerate(scene.actors):
        for outcome in rules.outcomes(scene.rec, actor):
            yield Act(name, outcome, _after(scene, place, outcome))


def _after(scene: Scene, place: int, outcome: Outcome) -> Scene:
    name = scene.actors[place][0]
    actors = list(scene.actors)
    if outcome.owner != "same":
        actors = [(other, actor._replace(owns=False)) for other, actor in actors]
    crashed = outcome.step.kind == "crash"
    actors[place] = (f"{name}'" if crashed else name, outcome.actor)
    if outcome.remnant is not None:
        actors.append((name, outcome.remnant))
    return Scene(outcome.rec, tuple(actors))


def along(explorer: Explorer, way: Sequence[State], last: str = "") -> list[Act]:
    """The acts that lead along these states, the last one of that kind."""
    scene, played = opening(explorer.bounds.workers), []
    for place, state in enumerate(way[1:], 2):
        fitting = (act for act in acts(explorer.rules, scene) if _state(explorer, act.scene) == state)
        kind = last if place == len(way) else ""
        act = next(act for act in fitting if not kind or kind_of(act.outcome.step) == kind)
        played.append(act)
        scene = act.scene
    return played


def _state(explorer: Explorer, scene: Scene) -> State:
    return explorer.state_of(scene.rec, [actor for _, actor in scene.actors])


def repeated(rules: Rules, played: Sequence[Act]) -> list[Act]:
    """The same people doing the same things under other rules, as far as these let them."""
    workers = sum(name.startswith("w") for name, _ in played[0].scene.actors)
    scene, again = opening(workers), []
    for act in played:
        same = [a for a in acts(rules, scene) if (a.name, a.outcome.step) == (act.name, act.outcome.step)]
        if not same:
            break
        again.append(same[0])
        scene = same[0].scene
    return again


def wander(rules: Rules, workers: int, length: int, seed: int) -> list[Act]:
    """A random walk. Endings, operators and mishaps come seldom, or every walk would be over after a few steps."""
    chance, scene, played = random.Random(seed), opening(workers), []
    for _ in range(length):
        possible = [act for act in acts(rules, scene) if len(act.scene.actors) <= 2 + workers + MOST_REMNANTS]
        if not possible:
            break
        (act,) = chance.choices(possible, [_weight(scene, act) for act in possible])
        played.append(act)
        scene = act.scene
    return played


def _weight(scene: Scene, act: Act) -> float:
    weight = {"tick": 2.0, "arrive": 2.0, "resume": 2.0, "stray": 0.5, "drop": 0.2, "crash": 0.3, "pause": 0.2}.get(
        act.outcome.step.kind, 1.0
    )
    if act.name == "operator":
        weight *= 0.1
    return weight * (0.05 if final(act.scene.rec) and not final(scene.rec) else 1.0)
