"""An application on each kind of store, audited after every test, with nothing left running."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest

from detent import Detent
from detent.service import audit


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("detent")}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about how often a worker looks around, so it looks more often."""
    monkeypatch.setattr("detent.worker.worker.POLL_SECONDS", 0.1)
    monkeypatch.setattr("detent.worker.leases.LOOK_SECONDS", 0.25)
    monkeypatch.setattr("detent.worker.reaper.BEAT_SECONDS", 0.2)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Detent]:
    before = our_threads()
    async with Detent(database_url) as opened:
        yield opened
        verdict = await audit.verify(await opened.open())
        assert verdict.clean, verdict.problems
        assert verdict.events
    for thread in our_threads() - before:
        thread.join(5)  # a handler's thread ends a moment after its worker
    assert our_threads() <= before
