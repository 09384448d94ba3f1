"""A store whose time the test moves, and a second tenant beside the default one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from detent.store import Store
from tests.conformance.by_hand import hand_on
from tests.support.database_time import Timed, open_timed


@pytest.fixture
async def timed(database_url: str) -> AsyncIterator[Timed]:
    """A store whose time the test moves."""
    opened = await open_timed(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def other_tenant(store: Store, database_url: str) -> int:
    """A second tenant beside the default one; there is no verb for it yet."""
    hand = await hand_on(database_url)
    await hand.run("INSERT INTO tenants (id, name, created_at) VALUES (2, 'other', 0)")
    await hand.close()
    return 2
