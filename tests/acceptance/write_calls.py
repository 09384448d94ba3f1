"""Every write call of the store: what it needs beforehand, how it is made, and made again, and what must come of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

from keptwork.audit.seals import next_seal
from keptwork.audit.verify import verify
from keptwork.core.lifecycles import AGENT, BREAKER, JOB, LIFECYCLES, RUN, RUN_STEP, WORKER, Change
from keptwork.core.schedule_rules import Rule
from keptwork.errors import Unreachable
from keptwork.store import Artifact, Blob, Job, NewJob, Store
from keptwork.store.contract.access import ApiKeyRow, NewApiKey
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.agents_transcripts import NewLine
from keptwork.store.contract.budgets import Bucket, Budget, Charge, Closed, Closing, NewBudget, NewCharge
from keptwork.store.contract.checkpoints import Report, Save
from keptwork.store.contract.crews import HELD_BY_QUOTA, Quota, waits_for_crew
from keptwork.store.contract.events_seals import NewSeal
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.flows_templates import NewTemplate, Template
from keptwork.store.contract.jobs_spawned import keys_of
from keptwork.store.contract.outbox import Delivery, NewDelivery
from keptwork.store.contract.queues import Plan, Schedule
from keptwork.store.contract.records import DEFAULT_TENANT, Counter, Expiry, LimitRule, Progress, Seen, Standing
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import NewSignal, Sent, Signal
from tests.conformance.stage import LEASE, NEEDED, claimed, decided, entity, in_state, queued, running, worker

HOUR = 3_600_000_000
RULE = LimitRule("job", "kind", 1)
ENDPOINT, KEY, HASH, SAID = "POST /jobs", "key-1", "hash", '{"said": 1}'

Arrange = Callable[[Store], Awaitable[Any]]
Make = Callable[[Store, Any, bool], Awaitable[Any]]
Check = Callable[[Store, Any, Any], Awaitable[None]]


class Call(NamedTuple):
    """One way to call a verb. `make` is told whether it is made again; `events` is how many it leaves, however often.

    `known_to_the_caller` says that anybody can make it again: all it takes is in the arguments. Otherwise only the
    store knows which rows it sent, and must send them again itself.
    """

    verb: str
    arrange: Arrange
    make: Make
    check: Check
    events: int = 1
    known_to_the_caller: bool = True


async def made_until_answered(call: Call, store: Store, given: Any) -> Any:
    """As a careful caller does it: without an answer the same call is made again, where that can be done."""
    again = False
    while True:
        try:
            return await call.make(store, given, again)
        except Unreachable:
            if not call.known_to_the_caller:
                raise
            again = True


async def examine(call: Call, store: Store, given: Any, result: Any, events_before: int) -> None:
    """The answer is right, and however often the call was made, it has left its events once, without a gap."""
    await call.check(store, given, result)
    assert await store.event_count() - events_before == call.events
    assert list((await verify(store)).problems) == []


async def nothing(store: Store) -> None:
    """Nothing is needed beforehand."""


async def jobs_are(store: Store, ids: list[int]) -> None:
    assert sorted(row["id"] for row in await store.jobs(limit=1000, columns=("id",))) == sorted(ids), (
        "there are other jobs"
    )


# --- enqueue


async def enqueue(store: Store, _: Any, again: bool) -> list[int]:
    return await store.enqueue([NewJob("k")] * 3)


async def enqueue_by_key(store: Store, _: Any, again: bool) -> list[int]:
    return await store.enqueue([NewJob("k", key=f"key-{number}") for number in range(3)])


async def enqueued(store: Store, _: Any, ids: list[int]) -> None:
    assert len(set(ids)) == 3
    await jobs_are(store, ids)


# --- claim


async def five_jobs(store: Store) -> tuple[int, list[int]]:
    """More than one claim takes, so that a second claim would take others."""
    return await worker(store), await queued(store, 5)


def claim(start: bool) -> Make:
    async def make(store: Store, given: tuple[int, list[int]], again: bool) -> list[int]:
        jobs = await store.claim(given[0], ["default"], 2, LEASE, claim_id=77, start=start, again=again)
        if again and not jobs:  # it was lost on its way there
            jobs = await store.claim(given[0], ["default"], 2, LEASE, claim_id=77, start=start)
        return [job.id for job in jobs]

    return make


async def claimed_two(store: Store, given: tuple[int, list[int]], got: list[int]) -> None:
    owner, ids = given
    assert got == ids[:2], "it got other jobs than the first time"
    rows = await store.rows(JOB, ids, ("id", "owner"))
    assert sorted(row["id"] for row in rows if row["owner"] == owner) == got


async def enqueue_started(store: Store, owner: int, again: bool) -> Job:
    return await store.enqueue_started(NewJob("k"), owner, LEASE, 7)


async def is_started(store: Store, owner: int, job: Job) -> None:
    await jobs_are(store, [job.id])
    assert (job.state, job.owner) == ("running", owner)


# --- apply


def change(trigger: str, state: str, by: str) -> Arrange:
    async def arrange(store: Store) -> Change:
        id = await in_state(store, await worker(store), state)
        values = {"result": '{"n": 1}', "error": "wrong", "delay_us": 0}
        return (await decided(store, JOB, id, trigger, by=by, values=values))._replace(actor="somebody")

    return arrange


async def three_changes(store: Store) -> list[Change]:
    """Of two triggers, so that they take two statements in one transaction."""
    ids = await running(store, await worker(store), 3)
    triggers = ("cancel", "succeed", "succeed")
    return [await decided(store, JOB, id, trigger, by="holder") for id, trigger in zip(ids, triggers, strict=True)]


async def an_expiry(store: Store) -> Change:
    """The lease is over as soon as it is given."""
    (job,) = await claimed(store, await worker(store), lease_us=0)
    return (await decided(store, JOB, job.id, "expire", by="reaper"))._replace(actor="reaper")


def worker_change(trigger: str, state: str) -> Arrange:
    async def arrange(store: Store) -> Change:
        return await decided(store, WORKER, await worker(store, state), trigger)

    return arrange


async def apply(store: Store, given: Change | list[Change], again: bool) -> list[Change]:
    return await store.apply(given if isinstance(given, list) else [given])


async def applied(store: Store, given: Change | list[Change], late: list[Change]) -> None:
    assert late == []
    for one in given if isinstance(given, list) else [given]:
        (row,) = await store.rows(one.lifecycle, [one.id])
        assert (row["seq"], row["move"], row["state"]) == (one.seq + 1, one.move.trigger, one.move.target.name)


# --- all else


async def held_jobs(store: Store) -> tuple[int, list[tuple[int, int]]]:
    owner = await worker(store)
    return owner, [(job.id, job.epoch) for job in await claimed(store, owner, 2)]


async def renew(store: Store, given: tuple[int, list[tuple[int, int]]], again: bool) -> list[tuple[int, int]]:
    return await store.renew(given[0], given[1], HOUR)


async def renewed(store: Store, given: tuple[int, list[tuple[int, int]]], lost: list[tuple[int, int]]) -> None:
    assert lost == []
    rows, now = await store.rows(JOB, [id for id, _ in given[1]]), await store.now()
    assert all(now < row["lease_until"] <= now + HOUR and row["lease_until"] > now + HOUR // 2 for row in rows)


def create(name: str) -> Make:
    async def make(store: Store, _: Any, again: bool) -> int:
        return await store.create(LIFECYCLES[name], **NEEDED[name])

    return make


def created(name: str) -> Check:
    async def check(store: Store, _: Any, id: int) -> None:
        assert await store.counts(LIFECYCLES[name]) == (1, 0), "there is another one"
        assert len(await store.rows(LIFECYCLES[name], [id])) == 1

    return check


async def one_running(store: Store) -> int:
    return (await running(store, await worker(store)))[0]


async def request_stop(store: Store, id: int, again: bool) -> bool:
    return await store.request_stop(id, 1)


async def stop_requested(store: Store, id: int, answer: bool) -> None:
    (row,) = await store.rows(JOB, [id])
    assert answer
    assert row["cancel_requested_at"] is not None


async def a_worker(store: Store) -> int:
    return await worker(store)


async def beat(store: Store, id: int, again: bool) -> Standing | None:
    return await store.beat(id)


async def heard_of(store: Store, id: int, standing: Standing | None) -> None:
    (row,) = await store.rows(WORKER, [id])
    assert row["seen_at"] is not None
    assert standing == Standing("IDLE", None, None, None)


async def ask_to_end(store: Store, id: int, again: bool) -> bool:
    return await store.ask_to_end(id, 1, '{"how":"drain"}')


async def asked_to_end(store: Store, id: int, answer: bool) -> None:
    (row,) = await store.rows(WORKER, [id])
    assert answer
    assert row["ending"] == '{"how":"drain"}'


async def a_silent_worker(store: Store) -> int:
    id = await worker(store)
    await store.beat(id)
    return id


async def silent_workers(store: Store, _: int, again: bool) -> list[int]:
    return [row["id"] for row in await store.silent_workers(0, 10)]


async def found_silent(store: Store, id: int, found: list[int]) -> None:
    assert found == [id]


def pause(paused: bool) -> Make:
    async def make(store: Store, _: Any, again: bool) -> None:
        await store.set_queue_paused("default", paused)

    return make


def is_paused(paused: bool) -> Check:
    async def check(store: Store, _: Any, __: Any) -> None:
        (queue,) = await store.queues(1)
        assert (queue.paused_at is not None) is paused

    return check


async def paused_queue(store: Store) -> None:
    await store.set_queue_paused("default", True)


SCHEDULE = Schedule.of("s", NewJob("k"), Rule.of(every="1h"), "latest", "test", 1)


async def put_schedule(store: Store, _: Any, again: bool) -> None:
    await store.put_schedule(SCHEDULE)


async def one_schedule(store: Store) -> Schedule:
    await store.put_schedule(SCHEDULE)
    return (await store.schedules(1))[0]


async def paused_schedule(store: Store) -> None:
    await one_schedule(store)
    await store.pause_schedule(1, "s")


async def fire_schedules(store: Store, _: Any, again: bool) -> int:
    return await store.fire_schedules(lambda _, now: Plan([NewJob("k")], now + HOUR, 1), 5, 5)


async def fired_once(store: Store, _: Any, count: int) -> None:
    """Whoever lost the answer finds nothing left to fire."""
    assert count in (0, 1)
    assert [one.last_at for one in await store.schedules(1)] == [1]
    assert len(await store.jobs()) == 1


async def pause_schedule(store: Store, _: Any, again: bool) -> bool:
    return await store.pause_schedule(1, "s")


async def resume_schedule(store: Store, _: Any, again: bool) -> bool:
    return await store.resume_schedule(1, "s", 5)


async def drop_schedule(store: Store, _: Any, again: bool) -> bool:
    return await store.drop_schedule(1, "s")


def schedules_are(*expected: tuple[int, int | None, bool]) -> Check:
    """By next tick, last tick, and whether it is paused."""

    async def check(store: Store, _: Any, __: Any) -> None:
        found = [(one.next_at, one.last_at, one.paused_at is not None) for one in await store.schedules(1)]
        assert found == list(expected)

    return check


async def request(store: Store, _: Any, again: bool) -> str:
    """A whole request: recalled, done and answered in one transaction. This is how anything is made repeatable."""
    async with store.transaction() as transaction:
        seen = await transaction.recall(1, ENDPOINT, KEY, HASH)
        if seen is not None:
            return str(seen.response)
        worker = await transaction.create(WORKER, **NEEDED["worker"])
        await transaction.answer(1, ENDPOINT, KEY, str(worker))
        return str(worker)


async def requested_once(store: Store, _: Any, answer: str) -> None:
    await created(WORKER.name)(store, None, int(answer))
    assert await store.recall(1, ENDPOINT, KEY, HASH) == Seen(HASH, answer)


async def open_request(store: Store) -> None:
    assert await store.recall(1, ENDPOINT, KEY, HASH) is None


async def answer(store: Store, _: Any, again: bool) -> None:
    await store.answer(1, ENDPOINT, KEY, SAID)


async def answered(store: Store, _: Any, __: Any) -> None:
    assert await store.recall(1, ENDPOINT, KEY, HASH) == Seen(HASH, SAID)


async def old_request(store: Store) -> None:
    assert await store.recall(1, ENDPOINT, KEY, HASH, ttl_us=-1) is None


async def forget(store: Store, _: Any, again: bool) -> int:
    return await store.forget_requests()


async def forgotten(store: Store, _: Any, count: int) -> None:
    """Housekeeping says what it did itself: the second time there is nothing left to do."""
    assert count in (0, 1)
    assert await store.forget_requests() == 0


# --- what keeps house: the second time there is nothing left to do, and it says so


async def old_telemetry(store: Store) -> None:
    await store.record_telemetry(WORKER, 2, "beat", "{}", ttl_us=-1)


async def forget_telemetry(store: Store, _: Any, again: bool) -> int:
    return await store.forget_telemetry()


async def telemetry_forgotten(store: Store, _: Any, count: int) -> None:
    assert count in (0, 1)
    assert await store.telemetry(WORKER, 2, 1) == []


async def record_telemetry(store: Store, _: Any, again: bool) -> None:
    await store.record_telemetry(WORKER, 1, "beat", "{}", ttl_us=HOUR)


async def telemetry_recorded(store: Store, _: Any, __: Any) -> None:
    """It is no more than something seen: seen twice is seen."""
    assert {seen.payload for seen in await store.telemetry(WORKER, 1, 1)} == {"{}"}


async def an_ended_job(store: Store) -> tuple[int, int]:
    id = await in_state(store, await worker(store), "running")
    assert await store.apply([await decided(store, JOB, id, "succeed", by="holder")]) == []
    return id, await accounted_for(store)


async def accounted_for(store: Store) -> int:
    return sum(gone.rows for gone in await store.pruned())


async def prune(store: Store, given: tuple[int, int], again: bool) -> int:
    return await store.prune(JOB, [given[0]], Expiry({"succeeded": 1 << 60}))


async def pruned(store: Store, given: tuple[int, int], count: int) -> None:
    """Deleted, and accounted for once."""
    assert count in (0, 1)
    assert await store.rows(JOB, [given[0]]) == []
    assert await accounted_for(store) == given[1] + 1


async def an_ended_flow(store: Store) -> tuple[int, int]:
    flow = await a_flow(store)
    (step,) = await store.create_many(RUN_STEP, [{"flow_id": flow, "name": "sign", "position": 0}])
    for lifecycle, id in ((RUN_STEP, step), (RUN, flow)):
        assert await store.apply([await decided(store, lifecycle, id, "cancel")]) == []
    return flow, await accounted_for(store)


async def prune_flow(store: Store, given: tuple[int, int], again: bool) -> int:
    return await store.prune(RUN, [given[0]], Expiry({"CANCELED": 1 << 60}))


async def flow_pruned(store: Store, given: tuple[int, int], count: int) -> None:
    """With its step; both are accounted for once."""
    assert count in (0, 1)
    assert (await store.rows(RUN, [given[0]]), await store.steps(given[0])) == ([], [])
    assert await accounted_for(store) == given[1] + 2


async def an_unused_blob(store: Store) -> str:
    await store.drop_unused_blobs(1 << 60, 100)  # those of other calls
    (job,) = await claimed_and_running(store)
    for content in (b"old", b"new"):
        await store.keep_artifact(job, "page", Blob.of(content), "text/plain")
    return Blob.of(b"old").hash


async def drop_blobs(store: Store, _: Any, again: bool) -> int:
    return await store.drop_unused_blobs(1 << 60, 10)


async def blobs_dropped(store: Store, hash: str, count: int) -> None:
    assert count in (0, 1)
    assert await store.blob(1, hash) is None
    assert await store.blob(1, Blob.of(b"new").hash) == b"new"


async def take_duty(store: Store, _: Any, again: bool) -> bool:
    return await store.take_duty("sweep", HOUR)


async def duty_taken(store: Store, _: Any, __: Any) -> None:
    """Nobody else has it; whoever lost the answer leaves it for the next time."""
    assert not await store.take_duty("sweep", HOUR)


async def something_to_seal(store: Store) -> NewSeal:
    last = await store.last_seal()
    await a_job(store)
    while not (page := await store.events(after=None if last is None else last.upto)):
        pass  # on a busy server the newest events are held back while any transaction is open
    return next_seal(last, page, None)


async def put_seal(store: Store, seal: NewSeal, again: bool) -> bool:
    return await store.put_seal(seal)


async def sealed_once(store: Store, seal: NewSeal, _: bool) -> None:
    assert [one.hash for one in await store.seals(after=seal.number - 1)] == [seal.hash]


async def count(store: Store, _: Any, again: bool) -> bool:
    return await store.count([Counter(1, "seen", "{}", 5)], progress=Progress("reader", None, "7"))


async def counted_once(store: Store, _: Any, __: Any) -> None:
    assert [counter.value for counter in await store.counters(1)] == [5]
    assert await store.log_position("reader") == "7"


async def claimed_and_running(store: Store) -> list[Job]:
    owner = await worker(store)
    await queued(store)
    return await store.claim(owner, ["default"], 1, HOUR, claim_id=5, start=True)


async def keep_artifact(store: Store, jobs: list[Job], again: bool) -> Artifact:
    return await store.keep_artifact(jobs[0], "page", Blob.of(b"page"), "text/plain")


async def artifact_kept(store: Store, jobs: list[Job], kept: Artifact) -> None:
    assert await store.artifacts(1, jobs[0].id) == [kept]
    assert await store.blob(1, kept.hash) == b"page"


async def checkpoint(store: Store, jobs: list[Job], again: bool) -> list[str | None]:
    large = Blob.of(b"large")
    return await store.checkpoint([Save(jobs[0], "one", "1"), Save(jobs[0], "two", large.note, large)])


async def checkpointed(store: Store, jobs: list[Job], stands: list[str | None]) -> None:
    assert [one.result for one in await store.checkpoints(1, jobs[0].id)] == stands
    assert await store.blob(1, Blob.of(b"large").hash) == b"large"


SAYS = [NewLine(0, 0, Blob.of(b'{"text":"hello"}')), NewLine(0, 1, Blob.of(b"{}"))]


async def say(store: Store, jobs: list[Job], again: bool) -> bool:
    return await store.say(jobs[0], SAYS)


async def was_said(store: Store, jobs: list[Job], held: bool) -> None:
    assert (held, [line.hash for line in await store.transcript(1, jobs[0].id)]) == (
        True,
        [new.blob.hash for new in SAYS],
    )


async def with_a_checkpoint(store: Store) -> list[Job]:
    jobs = await claimed_and_running(store)
    await store.checkpoint([Save(jobs[0], "one", "1")])
    return jobs


async def checkpoint_changed(store: Store, jobs: list[Job], again: bool) -> None:
    await store.checkpoint_changed(1, jobs[0].id, "one")


async def change_noted(store: Store, jobs: list[Job], _: Any) -> None:
    assert [one.changed_at is not None for one in await store.checkpoints(1, jobs[0].id)] == [True]


async def note_progress(store: Store, jobs: list[Job], again: bool) -> None:
    await store.note_progress([Report(jobs[0], "{}")], HOUR)


async def progress_noted(store: Store, jobs: list[Job], _: Any) -> None:
    assert [seen.payload for seen in await store.telemetry(JOB, jobs[0].id, 1)] == ["{}"]


async def held_back(store: Store) -> list[int]:
    return await queued(store, 2, held_by="version:a@1")


async def lift_holds(store: Store, _: Any, again: bool) -> int:
    return await store.lift_holds(["version:a@1"])


async def holds_lifted(store: Store, ids: list[int], count: int) -> None:
    """Whoever asks again finds none left."""
    assert count in (0, 2)
    assert [row["held_by"] for row in await store.rows(JOB, ids, ("held_by",))] == [None, None]


# --- breakers


async def a_breaker(store: Store) -> int:
    return await store.create(BREAKER, name="api")


async def lock_breaker(store: Store, _: Any, again: bool) -> Any:
    return await store.lock_breaker(1, "api")


async def breaker_locked(store: Store, id: int, row: dict[str, Any]) -> None:
    assert row["id"] == id


async def to_hold(store: Store) -> list[int]:
    return await queued(store, 2, hold_key="breaker:api")


async def hold_back(store: Store, _: Any, again: bool) -> int:
    return await store.hold_back(1, "breaker:api", 9)


async def held_by_breaker(store: Store, ids: list[int], count: int) -> None:
    """Whoever asks again finds none left."""
    assert count in (0, 2)
    assert {row["held_by"] for row in await store.rows(JOB, ids, ("held_by",))} == {"breaker:api"}


async def held_by_a_breaker(store: Store) -> list[int]:
    return await queued(store, 2, held_by="breaker:api")


async def let_go(store: Store, _: Any, again: bool) -> int:
    return await store.let_go(1, "breaker:api", 9)


async def let_one_go(store: Store, _: Any, again: bool) -> tuple[int, str] | None:
    return await store.let_one_go(1, "breaker:api")


async def one_let_go(store: Store, ids: list[int], gone: tuple[int, str]) -> None:
    """Whoever asks again is given another: which one it is, is kept in the transaction that lets it go."""
    assert gone in [(id, "default") for id in ids]
    free = [row["id"] for row in await store.rows(JOB, ids, ("id", "held_by")) if row["held_by"] is None]
    assert gone[0] in free


# --- money


async def a_job(store: Store) -> int:
    return (await queued(store))[0]


def budget_of(job: int) -> NewBudget:
    return NewBudget(1, job, "job", f"job {job}", 1000, 80, "config")


async def standing(store: Store, job: int) -> Budget:
    found = await store.budget(1, job)
    assert found is not None
    return found.budget


async def make_budgets(store: Store, job: int, again: bool) -> None:
    await store.make_budgets([budget_of(job)])


async def budget_made(store: Store, job: int, _: None) -> None:
    assert await store.budget(1, job) is not None


async def a_budget(store: Store) -> Budget:
    job = await a_job(store)
    await store.make_budgets([budget_of(job)])
    return await standing(store, job)


async def lock_budgets(store: Store, budget: Budget, again: bool) -> list[Budget]:
    return await store.lock_budgets(1, [budget.owner])


async def budget_locked(store: Store, budget: Budget, found: list[Budget]) -> None:
    assert found == [budget]


async def keep_budget(store: Store, budget: Budget, again: bool) -> None:
    await store.keep_budget(budget._replace(cap_micros=7))


async def budget_kept(store: Store, budget: Budget, _: None) -> None:
    assert (await standing(store, budget.owner)).cap_micros == 7


async def an_old_budget(store: Store) -> int:
    await store.make_budgets([budget_of(7)])
    return await store.now() + HOUR


async def forget_budgets(store: Store, older_than: int, again: bool) -> int:
    return await store.forget_budgets(older_than)


async def budgets_forgotten(store: Store, _: int, count: int) -> None:
    """Whoever asks again finds none left."""
    assert await store.budget(1, 7) is None


async def open_charge(store: Store, budget: Budget, again: bool) -> int:
    return await store.open_charge(NewCharge(1, budget.owner, None, "turn 1", "p", "m", 100, 20_773))


async def charge_open(store: Store, budget: Budget, id: int) -> None:
    assert [one.id for one in await store.charges(1, job=budget.owner)] == [id]
    assert (await standing(store, budget.owner)).reserved_micros == 100


async def an_open_charge(store: Store) -> Charge:
    id = await open_charge(store, await a_budget(store), False)
    return (await store.charges(1))[0]._replace(id=id)


async def lock_jobs(store: Store, job: int, again: bool) -> dict[int, tuple[int, int | None]]:
    return await store.lock_jobs([job])


async def job_locked(store: Store, job: int, found: dict[int, tuple[int, int | None]]) -> None:
    assert found == {job: (0, None)}


async def close_charge(store: Store, charge: Charge, again: bool) -> Closed | None:
    return await store.close_charge(charge.id, Closing("settled", 40))


async def charge_closed(store: Store, charge: Charge, closed: Closed | None) -> None:
    """Whoever asks again is told that it is no longer open."""
    assert (await store.charges(1, job=charge.job_id))[0].cost_micros == 40
    budget = await standing(store, charge.job_id)
    assert (budget.reserved_micros, budget.spent_micros) == (0, 40)


async def lock_bucket(store: Store, _: Any, again: bool) -> Bucket:
    return await store.lock_bucket("p", "m")


async def bucket_made(store: Store, _: Any, bucket: Bucket) -> None:
    assert bucket == await store.bucket("p", "m")


async def a_bucket(store: Store) -> Bucket:
    return await store.lock_bucket("p", "m")


async def keep_bucket(store: Store, bucket: Bucket, again: bool) -> None:
    await store.keep_bucket(bucket._replace(empty_at=5))


async def bucket_kept(store: Store, bucket: Bucket, _: None) -> None:
    assert await store.bucket("p", "m") == bucket._replace(empty_at=5)


async def set_quotas(store: Store, _: Any, again: bool) -> None:
    await store.set_quotas(1, {0: 7})


async def quotas_set(store: Store, _: Any, nothing: None) -> None:
    assert await store.quotas(1) == [Quota(0, 7, 0)]


async def held_by_quota(store: Store) -> list[int]:
    return await queued(store, 2, held_by=HELD_BY_QUOTA)


async def go_on(store: Store, ids: list[int], again: bool) -> int:
    return await store.go_on(ids)


async def an_agent(store: Store) -> tuple[Job, int]:
    (job,) = await claimed_and_running(store)
    return job, await store.create(AGENT, description="say hello", job_id=job.id)


async def still_claimed(store: Store, given: tuple[Job, int], again: bool) -> bool:
    return await store.still_claimed(given[0])


async def is_claimed_still(store: Store, given: tuple[Job, int], held: bool) -> None:
    assert held


async def note_call(store: Store, given: tuple[Job, int], again: bool) -> None:
    await store.note_call(given[0].id, 7, "hello")


async def call_noted(store: Store, given: tuple[Job, int], nothing: None) -> None:
    (row,) = await store.agents_of_jobs([given[0].id])
    assert (row["last_call"], row["llm_response"]) == (7, "hello")


def an_audit(agent: int) -> AgentAudit:
    return AgentAudit(agent, 1, 2, "say hello", "Completed", None, "[]", None, 0, 3, 1, 100, 10, 5, "hello", 1, 2)


async def put_agent_audit(store: Store, given: tuple[Job, int], again: bool) -> None:
    await store.put_agent_audit(an_audit(given[1]))


async def audit_put(store: Store, given: tuple[Job, int], nothing: None) -> None:
    assert await store.agent_audits(1, agent=given[1]) == [an_audit(given[1])]


async def for_a_crew(store: Store) -> list[int]:
    (id,) = await running(store, await worker(store))
    waiting = {"delay_us": HOUR, "waits_for": waits_for_crew(7)}
    await store.apply([await decided(store, JOB, id, "snooze", by="holder", values=waiting)])
    return [id]


async def wake_for_crews(store: Store, ids: list[int], again: bool) -> int:
    return await store.wake_for_crews(ids, [7])


async def woken_for_crews(store: Store, ids: list[int], count: int) -> None:
    """Whoever asks again finds nobody who still waits."""
    assert count in (0, 1)
    assert [row["waits_for"] for row in await store.rows(JOB, ids, ("waits_for",))] == [None]


async def add_tenant(store: Store, _: Any, again: bool) -> int:
    return await store.add_tenant("ann")


async def tenant_added(store: Store, _: Any, id: int) -> None:
    assert [tenant.id for tenant in await store.tenants() if tenant.name == "ann"] == [id]


async def set_tenant_limits(store: Store, _: Any, again: bool) -> bool:
    return await store.set_tenant_limits(DEFAULT_TENANT, SAID)


async def tenant_limited(store: Store, _: Any, there: bool) -> None:
    assert there
    assert await store.tenant_limits(DEFAULT_TENANT) == SAID


# --- what jobs wait for


async def spawn(store: Store, jobs: list[Job], again: bool) -> list[int] | None:
    return await store.spawn(Save(jobs[0], "#spawn 1", ""), [NewJob("k", parent_id=jobs[0].id)] * 2)


async def spawned(store: Store, jobs: list[Job], ids: list[int] | None) -> None:
    assert ids is not None
    await jobs_are(store, [jobs[0].id, *ids])
    (kept,) = await store.checkpoints(1, jobs[0].id)
    assert keys_of(kept.result) == ids


async def a_waiting_job(store: Store) -> tuple[int, str]:
    """Waits for an event; and a key to send it under."""
    (job,) = await claimed_and_running(store)
    values = {"run_at": 1 << 60, "waits_for": "event go", "seen": 1 << 60}
    assert await store.apply([await decided(store, JOB, job.id, "snooze", by="holder", values=values)]) == []
    return job.id, str(uuid4())


async def send_signal(store: Store, given: tuple[int, str], again: bool) -> Sent:
    return await store.send_signal(NewSignal(1, "go", "1", given[1], given[0]))


async def signal_sent(store: Store, given: tuple[int, str], sent: Sent) -> None:
    """Once, and the job is due."""
    (row,) = await store.rows(JOB, [given[0]])
    assert row["waits_for"] is None
    assert await store.next_signal(1, given[0], "go", sent.id - 1) == Signal(sent.id, "1")
    assert await store.next_signal(1, given[0], "go", sent.id) is None


async def an_old_signal(store: Store) -> None:
    await store.send_signal(NewSignal(1, "old", "1", str(uuid4())))


async def forget_signals(store: Store, _: Any, again: bool) -> int:
    return await store.forget_signals(1 << 60)


async def signals_forgotten(store: Store, _: Any, count: int) -> None:
    assert await store.next_signal(1, 1, "old", 0) is None


async def open_approval(store: Store, jobs: list[Job], again: bool) -> Approval | None:
    return await store.open_approval(jobs[0], NewApproval("#approval 1", "Ship?"))


async def approval_open(store: Store, jobs: list[Job], approval: Approval | None) -> None:
    assert await store.approvals(1, job=jobs[0].id, open_only=False) == [approval]


async def a_question(store: Store) -> Approval:
    approval = await open_approval(store, await claimed_and_running(store), False)
    assert approval is not None
    return approval


async def decide_approval(store: Store, question: Approval, again: bool) -> Approval | None:
    return await store.decide_approval(1, question.id, "approved", "ann")


async def approval_decided(store: Store, question: Approval, approval: Approval | None) -> None:
    assert approval is not None
    assert approval == await store.approval(1, question.id)
    assert (approval.decision, approval.decided_by) == ("approved", "ann")


async def a_stale_question(store: Store) -> Approval:
    question = await a_question(store)
    assert await store.apply([await decided(store, JOB, question.job_id or 0, "cancel")]) == []
    return question


async def withdraw_approvals(store: Store, _: Any, again: bool) -> int:
    return await store.withdraw_approvals()


async def approvals_withdrawn(store: Store, question: Approval, _: int) -> None:
    found = await store.approval(1, question.id)
    assert found is not None
    assert found.decision == "withdrawn"


# --- flows


async def a_flow(store: Store) -> int:
    return await store.create(RUN)


async def create_many(store: Store, flow: int, again: bool) -> list[int]:
    return await store.create_many(RUN_STEP, [{"flow_id": flow, "name": name} for name in ("a", "b")])


async def steps_created(store: Store, flow: int, ids: list[int]) -> None:
    assert sorted((step["id"], step["name"]) for step in await store.steps(flow)) == list(zip(ids, "ab", strict=True))


async def amend(store: Store, flow: int, again: bool) -> int:
    return await store.amend(RUN, [flow], 1, held_at=5)


async def amended(store: Store, flow: int, count: int) -> None:
    assert count == 1
    assert (await entity(store, RUN, flow))["held_at"] == 5


async def lock_trees(store: Store, flow: int, again: bool) -> None:
    await store.lock_trees([flow])


async def not_locked(store: Store, flow: int, _: None) -> None:
    """What has no answer holds no lock either."""
    await store.lock_trees([flow])


async def a_template(store: Store) -> NewTemplate:
    return NewTemplate(1, "run", str(uuid4()), "{}")


async def put_template(store: Store, template: NewTemplate, again: bool) -> Template:
    return await store.put_template(template)


async def template_put(store: Store, template: NewTemplate, kept: Template) -> None:
    assert await store.templates(1, name=template.name, newest_only=False) == [kept]


async def keep_blob(store: Store, _: Any, again: bool) -> None:
    await store.keep_blob(1, Blob.of(b"kept"))


async def blob_kept(store: Store, _: Any, __: None) -> None:
    assert await store.blob(1, Blob.of(b"kept").hash) == b"kept"


async def a_gate(store: Store) -> NewGate:
    step = await store.create(RUN_STEP, flow_id=await a_flow(store), name="sign")
    return NewGate(step, 1, "sign", "Ship?", "digest")


async def open_gate(store: Store, gate: NewGate, again: bool) -> Approval:
    return await store.open_gate(gate)


async def gate_open(store: Store, gate: NewGate, opened: Approval) -> None:
    assert [one for one in await store.approvals(1, open_only=False) if one.step_id == gate.step_id] == [opened]


async def an_open_gate(store: Store) -> NewGate:
    gate = await a_gate(store)
    await store.open_gate(gate)
    return gate


async def close_gate(store: Store, gate: NewGate, again: bool) -> Approval | None:
    return await store.close_gate(1, gate.step_id, "approved", "ann")


async def gate_closed(store: Store, gate: NewGate, closed: Approval | None) -> None:
    """Whoever asks again finds nothing open, and what was decided."""
    found = await store.gate(1, gate.step_id)
    assert found is not None
    assert (found.decision, found.decided_by) == ("approved", "ann")
    assert closed in (None, found)


# --- outbox


async def a_message(store: Store) -> NewDelivery:
    return NewDelivery(1, "run", await a_flow(store), 2, "run.succeeded", "https://example.com/", "{}")


async def put_delivery(store: Store, message: NewDelivery, again: bool) -> None:
    await store.put_delivery(message)


async def delivery_put(store: Store, message: NewDelivery, _: None) -> None:
    assert len(await store.deliveries(1, flow=message.entity_id)) == 1


async def a_due_message(store: Store) -> NewDelivery:
    """The only one."""
    while taken := await store.take_deliveries(100, HOUR):
        for one in taken:
            await store.settle_delivery(one, "given_up")
    message = await a_message(store)
    await store.put_delivery(message)
    return message


async def take_deliveries(store: Store, _: Any, again: bool) -> list[Delivery]:
    return await store.take_deliveries(5, HOUR)


async def deliveries_taken(store: Store, message: NewDelivery, taken: list[Delivery]) -> None:
    """Whoever asks again is given nothing: it is the next one's, once the lease is over."""
    (kept,) = await store.deliveries(1, flow=message.entity_id)
    assert (kept.attempts, kept.state) == (1, "pending")
    assert taken in ([], [kept])


