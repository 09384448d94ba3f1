"""Blocking calls for ordinary code (Django, Flask, scripts): each returns when its work is done.

Calls from event loops that do not own the application's store run on the same thread; `visiting` hands them over.

From the first call on, a separate thread runs an event loop with a store of its own. Any thread can call. Before a
fork, the store is closed, because no database connection survives a fork. Parent and child each open another store when
they need it. The store is closed when the program ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - first, because exit handlers run in reverse order
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from keptwork.core.home_loop import keep_for_ever
from keptwork.core.loop_scope import COMMITTED, ROLLED_BACK
from keptwork.core.loop_thread import PATIENCE_SECONDS, Lane
from keptwork.errors import BadInput, OtherLoop, TransactionEnded
from keptwork.store.url import database_url

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.core.durations import Span
    from keptwork.flows.commands import FlowRef
    from keptwork.flows.report import FlowReport
    from keptwork.handles import Handle
    from keptwork.handles_flow import Definition, FlowHandle
    from keptwork.job import DeclaredJob
    from keptwork.store import Transaction
    from keptwork.store.contract.waits_approvals import Approval
    from keptwork.store.contract.waits_signals import Sent

T = TypeVar("T")

SHORT_SECONDS = 0.002


class AppLane(Lane):
    """A lane with an application whose store is opened on it."""

    def __init__(self, app: Keptwork) -> None:
        self.app = app
        super().__init__("keptwork-sync")

    async def _end(self) -> None:
        """Close the application, but do not wait for a server that no longer responds."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.app.close()
        except TimeoutError:
            pass
        await super()._end()


