"""Models that mean harm: whatever they ask for, no tool runs outside the allow-list, none without its approval, and
what runs gets exactly what was asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from keptwork import Keptwork
from tests.worker.agent_stage import recorded
from tests.worker.malice import ALLOWED, MANY, QUICK, tried


@pytest.mark.acceptance
async def test_no_model_gets_a_tool_to_do_what_it_may_not(app: Keptwork, tmp_path: Path) -> None:
    trial = await tried(app, tmp_path, range(QUICK))
    assert trial.faults() == []
    ran = Counter(one.tool for one in recorded(tmp_path))
    assert all(ran[name] for name in ALLOWED), f"only {ran} were run: the scripts try nothing"


@pytest.mark.chaos
async def test_no_model_of_many_gets_a_tool_to_do_what_it_may_not(app: Keptwork, tmp_path: Path) -> None:
    trial = await tried(app, tmp_path, range(1_000, 1_000 + MANY))
    assert trial.faults() == []
    ran = Counter(one.tool for one in recorded(tmp_path))
    asked = Counter(use.name for one in trial.scripts.values() for answer in one for use in answer.uses)
    refused = sum(asked.values()) - sum(ran.values())
    print(f"\n{MANY} malicious scripts, {sum(asked.values())} uses in them, {refused} never run; ran: {dict(ran)};")
    print(f"{sum(trial.approved.values())} approvals given; 0 outside the list, 0 without approval, 0 altered")
