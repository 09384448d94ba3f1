"""The measurement of `keptwork run`: it measures both shapes, and tells whether the limit is kept."""

from __future__ import annotations

import pytest

from bench import run

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(("limit", "met"), [(100_000.0, True), (0.001, False)])
def test_it_says_whether_the_limit_is_kept(limit, met, monkeypatch, capsys):
    monkeypatch.setattr(run, "STEPS", 2)
    monkeypatch.setattr(run, "MOST_MS", limit)
    assert run.measure(0.0, 1) is met
    shown = capsys.readouterr().out
    assert shown.count("NOT met" if not met else "· met") == 2
    assert {word for word in ("chain", "parallel") if word in shown} == {"chain", "parallel"}