class SyncTransaction:
    """A transaction for your rows and your jobs. It starts and ends with its block."""

    def __init__(self, lane: AppLane, lent: Transaction) -> None:
        self._lane = lane
        self._lent = lent
        self._process = os.getpid()
        self.ended: str | None = None

    def execute(self, sql: str, *values: Any) -> int:
        """Run an SQL statement and return how many rows it changed."""
        return self._lane.run(self.lent.execute(sql, *values))

    def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Run an SQL statement and return its rows as dicts."""
        return self._lane.run(self.lent.fetch(sql, *values))

    @property
    def lent(self) -> Transaction:
        """The transaction of the lane, while it is open."""
        if self.ended is not None:
            raise TransactionEnded(how=self.ended)
        if self._process != os.getpid():
            raise OtherLoop(what="this transaction")
        return self._lent


class SyncFlow:
    """The handle of a started flow. Every call blocks until it has its result."""

    def __init__(self, door: Sync, ref: FlowRef) -> None:
        self._door = door
        self._ref = ref

    @property
    def id(self) -> str:
        """The public ID."""
        return self._ref.public_id

    def ended(self, timeout: Span | None = None) -> FlowReport:
        """Do the same as `await handle.ended(timeout)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.ended(timeout))

    def outputs(self, timeout: Span | None = None) -> dict[str, Any]:
        """Do the same as `await handle.outputs(timeout)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.outputs(timeout))

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Do the same as `await handle.cancel(reason)`."""
        self._door.about_flow(self._ref, lambda flow: flow.cancel(reason, by=by))

    def approve(self, step: str | None = None, *, by: str, comment: str | None = None) -> list[Approval]:
        """Do the same as `await handle.approve(step, by=…)`."""
        return self._door.about_flow(self._ref, lambda flow: flow.approve(step, by=by, comment=comment))


class Sync:
    """The blocking methods of an application, as `app.sync`."""

    def __init__(self, app: Keptwork) -> None:
        self._app = app
        self._lane: AppLane | None = None
        self._calls = self._closing = 0
        self._torn = False
        self._gate = threading.Condition()
        self._of_thread = threading.local()

    def enqueue(self, job: DeclaredJob, /, *, _tx: SyncTransaction | None = None, **arguments: Any) -> Handle:
        """Do the same as `await job.enqueue(…)`, with the same `_key`, `_run_in`, `_priority`, and other options."""
        lent = self._lent(_tx)
        with self._entered(inside=lent is not None) as lane:
            return self._app.handle(lane.run(lane.app.declared(job).enqueue(_tx=lent, **arguments)).key)

    def enqueue_many(
        self, job: DeclaredJob, many: Iterable[Mapping[str, Any]], *, _tx: SyncTransaction | None = None
    ) -> list[Handle]:
        """Do the same as `await app.enqueue_many(…)`: enqueue all or none."""
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
        """Do the same as `await app.send_event(…)`."""
        lent = self._lent(_tx)
        with self._entered(inside=lent is not None) as lane:
            return lane.run(lane.app.send_event(name, payload, job=job, key=key, _tx=lent))

    def start_flow(self, what: Definition, inputs: Mapping[str, Any] | None = None, **how: Any) -> SyncFlow:
        """Do the same as `await app.start_flow(…)`, with the same `key`, `hold`, `webhook`, and other options."""
        self._lent(None)
        with self._entered() as lane:
            return SyncFlow(self, lane.run(lane.app.start_flow(what, inputs, **how))._ref)

    def about_flow(self, ref: FlowRef, ask: Callable[[FlowHandle], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a call on a handle of that flow."""
        from keptwork.handles_flow import FlowHandle

        self._lent(None)
        with self._entered() as lane:
            return lane.run(ask(FlowHandle(ref, lane.app)))

    def approve(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Do the same as `await app.approve(…)`."""
        self._lent(None)
        with self._entered() as lane:
            return lane.run(lane.app.approve(approval_id, by=by, comment=comment))

    def reject(self, approval_id: str, *, by: str, comment: str | None = None) -> Approval:
        """Do the same as `await app.reject(…)`."""
        self._lent(None)
        with self._entered() as lane:
            return lane.run(lane.app.reject(approval_id, by=by, comment=comment))

    @contextmanager
    def transaction(self) -> Iterator[SyncTransaction]:
        """Open a transaction for your rows and your jobs.

        Statements of its `execute`, and jobs enqueued with it as `_tx`, take effect if it commits, and otherwise not at
        all.
        """
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
        """Close the database when the calls of other threads are done. The next call opens it again."""
        self._lent(None)
        self._close(None)

    # --- the lane

    def _lent(self, given: SyncTransaction | None) -> Transaction | None:
        """Return the transaction to use, if any. Refuse a call that would deadlock."""
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
        """The database URL, without secrets."""
        return database_url(self._app.url).shown

    async def hand(self, ask: Callable[[AppLane], Coroutine[Any, Any, T]], *, long: bool = False) -> T:
        """Run a call of another event loop on the thread and return its result.

        A fork does not wait for a `long` call that its own thread has made.
        """
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
        """Close the thread and its store unless a call uses them. The next call opens them again."""
        if self._lane is not None:
            await asyncio.to_thread(self._close, 0.0)

    @contextmanager
    def _entered(self, *, inside: bool = False) -> Iterator[AppLane]:
        """Enter a call.

        A pending close goes first, except before a call that an open transaction needs to finish.
        """
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
        """Let calls finish, close the store, and hold the gate until the fork is done."""
        self._gate.acquire()
        inside = getattr(self._of_thread, "inside", False) or getattr(self._of_thread, "stays", 0)
        self._close(0.0 if inside else PATIENCE_SECONDS)

    def after_fork_in_parent(self) -> None:
        self._gate.release()

    def after_fork_in_child(self) -> None:
        """Drop the lane, because its thread runs only in the parent.

        A transaction that was open cannot continue here.
        """
        self._torn = self._torn or self._lane is not None
        self._gate, self._calls, self._closing = threading.Condition(), 0, 0
        keep_for_ever(self._lane)
        self._lane = None


_DOORS: weakref.WeakSet[Sync] = weakref.WeakSet()
_held: list[Sync] = []
_watching = False


def _watch() -> None:
    """Register the handlers for forks and for the end of the program, once."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
        # This runs before the thread pools end, which closing a store needs; atexit handlers run after them.
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