async def a_taken_message(store: Store) -> Delivery:
    await a_due_message(store)
    (taken,) = await store.take_deliveries(5, HOUR)
    return taken


async def settle_delivery(store: Store, taken: Delivery, again: bool) -> bool:
    return await store.settle_delivery(taken, "delivered")


async def delivery_settled(store: Store, taken: Delivery, _: bool) -> None:
    (kept,) = await store.deliveries(1, flow=taken.entity_id)
    assert (kept.attempts, kept.state) == (1, "delivered")


async def retry_delivery(store: Store, taken: Delivery, again: bool) -> bool:
    return await store.retry_delivery(1, taken.id)


async def delivery_due(store: Store, taken: Delivery, found: bool) -> None:
    (kept,) = await store.deliveries(1, flow=taken.entity_id)
    assert found
    assert (kept.attempts, kept.most_attempts, kept.next_at <= await store.now()) == (1, 15, True)


async def a_told_message(store: Store) -> Delivery:
    taken = await a_taken_message(store)
    await store.settle_delivery(taken, "delivered")
    return taken


async def forget_deliveries(store: Store, _: Any, again: bool) -> int:
    return await store.forget_deliveries(1 << 60)


async def deliveries_forgotten(store: Store, told: Delivery, _: int) -> None:
    assert await store.deliveries(1, flow=told.entity_id) == []


