"""Which arguments a kind of job takes: exactly those its function would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.job import Handler, JobType


def plain(ctx: object, a: int, b: int = 1) -> None: ...
def only_named(ctx: object, *, a: int, b: int = 1) -> None: ...
def anything(ctx: object, a: int, **rest: int) -> None: ...
def spread(ctx: object, *many: int, b: int = 1) -> None: ...
def by_place(ctx: object, a: int, /, b: int = 1) -> None: ...
def nothing(ctx: object) -> None: ...


HANDLERS: list[Handler] = [plain, only_named, anything, spread, by_place, nothing]


@given(st.sampled_from(HANDLERS), st.dictionaries(st.sampled_from(["a", "b", "c", "many", "rest"]), st.just(1)))
def test_arguments_are_taken_exactly_when_the_function_would_take_them(handler: Handler, given: dict[str, Any]) -> None:
    kind = JobType.of(handler)
    try:
        handler(None, **given)
    except TypeError:
        with pytest.raises(TypeError):
            kind.check(given)
    else:
        kind.check(given)
