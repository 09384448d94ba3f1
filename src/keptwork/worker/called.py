"""Python functions that steps of flows name, and what comes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any

from keptwork.outcomes import PermanentError
from keptwork.target import Target, load, unwrapped
from keptwork.worker.context import Context

_NESTED = (dict, list)


async def called(ctx: Context, named: str, given: Mapping[str, Any]) -> Any:
    """One whose first parameter is called ctx gets the context, and can keep checkpoints of its own; one that is not
    async runs in a thread of the worker's. What it is given is its own: whatever it does to that, others are given what
    there was."""
    function = function_of(named)
    arguments = [ctx] if takes_context(function) else []
    own = {name: deepcopy(value) if isinstance(value, _NESTED) else value for name, value in given.items()}
    bound = partial(function, *arguments, **own)
    if is_async(function):
        return await bound()
    return await ctx.steps.in_thread(bound)


is_async = lru_cache(maxsize=1_000)(inspect.iscoroutinefunction)
"""Whether a call of it is to be awaited; remembered, for it takes as long as many a function."""


@lru_cache(maxsize=1_000)
def takes_context(function: Callable[..., Any]) -> bool:
    """Whether it wants one. Some that are built in do not tell their parameters, and want no context."""
    try:
        return next(iter(inspect.signature(function).parameters), None) == "ctx"
    except ValueError:
        return False


@lru_cache(maxsize=1_000)
def function_of(named: str) -> Callable[..., Any]:
    """The function of that name. What was found once is not looked for again; what was not found is."""
    module, _, name = named.partition(":")
    try:
        found = unwrapped(load(Target(module, name)))
    except ModuleNotFoundError as error:
        raise PermanentError(f"{named} cannot be called: {error}; is its folder on PYTHONPATH?") from None
    except AttributeError:
        raise PermanentError(f"{named} cannot be called: the module {module} has no {name}") from None
    if not callable(found):
        raise PermanentError(f"{named} cannot be called: it is no function")
    return found


def output_of(said: Any) -> dict[str, Any]:
    """What came of a step always has names: what has none is called `value`."""
    return said if isinstance(said, dict) else {"value": said}