async def declare_limits(store: Store, _: Any, again: bool) -> None:
    await store.declare_limits([RULE])


async def limits_declared(store: Store, _: Any, result: None) -> None:
    assert RULE in await store.limit_rules()


async def behind_a_limit(store: Store) -> str:
    """Jobs behind a limit of their own."""
    kind = await a_name(store)
    await store.declare_limits([RULE._replace(name=kind)])
    await store.enqueue([NewJob(kind, limit_key=f"*:{kind}", held_by="limit")] * 3)
    return f"*:{kind}"


async def pump(store: Store, _: Any, again: bool) -> int:
    return await store.pump()


async def pumped(store: Store, key: str, result: int) -> None:
    """One of three, however often. While the server had not noticed that a caller was gone, another left that to it."""
    while await store.next_pump() is not None:
        await store.pump()
    assert [use[2:4] for use in await store.limit_uses(1) if use.key == key] == [(1, 2)]


async def a_name(store: Store) -> str:
    """One that no call before has used."""
    return f"n{await store.event_count()}"


async def enqueue_unique(store: Store, key: str, again: bool) -> int:
    return await store.enqueue_unique(NewJob("kind"), key, HOUR)


async def enqueue_debounced(store: Store, key: str, again: bool) -> int:
    return await store.enqueue_debounced(NewJob("kind"), key, HOUR, HOUR)


