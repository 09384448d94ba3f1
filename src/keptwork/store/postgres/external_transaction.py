"""Enqueues over a caller's own asyncpg connection, inside a transaction that the caller started.

The connection can have any search path, settings, and codecs. So the only statement is a call of the SQL function
`keptwork_enqueue`, by its full name and with plain text. That function finds the tables, checks its arguments, and
leaves the event to the trigger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from keptwork.core import ids
from keptwork.core.loop_scope import running_loop
from keptwork.errors import BadInput, NotThere, OtherLoop
from keptwork.store.contract.records import NewJob
from keptwork.store.postgres.connections_server import explained
from keptwork.store.url import DatabaseUrl

# The fields of a job that the function takes. The schema's name comes from the catalogue, quoted by the server.
_TYPES = {
    "kind": "text",
    "payload": "text",
    "queue": "text",
    "priority": "int",
    "delay_us": "bigint",
    "run_at": "bigint",
    "key": "text",
    "max_attempts": "int",
    "on_exhausted": "text",
    "correlation_id": "text",
    "trace_id": "text",
    "tenant_id": "int",
}
_ARRAYS = ", ".join(f"${place}::{type}[]" for place, type in enumerate(_TYPES.values(), 1))
_ENQUEUE = f"""SELECT {{schema}}.keptwork_enqueue(g.kind, g.payload::jsonb, g.queue, g.priority,
    g.delay_us * interval '1 microsecond', timestamptz 'epoch' + g.run_at * interval '1 microsecond', g.key,
    g.max_attempts, g.on_exhausted, g.correlation_id, g.trace_id,
    coalesce((SELECT t.name FROM {{schema}}.tenants AS t WHERE t.id = g.tenant_id), '#' || g.tenant_id))
FROM unnest({_ARRAYS}) AS g({", ".join(_TYPES)})"""  # noqa: S608 - nothing in it comes from outside
_PREFIX = "keptwork: "
_MISSING = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)


class Guest:
    """The queue from inside a caller's own transaction."""

    def __init__(self, connection: Any, url: DatabaseUrl, schema: Callable[[], Awaitable[str]]) -> None:
        if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
            given = f"{type(connection).__module__}.{type(connection).__name__}"
            raise BadInput(
                what=f"a {given} cannot be _tx; give a transaction of app.transaction() or an asyncpg connection, or "
                f"call the SQL function keptwork_enqueue over your own"
            )
        self._connection = connection
        self._url = url
        self._schema = schema
        self._insist_open()

    def through(self, schema: Callable[[], Awaitable[str]]) -> Guest:
        """Return the same queue, with another way to get the schema's name from the database."""
        self._schema = schema
        return self

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Enqueue the jobs, all of which are committed or rolled back with the transaction."""
        if not jobs:
            return []
        columns = [[getattr(job, name) for job in jobs] for name in _TYPES]
        schema = await self._schema()
        self._insist_open()
        with self._told(schema):
            rows = await self._connection.fetch(_ENQUEUE.format(schema=schema), *columns)
        return [_key(row[0]) for row in rows]

    def _insist_open(self) -> None:
        """Raise unless the connection can be used by the caller. The driver's own checks come only after it sends the
        first byte."""
        try:
            inside, loop = self._connection.is_in_transaction(), self._connection._loop
        except asyncpg.InterfaceError:
            raise BadInput(what="the connection given as _tx was released to its pool; acquire another one") from None
        if not inside:
            raise BadInput(
                what="the connection given as _tx is in no transaction; begin one: async with connection.transaction()"
            )
        if loop is not running_loop():
            raise OtherLoop(what="the connection given as _tx")

    @contextmanager
    def _told(self, schema: str) -> Iterator[None]:
        """Translate errors. If the transaction must be retried, its owner gets the driver's own exception."""
        try:
            with explained(self._url):
                yield
        except Exception as error:
            match error.__cause__:
                case asyncpg.TransactionRollbackError() as again:
                    raise again from None
                case asyncpg.InvalidParameterValueError() as refusal if str(refusal).startswith(_PREFIX):
                    raise BadInput(what=str(refusal).removeprefix(_PREFIX)) from None
                case cause if isinstance(cause, _MISSING):
                    raise NotThere(schema=schema, url=self._url.shown) from None
            raise


def _key(public_id: str) -> int:
    found = ids.key_of(public_id)
    assert found is not None, public_id  # noqa: S101 - both sides write ids alike, or a test fails
    return found[1]
