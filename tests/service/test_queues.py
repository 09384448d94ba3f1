"""Queues as operators handle them, on both stores."""

from __future__ import annotations

import pytest

from keptwork.errors import BadInput
from keptwork.jobs import limits
from keptwork.store import Store
from tests.conformance.stage import claim, queued, worker

OURS = 1


async def test_a_paused_queue_is_not_served_until_it_is_resumed(store: Store) -> None:
    owner = await worker(store)
    await queued(store, 2)
    assert (await limits.pause(store, OURS, "default")).paused_at is None
    assert await claim(store, owner) == []
    assert (await limits.resume(store, OURS, "default")).paused_at is not None
    assert len(await claim(store, owner)) == 2


async def test_the_answer_tells_how_the_queue_was_before(store: Store) -> None:
    assert await limits.resume(store, OURS, "new") == ("new", {}, None, None, 0)
    await limits.pause(store, OURS, "new")
    assert (await limits.pause(store, OURS, "new")).paused_at is not None


async def test_only_the_queue_of_that_tenant_is_paused(store: Store, other_tenant: int) -> None:
    await queued(store, tenant_id=other_tenant)
    await limits.pause(store, OURS, "default")
    assert len(await claim(store, await worker(store))) == 1
    (theirs,) = await limits.list_queues(store, other_tenant)
    assert theirs.paused_at is None


@pytest.mark.parametrize("name", ["", " ", "a\0b"])
async def test_what_is_no_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="is no queue"):
        await limits.pause(store, OURS, name)


async def test_a_queue_as_json_counts_every_state(store: Store) -> None:
    await queued(store, 3)
    await claim(store, await worker(store), 1)
    (queue,) = map(limits.queue_json, await limits.list_queues(store, OURS))
    assert (queue["name"], queue["jobs"]["queued"], queue["jobs"]["assigned"], queue["jobs"]["failed"]) == (
        "default",
        2,
        1,
        0,
    )
    assert queue["oldest_due_at"].endswith("Z")
    assert queue["paused_at"] is None
