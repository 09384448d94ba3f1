"""Mark the use-cases that decide by reading: their answers and refusals wait for the standbys of the database.

Every write of a store waits by itself. A use-case needs the mark if it can answer or refuse before it writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Acknowledges(Protocol):
    """A store, or a transaction of one."""

    def acknowledging(self) -> AbstractAsyncContextManager[Any]: ...


S = TypeVar("S", bound=Acknowledges)
P = ParamSpec("P")
T = TypeVar("T")


def acknowledged(
    use_case: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Hold back what a use-case answers, or refuses, until the standbys have the rows it rests on."""

    @wraps(use_case)
    async def waits(store: S, /, *values: P.args, **named: P.kwargs) -> T:
        async with store.acknowledging():
            return await use_case(store, *values, **named)

    return waits