async def windows_over(store: Store) -> None:
    await store.enqueue_unique(NewJob("kind"), "u", -HOUR)


async def forget_limits(store: Store, _: Any, again: bool) -> int:
    return await store.forget_limits()


async def limits_forgotten(store: Store, _: Any, result: int) -> None:
    assert await store.forget_limits() == 0


async def one_enqueued(store: Store, _: Any, result: int) -> None:
    assert (await entity(store, JOB, result))["state"] == "queued"


# --- keys to the API


async def a_key(store: Store) -> NewApiKey:
    return NewApiKey(1, "ann", "read", uuid4().hex * 2, "test", HOUR)


async def put_api_key(store: Store, key: NewApiKey, again: bool) -> ApiKeyRow:
    return await store.put_api_key(key)


async def key_put(store: Store, key: NewApiKey, kept: ApiKeyRow) -> None:
    assert [one for one in await store.api_keys(1) if one.hash == key.hash] == [kept]


async def a_kept_key(store: Store) -> ApiKeyRow:
    return await store.put_api_key(await a_key(store))


async def two_keys(store: Store) -> tuple[ApiKeyRow, NewApiKey]:
    return await a_kept_key(store), await a_key(store)


async def rotate_api_key(store: Store, given: tuple[ApiKeyRow, NewApiKey], again: bool) -> ApiKeyRow | None:
    return await store.rotate_api_key(given[0].id, given[1], 0)


