"""Enqueueing from ordinary code (Django, Flask, scripts): calls that wait until what they ask for is done.

Calls from event loops that the application's own store does not belong to are handed to the same thread; `visiting`
does that.

A thread of its own runs an event loop and a store of its own, from the first call on. Any thread may call. Before a
fork the store is closed, for neither database's connection survives one; parent and child each open another when they
need it. It is closed when the program ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - before `_end` is registered: what comes later ends earlier
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from keptwork.errors import BadInput, OtherLoop, TransactionEnded
from keptwork.home import keep_for_ever
from keptwork.lane import PATIENCE_SECONDS, Lane
from keptwork.store.scope import COMMITTED, ROLLED_BACK
from keptwork.store.url import database_url

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.declared_job import DeclaredJob
    from keptwork.flow_handle import Definition, FlowHandle
    from keptwork.job_handle import Handle
    from keptwork.moments import Span
    from keptwork.service.flow_report import FlowReport
    from keptwork.service.flows import FlowRef
    from keptwork.store import Transaction
    from keptwork.store.approvals import Approval
    from keptwork.store.signals import Sent

T = TypeVar("T")

SHORT_SECONDS = 0.002


class AppLane(Lane):
    """A lane, and an application whose store is opened on it."""

    def __init__(self, app: Keptwork) -> None:
        self.app = app
        super().__init__("keptwork-sync")

    async def _end(self) -> None:
        """A server that does not answer any more is not waited for."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.app.close()
        except TimeoutError:
            pass
        await super()._end()


