"""One job taken through its life by the product itself: the shortest proof that a database works."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.store import NewJob, Store


async def walk(store: Store) -> int:
    """Enqueue, claim, start, succeed; returns the job's key. Four events, in this order, or an assertion fails."""
    worker = await store.create(WORKER, name="walker", incarnation="1", workspace_id="default")
    (id,) = await store.enqueue([NewJob("walk", queue=f"walk-{worker}")])
    (job,) = await store.claim(worker, [f"walk-{worker}"], 1, 60_000_000, claim_id=worker)
    for trigger in ("start", "succeed"):
        row = await store.get(JOB, id, None)
        assert row is not None
        change = insist(decide(JOB, row, trigger, now=await store.now(), token=job.token))
        assert await store.apply([change]) == []
    # By entity, not in the order of commits: there a reader waits for every older transaction of the server to end.
    logged = [event.trigger for event in await store.history((id, 0), 10) if event.entity_id == id]
    assert logged == ["enqueue", "claim", "start", "succeed"], logged
    return id