async def key_rotated(store: Store, given: tuple[ApiKeyRow, NewApiKey], made: ApiKeyRow | None) -> None:
    old = await store.api_key(1, given[0].id)
    assert made is not None
    assert old is not None
    assert (old.replaced_by, made.hash) == (made.id, given[1].hash)


async def revoke_api_key(store: Store, key: ApiKeyRow, again: bool) -> ApiKeyRow | None:
    return await store.revoke_api_key(1, key.id, "bob")


async def key_revoked(store: Store, key: ApiKeyRow, revoked: ApiKeyRow | None) -> None:
    assert revoked == await store.api_key(1, key.id) != key


async def touch_api_key(store: Store, key: ApiKeyRow, again: bool) -> bool:
    return await store.touch_api_key(1, key.id, HOUR)


async def key_touched(store: Store, key: ApiKeyRow, _: bool) -> None:
    """Whoever asks again is told that it was noted already."""
    found = await store.api_key(1, key.id)
    assert found is not None
    assert found.last_used_at is not None


CALLS: dict[str, Call] = {
    "enqueue": Call("enqueue", nothing, enqueue, enqueued, 3, known_to_the_caller=False),
    "enqueue by key": Call("enqueue", nothing, enqueue_by_key, enqueued, 3),
    "enqueue started": Call("enqueue_started", worker, enqueue_started, is_started, 3, known_to_the_caller=False),
    "claim": Call("claim", five_jobs, claim(start=False), claimed_two, 2),
    "claim and start": Call("claim", five_jobs, claim(start=True), claimed_two, 4),
    "start": Call("apply", change("start", "assigned", "holder"), apply, applied),
    "succeed": Call("apply", change("succeed", "running", "holder"), apply, applied),
    "fail": Call("apply", change("fail", "running", "holder"), apply, applied),
    "retry": Call("apply", change("retry", "running", "holder"), apply, applied),
    "expire": Call("apply", an_expiry, apply, applied),
    "release": Call("apply", change("release", "running", "holder"), apply, applied),
    "snooze": Call("apply", change("snooze", "running", "holder"), apply, applied),
    "cancel": Call("apply", change("cancel", "queued", "operator"), apply, applied),
    "dead_letter": Call("apply", change("dead_letter", "running", "holder"), apply, applied),
    "several changes": Call("apply", three_changes, apply, applied, 3),
    "start_task": Call("apply", worker_change("start_task", "IDLE"), apply, applied),
    "complete_tasks": Call("apply", worker_change("complete_tasks", "RUNNING"), apply, applied),
    "terminate": Call("apply", worker_change("terminate", "COMPLETED"), apply, applied),
    "renew": Call("renew", held_jobs, renew, renewed, 0),
    **{
        f"create {name}": Call("create", nothing, create(name), created(name), known_to_the_caller=False)
        for name in NEEDED
    },
    "create many": Call("create_many", a_flow, create_many, steps_created, 2, known_to_the_caller=False),
    "amend": Call("amend", a_flow, amend, amended, 0),
    "lock_trees": Call("lock_trees", a_flow, lock_trees, not_locked, 0),
    "put_template": Call("put_template", a_template, put_template, template_put, 0),
    "keep_blob": Call("keep_blob", nothing, keep_blob, blob_kept, 0),
    "open_gate": Call("open_gate", a_gate, open_gate, gate_open, 0),
    "close_gate": Call("close_gate", an_open_gate, close_gate, gate_closed, 0),
    "put_delivery": Call("put_delivery", a_message, put_delivery, delivery_put, 0),
    "take_deliveries": Call("take_deliveries", a_due_message, take_deliveries, deliveries_taken, 0),
    "settle_delivery": Call("settle_delivery", a_taken_message, settle_delivery, delivery_settled, 0),
    "retry_delivery": Call("retry_delivery", a_taken_message, retry_delivery, delivery_due, 0),
    "forget_deliveries": Call("forget_deliveries", a_told_message, forget_deliveries, deliveries_forgotten, 0),
    "request_stop": Call("request_stop", one_running, request_stop, stop_requested, 0),
    "beat": Call("beat", a_worker, beat, heard_of, 0),
    "ask_to_end": Call("ask_to_end", a_worker, ask_to_end, asked_to_end, 0),
    "silent_workers": Call("silent_workers", a_silent_worker, silent_workers, found_silent, 0),
    "pause": Call("set_queue_paused", nothing, pause(True), is_paused(True), 0),
    "resume": Call("set_queue_paused", paused_queue, pause(False), is_paused(False), 0),
    "put_schedule": Call("put_schedule", nothing, put_schedule, schedules_are((1, None, False)), 0),
    "fire_schedules": Call("fire_schedules", one_schedule, fire_schedules, fired_once),
    "pause_schedule": Call("pause_schedule", one_schedule, pause_schedule, schedules_are((1, None, True)), 0),
    "resume_schedule": Call("resume_schedule", paused_schedule, resume_schedule, schedules_are((5, None, False)), 0),
    "drop_schedule": Call("drop_schedule", one_schedule, drop_schedule, schedules_are(), 0),
    "declare_limits": Call("declare_limits", nothing, declare_limits, limits_declared, 0),
    "pump": Call("pump", behind_a_limit, pump, pumped, 0),
    "enqueue_unique": Call("enqueue_unique", a_name, enqueue_unique, one_enqueued),
    "enqueue_debounced": Call("enqueue_debounced", a_name, enqueue_debounced, one_enqueued),
    "request": Call("recall", nothing, request, requested_once),
    "answer": Call("answer", open_request, answer, answered, 0),
    "forget_requests": Call("forget_requests", old_request, forget, forgotten, 0),
    "forget_limits": Call("forget_limits", windows_over, forget_limits, limits_forgotten, 0),
    "forget_telemetry": Call("forget_telemetry", old_telemetry, forget_telemetry, telemetry_forgotten, 0),
    "record_telemetry": Call("record_telemetry", nothing, record_telemetry, telemetry_recorded, 0),
    "prune": Call("prune", an_ended_job, prune, pruned, 0),
    "prune a flow": Call("prune", an_ended_flow, prune_flow, flow_pruned, 0),
    "drop_unused_blobs": Call("drop_unused_blobs", an_unused_blob, drop_blobs, blobs_dropped, 0),
    "take_duty": Call("take_duty", nothing, take_duty, duty_taken, 0),
    "put_seal": Call("put_seal", something_to_seal, put_seal, sealed_once, 0),
    "count": Call("count", nothing, count, counted_once, 0),
    "keep_artifact": Call("keep_artifact", claimed_and_running, keep_artifact, artifact_kept, 0),
    "checkpoint": Call("checkpoint", claimed_and_running, checkpoint, checkpointed, 0),
    "checkpoint_changed": Call("checkpoint_changed", with_a_checkpoint, checkpoint_changed, change_noted, 0),
    "say": Call("say", claimed_and_running, say, was_said, 0),
    "note_progress": Call("note_progress", claimed_and_running, note_progress, progress_noted, 0),
    "lift_holds": Call("lift_holds", held_back, lift_holds, holds_lifted, 0),
    "lock_breaker": Call("lock_breaker", a_breaker, lock_breaker, breaker_locked, 0),
    "hold_back": Call("hold_back", to_hold, hold_back, held_by_breaker, 0),
    "let_go": Call("let_go", held_by_a_breaker, let_go, holds_lifted, 0),
    "let_one_go": Call("let_one_go", held_by_a_breaker, let_one_go, one_let_go, 0),
    "make_budgets": Call("make_budgets", a_job, make_budgets, budget_made, 0),
    "lock_budgets": Call("lock_budgets", a_budget, lock_budgets, budget_locked, 0),
    "keep_budget": Call("keep_budget", a_budget, keep_budget, budget_kept, 0),
    "forget_budgets": Call("forget_budgets", an_old_budget, forget_budgets, budgets_forgotten, 0),
    "lock_jobs": Call("lock_jobs", a_job, lock_jobs, job_locked, 0),
    "open_charge": Call("open_charge", a_budget, open_charge, charge_open, 0),
    "close_charge": Call("close_charge", an_open_charge, close_charge, charge_closed, 0),
    "lock_bucket": Call("lock_bucket", nothing, lock_bucket, bucket_made, 0),
    "keep_bucket": Call("keep_bucket", a_bucket, keep_bucket, bucket_kept, 0),
    "put_api_key": Call("put_api_key", a_key, put_api_key, key_put, 0),
    "rotate_api_key": Call("rotate_api_key", two_keys, rotate_api_key, key_rotated, 0),
    "revoke_api_key": Call("revoke_api_key", a_kept_key, revoke_api_key, key_revoked, 0),
    "touch_api_key": Call("touch_api_key", a_kept_key, touch_api_key, key_touched, 0),
    "set_quotas": Call("set_quotas", nothing, set_quotas, quotas_set, 0),
    "go_on": Call("go_on", held_by_quota, go_on, holds_lifted, 0),
    "wake_for_crews": Call("wake_for_crews", for_a_crew, wake_for_crews, woken_for_crews, 0),
    "still_claimed": Call("still_claimed", an_agent, still_claimed, is_claimed_still, 0),
    "note_call": Call("note_call", an_agent, note_call, call_noted, 0),
    "put_agent_audit": Call("put_agent_audit", an_agent, put_agent_audit, audit_put, 0),
    "spawn": Call("spawn", claimed_and_running, spawn, spawned, 2),
    "send_signal": Call("send_signal", a_waiting_job, send_signal, signal_sent, 0),
    "forget_signals": Call("forget_signals", an_old_signal, forget_signals, signals_forgotten, 0),
    "open_approval": Call("open_approval", claimed_and_running, open_approval, approval_open, 0),
    "decide_approval": Call("decide_approval", a_question, decide_approval, approval_decided, 0),
    "withdraw_approvals": Call("withdraw_approvals", a_stale_question, withdraw_approvals, approvals_withdrawn, 0),
    "add_tenant": Call("add_tenant", nothing, add_tenant, tenant_added, 0),
    "set_tenant_limits": Call("set_tenant_limits", nothing, set_tenant_limits, tenant_limited, 0),
}
