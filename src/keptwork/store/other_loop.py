"""A store for an event loop that does not own it: each call runs on the store's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from keptwork.core.loop_scope import COMMITTED, ROLLED_BACK, Scope
from keptwork.errors import KeptworkError, StoreError
from keptwork.store.contract.records import Event, EventFilter
from keptwork.store.contract.store_follow import following
from keptwork.store.counters import Tally

if TYPE_CHECKING:
    from keptwork.store import Store
    from keptwork.store.contract.store import Enqueues, Reader
    from keptwork.sync import AppLane, Sync

T = TypeVar("T")
Verb = Callable[..., Coroutine[Any, Any, Any]]
Begin = Callable[["Store"], AbstractAsyncContextManager[Any]]


class VisitingStore:
    """All operations of a store. None of them opens a connection in the caller's event loop."""

    def __init__(self, door: Sync, narrow: Callable[[Store], Store] = lambda store: store) -> None:
        self._door = door
        self._narrow = narrow
        self._seen: Store | None = None

    def __getattr__(self, verb: str) -> Verb:
        if verb.startswith("_"):
            raise AttributeError(verb)

        async def handed(*values: Any, **how: Any) -> Any:
            return await self._asked(lambda store: getattr(store, verb)(*values, **how))

        return handed

    @property
    def url(self) -> str:
        return self._door.url

    @property
    def tally(self) -> Tally:
        """The counters of the thread's store. Any thread can add to them."""
        return Tally() if self._seen is None else self._seen.tally

    def transaction(self, tenant_id: int | None = None) -> AbstractAsyncContextManager[Any]:
        return self._lent(lambda store: store.transaction(tenant_id))

    def snapshot(self) -> AbstractAsyncContextManager[Any]:
        return self._lent(lambda store: store.snapshot())

    def narrowed(self, tenant_id: int) -> VisitingStore:
        return VisitingStore(self._door, lambda store: store.narrowed(tenant_id))

    @asynccontextmanager
    async def acknowledging(self) -> AsyncIterator[None]:
        """Wait for the standbys at the end, because each call is a separate operation on the thread."""
        try:
            yield
        except KeptworkError as error:
            await self._refuse(error)
        await self._confirmed()

    async def _refuse(self, error: KeptworkError) -> NoReturn:
        """Raise a refusal once the standbys have the rows that it rests on."""
        if not isinstance(error, StoreError):
            await self._confirmed()
        raise error

    async def _confirmed(self) -> None:
        async def read(store: Store) -> None:
            async with store.acknowledging():
                await store.now()

        await self._asked(read)

    def within(self, transaction: Any) -> Enqueues:
        """Return the queue inside a transaction that was opened in the caller's loop."""
        if isinstance(transaction, VisitingTransaction):
            return cast("Enqueues", transaction)
        if self._seen is None:
            raise LookupError("a visiting store has been asked for nothing yet")
        found = self._seen.within(transaction)
        through = getattr(found, "through", None)
        return found if through is None else cast("Enqueues", through(self._schema))

    async def follow(self, wanted: EventFilter | None = None, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in following(cast("Reader", self), wanted or EventFilter(), after):
            yield event

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: notifications are not passed to other loops. Callers also check periodically."""
        return _nothing

    async def close(self) -> None:
        """Do nothing: the thread closes its store."""

    async def _asked(self, ask: Callable[[Store], Awaitable[T]]) -> T:
        async def on_the_thread(lane: AppLane) -> T:
            self._seen = self._narrow(await lane.app.open())
            return await ask(self._seen)

        return await self._door.hand(on_the_thread)

    async def _schema(self) -> str:
        return str(await self._asked(lambda store: cast(Any, store)._schema()))

    @asynccontextmanager
    async def _lent(self, begin: Begin) -> AsyncIterator[VisitingTransaction]:
        """Open and end the transaction in one task of the thread, whatever happens to the caller's task meanwhile."""
        stay, scope = _Stay(lambda store: begin(self._narrow(store))), Scope()
        hosting = asyncio.ensure_future(self._door.hand(stay.host, long=True))
        try:
            either: list[asyncio.Future[Any]] = [asyncio.wrap_future(stay.begun), hosting]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if hosting.done():
                hosting.result()
            yield VisitingTransaction(stay, scope)
        except BaseException as error:
            scope.end(ROLLED_BACK)
            stay.end(commits=False)
            await asyncio.wait({hosting})
            if isinstance(error, KeptworkError):
                await self._refuse(error)
            raise
        scope.end(COMMITTED)
        stay.end(commits=True)
        try:
            await asyncio.shield(hosting)
        except BaseException:
            scope.end("its commit failed")
            raise


class _Undone(Exception):
    """Rolls a transaction back."""


class _Stay:
    """A transaction that a task of the thread keeps open until the caller ends it."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._over: Future[bool] = Future()
        self.begun: Future[tuple[AppLane, Any]] = Future()

    async def host(self, lane: AppLane) -> None:
        store = await lane.app.open()
        with contextlib.suppress(_Undone):
            async with self._begin(store) as lent:
                self.begun.set_result((lane, lent))
                if not await asyncio.wrap_future(self._over):
                    raise _Undone

    def end(self, *, commits: bool) -> None:
        if not self._over.done():
            self._over.set_result(commits)


class VisitingTransaction:
    """A transaction of the thread's store, for use in the event loop and block that opened it."""

    def __init__(self, stay: _Stay, scope: Scope) -> None:
        self._lane, self._lent = stay.begun.result()
        self._scope = scope

    @property
    def tally(self) -> Tally:
        return cast("Tally", self._lent.tally)

    def __getattr__(self, verb: str) -> Verb:
        if verb.startswith("_"):
            raise AttributeError(verb)

        async def handed(*values: Any, **how: Any) -> Any:
            self._scope.insist()
            return await self._lane.awaited(getattr(self._lent, verb)(*values, **how))

        return handed

    def acknowledging(self) -> AbstractAsyncContextManager[None]:
        """Do nothing: the end of the transaction waits for the standbys."""
        return nullcontext()


def _nothing() -> None:
    """Do nothing: there is no subscription to end."""
