"""Compute a digest of a function's code, to detect that the code has changed since it made a result."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType
from typing import Any

_PYTHON = f"{sys.implementation.cache_tag}:"


def step_code(function: Callable[..., Any]) -> str | None:
    """Return a short digest of the function's code, or None if it is not written in Python.

    >>> step_code(len) is None
    True
    >>> step_code(lambda: 1) == step_code(lambda: 1)
    True
    >>> step_code(lambda: 1) == step_code(lambda: 2)
    False
    """
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _digest(code) if isinstance(code, CodeType) else None


def same_code(one: str | None, other: str | None) -> bool:
    """Return whether the digests do not differ. Digests from different versions of Python are not compared."""
    if one is None or other is None or one.partition(":")[0] != other.partition(":")[0]:
        return True
    return one == other


@lru_cache(maxsize=10_000)
def _digest(code: CodeType) -> str:
    return _PYTHON + hashlib.sha256(_code_text(code).encode()).hexdigest()[:16]


def _code_text(code: CodeType) -> str:
    """Return the code without line numbers and file names, which edits to other lines change."""
    constants = [_code_text(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))
