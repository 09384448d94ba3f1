"""Random flows, and a driver that carries them out through the real engine: a seeded chance decides what is defined, in
which order things happen and what comes of them; time stands still until the driver moves it.

    define → start → ( claim | settle | answer | lose a worker | interfere | let time pass )* → finish
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from keptwork.diagnostics.doctor import runner
from keptwork.errors import AlreadyDecided, BadInput, InvalidTransition
from keptwork.flows import commands as flows
from keptwork.flows.compiled import KINDS, shape
from keptwork.flows.definition import Flow
from keptwork.flows.inline_batch import Carried, Stretch
from keptwork.flows.plan import Phase, Shape, phases
from keptwork.flows.steps.crew import SHARE
from keptwork.flows.steps.kind import DEATHS
from keptwork.flows.transaction import Actor
from keptwork.jobs import complete, outcome
from keptwork.maintenance import reconciler
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.outcomes import Cancel, PermanentError, Snooze
from keptwork.store import Job
from tests.conformance.stage import worker
from tests.support.database_time import Timed

MOST_STEPS = 50
LEASE_US = 60_000_000
WORKERS = 3
FAILING = 0.12
PATIENCE = 10_000
HOUR_US = 3_600_000_000
NOT_AMISS = ("blocked", "stuck")
"""Findings of flows that wait for somebody, or for a worker."""


def nothing() -> None:
    """What every step of a random flow calls; nobody ever does."""


CALL = {"call": f"{__name__}:nothing"}


# --- defining


def random_flow(chance: Random, most: int = MOST_STEPS, inner: tuple[str, ...] = ()) -> Flow:
    """A graph of up to so many steps, or a run; `inner` are the flows its steps may be."""
    kind = "run" if chance.random() < 0.25 else "workstream"
    count = chance.randint(1, most if kind == "workstream" else min(most, 12))
    steps = [_step(chance, kind, place, inner) for place in range(count)]
    said: dict[str, Any] = {"name": "random", "kind": kind, "steps": steps}
    if kind == "workstream":
        said |= {"max_retries": chance.choice((0, 0, 1, 2)), "abandon_after": chance.choice(("0s", "1h"))}
    if chance.random() < 0.1:
        said["timeout"] = "2h"
    return Flow.model_validate(said)


def _step(chance: Random, kind: str, place: int, inner: tuple[str, ...]) -> dict[str, Any]:
    step = {"id": f"s{place}", **_kind(chance, kind, inner)}
    if kind == "run":
        return step
    before = chance.sample(range(place), min(place, chance.choice((0, 1, 1, 2, 4))))
    if before:
        step["depends_on"] = [f"s{one}" for one in sorted(before)]
    if chance.random() < 0.15:
        step["when"] = chance.choice(("true", "false"))
        if "for_each" in step:
            step["when"] = {"true": "${item} not in [1, 4, 5]", "false": "${item} < 0"}[step["when"]]
    return step


def _kind(chance: Random, kind: str, inner: tuple[str, ...]) -> dict[str, Any]:
    drawn = chance.random()
    if drawn < 0.1:
        return {"approval": {"expires": "30m"} if chance.random() < 0.3 else {}}
    if drawn < 0.16 and inner:
        return {"flow": chance.choice(inner)}
    if drawn < 0.2:
        return {"crew": {"task": "it", "workers": chance.randint(1, 4), **CALL}}
    if drawn < 0.3 and kind == "workstream":
        items = chance.choice(
            ([], list(range(chance.randint(1, 12))), "${flow.name}" if chance.random() < 0.2 else [0])
        )
        each = {"items": items, "limit": chance.choice((1, 2, 5))}
        return {**CALL, "for_each": each, "retries": chance.choice((0, 2))}
    return {**CALL, "retries": chance.choice((0, 0, 1, 3)), "inline": chance.random() < 0.4}


# --- carrying out


class Driver:
    """Carries flows out until each has ended, or waits for something that can be named. `meddling` says how often
    operators interfere; at 0 never."""

    def __init__(self, timed: Timed, seed: int, *, meddling: float = 0.5, patience: int = PATIENCE) -> None:
        self._timed, self._store = timed, timed.store
        self._chance = Random(seed)
        self._meddling = meddling
        self._patience = patience
        self._workers: list[int] = []
        self._hands: list[Job] = []
        self._claims = 0
        self._failures: Counter[int] = Counter()
        self.refs: list[flows.FlowRef] = []
        self.definitions: list[Flow] = []
        self.amiss: list[str] = []
        """What an operator's doings left that is not in order, as the doctor says it."""

    async def run(self, count: int, most: int = MOST_STEPS) -> None:
        for _ in range(WORKERS):
            self._workers.append(await worker(self._store))
        for _ in range(count):
            await self._start(most)
            for _ in range(self._chance.randint(0, 3)):
                await self._act()
        await self._until_all_rest()

    async def _start(self, most: int) -> None:
        small = {f"inner{n}": random_flow(self._chance, 4) for n in range(2)}
        library = {name: flow.model_copy(update={"name": name}) for name, flow in small.items()}
        library["nested"] = random_flow(self._chance, 3, tuple(small)).model_copy(update={"name": "nested"})
        definition = random_flow(self._chance, most, tuple(library))
        hold = self._meddling > 0 and self._chance.random() < 0.05
        self.refs.append(await flows.start(self._store, definition, library=library, hold=hold))
        self.definitions.append(definition)

    async def _until_all_rest(self) -> None:
        for _ in range(self._patience):
            if await self._all_rest():
                return
            await self._act()
        raise AssertionError(f"after {self._patience} actions there is still something to do")

    async def _all_rest(self) -> bool:
        """Whether every flow has ended."""
        if self._hands:
            return False
        for kind in KINDS.values():
            keys = [ref.id for ref in self.refs if ref.kind is kind]
            if any(row["completed_at"] is None for row in await self._store.rows(kind.flow, keys, ("completed_at",))):
                return False
        return True

    async def _act(self) -> None:
        ways: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (4, self._claim),
            (4, self._settle),
            (2, self._answer),
            (0.3, self._lose),
            (1, self._let_time_pass),
            (self._meddling, self._meddle),
            (0.5, self._free),
        ]
        (way,) = self._chance.choices([way for _, way in ways], [weight for weight, _ in ways])
        await way()

    async def _claim(self) -> None:
        self._claims += 1
        who = self._chance.choice(self._workers)
        jobs = await self._store.claim(
            who, ["default"], self._chance.randint(1, 8), LEASE_US, claim_id=self._claims, start=True
        )
        self._hands += jobs

    async def _settle(self) -> None:
        self._chance.shuffle(self._hands)
        count = self._chance.randint(1, 6)
        batch, self._hands = self._hands[:count], self._hands[count:]
        said = [(job, await self._said(job)) for job in batch]
        changes = [outcome.settle(job, None, what, self._chance.random, f"w:{job.owner}") for job, what in said]
        if changes:
            await complete.applied(self._store, sorted(changes, key=lambda change: change.move.trigger))

    async def _said(self, job: Job) -> Any:
        drawn = self._chance.random()
        if drawn < FAILING:
            error = self._chance.choice((RuntimeError("at times"), PermanentError("always")))
            self._failures[job.id] += 1
            if job.kind != SHARE:  # as workers do, who do not count the deaths of others
                error.final = self._failures[job.id] >= job.max_attempts - DEATHS  # type: ignore[union-attr]
            return outcome.Raised(error)
        if drawn < FAILING + 0.06:
            return self._chance.choice((Snooze("1s"), outcome.Release(), Cancel("no longer wanted")))
        return await self._stretch(job, {"value": self._chance.randint(0, 9)})

    async def _stretch(self, job: Job, output: dict[str, int]) -> Any:
        """What a worker says of a step, with what it carried out along with it, if it is inline. Now and then it offers
        what could not be carried out then, or was done meanwhile: it looks without a lock."""
        said = json.loads(job.payload)
        whole = await shape(self._store, job.tenant_id, said["template"]) if "template" in said else None
        if whole is None or "[" in said["step"] or not whole.steps[said["step"]].inline or self._chance.random() < 0.1:
            return output
        along, carried = said.get("along", []), list[str]()
        if job.attempts > 1:
            return Stretch(output, along=tuple(along), careful=self._chance.choice((0, 1, 3)))
        waiting = [*(name for name in along if self._chance.random() < 0.9), *self._next(whole, said["step"], carried)]
        while waiting and self._chance.random() < 0.95:
            carried.append(waiting.pop(0))
            later = self._next(whole, carried[-1], [said["step"], *carried])
            waiting += [name for name in later if name not in waiting]
        took = [Carried(name, '{"value":1}', 10 * (len(carried) - place), 5) for place, name in enumerate(carried, 1)]
        alone = frozenset(name for name in waiting if self._chance.random() < 0.3)
        careful = self._chance.choice((0, 0, 0, 1, 3))
        return Stretch(
            output, 10 * len(carried), tuple(took), tuple(along), alone, self._chance.choice((1, 3, 100)), careful
        )

    def _next(self, whole: Shape, name: str, done: list[str]) -> list[str]:
        ready = [
            one for one in whole.after[name] if {*whole.before[one]} <= {name, *done} or self._chance.random() < 0.1
        ]
        return [one for one in ready if whole.steps[one].inline and one not in done]

    async def _lose(self) -> None:
        """A worker dies: what it held comes back when its lease is over."""
        if self._hands:
            self._hands.pop(self._chance.randrange(len(self._hands)))

    async def _let_time_pass(self) -> None:
        await self._timed.advance(self._chance.choice((1_000, 1_000_000, 100_000_000, HOUR_US)))
        await Reaper(self._store, lambda: None, Outage()).run_once()
        await flows.wake(self._store)
        await reconciler.mend(self._store)

    async def _answer(self) -> None:
        gates = await self._open_gates()
        if not gates:
            return
        gate = self._chance.choice(gates)
        decision = self._chance.choice(("approved", "approved", "approved", "rejected"))
        try:
            await flows.decide_gate(self._store, gate, decision, by="ann")
        except (AlreadyDecided, BadInput):
            return  # its time is over, or its flow is

    async def _open_gates(self) -> list[dict[str, Any]]:
        found = []
        for approval in await self._store.approvals(1, limit=200):
            if approval.step_id is not None:
                found += await self._store.steps_by_key([approval.step_id])
        return sorted(found, key=lambda row: row["id"])

    async def _free(self) -> None:
        ref = self._chance.choice(self.refs)
        (row,) = await self._store.rows(ref.kind.flow, [ref.id])
        if row["held_at"] is not None and row["completed_at"] is None:
            await flows.let_go(self._store, ref, Actor("operator"))

    async def _meddle(self) -> None:
        """An operator does something, whether it can be done or not."""
        ref, actor = self._chance.choice(self.refs), Actor("operator")
        what = self._chance.choice(("cancel", "retry", "resume", "hold", "let_go", "skip", "reset", "skip", "reset"))
        try:
            if what in ("skip", "reset"):
                steps = await self._store.steps(ref.id)
                failed = [row for row in steps if phases(ref.kind.step)[row["state"]] is Phase.FAILED]
                step = self._chance.choice(failed or steps)
                await (flows.skip if what == "skip" else flows.reset)(self._store, step, actor)
            elif what != "cancel" or self._chance.random() < 0.2:
                await getattr(flows, what)(self._store, ref, actor)
        except (BadInput, InvalidTransition):
            return  # it could not be done, and was said to be so
        found = await runner.examine_flow(self._store, ref)
        self.amiss += [f"after {what}: {one.check}: {one.says}" for one in found if one.check not in NOT_AMISS]
