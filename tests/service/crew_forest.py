"""Trees of crews that are drawn, and a fleet that works on them with faults: the real service, context, steps and
settlement over a real store, one transaction at a time, so that after each of them it can be looked at everything.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from keptwork.context import Context
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.crews import plan as crew_plan
from keptwork.errors import InvalidTransition
from keptwork.job import JobType
from keptwork.jobs.complete import applied
from keptwork.jobs.outcome import settle
from keptwork.maintenance import reconciler
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.outcomes import PermanentError
from keptwork.process.tool import Tools
from keptwork.store import EventFilter, Job, Store
from keptwork.workers.artifacts import Shelf
from keptwork.workers.breaker_check import Gate
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.handlers import Threads
from keptwork.workers.steps import Steps, said_by
from keptwork.workers.waits import Desk
from tests.conformance.stage import worker

LEASE = 30_000_000
MANY = 10_000
ROUNDS = 150


class Node(NamedTuple):
    """A crew as it is drawn: what becomes of each share, and the crews each makes, one after the other."""

    fates: tuple[str, ...]
    inside: tuple[tuple[Node, ...], ...]

    @property
    def sound(self) -> bool:
        """Whether nothing in it fails."""
        return "fails" not in self.fates and all(node.sound for nodes in self.inside for node in nodes)

    @property
    def size(self) -> int:
        """How many crews it is, with those inside."""
        return 1 + sum(node.size for nodes in self.inside for node in nodes)

    @property
    def result(self) -> list[Any]:
        return [[share, [node.result for node in nodes]] for share, nodes in enumerate(self.inside)]


class Forest(NamedTuple):
    """Outermost crews, in the order they are submitted, and the quotas they live under."""

    trees: tuple[Node, ...]
    quotas: tuple[int, ...]
    seed: int


FATES = st.sampled_from(["well", "well", "well", "shaky", "fails"])


def nodes(depth: int) -> st.SearchStrategy[Node]:
    inner = st.just(()) if depth == 0 else st.lists(nodes(depth - 1), max_size=1 if depth > 1 else 2).map(tuple)
    share = st.tuples(FATES, inner)
    return st.lists(share, min_size=1, max_size=3).map(
        lambda shares: Node(tuple(fate for fate, _ in shares), tuple(inside for _, inside in shares))
    )


def forests(depth: int = 2, most: int = 4) -> st.SearchStrategy[Forest]:
    trees = st.lists(nodes(depth), min_size=1, max_size=most).map(tuple)
    return st.builds(Forest, trees, st.tuples(*[st.integers(3, 4)] * 6), st.integers(0, 1 << 30))


class Fleet:
    """Those who work on a forest for one tenant, and whoever looks at them."""

    def __init__(self, store: Store, tenant: int, forest: Forest, advance: Callable[[int], Awaitable[None]]) -> None:
        self.store = store
        self.tenant = tenant
        self.forest = forest
        self._advance = advance
        self._random = random.Random(forest.seed)
        self._kinds = {"dig": JobType.of(self._dig, name="dig", max_attempts=1000, backoff="10ms", lease="30s")}
        self._in_hand: list[Job] = []
        self._threads = Threads(lambda: None)
        self._called_off = False
        self.deeds: dict[str, int] = {}

    async def _dig(self, ctx: Context, share: int, shares: int, task: str, path: list[int]) -> Any:
        node = self._node(path)
        assert (shares, task) == (len(node.fates), "dig")
        results = [
            await ctx.crew("dig", task="dig", workers=len(inner.fates), path=[*path, share, number])
            for number, inner in enumerate(node.inside[share])
        ]
        if node.fates[share] == "fails":
            raise PermanentError("as drawn")
        if node.fates[share] == "shaky" and ctx.attempt == 1:
            raise ValueError("for once, as drawn")
        return [share, results]

    def _node(self, path: list[int]) -> Node:
        node = self.forest.trees[path[0]]
        for share, number in zip(path[1::2], path[2::2], strict=True):
            node = node.inside[share][number]
        return node

    # --- what happens

    async def begin(self) -> None:
        self._journal = Journal(self.store, lambda job: True, lambda pause: None, self._threads)  # type: ignore[arg-type, return-value]
        self._shelf = Shelf(self.store, lambda job: True, lambda pause: None)  # type: ignore[arg-type, return-value]
        self._worker = await worker(self.store)
        await crews.set_quotas(self.store, self.tenant, dict(enumerate(self.forest.quotas)))
        self._waiting = list(range(len(self.forest.trees)))
        self.keys: dict[int, int] = {}

    async def submit(self) -> None:
        if self._waiting:
            tree = self._waiting.pop(0)
            workers = len(self.forest.trees[tree].fates)
            new = crews.new_crew(self._kinds["dig"], {"path": [tree]}, self.tenant, task="dig", workers=workers)
            self.keys[tree] = await crews.submit(self.store, new)

    async def claim(self, limit: int) -> None:
        self._in_hand += await self.store.claim(
            self._worker,
            ["default"],
            limit,
            LEASE,
            claim_id=self._random.getrandbits(60),
            tenant_id=self.tenant,
            start=True,
        )

    async def run_one(self, dies: bool = False) -> None:
        """Runs a handler and writes what it said, unless its worker dies before."""
        if self._in_hand:
            job = self._in_hand.pop(self._random.randrange(len(self._in_hand)))
            kind = self._kinds[job.kind]
            desk = Desk(self._journal, self._kinds, Tools(), Gate(self.store))
            context = Context(job, self._shelf, Steps(job, self._journal), desk)
            handler = asyncio.ensure_future(kind.function(context, **json.loads(job.payload)))
            try:
                said: Any = await handler
            except BaseException as error:
                said = said_by(error)
            said = context.steps.settled(said)
            if not dies:
                await applied(self.store, [settle(job, kind, said, lambda: 1.0, f"w:{self._worker}")])

    async def crash_one(self) -> None:
        """Nothing more is heard of it."""
        if self._in_hand:
            self._in_hand.pop(self._random.randrange(len(self._in_hand)))

    async def let_time_pass(self, microseconds: int) -> None:
        await self._advance(microseconds)
        await Reaper(self.store, lambda: None, Outage()).run_once()

    async def call_one_off(self) -> None:
        """A crew that has not ended, of any depth."""
        found = [row for row in await self._crews() if row["completed_at"] is None]
        if found and not self._called_off:
            self._called_off = True
            row = self._random.choice(found)
            try:
                await crews.cancel(self.store, self.tenant, public_id(CREW.name, row["id"]))
            except InvalidTransition as refusal:
                raise AssertionError("it had not ended") from refusal

    async def go_wrong(self, steps: int) -> None:
        """Faults at random."""
        deeds: list[tuple[str, Callable[[], Awaitable[Any]], int]] = [
            ("submit", self.submit, 3),
            ("claim", lambda: self.claim(self._random.randint(1, 3)), 5),
            ("run", self.run_one, 10),
            ("crash", self.crash_one, 1),
            ("die", lambda: self.run_one(dies=True), 2),
            ("moment", lambda: self.let_time_pass(20_000), 2),
            ("lease", lambda: self.let_time_pass(LEASE + 1), 1),
            ("cancel", self.call_one_off, 1 if self.forest.seed % 3 == 0 else 0),
            ("mend", lambda: reconciler.mend(self.store), 1),
        ]
        weights = [weight for _, _, weight in deeds]
        for name, deed, _ in self._random.choices(deeds, weights, k=steps):
            await deed()
            self.deeds[name] = self.deeds.get(name, 0) + 1
            await self.look()

    async def come_to_an_end(self) -> None:
        """Without faults every crew ends."""
        for _ in range(ROUNDS):
            await self.submit()
            await self.let_time_pass(LEASE + 1)
            await self.claim(100)
            while self._in_hand:
                await self.run_one()
                await self.look()
            if not self._waiting and all(row["completed_at"] for row in await self._crews()):
                return
        stuck = [(row["depth"], row["state"]) for row in await self._crews() if row["completed_at"] is None]
        raise AssertionError(f"{len(stuck)} crews never end: {stuck}")

    async def end(self) -> None:
        self._threads.stop()
        self._journal.board.close()

    # --- what must be

    async def _crews(self) -> list[dict[str, Any]]:
        return await self.store.crews(self.tenant, inside=True, limit=MANY)

    async def look(self) -> None:
        """After any transaction. It counts by itself, from the rows."""
        found = await self._crews()
        columns = "crew_id, state, held_by, waits_for, completed_at"
        sql = f"SELECT {columns} FROM jobs WHERE tenant_id = {self.tenant} AND crew_id IS NOT NULL"
        jobs = await self.store.atomically(lambda tx: tx.fetch(sql))
        self._look_at_ends(found, jobs)
        for depth, quota in enumerate(self.forest.quotas):
            same = [row for row in found if row["depth"] == depth]
            keys = {row["id"] for row in same}
            alive = [job for job in jobs if job["crew_id"] in keys and job["completed_at"] is None]
            waiting = [job for job in alive if (job["waits_for"] or "").startswith("crew ")]
            in_line = [job for job in alive if job["held_by"] == "quota" and not job["waits_for"]]
            self._look_at_quota(depth, quota, len(alive) - len(waiting) - len(in_line), len(in_line), same)
            busy = sum(job["state"] in ("assigned", "running") for job in alive)
            assert busy <= quota, f"{busy} shares of depth {depth} are at work, and {quota} may be"

    def _look_at_quota(self, depth: int, quota: int, leaves: int, in_line: int, same: list[dict[str, Any]]) -> None:
        assert leaves <= quota, f"{leaves} shares have a worker of depth {depth}, and {quota} may"
        assert not in_line or leaves == quota, f"a share of depth {depth} waits although a worker is free"
        pending = [row for row in same if row["state"] == "PENDING"]
        if pending:
            first = min(pending, key=lambda row: row["id"])
            free = quota - leaves
            assert in_line or first["worker_count"] > free, f"a crew waits although {free} of depth {depth} are free"
            begun = [row["id"] for row in same if row["started_at"] is not None]
            assert not begun or first["id"] > max(begun), f"a crew of depth {depth} was overtaken"

    def _look_at_ends(self, found: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
        by_key = {row["id"]: row for row in found}
        for row in found:
            mine = [job for job in jobs if job["crew_id"] == row["id"]]
            alive = [job for job in mine if job["completed_at"] is None]
            assert len(mine) == (row["worker_count"] if row["started_at"] is not None else 0)
            if row["completed_at"] is not None:
                assert not alive, f"{len(alive)} shares outlive a crew that is {row['state']}"
            elif row["parent_id"] is not None:
                assert by_key[row["parent_id"]]["completed_at"] is None, "a crew outlives the one it is inside of"

    async def look_at_the_end(self) -> None:
        """Every crew has the end it must have, once; and nothing is held any longer."""
        for tree, key in self.keys.items():
            node = self.forest.trees[tree]
            row = await self.store.get(CREW, key, self.tenant)
            assert row is not None
            if not self._called_off:
                assert row["state"] == ("COMPLETED" if node.sound else "FAILED"), row["error"]
            if row["state"] == "COMPLETED":
                assert json.loads(row["result"]) == node.result
            if node.sound and not self._called_off:
                made = [one for one in await self._crews() if key in (one["id"], one["tree_id"])]
                assert len(made) == node.size, f"{len(made)} crews were made where {node.size} were asked for"
        assert not any(used for _, _, used in await crew_moves.quotas(self.store, self.tenant))
        for row in await self._crews():
            moves = [event.trigger for event in await self.store.events(crew_events(row["id"]), newest_first=True)]
            assert len(moves) == len(set(moves)), moves
            assert sum(CREW.move(trigger).target.final for trigger in moves) == 1
        assert all(job.state in {s.name for s in JOB.states if s.final} for job in await self._all_shares())

    async def _all_shares(self) -> list[Job]:
        return await self.store.shares([row["id"] for row in await self._crews()])


def crew_events(key: int) -> EventFilter:
    return EventFilter(entity=CREW.name, entity_id=key)


async def grown(
    store: Store, tenant: int, forest: Forest, advance: Callable[[int], Awaitable[None]], steps: int = 40
) -> Fleet:
    """A forest worked on, first with faults, then without; whatever is wrong on the way is an AssertionError."""
    assert len(crew_plan.QUOTAS) == len(forest.quotas)
    fleet = Fleet(store, tenant, forest, advance)
    await fleet.begin()
    try:
        await fleet.go_wrong(steps)
        await fleet.come_to_an_end()
        await fleet.look_at_the_end()
    finally:
        await fleet.end()
    return fleet
