"""Loops that let a malicious model have its way: the check that finds none in ours finds each of them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import tool_loop
from keptwork.agents.conversation import ToolUse
from keptwork.agents.tool_loop import Toolbox
from keptwork.flows.steps.tool import spec_for
from tests.worker.malice import tried

pytestmark = pytest.mark.acceptance

SOME = range(14, 20)
"""Of the scripts that do no harm to ours, those that suffice here."""


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One kind of store is enough: it is the loop that is broken."""
    return sqlite_url


async def test_the_check_catches_a_loop_without_an_allow_list(
    app: Keptwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Toolbox.__init__

    def all_of_them(self: Toolbox, settings: Any, allowed: Any) -> None:
        shipped(self, settings, settings.tools)

    monkeypatch.setattr(Toolbox, "__init__", all_of_them)
    assert "hidden is not allowed, and ran" in (await tried(app, tmp_path, SOME)).faults()


@pytest.mark.acceptance
async def test_the_check_catches_approvals_that_are_bound_to_the_name_of_the_tool(
    app: Keptwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first approval of a job is then one for all that follow."""

    async def once(self: Any, use: ToolUse, spec: Any, effect: str) -> None:
        asked = self._ctx.steps._taken
        if f"#approval {use.name}" not in asked:
            shown = {"command": list(spec.argv)}
            await self._ctx.wait_for_approval(f"May it run {use.name}?", name=use.name, details=shown)

    monkeypatch.setattr("keptwork.agents.tool_loop.Conversation._approved", once)
    assert any("times" in fault for fault in (await tried(app, tmp_path, SOME)).faults())


async def test_the_check_catches_arguments_that_arrive_altered(
    app: Keptwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.agents.validation._text", lambda value: shlex.quote(str(value)))
    assert any("nothing a model asked for" in fault for fault in (await tried(app, tmp_path, SOME)).faults())


async def test_the_check_catches_a_shell(app: Keptwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = spec_for

    def by_shell(name: str, settings: Any, argv: tuple[str, ...], stdin: bytes) -> Any:
        spec = shipped(name, settings, argv, stdin)
        return replace(spec, argv=("sh", "-c", " ".join(("true", *argv))))

    monkeypatch.setattr(tool_loop, "spec_for", by_shell)
    assert "a shell was at work" in (await tried(app, tmp_path, SOME)).faults()
