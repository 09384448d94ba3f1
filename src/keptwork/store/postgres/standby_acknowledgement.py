"""Delays an answer until the synchronous standbys have the rows that it is based on.

A commit waits for the standbys only if its transaction wrote to the write-ahead log. An operation that finds its work
already done writes nothing. Its answer could reach the caller while the commit that it reports still waits for a
standby, and would be false after a failover. Such an operation writes one record to the log before it answers or
raises, and the commit of that record waits. An operation that wrote rows has no extra cost.

The record is the statement `confirm` in `sql/postgres.sql`. `postgres_connections` notices a cancelled wait.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, wraps
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self, TypeVar

import asyncpg

from keptwork.errors import KeptworkError, StoreError
from keptwork.store.contract.writer import Writer

S = TypeVar("S", bound="Confirms")

EXEMPT: Mapping[str, str] = MappingProxyType(
    {
        "claim": "An empty claim promises nothing. A repeated claim that returns jobs writes the record.",
        "renew": "A lost lease is a reason to stop, not a promise; the holder is fenced either way.",
        "beat": "A heartbeat of an unknown worker is the lost renewal of a worker.",
        "take_duty": "A duty that is not due is looked at again.",
        "take_deliveries": "An empty claim of webhook deliveries promises nothing.",
        "fire_schedules": "A sweep that finds nothing due.",
        "silent_workers": "A sweep that finds nothing.",
        "pump": "A sweep that finds nothing to let go.",
        "lift_holds": "A sweep that finds nothing to let go.",
        "withdraw_approvals": "A sweep that finds nothing.",
        "drop_unused_blobs": "A sweep that finds nothing.",
        "prune": "A sweep that finds nothing.",
        "forget_signals": "A sweep that finds nothing.",
        "forget_deliveries": "A sweep that finds nothing.",
        "forget_budgets": "A sweep that finds nothing.",
        "forget_requests": "A sweep that finds nothing.",
        "forget_limits": "A sweep that finds nothing.",
        "forget_telemetry": "A sweep that finds nothing.",
        "note_progress": "Telemetry expires and promises nothing.",
        "record_telemetry": "Telemetry expires and promises nothing.",
        "touch_api_key": "The use of a key is noted at intervals, also for requests that only read.",
        "lock_trees": "A lock answers nothing; the transaction that takes it does.",
    }
)
"""The writing operations that can answer without writing, and without a record, with the reasons."""

_LOCKS = r"FOR (?:NO KEY )?UPDATE|FOR (?:KEY )?SHARE"
_WRITING = re.compile(rf"\b(?:INSERT INTO|UPDATE|DELETE FROM|{_LOCKS})\b")
_MAIN = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE)\b")
_OPENING = ("INSERT", "UPDATE", "DELETE", "MERGE")

Server = tuple[str, int] | str


class Operation:
    """The state of an operation so far. `outer` is the operation that it is a part of."""

    __slots__ = ("outer", "pending", "queried", "server", "wrote")

    def __init__(self, outer: Operation | None = None) -> None:
        self.outer = outer
        self.queried = False  # it sent a statement
        self.wrote = False  # a commit of its own wrote rows, and so waited for the standbys
        self.pending = False  # since then, a part of it answered from rows as they were
        self.server: Server | None = None  # the address that its last statement was sent to

    def committed(self) -> None:
        """Record a commit that waited. Everything read before it is then on the standbys, too."""
        self.queried = self.wrote = True
        self.pending = False

    def end(self, error: BaseException | None, exempt: bool = False) -> bool:
        """Return whether the answer or this error must wait for a record. A part leaves the record to the whole."""
        rests = self.queried if error else self.pending or (self.queried and not self.wrote)
        needed = rests and not exempt
        if self.outer is None:
            return needed and (error is None or is_refusal(error))
        self.outer.server = self.server or self.outer.server
        if self.wrote:
            self.outer.committed()
        self.outer.queried |= self.queried and not exempt
        self.outer.pending |= needed
        return False


class Confirms(Protocol):
    """A store that can write the record."""

    operation: Operation | None  # that its calls are a part of

    async def confirm(self, server: Server | None) -> None:
        """Write a record to the log of this server, and return when its standbys have it."""

    def lent(self, operation: Operation | None) -> Self:
        """Return the same store, whose calls are a part of this operation."""


_block: ContextVar[tuple[Operation, asyncio.Task[Any] | None] | None] = ContextVar("block", default=None)


def current() -> Operation | None:
    """Return the operation whose block the caller runs in, or None. A task that was started in it outlives it."""
    found = _block.get()
    return found[0] if found is not None and found[1] is asyncio.current_task() else None


class Acknowledging:
    """A block whose answer or error waits for the standbys. An inner block leaves the record to the outer one.

    `bound` makes the calls of this task a part of the block. A transaction is not bound: it records its own calls, and
    another task might end it. A block that only reads never writes the record.
    """

    def __init__(self, store: Confirms, *, bound: bool = True, reads_only: bool = False) -> None:
        self._store = store
        self._bound = bound
        self._reads_only = reads_only

    async def __aenter__(self) -> Operation:
        outer = self._store.operation or current()
        self._own = outer if self._reads_only and outer is not None else Operation(outer)
        if self._bound:
            self._token = _block.set((self._own, asyncio.current_task()))
        return self._own

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bound:
            _block.reset(self._token)
        if not self._reads_only and self._own.end(error):
            await self._store.confirm(self._own.server)


def is_refusal(error: BaseException) -> bool:
    """Return whether an error can rest on rows: a refusal of Keptwork, or a violated constraint."""
    violated = isinstance(error.__cause__, asyncpg.IntegrityConstraintViolationError)
    return violated if isinstance(error, StoreError) else isinstance(error, KeptworkError)


def acknowledges(store: type[S]) -> type[S]:
    """Make a store's writing operations wait for the rows that their answers are based on. Exempt ones do not wait."""
    for name in verbs():
        setattr(store, name, _waiting(getattr(store, name), name in EXEMPT))
    return store


