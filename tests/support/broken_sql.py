"""The shipped SQL with one guard taken out, for the twins that a checker has to catch."""

from __future__ import annotations

import re
from typing import Any

import pytest

from keptwork.core.lifecycles import Lifecycle, Move, Right
from keptwork.store import statements
from keptwork.store.statements import Catalogue


def ignore_columns(patch: pytest.MonkeyPatch, *columns: str) -> None:
    """Moves whose WHERE clause does not look at these columns."""
    shipped, ignored = statements._conditions, re.compile(rf"\w+\.({'|'.join(columns)}) ")

    def fewer(table: str, right: Right | None, now: str) -> str:
        return " AND ".join(part for part in shipped(table, right, now).split(" AND ") if not ignored.match(part))

    _differs(shipped("jobs", Right.HOLDER, "now"), fewer("jobs", Right.HOLDER, "now"))
    patch.setattr(statements, "_conditions", fewer)


def keep_epoch(patch: pytest.MonkeyPatch) -> None:
    """Moves that leave the epoch as it was."""
    shipped = Catalogue._assignments

    def fewer(self: Catalogue, lifecycle: Lifecycle, move: Move, *how: Any, **named: Any) -> str:
        sets = shipped(self, lifecycle, move, *how, **named)
        fewer_sets = re.sub(r", epoch = \w+\.epoch \+ 1", "", sets)
        assert (sets != fewer_sets) == move.raises_epoch
        return fewer_sets

    patch.setattr(Catalogue, "_assignments", fewer)


def renew_ended_leases(patch: pytest.MonkeyPatch) -> None:
    """A renewal that does not ask whether the lease is over."""
    leave_out(patch, "renew", r"AND (jobs\.)?lease_until > \S+")


def leave_out(patch: pytest.MonkeyPatch, name: str, pattern: str, instead: str = "") -> None:
    """A named statement without what the pattern matches."""
    shipped = statements._read

    def fewer(file: str) -> dict[str, str]:
        statements = dict(shipped(file))
        if name in statements:
            sql = re.sub(pattern, instead, statements[name])
            _differs(statements[name], sql)
            statements[name] = sql
        return statements

    patch.setattr(statements, "_read", fewer)


def move_on_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A reader of the log that does not ask whether it still stands where it began."""
    shipped = statements._read

    def fewer(name: str) -> dict[str, str]:
        statements = dict(shipped(name))
        if "move_on" in statements:
            sql = statements["move_on"].replace("WHERE log_positions.cursor = :after", "")
            _differs(statements["move_on"], sql)
            statements["move_on"] = sql
        return statements

    patch.setattr(statements, "_read", fewer)


def _differs(shipped: str, broken: str) -> None:
    """A twin that is the shipped code after all would pass for the wrong reason."""
    assert shipped != broken, "nothing was taken out"
