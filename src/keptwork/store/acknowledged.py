"""Mark functions that decide by reading: they wait for the database's standbys.

Every write of a store waits for the standbys anyway. A function needs the mark if it can return or raise before it
writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Acknowledges(Protocol):
    """A store or a transaction."""

    def acknowledging(self) -> AbstractAsyncContextManager[Any]: ...


S = TypeVar("S", bound=Acknowledges)
P = ParamSpec("P")
T = TypeVar("T")


def acknowledged(
    use_case: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Delay the result or error of a function until the standbys have the rows it is based on."""

    @wraps(use_case)
    async def waits(store: S, /, *values: P.args, **named: P.kwargs) -> T:
        async with store.acknowledging():
            return await use_case(store, *values, **named)

    return waits
