"""Locate a function for another process: its module and its name there, as `import` would find it.

A script that runs as `__main__` is located by its path. The other process runs the script again under another name, so
that its `if __name__ == "__main__":` part is skipped. The rest of the script runs again too, so a database cannot be
opened while a module is loading.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from keptwork.errors import BadInput

SCRIPT = "__keptwork_main__"

_loading = threading.local()
"""Whether this thread is loading a user's module. Other threads can open databases meanwhile."""


class Target(NamedTuple):
    """A function's module, its name there, and the path of the module if it is a script."""

    module: str
    qualname: str
    script: str | None = None


def target_of(function: Callable[..., Any]) -> Target:
    """Return how another process finds the function. Raise `BadInput` if it cannot be found."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "<unnamed>")
    if module is None or "<" in qualname:
        raise BadInput(
            what=f"job {qualname}: isolation='process' needs a function that can be imported, defined at the top of a "
            "module; this one exists only where it was made"
        )
    return _main_target(qualname) if module == "__main__" else Target(module, qualname)


def _main_target(qualname: str) -> Target:
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return Target(main.__spec__.name, qualname)  # python -m NAME
    path = getattr(main, "__file__", None)
    if path is None:
        raise BadInput(
            what=f"job {qualname}: isolation='process' needs a function that another process can import; put it into a "
            "file, this one was typed in"
        )
    return Target("__main__", qualname, os.path.abspath(path))


def load(target: Target) -> Any:
    """Return the object of that name: the function, or what its decorator returned."""
    with _marked():
        found: Any = _script(target.script) if target.script else importlib.import_module(target.module)
    for name in target.qualname.split("."):
        found = getattr(found, name)
    return found


def unwrapped(found: Any) -> Callable[..., Any]:
    """Return the function itself. A declared job has it as `__wrapped__`."""
    function: Callable[..., Any] = found if isinstance(found, FunctionType) else getattr(found, "__wrapped__", found)
    return function


def is_found(target: Target, function: Callable[..., Any]) -> bool:
    """Return whether the target leads to this function, as far as this process can determine."""
    found: Any = sys.modules.get("__main__" if target.script else target.module)
    if found is None:
        return target.module == getattr(sys.modules["__main__"].__spec__, "name", None)
    for name in target.qualname.split("."):
        found = getattr(found, name, None)
    return unwrapped(found) is function


def refuse_while_loading() -> None:
    """Refuse to work while a module is loading.

    A script without `if __name__ == "__main__":` would otherwise enqueue and work again in every process that it
    starts.
    """
    if getattr(_loading, "now", False):
        raise BadInput(
            what='this module works or enqueues while it is being imported; put that under if __name__ == "__main__":'
        )


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    _loading.now = True
    try:
        yield
    finally:
        _loading.now = False


def _script(path: str) -> ModuleType:
    import runpy  # not needed by programs that only declare jobs

    if SCRIPT not in sys.modules:
        module = ModuleType(SCRIPT)
        module.__dict__.update(runpy.run_path(path, run_name=SCRIPT))
        sys.modules[SCRIPT] = module
    return sys.modules[SCRIPT]
