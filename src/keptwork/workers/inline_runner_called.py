"""Call the Python functions that steps of flows name, and return their outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any

from keptwork.context import Context
from keptwork.core.function_ref import Target, load, unwrapped
from keptwork.outcomes import PermanentError

_NESTED = (dict, list)


async def called(ctx: Context, named: str, given: Mapping[str, Any]) -> Any:
    """Call the named function and return what it returns. If the first parameter of the function is called `ctx`, it
    receives the context and can store checkpoints of its own. A function that is not async runs in a thread of the
    worker. Nested arguments are copies, so a function cannot change what others receive."""
    function = function_of(named)
    arguments = [ctx] if takes_context(function) else []
    own = {name: deepcopy(value) if isinstance(value, _NESTED) else value for name, value in given.items()}
    bound = partial(function, *arguments, **own)
    if is_async(function):
        return await bound()
    return await ctx.steps.in_thread(bound)


is_async = lru_cache(maxsize=1_000)(inspect.iscoroutinefunction)
"""Whether to await a call of the function. Cached, because the check takes as long as many a function."""


@lru_cache(maxsize=1_000)
def takes_context(function: Callable[..., Any]) -> bool:
    """Return whether the function takes a context. Some built-in functions have no signature; they take none."""
    try:
        return next(iter(inspect.signature(function).parameters), None) == "ctx"
    except ValueError:
        return False


@lru_cache(maxsize=1_000)
def function_of(named: str) -> Callable[..., Any]:
    """Return the function of that name. Only successful lookups are cached."""
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
    """Return the output of a step as a dict. A value that is not a dict is stored under `value`."""
    return said if isinstance(said, dict) else {"value": said}
