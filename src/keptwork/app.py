"""The application: its database, its kinds of jobs, and the methods that enqueue and run jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from keptwork import __version__
from keptwork.agents.conversation import Provider
from keptwork.agents.turn import Heard
from keptwork.core.clock import Clock
from keptwork.core.durations import Size, Span, size_bytes, span_us
from keptwork.core.function_ref import refuse_while_loading
from keptwork.core.home_loop import Home, keep_for_ever, watch_forks
from keptwork.core.loop_scope import running_loop
from keptwork.core.validation import OWN_KINDS, check_name
from keptwork.crews import commands as crews
from keptwork.errors import BadInput, NeedsDatabase
from keptwork.flows import approvals
from keptwork.handles import Handle
from keptwork.handles_agent import AgentHandle, Ask, start_agent
from keptwork.handles_crew import CrewHandle
from keptwork.handles_flow import Definition, FlowHandle, start_flow
from keptwork.job import DeclaredJob, Handler, JobType
from keptwork.jobs import commands_signals, limits, results, results_artifacts
from keptwork.jobs.concurrency import Throttle
from keptwork.jobs.enqueue import new_job, new_jobs, put
from keptwork.jobs.enqueue_window import put_unique
from keptwork.jobs.results_endings import Endings
from keptwork.jobs.schedules import DeclaredSchedules, How
from keptwork.maintenance.retention import Retention
from keptwork.observability import spans
from keptwork.store import Artifact, NewJob, Store, Transaction, open_store
from keptwork.store.contract.store import Enqueues
from keptwork.store.contract.waits_approvals import Approval
from keptwork.store.contract.waits_signals import Sent
from keptwork.store.counters import Tally
from keptwork.store.other_loop import VisitingStore
from keptwork.store.url import database_url
from keptwork.sync import Sync
from keptwork.workers.heartbeat import Doing
from keptwork.workers.registration import Settings
from keptwork.workers.step_runner import StartKind, StepKinds
from keptwork.workers.supervisor_link import Bond
from keptwork.workers.worker import Worker

if TYPE_CHECKING:
    from keptwork.settings import Config

MEMORY = ":memory:"
SHORT_SECONDS = 0.002


class Keptwork:
    """An application: kinds of jobs, and the database that stores the jobs.

    The database URL is `url`. Default: $KEPTWORK_DB, then ./keptwork.db.

    Workers prune finished jobs: succeeded or cancelled jobs after `keep_finished`, failed jobs and dead letters after
    `keep_failures`. The same applies to flows, crews, and agent jobs. Entries with an idempotency key also stay for
    `keep_keys`. None keeps them permanently. The file that declares the tools for steps of flows is `config`. Default:
    $KEPTWORK_CONFIG, then ./keptwork.toml.

    >>> app = Keptwork("sqlite:///:memory:")
    >>> @app.job(max_attempts=3)
    ... async def greet(ctx, name: str) -> str:
    ...     return f"Hello {name}"
    >>> greet.kind.name
    'greet'
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "default",
        keep_finished: Span | None = "7d",
        keep_failures: Span | None = "90d",
        keep_keys: Span | None = None,
        config: str | None = None,
    ) -> None:
        self.url = url
        self._config = config
        self._retention = Retention.of(keep_finished, keep_failures, keep_keys)
        self._tenant = tenant
        self.tenant_id = 1
        self._store: Store | None = None
        self._clock: Clock | None = None
        self._tally = Tally()
        self._home = Home(self._close_store, self._abandon)
        self._visiting: Store | None = None
        self._workers: list[Worker] = []
        self._loops: dict[Worker, asyncio.AbstractEventLoop] = {}
        self._stopped = False
        self._server: str | None = None
        self._hang_up: Callable[[], None] = _nothing
        self.kinds: dict[str, JobType] = {}
        self.older_kinds: dict[tuple[str, int], JobType] = {}
        self._schedules = DeclaredSchedules()
        self._declared: set[str] = set()
        self._queue_limits: dict[str, Throttle | None] = {}
        self.creates = True
        """Whether to create a missing database and migrate an older SQLite file. If False, both are refused."""
        self.sync = Sync(self)
        self.provider: Provider | None = None
        """The provider that answers agents, in place of the one in keptwork.toml. For tests."""
        self.heard: Heard | None = None
        """Called with the ID of the job and each piece of streamed model output."""

    def job(self, **rules: Any) -> Callable[[Handler], DeclaredJob]:
        """Declare a kind of job.

        The rules are `queue`, `priority`, `max_attempts`, `lease`, `timeout`, `backoff`, `backoff_cap`, `on_exhausted`
        ("dead_letter" or "fail"), and `name`. With `isolation="process"`, each job runs in a process of its own,
        limited by `memory` ("512MB") and `cpu` ("30s") if they are given.

        Handlers that share a `name` each have a `version` (1, 2, …; a handler without one is the oldest). New jobs use
        the newest version. A job whose steps started under an older version keeps that version until it finishes.

        Across all workers, at most `limit` jobs run concurrently and at most `rate` ("100/min") start, counted for the
        kind or `per` "tenant" or argument. `unique` is a window in which equal arguments create only one job.

        `breaker` is a name or a `Breaker(…)`. After consecutive failures, the breaker opens and holds all jobs that
        name it, until a job that runs as a probe succeeds.
        """

        def declare(function: Handler) -> DeclaredJob:
            kind = JobType.of(function, **rules)
            self._register(kind)
            return DeclaredJob(self, kind)

        return declare

    def _register(self, kind: JobType) -> None:
        if kind.name.startswith(OWN_KINDS):
            raise BadInput(
                what=f"job {kind.name}: names that begin with {OWN_KINDS} are the steps of flows; give another"
            )
        newest = self.kinds.get(kind.name)
        if newest is None:
            self.kinds[kind.name] = kind
            return
        if kind.version == newest.version or (kind.name, kind.version) in self.older_kinds:
            which = f", both of version {kind.version}" if kind.version else ""
            raise BadInput(what=f"there are two kinds of jobs called {kind.name!r}{which}; give one of them a name=")
        older, self.kinds[kind.name] = sorted((kind, newest), key=lambda one: one.version)
        self.older_kinds[older.name, older.version] = older

    @overload
    def schedule(self, job: DeclaredJob, /, **how: Unpack[How]) -> DeclaredJob: ...

    @overload
    def schedule(self, cron: str | None = ..., /, **how: Unpack[How]) -> Callable[[DeclaredJob], DeclaredJob]: ...

    def schedule(self, what: DeclaredJob | str | None = None, /, **how: Any) -> Any:
        """Enqueue a kind of job repeatedly, by a cron expression in a time zone or at an interval (`every`).

        Workers store the schedule when they start. Each tick fires once, however many workers there are.

        Use it as a decorator above `@app.job`, or call it with the declared job. `name` defaults to the name of the
        job. `arguments` are the arguments of each job. `catch_up` decides about missed ticks: "latest" fires the last
        one, "all" fires each (the newest 1,000), and "none" waits for the next tick.

        >>> app = Keptwork("sqlite:///:memory:")
        >>> @app.schedule("0 9 * * mon", tz="Europe/Berlin", catch_up="none")
        ... @app.job()
        ... async def report(ctx): ...
        >>> app.schedule(report, every="15m", name="report often").kind.name
        'report'
        """
        if not isinstance(what, DeclaredJob):
            given = how if what is None else {"cron": what, **how}
            return lambda job: self.schedule(job, **given)
        self._schedules.add(what.kind, cast(How, how))
        return what

    async def keep_schedules(self) -> None:
        """Store the declared schedules in the database. A worker does this when it starts."""
        await self._schedules.keep(await self.open(), self.new_job)

    def declared(self, job: DeclaredJob) -> DeclaredJob:
        """Return the same kind of job, bound to the store of this application."""
        return DeclaredJob(self, job.kind)

    def twin(self) -> Keptwork:
        """Return the same application with a store of its own, for another event loop."""
        if _in_memory(self.url):
            raise BadInput(what="a database in memory belongs to the event loop that opened it; app.sync needs a file")
        twin = Keptwork(database_url(self.url).lasting, tenant=self._tenant)
        twin.kinds, twin.older_kinds, twin.creates = self.kinds, self.older_kinds, self.creates
        return twin

    async def open(self) -> Store:
        """Return the store, opened at the first call.

        The store belongs to the event loop that opened it. In another loop, or after that loop was closed, calls go to
        the thread that `sync` uses.
        """
        refuse_while_loading()
        store = self._store
        if store is not None and self._server is None and self._home.place.here:
            return store
        self._insist_on_database()
        return await self._opened()

    def _insist_on_database(self) -> None:
        refuse_while_loading()
        if self._server is not None:
            raise NeedsDatabase(what=f"use one: it works for {self._server}, which can be asked by keptwork.client")

    async def _opened(self, *, for_longer: bool = False) -> Store:
        in_memory = _in_memory(self.url)  # one for all event loops, because its writer is a thread of its own
        while not (in_memory and self._store is not None):
            if self._home.claim(for_longer=for_longer or in_memory):
                async with self._home.opening:
                    return self._store or await self._open_here()
            if not in_memory:
                return await self._visited()
            await asyncio.sleep(SHORT_SECONDS)  # another loop is opening it
        return self._store

    async def _visited(self) -> Store:
        if self._visiting is None:
            self.url = database_url(self.url).lasting
            visiting = cast(Store, VisitingStore(self.sync))
            self.tenant_id, self._visiting = await visiting.tenant(self._tenant), visiting
        return self._visiting

    async def _open_here(self) -> Store:
        self.url = database_url(self.url).lasting
        spans.adopt()
        migrate = None if self.creates else False
        store = await open_store(self.url, migrate=migrate, create=self.creates, clock=self._clock, tally=self._tally)
        try:
            self.tenant_id = await store.tenant(self._tenant)
        except BaseException:
            await store.close()
            raise
        self._store, self._endings = store, Endings(store)
        watch_forks(self)
        if not _in_memory(self.url):
            await self._home.settle()
        return store

    def lend(self, url: str | None, clock: Clock | None) -> tuple[str | None, Clock | None]:
        """Replace database and clock while the app is closed; return the previous ones. For `keptwork.testing`."""
        if self._store is not None:
            raise BadInput(what="the application has its database open: close it before it is given another")
        self._visiting = None
        before = self.url, self._clock
        self.url, self._clock = url, clock
        return before

    async def close(self) -> None:
        """Close the database, and the thread for other event loops and ordinary code unless that is in use.

        The next call opens the database again.
        """
        if _in_memory(self.url):
            await self._close_store()
            await self._home.leave()
        else:
            await self._home.close()
        await self.sync.close_if_idle()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None

    def _abandon(self) -> bool:
        """Drop a store that its event loop can no longer close. Return whether there was one."""
        store, self._store = self._store, None
        if store is not None:
            store.abandon()
        return store is not None

    def forked(self) -> None:
        """Leave everything that belongs to event loops and connections to the parent. Called in a forked child."""
        keep_for_ever(self._store, self._home, self._workers, self.__dict__.get("_endings"))
        self._store, self._home = None, Home(self._close_store, self._abandon)
        self._workers, self._loops, self._tally = [], {}, Tally()

    async def __aenter__(self) -> Keptwork:
        self._insist_on_database()
        await self._opened(for_longer=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._home.loop in (None, running_loop()) or _in_memory(self.url):
            await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction of the store for your rows and your jobs.

        Statements of its `execute` and `fetch`, and jobs enqueued with it as `_tx`, take effect if it commits, and
        otherwise not at all.
        """
        async with (await self.open()).transaction() as transaction:
            yield transaction

    async def queue(self, transaction: Any = None) -> Enqueues:
        """Return the target of an enqueue: the store, or a transaction that is already open."""
        store = await self.open()
        return store if transaction is None else store.within(transaction)

    async def put(self, job: NewJob, transaction: Any = None) -> int:
        """Enqueue a job and return its key. An idle worker in this process starts the job in the same write."""
        if spans.tracer is None:
            return await self._put(spans.inherited((job,))[0], transaction)
        with spans.enqueuing([job]) as enqueuing:
            key = await self._put(enqueuing.jobs[0], transaction)
            enqueuing.made([key])
        return key

    async def _put(self, job: NewJob, transaction: Any) -> int:
        if transaction is None:
            for worker in self._workers:
                if self._loops[worker] is running_loop() and (key := await worker.start_here(job)) is not None:
                    return key
        queue = await (self.open() if transaction is None else self.queue(transaction))
        (key,) = await queue.enqueue([job])
        return key

    async def enqueue_many(
        self, job: DeclaredJob, many: Iterable[Mapping[str, Any]], *, _tx: Any = None
    ) -> list[Handle]:
        """Enqueue several jobs of one kind, all or none. With `_tx`, they are enqueued when that transaction commits.

        If the kind is declared with `unique=`, equal arguments create one job, and each of them returns its handle.
        """
        await self.open()
        await self.declare_limit(job.kind, _tx)
        queue = await self.queue(_tx)
        kind = self.kinds.get(job.kind.name, job.kind)
        jobs = new_jobs(kind, many, self.tenant_id)
        if kind.unique_us is None:
            return [Handle(key, self) for key in await put(queue, jobs)]
        return [Handle(key, self) for key in await put_unique(queue, jobs, kind.unique_us)]

    async def crew(
        self,
        job: DeclaredJob,
        /,
        *,
        task: str,
        workers: int = 1,
        _key: str | None = None,
        _timeout: Span | None = None,
        **arguments: Any,
    ) -> CrewHandle:
        """Submit a task to a crew of 1 to 10 workers.

        Each worker gets a share: a job of this kind, called with these arguments and with `share` (from 0), `shares`,
        and `task`. The crew starts when the quota of its depth has room for all of its workers. After `_timeout`, the
        crew is cancelled. `_key` is an idempotency key: a repeated key returns the existing crew.

        >>> # crew = await app.crew(review, task="review the release", workers=3, files=files)
        """
        await self.open()
        await self.declare_limit(job.kind)
        kind = self.kinds.get(job.kind.name, job.kind)
        new = crews.new_crew(kind, arguments, self.tenant_id, task=task, workers=workers, key=_key, timeout=_timeout)
        return CrewHandle(await crews.submit(await self.open(), new), self)

    async def result(self, job_id: str, timeout: Span | None = None) -> Any:  # noqa: ASYNC109 - as Handle.result has it
        """Wait until a job finishes and return its result; see `Handle.result`."""
        store = await self.open()
        return await results.result(store, self.tenant_id, job_id, timeout, self._endings if self._home.here else None)

    def handle(self, key: int) -> Handle:
        """Return the handle of a job."""
        return Handle(key, self)

    async def artifacts(self, job_id: str) -> list[Artifact]:
        """Return the artifacts of a job: name, media type, size, and hash of each."""
        return await results_artifacts.listed(await self.open(), self.tenant_id, job_id)

    async def artifact(self, job_id: str, name: str) -> bytes:
        """Return the content of an artifact of a job. Raise `NotFound` if it does not exist."""
        _, content = await results_artifacts.content(await self.open(), self.tenant_id, job_id, name)
        return content

    async def start_flow(
        self,
        what: Definition,
        inputs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        hold: bool = False,
        webhook: Mapping[str, Any] | None = None,
        queue: str | None = None,
        by: str | None = None,
    ) -> FlowHandle:
        """Start a flow: the path of a file, a `Flow`, or the content of such a file as a dict.

        `key` is an idempotency key: a repeated key returns the same flow, and a different flow raises `FlowKeyReused`.
        With `hold`, the flow starts when its hold is lifted. Steps without a queue use `queue`. Any worker, of this
        process or another, runs the flow.
        """
        how = {"key": key, "hold": hold, "webhook": webhook, "queue": queue}
        return await start_flow(self, what, inputs, by=by, **how)

    async def agent(self, description: str, **how: Unpack[Ask]) -> AgentHandle:
        """Start an agent job: a model performs the task, and the answer and its cost are stored.

        By default, the words of the description select a `skill`, and its apparent difficulty selects a `tier` of
        models ("haiku", "sonnet", "opus"). `schema` is a JSON Schema for the answer, and `budget_usd` is the maximum
        cost. A failure is retried up to `max_retries` times, first after `retry_base`, and then after twice as long
        each time. A repeated `key` returns the existing job.

        >>> # answer = await (await app.agent("Summarise the changelog", tier="haiku")).result()
        """
        return await start_agent(self, description, **how)

    async def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        job: Handle | str | None = None,
        key: str | None = None,
        _tx: Any = None,
    ) -> Sent:
        """Send a signal to the jobs that wait for this name, now or within a week. With `job`, only that job receives
        it.

        A repeated `key` sends no second signal. With `_tx`, a transaction of `app.transaction()`, the signal is sent
        when that transaction commits.
        """
        where = await self.queue(_tx)
        to = job.id if isinstance(job, Handle) else job
        return await commands_signals.send(where, self.tenant_id, name, payload, job=to, key=key)

    async def approve(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Approve the request of a job.

        You can repeat the same decision. A different decision raises `AlreadyDecided`.
        """
        return await approvals.decide(
            await self.open(), self.tenant_id, approval_id, approvals.APPROVED, by=by, comment=comment
        )

    async def reject(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Reject the request of a job."""
        return await approvals.decide(
            await self.open(), self.tenant_id, approval_id, approvals.REJECTED, by=by, comment=comment
        )

    async def approvals(self) -> list[Approval]:
        """Return the open approval requests, newest first."""
        return await approvals.listed(await self.open(), self.tenant_id)

    def new_job(self, kind: JobType, arguments: Mapping[str, Any]) -> NewJob:
        """Return a new job of this kind, ready to be enqueued under the rules of its newest version."""
        return new_job(self.kinds.get(kind.name, kind), arguments, self.tenant_id)

    def limit_queue(self, name: str, *, limit: int | None = None, rate: str | None = None) -> None:
        """Limit a queue across all workers: at most `limit` jobs run concurrently, and at most `rate` ("100/min")
        start.

        The limit applies from the next start of a worker.
        """
        check_name("queue", name)
        self._queue_limits[name] = Throttle.of(limit, rate)

    async def declare_limit(self, kind: JobType, transaction: Any = None) -> None:
        """Store the limit of a kind in the database, once, before its first job.

        SQLite has one writer, so inside a transaction only that transaction can store the limit. If it is rolled back,
        the next call stores the limit.
        """
        if kind.throttle is None or kind.name in self._declared:
            return
        rules = [limits.rule("job", kind.name, kind.throttle)]
        if transaction is not None and database_url(self.url).dialect == "sqlite":
            await limits.declare(cast(Store, await self.queue(transaction)), rules)
        else:
            await limits.declare(await self.open(), rules)
            self._declared.add(kind.name)

    async def _declare_limits(self, store: Store) -> None:
        of_jobs = [limits.rule("job", kind.name, kind.throttle) for kind in self.kinds.values()]
        of_queues = [limits.rule("queue", name, throttle) for name, throttle in self._queue_limits.items()]
        await limits.declare(store, [*of_jobs, *of_queues])

    async def work(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 32,
        lease: Span | None = None,
        grace: Span = "30s",
        name: str = "",
        until_idle: bool = False,
        most_stuck: int | None = None,
        max_memory: Size | None = None,
        supervisor_timeout: Span = "60s",
        own_process: bool = False,
        bond: Bond | None = None,
        server: str | None = None,
        key: str | None = None,
        key_file: str | None = None,
    ) -> int:
        """Run a worker in this process until `stop` is called, and return how many jobs it completed.

        With `until_idle`, the worker also ends when no job is due. It then first waits for the jobs of workers that do
        not renew their leases, and runs these jobs when the leases expire. A worker that was terminated raises
        `WorkerTerminated`.

        `queues` defaults to every queue that the kinds of jobs are declared for, and `lease` to the lease of each kind.
        The worker also ends, to be replaced, when `most_stuck` of its threads (default: half of `concurrency`) are lost
        to handlers that cannot be ended. While it uses more than `max_memory`, it pauses until its running jobs have
        finished. If that does not help, it ends with `WorkerExhausted`. Workers without a heartbeat for
        `supervisor_timeout` are terminated, and their jobs return to the queue when the leases expire. With
        `own_process`, a worker that is terminated hard ends its process if a handler does not stop. With a `bond`, it
        ends with its supervisor. With `server`, it has no database and works for that server, with the API key in
        `key`, in `key_file`, or in KEPTWORK_KEY.
        """
        if concurrency < 1:
            raise BadInput(what=f"a worker with a concurrency of {concurrency} does nothing; it must be at least 1")
        settings = Settings(
            tuple(queues or self.queues),
            concurrency,
            name,
            lease_us=None if lease is None else span_us(lease),
            grace_us=span_us(grace),
            retention=self._retention,
            most_stuck=most_stuck,
            most_memory=None if max_memory is None else size_bytes(max_memory),
            silent_us=span_us(supervisor_timeout),
            own_process=own_process,
            bond=bond,
            version=__version__,
        )
        self._stopped = False  # from here on, a stop request counts, even while the database is being opened
        if server is not None:
            return await self._work_for(server, key, key_file, settings, until_idle)
        self._insist_on_database()
        await self._opened(for_longer=True)
        async with self._store_for_worker() as store:
            return await self._work_with(store, settings, until_idle)

    async def _work_with(self, store: Store, settings: Settings, until_idle: bool) -> int:
        await self._declare_limits(store)
        await self.keep_schedules()
        config = partial(_read_config, self._config)
        steps = StepKinds(self.open, config, self.provider, self.heard)
        kinds = {**steps.job_types(), **StartKind(self.open).job_types(), **self.kinds}
        settings = replace(settings, database=self.url)
        # Waiters in the home loop are woken only by workers there.
        endings = self._endings if self._home.here else Endings(store)
        worker = Worker(store, kinds, settings, self.leases_store, older=self.older_kinds, ended=endings.reached_by)
        endings.workers_here.append(worker.works_on)
        try:
            return await self._run(worker, until_idle)
        finally:
            endings.workers_here.remove(worker.works_on)

    @asynccontextmanager
    async def _store_for_worker(self) -> AsyncIterator[Store]:
        """Yield the store of the app. A worker in another event loop gets a store with connections of its own."""
        if self._store is not None and (self._home.here or _in_memory(self.url)):
            yield self._store
            return
        store = await open_store(self.url, create=False, clock=self._clock, tally=self._tally)
        try:
            yield store
        finally:
            await store.close()

    async def _work_for(
        self, server: str, key: str | None, key_file: str | None, settings: Settings, until_idle: bool
    ) -> int:
        """Run the same worker with the same handlers, without a database."""
        from keptwork.workers.remote.worker import remote_worker

        self._server = server
        try:
            async with remote_worker(server, key, key_file, self.kinds, self.older_kinds, settings, until_idle) as (
                worker,
                hang_up,
            ):
                self._hang_up = hang_up
                return await self._run(worker, until_idle)
        finally:
            self._server, self._hang_up = None, _nothing

    async def _run(self, worker: Worker, until_idle: bool) -> int:
        self._loops[worker] = asyncio.get_running_loop()
        self._workers.append(worker)
        if self._stopped:
            self.stop()
        try:
            return await worker.run(until_idle=until_idle)
        finally:
            self._workers.remove(worker)
            del self._loops[worker]

    def doing(self) -> Doing | None:
        """Return the activity of the worker in this process, or None if there is no worker."""
        return self._workers[0].doing() if self._workers else None

    def on_settled(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever a worker in this event loop has completed jobs.

        Return a function that ends the calls.
        """
        return self._endings.on_settled(heard) if self._home.here else _nothing

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue that the kinds of jobs are declared for."""
        return tuple(dict.fromkeys(kind.queue for kind in self.kinds.values())) or ("default",)

    def stop(self) -> None:
        """Request that the worker finish running jobs, release the others, and end. It also applies to a worker that is
        starting."""
        self._stopped = True
        for worker in self._workers:
            worker.stop()
        self._hang_up()

    @asynccontextmanager
    async def leases_store(self) -> AsyncIterator[Store]:
        """Yield a store with its own connections for the thread that renews leases.

        A database in memory has only one connection, which any thread can use, because its writer is a thread of its
        own.
        """
        if _in_memory(self.url):
            yield await self.open()
            return
        store = await open_store(self.url, create=False, tally=self._tally)
        try:
            yield store
        finally:
            await store.close()


def _nothing() -> None:
    """Do nothing, where there is no receiver."""


def _read_config(path: str | None) -> Config:
    """Read keptwork.toml and import its reader, when the first tool needs it."""
    from keptwork.settings import read

    return read(path)


def _in_memory(url: str | None) -> bool:
    return database_url(url).path == MEMORY
