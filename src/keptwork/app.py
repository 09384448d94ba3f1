"""The application: its database, its kinds of jobs, and the ways to enqueue and run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from keptwork import __version__, spans
from keptwork.agent.conversation import Provider
from keptwork.agent_handle import AgentHandle, Ask, start_agent
from keptwork.bounds import OWN_KINDS, check_name
from keptwork.clock import Clock
from keptwork.crew_handle import CrewHandle
from keptwork.declared_job import DeclaredJob
from keptwork.declared_schedules import DeclaredSchedules, How
from keptwork.errors import BadInput, NeedsDatabase
from keptwork.flow_handle import Definition, FlowHandle, start_flow
from keptwork.home import Home, keep_for_ever, watch_forks
from keptwork.job_handle import Handle
from keptwork.job_type import Handler, JobType
from keptwork.moments import Span, span_us
from keptwork.service import approvals, artifacts, crews, limits, results, signals
from keptwork.service.endings import Endings
from keptwork.service.new_jobs import new_job, new_jobs, put
from keptwork.service.retention import Retention
from keptwork.sizes import Size, size_bytes
from keptwork.store import Artifact, NewJob, Store, Transaction, open_store
from keptwork.store.approvals import Approval
from keptwork.store.protocol import Enqueues
from keptwork.store.scope import running_loop
from keptwork.store.signals import Sent
from keptwork.store.tally import Tally
from keptwork.store.url import database_url
from keptwork.sync import Sync
from keptwork.target import refuse_while_loading
from keptwork.throttle import Throttle
from keptwork.visiting import VisitingStore
from keptwork.window import put_unique
from keptwork.worker.agent_turn import Heard
from keptwork.worker.bond import Bond
from keptwork.worker.report import Doing
from keptwork.worker.settings import Settings
from keptwork.worker.start_kind import StartKind
from keptwork.worker.step_kinds import StepKinds
from keptwork.worker.worker import Worker

if TYPE_CHECKING:
    from keptwork.config import Config

MEMORY = ":memory:"
SHORT_SECONDS = 0.002


class Keptwork:
    """Jobs, and the database they are kept in: as given, else KEPTWORK_DB, else ./keptwork.db.

    Its workers delete jobs that have ended: those that succeeded or were cancelled after `keep_finished`, those that
    failed or are dead letters after `keep_failures`; and flows, crews and agent jobs like them. What has an idempotency
    key stays for `keep_keys` as well. None is for ever. What tools the steps of flows may run is in `config`, else
    KEPTWORK_CONFIG, else ./keptwork.toml.

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
        """Whether a missing database is created and an older SQLite file brought up to date, or both refused."""
        self.sync = Sync(self)
        self.provider: Provider | None = None
        """Who answers agents, instead of whom keptwork.toml names; for tests."""
        self.heard: Heard | None = None
        """Is told what models say as they say it, with the id of the job."""

    def job(self, **rules: Any) -> Callable[[Handler], DeclaredJob]:
        """Declares a kind of job: `queue`, `priority`, `max_attempts`, `lease`, `timeout`, `backoff`, `backoff_cap`,
        `on_exhausted` ("dead_letter" or "fail"), `name`. With `isolation="process"` each job runs in a process of its
        own, within `memory` ("512MB") and `cpu` ("30s") if they are given.

        Several handlers of one `name` each have a `version` (1, 2, …; without one it is the oldest). New jobs go by the
        newest; a job whose steps were begun under an older one runs to its end under that.

        In the whole fleet at most `limit` run at once, and `rate` ("100/min") start: of all, or `per` "tenant" or
        argument. `unique` is a window in which the same arguments make no second job.

        With `breaker`, a name or a `Breaker(…)`, failures in a row hold all jobs back that name it, until one that is
        let through to try succeeds."""

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
        """Enqueues a kind of job again and again: by a cron expression in a time zone, or `every` so often. Workers
        keep the schedule when they start, and fire each of its ticks once, however many they are.

        As a decorator over `@app.job`, or called with what it returned. `name` is that of the job if nothing is said;
        `arguments` are those of every job. `catch_up` says what becomes of ticks that nobody was there for: "latest"
        fires the last one, "all" every one (the newest 1,000), "none" waits for the next.

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
        """Keeps what is declared in the database; a worker does it when it starts."""
        await self._schedules.keep(await self.open(), self.new_job)

    def declared(self, job: DeclaredJob) -> DeclaredJob:
        """The same kind of job, to be enqueued through this application's store."""
        return DeclaredJob(self, job.kind)

    def twin(self) -> Keptwork:
        """The same application with a store of its own, for another event loop."""
        if _in_memory(self.url):
            raise BadInput(what="a database in memory belongs to the event loop that opened it; app.sync needs a file")
        twin = Keptwork(database_url(self.url).lasting, tenant=self._tenant)
        twin.kinds, twin.older_kinds, twin.creates = self.kinds, self.older_kinds, self.creates
        return twin

    async def open(self) -> Store:
        """The store, opened when it is first needed. It belongs to the event loop that opened it: in another one, or
        after that one was closed, its calls are handed to the thread that `sync` uses."""
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
        in_memory = _in_memory(self.url)  # one for all event loops: its writer is a thread of its own
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
        """Gives the database back, also what the thread for other event loops and ordinary code has of it, unless that
        is in use. The next call opens it again."""
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
        """Close a store whose event loop can close it no more. Return whether there was one."""
        store, self._store = self._store, None
        if store is not None:
            store.abandon()
        return store is not None

    def forked(self) -> None:
        """Leave everything that belongs to event loops and connections to the parent; called in a forked child."""
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
        """A transaction of the store, for your rows and your jobs: what is done by its `execute` and `fetch`, and what
        is enqueued with it as `_tx`, is there if it commits, and was never if not."""
        async with (await self.open()).transaction() as transaction:
            yield transaction

    async def queue(self, transaction: Any = None) -> Enqueues:
        """Where jobs go: the store, or a transaction that is open already."""
        store = await self.open()
        return store if transaction is None else store.within(transaction)

    async def put(self, job: NewJob, transaction: Any = None) -> int:
        """Puts a job into the queue and returns its key. A worker in this process that has nothing to do starts it in
        the same write."""
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
        """Puts many jobs of one kind into the queue, all or none; with `_tx`, if and when that transaction commits.

        Where the kind is declared with `unique=`, sets of equal arguments make one job, and each of them returns its
        handle."""
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
        """Gives a task to a crew of one to ten workers: each gets a share, a job of this kind, called with these
        arguments and with `share` (from 0), `shares` and `task`. It starts when the quota of its depth has room for all
        of them. When `_timeout` is over it is cancelled; the same `_key` a second time makes no second one.

        >>> # crew = await app.crew(review, task="review the release", workers=3, files=files)
        """
        await self.open()
        await self.declare_limit(job.kind)
        kind = self.kinds.get(job.kind.name, job.kind)
        new = crews.new_crew(kind, arguments, self.tenant_id, task=task, workers=workers, key=_key, timeout=_timeout)
        return CrewHandle(await crews.submit(await self.open(), new), self)

    async def result(self, job_id: str, timeout: Span | None = None) -> Any:  # noqa: ASYNC109 - as Handle.result has it
        """What the handler of a job returned, once it has ended; see `Handle.result`."""
        store = await self.open()
        return await results.result(store, self.tenant_id, job_id, timeout, self._endings if self._home.here else None)

    def handle(self, key: int) -> Handle:
        """The handle to a job."""
        return Handle(key, self)

    async def artifacts(self, job_id: str) -> list[Artifact]:
        """What a job keeps beside its result: name, media type, size and hash of each."""
        return await artifacts.listed(await self.open(), self.tenant_id, job_id)

    async def artifact(self, job_id: str, name: str) -> bytes:
        """What is in an artifact of a job; one that is not there is `NotFound`."""
        _, content = await artifacts.content(await self.open(), self.tenant_id, job_id, name)
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
        """Starts a flow: a file by its path, a `Flow`, or what such a file would say as a dict. The same `key` again is
        the flow it has made, and `FlowKeyReused` for another. Held, nothing of it begins until it is let go. Steps that
        name no queue go into `queue`. Workers carry it out, of this process or any other."""
        how = {"key": key, "hold": hold, "webhook": webhook, "queue": queue}
        return await start_flow(self, what, inputs, by=by, **how)

    async def agent(self, description: str, **how: Unpack[Ask]) -> AgentHandle:
        """Starts an agent job: a model is asked, and what comes of it is kept with what it cost. What is not said is
        chosen: a `skill` by the words of the description, a `tier` of models ("haiku", "sonnet", "opus") by how hard it
        looks. `schema` is a JSON Schema that the answer has to fit, `budget_usd` what it may cost. What fails is tried
        again, `max_retries` times, after `retry_base` and then twice as long each time. The same `key` again is the job
        it has made.

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
        """Sends an event to the jobs that wait for that name, now or later, for a week; with `job`, to that one only.
        The same `key` a second time sends no second one. With `_tx`, a transaction of `app.transaction()`, it is sent
        if and when that commits."""
        where = await self.queue(_tx)
        to = job.id if isinstance(job, Handle) else job
        return await signals.send(where, self.tenant_id, name, payload, job=to, key=key)

    async def approve(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Approves what a job asks for; the same again answers the same, another decision is `AlreadyDecided`."""
        return await approvals.decide(
            await self.open(), self.tenant_id, approval_id, approvals.APPROVED, by=by, comment=comment
        )

    async def reject(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Rejects what a job asks for."""
        return await approvals.decide(
            await self.open(), self.tenant_id, approval_id, approvals.REJECTED, by=by, comment=comment
        )

    async def approvals(self) -> list[Approval]:
        """The questions that are open, the newest first."""
        return await approvals.listed(await self.open(), self.tenant_id)

    def new_job(self, kind: JobType, arguments: Mapping[str, Any]) -> NewJob:
        """A job of this kind, ready to be enqueued: by the rules of its newest version."""
        return new_job(self.kinds.get(kind.name, kind), arguments, self.tenant_id)

    def limit_queue(self, name: str, *, limit: int | None = None, rate: str | None = None) -> None:
        """A queue of which the whole fleet runs at most `limit` jobs at once, and starts at most `rate` ("100/min"); it
        holds from the next worker on that starts."""
        check_name("queue", name)
        self._queue_limits[name] = Throttle.of(limit, rate)

    async def declare_limit(self, kind: JobType, transaction: Any = None) -> None:
        """Makes the limit of a kind known to the database, once, before the first of its jobs is. A SQLite file has one
        writer: inside a transaction only that transaction can do it, and if it is undone the next call does it."""
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
        """Works in this process until `stop` is called, or until nothing is due; returns how many jobs were settled. A
        worker that somebody terminated raises `WorkerTerminated`. With `until_idle` it also waits for the jobs of
        workers that do not renew their leases, and runs them when the leases expire.

        Without `queues` it serves every queue its kinds of jobs are declared for; without `lease` each kind has one. It
        also ends, to be replaced, when `most_stuck` of its threads are lost to handlers that cannot be ended: half of
        `concurrency`, if nothing is said. With more than `max_memory` in use it pauses until what it runs has ended,
        and ends with `WorkerExhausted` if that does not help. Workers not heard of for `supervisor_timeout` are
        terminated; their jobs wait for their leases to end. A worker with a process of its own (`own_process`) ends
        the process itself, should it be terminated hard and a handler not let go; with a `bond` it ends with its
        supervisor. With `server` it has no database: it works for that server, under the key given, in `key_file`, or
        in KEPTWORK_KEY.
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
        self._stopped = False  # from here on: what is asked while the database is being opened counts
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
        # Who waits in the home loop hears only of workers there.
        endings = self._endings if self._home.here else Endings(store)
        worker = Worker(store, kinds, settings, self.leases_store, older=self.older_kinds, ended=endings.reached_by)
        endings.workers_here.append(worker.works_on)
        try:
            return await self._run(worker, until_idle)
        finally:
            endings.workers_here.remove(worker.works_on)

    @asynccontextmanager
    async def _store_for_worker(self) -> AsyncIterator[Store]:
        """The store at home. A worker beside it, in another event loop, has connections of its own."""
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
        """The same worker and the same handlers, without a database."""
        from keptwork.worker.remote_worker import remote_worker

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
        """What the worker in this process is doing; none while there is none."""
        return self._workers[0].doing() if self._workers else None

    def on_settled(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever a worker in this event loop has written what came of jobs; returns how to stop."""
        return self._endings.on_settled(heard) if self._home.here else _nothing

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue its kinds of jobs are declared for."""
        return tuple(dict.fromkeys(kind.queue for kind in self.kinds.values())) or ("default",)

    def stop(self) -> None:
        """Asks the worker to finish what it has begun, give back the rest, and end; one that is just starting, too."""
        self._stopped = True
        for worker in self._workers:
            worker.stop()
        self._hang_up()

    @asynccontextmanager
    async def leases_store(self) -> AsyncIterator[Store]:
        """A store for the thread that keeps leases: connections of its own. A database in memory has but one, which any
        thread may use: its writer is a thread of its own already."""
        if _in_memory(self.url):
            yield await self.open()
            return
        store = await open_store(self.url, create=False, tally=self._tally)
        try:
            yield store
        finally:
            await store.close()


def _nothing() -> None:
    """There is nobody to be told."""


def _read_config(path: str | None) -> Config:
    """What keptwork.toml says; read, with all it takes to read it, when a tool is first wanted."""
    from keptwork.config import read

    return read(path)


def _in_memory(url: str | None) -> bool:
    return database_url(url).path == MEMORY
