"""An application on each kind of store, audited after every test, with nothing left running."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest

from keptwork import Keptwork
from keptwork.audit import verify


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("keptwork")}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about how often a worker looks around, so it looks more often."""
    monkeypatch.setattr("keptwork.workers.worker.POLL_SECONDS", 0.1)
    monkeypatch.setattr("keptwork.workers.lease_renewer.LOOK_SECONDS", 0.25)
    monkeypatch.setattr("keptwork.maintenance.expired_leases.BEAT_SECONDS", 0.2)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    before = our_threads()
    async with Keptwork(database_url) as opened:
        yield opened
        verdict = await verify.verify(await opened.open())
        assert verdict.clean, verdict.problems
        assert verdict.events
    for thread in our_threads() - before:
        thread.join(60)  # a handler's thread ends a moment after its worker
    assert our_threads() <= before
