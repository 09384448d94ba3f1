"""Broken twins: the shipped code with one guard taken out. A checker that misses one of them checks nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from keptwork.core import decide
from keptwork.core.decide import Record
from keptwork.core.lifecycles import JOB, Change, Lifecycle, Move, Right
from tests.model import invariants as must
from tests.model.world import Rules

Patch = pytest.MonkeyPatch


class Twin(NamedTuple):
    """How to break the code, and an invariant that must then be seen broken."""

    name: str
    broken: Callable[[Patch], Rules]
    caught_by: str

    @contextmanager
    def rules(self, **settings: Any) -> Iterator[Rules]:
        """The rules with the guard gone; it is back afterwards."""
        with pytest.MonkeyPatch.context() as patch:
            yield dataclasses.replace(self.broken(patch), **settings)


def _no_rights(patch: Patch) -> Rules:
    """The declaration: no move says who may make it."""
    return Rules(lifecycle=_job_with(rights=frozenset()))


def _no_fence(patch: Patch) -> Rules:
    """The kernel: the write does not ask whether the right to it still stands."""
    patch.setattr(Change, "entitled", lambda self, record, now: True)
    return Rules()


def _no_compare_and_set(patch: Patch) -> Rules:
    """The kernel: nobody looks whether the record has moved since it was read."""
    patch.setattr(Change, "unmoved", lambda self, record: True)
    return Rules()


def _epoch_stays(patch: Patch) -> Rules:
    """The declaration: going back to the queue leaves the epoch as it was. The check at import would refuse it."""
    patch.setattr(decide, "check", lambda lifecycle: None)
    return Rules(lifecycle=_job_with(raises_epoch=False))


def _renews_what_is_over(patch: Patch) -> Rules:
    """The statement: a lease may be renewed when it is over."""
    sql = Rules().renew_sql
    condition = sql[sql.index("AND lease_until >") :]
    return Rules(renew_sql=sql.replace(condition, ""))


def _renews_any_epoch(patch: Patch) -> Rules:
    """The statement: a token of an earlier claim renews too."""
    sql = Rules().renew_sql
    before, _, rest = sql.partition("AND epoch = ")
    return Rules(renew_sql=f"{before}AND coalesce({rest.split(' ')[0]}, 1) IS NOT NULL {rest.partition(' ')[2]}")


def _reaps_too_early(patch: Patch) -> Rules:
    """The kernel: the reaper's write does not look at the lease again."""
    entitled = Change.entitled

    def reaper_always(self: Change, record: Record, now: int) -> bool:
        return self.right is Right.REAPER or entitled(self, record, now)

    patch.setattr(Change, "entitled", reaper_always)
    return Rules()


def _job_with(**broken: Any) -> Lifecycle:
    def without_guard(move: Move) -> Move:
        kept = {name: value for name, value in broken.items() if getattr(move, name)}
        return dataclasses.replace(move, **kept)

    return dataclasses.replace(JOB, moves=tuple(map(without_guard, JOB.moves)))


TWINS = (
    Twin("no rights declared", _no_rights, must.HOLDER_ONLY),
    Twin("no fence", _no_fence, must.HOLDER_ONLY),
    Twin("no compare-and-set", _no_compare_and_set, must.HOLDER_ONLY),
    Twin("epoch not raised", _epoch_stays, must.ONE_CLAIM),
    Twin("renewal of a lease that is over", _renews_what_is_over, must.HOLDER_ONLY),
    Twin("renewal under an old epoch", _renews_any_epoch, must.HOLDER_ONLY),
    Twin("reaper does not look again", _reaps_too_early, must.NOT_EARLY),
)