def verbs() -> list[str]:
    """Return the names of the contract's writing operations."""
    return [name for name, _ in inspect.getmembers(Writer, inspect.isfunction) if not name.startswith("_")]


def _waiting(verb: Callable[..., Awaitable[Any]], exempt: bool) -> Callable[..., Awaitable[Any]]:
    @wraps(verb)
    async def waits(self: Confirms, *values: Any, **named: Any) -> Any:
        own = Operation(self.operation or current())
        try:
            answer = await verb(self.lent(own), *values, **named)
        except BaseException as error:
            if own.end(error, exempt):
                await self.confirm(own.server)
            raise
        if own.end(None, exempt and not (named.get("again") and answer)):
            await self.confirm(own.server)
        return answer

    return waits


async def sent(connection: asyncpg.Connection, sql: str, values: Sequence[Any]) -> tuple[list[asyncpg.Record], bool]:
    """Send a statement. Return its rows, and whether it wrote any."""
    writes, tells = manner(sql)
    if writes and not tells:
        return [], changed(await connection.execute(sql, *values)) > 0
    rows: list[asyncpg.Record] = await connection.fetch(sql, *values)
    return rows, writes and bool(rows)


@lru_cache(maxsize=10_000)
def manner(sql: str) -> tuple[bool, bool]:
    """Return whether a statement writes or locks rows, and whether it returns them.

    A statement that writes and returns rows returns only rows that it wrote or locked. A test checks the
    catalogue for that.

    >>> manner("UPDATE jobs SET queue = $1"), manner("SELECT id FROM jobs FOR SHARE"), manner("SELECT 1")
    ((True, False), (True, True), (False, True))
    """
    main = _without_brackets(sql)
    found = _MAIN.search(main)
    tells = found is None or found[0] == "SELECT" or "RETURNING" in main
    return bool(_WRITING.search(sql)), tells


def _without_brackets(sql: str) -> str:
    depth, kept = 0, []
    for sign in sql:
        depth += sign == "("
        if depth == 0:
            kept.append(sign)
        depth -= sign == ")"
    return "".join(kept)


def changed(status: str) -> int:
    """Return the number of rows that a statement changed, from the server's status, such as INSERT 0 1."""
    verb, *numbers = status.split()
    return int(numbers[-1]) if verb in _OPENING else 0
