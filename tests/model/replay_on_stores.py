"""Plays what happened in the model to a real store, and compares after every act: the answer, and the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.core.lifecycles import JOB, WORKER, Change, Right
from keptwork.store import NewJob
from tests.model.scenes import Act
from tests.model.world import DELAYS, LEASE_TICKS, Message, Rec, Rules
from tests.support.database_time import Timed

TICK_US = 1_000_000
LEASE_US = LEASE_TICKS * TICK_US


class Player:
    """One job in a queue of its own, and the workers of one play."""

    def __init__(self, rules: Rules, timed: Timed, play: int) -> None:
        self._rules, self._timed, self._store = rules, timed, timed.store
        self._queue = f"play-{play}"
        self._claims = play * 1000
        self._job = 0
        self._workers: dict[str, int] = {}
        self._claim_of: dict[str, int] = {}

    async def play(self, acts: Sequence[Act]) -> str | None:
        """The first difference between the model and the store, in words; none if there is none."""
        job = NewJob("model", queue=self._queue, on_exhausted=self._rules.on_exhausted)
        (self._job,) = await self._store.enqueue([job._replace(max_attempts=self._rules.max_attempts)])
        for number, act in enumerate(acts):
            difference = await self._act(act) or await self._row_differs(act)
            if not difference and number % 3 == 0:
                difference = await self._taken_wrongly(act.scene.rec)
            if difference:
                return f"act {number}: {difference}\n" + "\n".join(map(str, acts[: number + 1]))
        return await self._log_differs(acts[-1].scene.rec)

    async def _act(self, act: Act) -> str | None:
        """Does the same to the store; compares the answer."""
        step, expected = act.outcome.step, act.outcome.accepted
        if step.kind == "tick":
            await self._timed.advance(TICK_US)
        if expected is None:
            return None
        accepted = await self._ask(act, step.message)
        return None if accepted == expected else f"the store {'accepted' if accepted else 'refused'} it"

    async def _ask(self, act: Act, message: Message | None) -> bool:
        if message is None:
            return await self._claim(act.name, again=act.outcome.step.kind == "claim_again")
        if message.trigger == "renew":
            worker = await self._worker(act.name)
            return not await self._store.renew(worker, [(self._job, message.epoch)], LEASE_US)
        return not await self._store.apply([await self._change(act, message)])

    async def _claim(self, name: str, *, again: bool) -> bool:
        if not again:
            self._claims += 1
            self._claim_of[name] = self._claims
        worker, claim_id = await self._worker(name), self._claim_of[name]
        jobs = await self._store.claim(worker, [self._queue], 5, LEASE_US, claim_id=claim_id, again=again)
        return [job.id for job in jobs] == [self._job]

    async def _change(self, act: Act, message: Message) -> Change:
        role = act.outcome.actor.role
        owner = await self._worker(act.name) if role in ("worker", "remnant") else None
        delay = DELAYS.get(message.trigger, 0) * TICK_US
        return self._rules.change(role, message)._replace(
            id=self._job,
            owner=owner if message.right is Right.HOLDER else None,
            actor=f"w:{owner}" if owner else role,
            values={"delay_us": delay, "error": "as played", "result": "{}"},
        )

    async def _worker(self, name: str) -> int:
        if name not in self._workers:
            id = await self._store.create(WORKER, name=name.rstrip("'"), incarnation=name, workspace_id="model")
            self._workers[name] = id
        return self._workers[name]

    # --- comparisons

    async def _row_differs(self, act: Act) -> str | None:
        row = await self._store.get(JOB, self._job, None)
        assert row is not None
        rec, now = act.scene.rec, await self._store.now()
        owner = next((self._workers[name] for name, actor in act.scene.actors if actor.owns), None)
        expected = (rec.state, rec.seq, rec.epoch, rec.attempts, owner, rec.lease, rec.wait)
        waits = _ticks(row["run_at"], now) if rec.state == "queued" else 0
        found = tuple(row[name] for name in ("state", "seq", "epoch", "attempts", "owner"))
        found += (_ticks(row["lease_until"], now), waits)
        return None if found == expected else f"the row is {found}, the model says {expected}"

    async def _taken_wrongly(self, rec: Rec) -> str | None:
        """A bystander asks for work whenever there is none to have."""
        if rec.state == "queued" and rec.wait == 0:
            return None
        return "a bystander could claim it" if await self._claim("bystander", again=False) else None

    async def _log_differs(self, rec: Rec) -> str | None:
        events = [event for event in await self._store.history((self._job, 0), 100) if event.entity_id == self._job]
        found = [event.seq for event in events]
        return None if found == list(range(1, rec.seq + 1)) else f"the log has {found}, the row is at {rec.seq}"


def _ticks(at: Any, now: int) -> int | None:
    """Whole ticks until then, rounded up: on SQLite events a microsecond apart push the clock along."""
    return None if at is None else max(0, -(-(at - now) // TICK_US))