class SyncTransaction:
    """A transaction for your rows and your jobs; it begins and ends with its block."""

    def __init__(self, lane: AppLane, lent: Transaction) -> None:
        self._lane = lane
        self._lent = lent
        self._process = os.getpid()
        self.ended: str | None = None

    def execute(self, sql: str, *values: Any) -> int:
        """Runs a statement of your own and returns how many rows it changed."""
        return self._lane.run(self.lent.execute(sql, *values))

    def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows that such a statement returns, by the names of their columns."""
        return self._lane.run(self.lent.fetch(sql, *values))

    @property
    def lent(self) -> Transaction:
        """The transaction itself, while it lasts."""
        if self.ended is not None:
            raise TransactionEnded(how=self.ended)
        if self._process != os.getpid():
            raise OtherLoop(what="this transaction")
        return self._lent


class SyncFlow:
    """A flow that was started; every call waits for its answer."""

    def __init__(self, door: Sync, ref: FlowRef) -> None:
        self._door = door
        self._ref = ref

    @property
    def id(self) -> str:
        """Its public id."""
        return self._ref.public_id

    def ended(self, timeout: Span | None = None) -> FlowReport:
        """As `await handle.ended(timeout)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.ended(timeout))

    def outputs(self, timeout: Span | None = None) -> dict[str, Any]:
        """As `await handle.outputs(timeout)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.outputs(timeout))

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """As `await handle.cancel(reason)`."""
        self._door.about_flow(self._ref, lambda flow: flow.cancel(reason, by=by))

    def approve(self, step: str | None = None, *, by: str, comment: str | None = None) -> list[Approval]:
        """As `await handle.approve(step, by=…)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.approve(step, by=by, comment=comment))


class Sync:
    """What `app.sync` is: `enqueue`, `enqueue_many`, `start_flow`, `send_event`, `approve`, `reject`, `transaction`,
    `close`."""

    def __init__(self, app: Keptwork) -> None:
        self._app = app
        self._lane: AppLane | None = None
        self._calls = self._closing = 0
        self._torn = False
        self._gate = threading.Condition()
        self._of_thread = threading.local()

    def enqueue(self, job: DeclaredJob, /, *, _tx: SyncTransaction | None = None, **arguments: Any) -> Handle:
        """As `await job.enqueue(…)`, with the same `_key`, `_run_in`, `_priority` and so on."""
        lent = self._lent(_tx)
        with self._entered(inside=lent is not None) as lane:
            return self._app.handle(lane.run(lane.app.declared(job).enqueue(_tx=lent, **arguments)).key)

    def enqueue_many(
        self, job: DeclaredJob, many: Iterable[Mapping[str, Any]], *, _tx: SyncTransaction | None = None
    ) -> list[Handle]:
        """As `await app.enqueue_many(…)`: all or none."""
        lent, jobs = self._lent(_tx), list(many)
        with self._entered(inside=lent is not None) as lane:
            return [self._app.handle(made.key) for made in lane.run(lane.app.enqueue_many(job, jobs, _tx=lent))]

    def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        job: Handle | str | None = None,
        key: str | None = None,
        _tx: SyncTransaction | None = None,
    ) -> Sent:
        """As `await app.send_event(…)`."""
        lent = self._lent(_tx)
        with self._entered(inside=lent is not None) as lane:
            return lane.run(lane.app.send_event(name, payload, job=job, key=key, _tx=lent))

    def start_flow(self, what: Definition, inputs: Mapping[str, Any] | None = None, **how: Any) -> SyncFlow:
        """As `await app.start_flow(…)`, with the same `key`, `hold`, `webhook` and so on."""
        self._lent(None)
        with self._entered() as lane:
            return SyncFlow(self, lane.run(lane.app.start_flow(what, inputs, **how))._ref)

    def about_flow(self, ref: FlowRef, ask: Callable[[FlowHandle], Coroutine[Any, Any, T]]) -> T:
        """What a handle to that flow says."""
        from keptwork.flow_handle import FlowHandle

        self._lent(None)
        with self._entered() as lane:
            return lane.run(ask(FlowHandle(ref, lane.app)))

    def approve(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """As `await app.approve(…)`."""
        self._lent(None)
        with self._entered() as lane:
            return lane.run(lane.app.approve(approval_id, by=by, comment=comment))

    def reject(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """As `await app.reject(…)`."""
        self._lent(None)
        with self._entered() as lane:
            return lane.run(lane.app.reject(approval_id, by=by, comment=comment))

    @contextmanager
    def transaction(self) -> Iterator[SyncTransaction]:
        """Your rows and your jobs: what its `execute` does, and what is enqueued with it as `_tx`, is there if it
        commits, and was never if not."""
        self._lent(None)
        with self._entered() as lane:
            block = lane.app.transaction()
            transaction = SyncTransaction(lane, lane.run(block.__aenter__()))
            self._of_thread.inside = True
            try:
                yield transaction
            except BaseException as error:
                transaction.ended = ROLLED_BACK
                lane.run(block.__aexit__(type(error), error, error.__traceback__))
                raise
            else:
                transaction.ended = COMMITTED
                lane.run(block.__aexit__(None, None, None))
            finally:
                self._of_thread.inside = False

    def close(self) -> None:
        """Gives the database back, once other threads' calls are done. The next call opens it again."""
        self._lent(None)
        self._close(None)

    # --- the lane

    def _lent(self, given: SyncTransaction | None) -> Transaction | None:
        """The transaction to work in, if any; refuses what would wait for itself."""
        _refuse_in_a_loop()
        if given is None:
            if getattr(self._of_thread, "inside", False):
                raise BadInput(what="inside app.sync.transaction() as tx, say so with _tx=tx, or wait for its end")
            return None
        if not isinstance(given, SyncTransaction):
            raise BadInput(
                what=f"a {type(given).__module__}.{type(given).__name__} cannot be _tx; give a transaction of "
                f"app.sync.transaction(), or call the SQL function keptwork_enqueue over your own connection"
            )
        return given.lent

    # --- other event loops

    @property
    def url(self) -> str:
        """Which database, fit to be shown."""
        return database_url(self._app.url).shown

    async def hand(self, ask: Callable[[AppLane], Coroutine[Any, Any, T]], *, long: bool = False) -> T:
        """Run on the thread what a caller in another event loop asks for, and return what came of it. A fork does not
        wait for the end of a `long` call that its own thread has made."""
        while True:
            if (lane := self._enter_at_once()) is not None:
                break
            await asyncio.sleep(SHORT_SECONDS)  # waiting for the gate itself would block the caller's loop
        self._of_thread.stays = getattr(self._of_thread, "stays", 0) + long
        try:
            return await lane.awaited(ask(lane), self._leave)
        finally:
            self._of_thread.stays -= long

    def _enter_at_once(self) -> AppLane | None:
        if not self._gate.acquire(blocking=False):
            return None
        try:
            if self._closing:
                return None
            lane = self._lane = self._lane or self._opened()
            self._calls += 1
            return lane
        finally:
            self._gate.release()

    def _leave(self) -> None:
        with self._gate:
            self._calls -= 1
            self._gate.notify_all()

    async def close_if_idle(self) -> None:
        """Close the thread and its store unless somebody uses them. The next call opens them again."""
        if self._lane is not None:
            await asyncio.to_thread(self._close, 0.0)

    @contextmanager
    def _entered(self, *, inside: bool = False) -> Iterator[AppLane]:
        """Whoever wants to close it goes first; except before what a transaction still needs to come to its end."""
        with self._gate:
            self._gate.wait_for(lambda: inside or not self._closing)
            lane = self._lane = self._lane or self._opened()
            self._calls += 1
        try:
            yield lane
        finally:
            self._leave()

    def _opened(self) -> AppLane:
        if self._torn:
            raise BadInput(what="this process was forked in the middle of app.sync.transaction(); fork outside of it")
        twin = self._app.twin()
        _DOORS.add(self)
        _watch()
        return AppLane(twin)

    def _close(self, patience: float | None) -> None:
        with self._gate:
            self._closing += 1
            if self._gate.wait_for(lambda: not self._calls, patience) and self._lane is not None:
                self._lane.close()
                self._lane = None
            self._closing -= 1
            self._gate.notify_all()

    # --- forks

    def before_fork(self) -> None:
        """Lets calls end and closes the store; holds the gate until the fork is done."""
        self._gate.acquire()
        inside = getattr(self._of_thread, "inside", False) or getattr(self._of_thread, "stays", 0)
        self._close(0.0 if inside else PATIENCE_SECONDS)

    def after_fork_in_parent(self) -> None:
        self._gate.release()

    def after_fork_in_child(self) -> None:
        """The threads are the parent's; what they were in the middle of cannot be gone on with here."""
        self._torn = self._torn or self._lane is not None
        self._gate, self._calls, self._closing = threading.Condition(), 0, 0
        keep_for_ever(self._lane)
        self._lane = None


_DOORS: weakref.WeakSet[Sync] = weakref.WeakSet()
_held: list[Sync] = []
_watching = False


def _watch() -> None:
    """From the first lane on: what happens before a fork and at the end of the program."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
        # Before the thread pools end, which closing a store still needs; atexit would be after.
        getattr(threading, "_register_atexit", atexit.register)(_end)


def _before_fork() -> None:
    _held.extend(_DOORS)
    for door in _held:
        door.before_fork()


def _after_in_parent() -> None:
    while _held:
        _held.pop().after_fork_in_parent()


def _after_in_child() -> None:
    _held.clear()
    for door in list(_DOORS):
        door.after_fork_in_child()


def _end() -> None:
    for door in list(_DOORS):
        door._close(PATIENCE_SECONDS)


def _refuse_in_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BadInput(what="app.sync would block the event loop it is called from; here write: await JOB.enqueue(…)")
