"""The store's operations on breakers, written once for both databases, which differ in how they run a statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from keptwork.store.contract.breakers import BREAKER_COLUMNS, BreakerView, Row, Watched

T = TypeVar("T")

Rows = Sequence[Sequence[Any]]


class BreakerReads(ABC):
    """The read operations."""

    @abstractmethod
    async def _ask(self, statement: str, /, **values: Any) -> Rows:
        """Run a named statement that changes nothing and return its rows."""

    @abstractmethod
    def _list(self, values: Sequence[Any]) -> Any:
        """Return several values as one statement parameter."""

    async def breaker(self, tenant_id: int, name: str) -> Row | None:
        found = await self._ask("breaker", tenant_id=tenant_id, name=name)
        return _row(found[0]) if found else None

    async def breakers(self, tenant_id: int, name: str | None = None) -> list[BreakerView]:
        return [BreakerView(_row(row), row[-1]) for row in await self._ask("breakers", tenant_id=tenant_id, name=name)]

    async def breakers_that_hold(self, limit: int, after: int = 0) -> list[Watched]:
        found = await self._ask("breakers_that_hold", limit=limit, after=after)
        return [Watched(_row(row), *map(bool, row[len(BREAKER_COLUMNS) :])) for row in found]

    async def is_claimed(self, job: int, epoch: int) -> bool:
        return bool(await self._ask("is_claimed", id=job, epoch=epoch))

    async def holds_any(self, tenant_id: int, hold: str) -> bool:
        return bool(await self._ask("holds_any", tenant_id=tenant_id, hold=hold))


class BreakerVerbs(BreakerReads):
    """The write operations."""

    @abstractmethod
    async def _tell(self, statement: str, /, **values: Any) -> Rows:
        """Run a named statement that makes changes and return its rows."""

    @abstractmethod
    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        """Run work in one transaction, as `Store.atomically` promises."""

    @abstractmethod
    async def _announce(self) -> None:
        """Notify waiting workers when the transaction commits."""

    async def lock_breaker(self, tenant_id: int, name: str) -> Row | None:
        found = await self._tell("lock_breaker", tenant_id=tenant_id, name=name)
        return _row(found[0]) if found else None

    async def hold_back(self, tenant_id: int, hold: str, limit: int, besides: int | None = None) -> int:
        which = {"tenant_id": tenant_id, "hold": hold, "limit": limit, "besides": besides}
        return await self.atomically(lambda tx: tx._hold_back(which), limit)

    async def _hold_back(self, which: dict[str, Any]) -> int:
        """Hold the jobs. A job that counted against its limit gives up its place."""
        found = await self._tell("hold_back", **which)
        if limited := [id for id, limit_key in found if limit_key is not None]:
            await self._tell("free_places", ids=self._list(limited))
        return len(found)

    async def let_go(self, tenant_id: int, hold: str, limit: int) -> int:
        which = {"tenant_id": tenant_id, "hold": hold, "limit": limit}
        return await self.atomically(lambda tx: tx._let_go(which), limit)

    async def _let_go(self, which: dict[str, Any]) -> int:
        return await self._gone(await self._tell("let_held_go", **which))

    async def let_one_go(self, tenant_id: int, hold: str, after: str | None = None) -> tuple[int, str] | None:
        return await self.atomically(lambda tx: tx._let_one_go({"tenant_id": tenant_id, "hold": hold}, after))

    async def _let_one_go(self, which: dict[str, Any], after: str | None) -> tuple[int, str] | None:
        queues, seen = [after, None], set[str]()
        while queues:
            queue = (await self._tell("next_held_queue", **which, after=queues.pop(0)))[0][0]
            if queue is None or queue in seen:
                continue
            gone = await self._tell("let_one_held_go", **which, queue=queue)
            if await self._gone(gone):
                return int(gone[0][0]), queue
            seen.add(queue)
            queues.insert(0, queue)
        return None

    async def _gone(self, found: Rows) -> int:
        """Count the jobs whose hold was lifted. Queue those with a limit for a check by it, and notify waiting
        workers."""
        if limited := [id for id, limit_key in found if limit_key is not None]:
            await self._tell("look_at_limits_of", ids=self._list(limited))
        if found:
            await self._announce()
        return len(found)


def _row(found: Sequence[Any]) -> Row:
    return dict(zip(BREAKER_COLUMNS, found[: len(BREAKER_COLUMNS)], strict=True))
