"""Find the clock or the race of asyncio's own tools that surrounds a parked wait.

A parked wait outlives this process, and a clock of asyncio does not. The search goes from the task that waits through
its coroutines, and outwards through everything that awaits the task. It reads what asyncio's own callbacks and frames
hold, so it knows CPython's asyncio, and of other libraries only the cancel scopes of anyio.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

OURS = str(Path(__file__).parents[1]) + "/"
"""Time limits set in these files are those of Keptwork itself."""

Future = asyncio.Future[Any]


def clock_around(task: asyncio.Task[Any]) -> str | None:
    """Return the name of the innermost tool that could end the wait of this task, or None."""
    waiting: list[Future] = [task]
    seen = {id(task)}
    for future in waiting:
        if isinstance(future, asyncio.Task):
            found = _clock_within(future)
            if found is not None:
                return found
        for callback, _ in getattr(future, "_callbacks", None) or ():
            found, awaiting = _behind(callback)
            if found is not None:
                return found
            waiting += [one for one in awaiting if id(one) not in seen]
            seen.update(id(one) for one in awaiting)
    return None


# --- inside one task


def _clock_within(task: asyncio.Task[Any]) -> str | None:
    found = None
    for coroutine in _coroutines(task):  # from the outermost
        code = coroutine.cr_code
        if code.co_filename.startswith(OURS):
            continue
        if code.co_name == "wait_for" and code.co_filename == asyncio.tasks.__file__:
            found = "asyncio.wait_for"
        else:
            found = next((name for one in gc.get_referents(coroutine) if (name := _clock_of(one, task))), found)
    return found


def _coroutines(task: asyncio.Task[Any]) -> Iterator[Any]:
    """Yield the coroutines of a task, from the outermost to the one that waits."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        if hasattr(coroutine, "cr_await"):
            yield coroutine
            coroutine = coroutine.cr_await
        else:
            coroutine = _inside(coroutine)


def _inside(awaited: Any) -> Any:
    """Return the coroutine that runs inside an object that is awaited, or None: an async generator, or an awaitable
    that steps a coroutine itself."""
    for one in gc.get_referents(awaited):
        if hasattr(one, "ag_await"):
            return one.ag_await
        if type(one).__name__ == "coroutine_wrapper":
            return next((inner for inner in gc.get_referents(one) if hasattr(inner, "cr_await")), None)
    return None


def _clock_of(found: Any, task: asyncio.Task[Any], depth: int = 3) -> str | None:
    """Return the name of the clock that this value of a coroutine's frame stands for, or None."""
    value: Any = found.__self__ if isinstance(found, MethodType) else found
    if isinstance(value, asyncio.Timeout):
        own: Any = value
        active = own._state.value in ("active", "expiring") and own._task is task
        return "asyncio.timeout" if active and value.when() is not None else None
    if type(value).__name__ == "CancelScope" and type(value).__module__.startswith("anyio"):
        active = getattr(value, "_active", False) and getattr(value, "_host_task", None) is task
        return "a cancel scope of anyio" if active and value.deadline != float("inf") else None
    if depth and isinstance(value, contextlib._GeneratorContextManager | contextlib._AsyncGeneratorContextManager):
        return _first(gc.get_referents(value.gen), task, depth)
    if depth and isinstance(value, contextlib.AsyncExitStack | contextlib.ExitStack):
        stack: Any = value
        return _first([callback for _, callback in stack._exit_callbacks], task, depth)
    return None


def _first(values: list[Any], task: asyncio.Task[Any], depth: int) -> str | None:
    return next((name for one in values if (name := _clock_of(one, task, depth - 1))), None)


# --- from a task to what awaits it


def _behind(callback: Any) -> tuple[str | None, list[Future]]:
    """Return the clock or race that a callback belongs to, or else the futures that end with it."""
    if isinstance(callback, functools.partial):
        return ("asyncio.wait_for", []) if callback.func.__name__ == "_release_waiter" else (None, [])
    owner: Any = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Future):
        return None, [owner]
    if type(owner).__name__ == "TaskGroup" and hasattr(owner, "_parent_task"):
        return None, [one for one in (owner._parent_task,) if one is not None]
    if type(owner).__name__ == "_AsCompletedIterator":
        return _of_as_completed(owner._timeout_handle, owner._done)
    return _of_closure(callback)


def _of_closure(callback: Callable[..., Any]) -> tuple[str | None, list[Future]]:
    """Return what a callback closes over: a clock or race, or the futures that complete with it. Most of asyncio's
    callbacks are closures over the objects they serve."""
    cells = _cells(callback)
    name = getattr(callback, "__qualname__", "")
    if name.startswith("as_completed.") and "done" in cells:
        return _of_as_completed(cells.get("timeout_handle"), cells["done"])
    if name.startswith("_wait."):
        if cells.get("return_when") != asyncio.ALL_COMPLETED:
            return f"asyncio.wait(return_when={cells.get('return_when')})", []
        if cells.get("timeout_handle") is not None:
            return "asyncio.wait(timeout=…)", []
    return None, [one for one in cells.values() if isinstance(one, asyncio.Future)]


def _of_as_completed(timeout: Any, done: Any) -> tuple[str | None, list[Future]]:
    if timeout is not None:
        return "asyncio.as_completed(timeout=…)", []
    return None, list(done._getters)


def _cells(callback: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    code, closure = getattr(callback, "__code__", None), getattr(callback, "__closure__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), closure or (), strict=False):
        with contextlib.suppress(ValueError):  # the cell is still empty
            found[name] = cell.cell_contents
    return found
