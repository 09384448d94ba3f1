"""What a store should do, in plain Python: lists and dictionaries, no lifecycle, no SQL. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LEASED = ("assigned", "running")
FINAL = ("succeeded", "failed", "cancelled", "dead_lettered")

# trigger: from, to, event
JOB_MOVES = {
    "claim": (("queued",), "assigned", "job_claimed"),
    "start": (("assigned",), "running", "job_started"),
    "succeed": (("running",), "succeeded", "job_succeeded"),
    "fail": (LEASED, "failed", "job_failed"),
    "retry": (("running",), "queued", "job_retry_scheduled"),
    "expire": (LEASED, "queued", "job_lease_expired"),
    "release": (LEASED, "queued", "job_released"),
    "snooze": (("running",), "queued", "job_snoozed"),
    "cancel": (("queued", *LEASED), "cancelled", "job_cancelled"),
    "dead_letter": (("queued", *LEASED), "dead_lettered", "job_dead_lettered"),
}
RIGHTS = {
    "holder": ("start", "succeed", "fail", "retry", "release", "snooze", "cancel", "dead_letter"),
    "reaper": ("expire", "fail", "dead_letter"),
    "operator": ("release", "cancel", "dead_letter"),
}
WORKER_MOVES = {
    "start_task": (("IDLE",), "RUNNING"),
    "pause": (("RUNNING",), "PAUSED"),
    "resume": (("PAUSED",), "RUNNING"),
    "complete_tasks": (("RUNNING",), "COMPLETED"),
    "terminate": (("IDLE", "RUNNING", "PAUSED", "COMPLETED"), "TERMINATED"),
}

Logged = tuple[str, int, int, int, str, str | None, str]  # entity, which, seq, epoch, event, from, to


@dataclass
class PlainWorker:
    state: str = "IDLE"
    seq: int = 1


@dataclass
class PlainJob:
    """A job; the owner is the number of a worker."""

    queue: str
    priority: int
    run_at: int
    max_attempts: int
    on_exhausted: str
    state: str = "queued"
    seq: int = 1
    epoch: int = 0
    attempts: int = 0
    owner: int | None = None
    lease_until: int | None = None
    claim: int | None = None


@dataclass(frozen=True)
class Wish:
    """A move somebody decided on a job as it was then."""

    job: int
    trigger: str
    by: str
    owner: int | None
    from_state: str
    seq: int
    epoch: int
    delay: int = 0

    @property
    def actor(self) -> str:
        return f"worker {self.owner}" if self.by == "holder" else self.by


@dataclass
class PlainStore:
    """Everything a store knows."""

    now: int = 0
    jobs: list[PlainJob] = field(default_factory=list)
    workers: list[PlainWorker] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    log: list[Logged] = field(default_factory=list)
    written: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)  # (job, seq): trigger, actor

    # --- what is written

    def enqueue(self, job: PlainJob, key: str | None) -> int:
        if key is not None and key in self.keys:
            return self.keys[key]
        self.jobs.append(job)
        number = len(self.jobs) - 1
        if key is not None:
            self.keys[key] = number
        self.log.append(("job", number, 1, 0, "job_enqueued", None, "queued"))
        return number

    def hire(self) -> int:
        self.workers.append(PlainWorker())
        self.log.append(("worker", len(self.workers) - 1, 1, 0, "worker_register", None, "IDLE"))
        return len(self.workers) - 1

    def move_worker(self, number: int, trigger: str) -> bool:
        worker, (sources, target) = self.workers[number], WORKER_MOVES[trigger]
        if worker.state not in sources:
            return False
        self.log.append(("worker", number, worker.seq + 1, 0, f"worker_{trigger}", worker.state, target))
        worker.state, worker.seq = target, worker.seq + 1
        return True

    def claim(self, worker: int, queues: Iterable[str], limit: int, lease: int, claim: int) -> list[int]:
        if self.workers[worker].state not in ("IDLE", "RUNNING"):
            return []
        due = [n for n, job in enumerate(self.jobs) if job.queue in queues and self._claimable(job)]
        due.sort(key=lambda n: (-self.jobs[n].priority, self.jobs[n].run_at, n))
        for number in due[:limit]:
            self._move(number, "claim", f"worker {worker}")
            job = self.jobs[number]
            job.owner, job.lease_until, job.claim = worker, self.now + lease, claim
        return due[:limit]

    def claimed(self, worker: int, claim: int) -> list[int]:
        mine = [
            n for n, job in enumerate(self.jobs) if (job.owner, job.claim) == (worker, claim) and job.state in LEASED
        ]
        return sorted(mine, key=lambda n: (-self.jobs[n].priority, self.jobs[n].run_at, n))

    def apply(self, wish: Wish) -> bool:
        """Written, or found to have been written by the same actor before."""
        if not self._still(wish):
            return self.written.get((wish.job, wish.seq + 1)) == (wish.trigger, wish.actor)
        job, was = self.jobs[wish.job], self.jobs[wish.job].state
        self._move(wish.job, wish.trigger, wish.actor)
        job.attempts += (wish.trigger == "start") - (wish.trigger == "snooze")
        job.attempts -= wish.trigger == "release" and was == "running"
        if wish.trigger != "start":
            job.lease_until = None
        if job.state == "queued":
            job.epoch, job.owner, job.claim = job.epoch + 1, None, None
            job.run_at = job.run_at if wish.trigger == "expire" else self.now + wish.delay
            self.log[-1] = (*self.log[-1][:3], job.epoch, *self.log[-1][4:])
        return True

    def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease: int) -> list[tuple[int, int]]:
        """Those that are no longer held."""
        lost = []
        for number, epoch in tokens:
            job = self.jobs[number]
            if self._held(job, worker) and job.epoch == epoch:
                job.lease_until = self.now + lease
            else:
                lost.append((number, epoch))
        return lost

    # --- what is asked

    def wish(self, number: int, trigger: str, by: str, owner: int | None, delay: int = 0) -> Wish | None:
        """What somebody may want of the job as it is now; none if it is no declared move of theirs."""
        job = self.jobs[number]
        wish = Wish(number, trigger, by, owner, job.state, job.seq, job.epoch, delay)
        left = job.attempts < job.max_attempts
        agreed = {
            "retry": left,
            "expire": left,
            "fail": by == "holder" or (not left and job.on_exhausted == "fail"),
            "dead_letter": by != "reaper" or (not left and job.on_exhausted == "dead_letter"),
        }
        declared = job.state in JOB_MOVES[trigger][0] and trigger in RIGHTS[by]
        return wish if declared and agreed.get(trigger, True) and self._still(wish) else None

    def overdue(self) -> list[int]:
        return [n for n, job in enumerate(self.jobs) if job.state in LEASED and (job.lease_until or 0) <= self.now]

    def _still(self, wish: Wish) -> bool:
        job = self.jobs[wish.job]
        if (job.state, job.seq, job.epoch) != (wish.from_state, wish.seq, wish.epoch):
            return False
        if wish.by == "holder":
            return self._held(job, wish.owner)
        return wish.by == "operator" or (job.lease_until is not None and job.lease_until <= self.now)

    def _held(self, job: PlainJob, worker: int | None) -> bool:
        return (
            job.state in LEASED and job.owner == worker and job.lease_until is not None and job.lease_until > self.now
        )

    def _claimable(self, job: PlainJob) -> bool:
        return job.state == "queued" and job.run_at <= self.now and job.queue not in self.paused

    def _move(self, number: int, trigger: str, actor: str) -> None:
        job, (_, target, event) = self.jobs[number], JOB_MOVES[trigger]
        self.log.append(("job", number, job.seq + 1, job.epoch, event, job.state, target))
        job.state, job.seq = target, job.seq + 1
        self.written[number, job.seq] = (trigger, actor)
