"""What a claim reads: what is due, and never the jobs that are due later, however many there are."""

from __future__ import annotations

import json

import apsw
import asyncpg
import pytest

from keptwork.core.lifecycles import WORKER
from keptwork.store import NewJob, open_store
from keptwork.store.dialect import POSTGRES, SQLITE
from keptwork.store.postgres.connections_server import SESSION_SETTINGS
from keptwork.store.statements import Catalogue
from keptwork.store.url import database_url as parsed

HOUR = 3_600_000_000
PRIORITIES = 4
LATER = 4_000


async def filled(url: str) -> int:
    """A few jobs that are due at the lowest priority, and many of every priority that are not."""
    store = await open_store(url)
    later = [NewJob("later", delay_us=HOUR + place, priority=place % PRIORITIES) for place in range(LATER)]
    await store.enqueue([*later, *[NewJob("due")] * 3])
    worker = await store.create(WORKER, name="w", incarnation="w", workspace_id="w")
    await store.close()
    return worker


async def test_postgres_reads_a_few_pages_beside_many_delayed_jobs(postgres_url: str) -> None:
    worker = await filled(postgres_url)
    connection = await asyncpg.connect(postgres_url, server_settings=SESSION_SETTINGS)
    await connection.execute("ANALYZE jobs")
    sql, parameters = Catalogue(POSTGRES)["claim_and_start"]
    values = {"worker": worker, "claim_id": 1, "limit": 100, "lease_us": HOUR, "queues": ["default"], "actor": "w"}
    answer = ""
    for _ in range(2):  # the first one also reads what there is to know about the tables
        begun = connection.transaction()
        await begun.start()
        answer = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *[values.get(name) for name in parameters]
        )
        await begun.rollback()
    await connection.close()
    (plan,) = json.loads(answer)
    assert plan["Plan"]["Actual Rows"] == 3
    assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 200


async def test_sqlite_takes_a_few_steps_beside_many_delayed_jobs(sqlite_url: str) -> None:
    await filled(sqlite_url)
    db = apsw.Connection(parsed(sqlite_url).path)
    steps = 0

    def counted() -> bool:
        nonlocal steps
        steps += 100
        return False

    db.set_progress_handler(counted, 100)
    catalogue, below, found = Catalogue(SQLITE), 1 << 31, 0
    for _ in range(PRIORITIES):
        ((below,),) = db.execute(catalogue["next_priority"].sql, ("default", 1, below))
        found += len(list(db.execute(catalogue["due"].sql, ("default", 1, below, 1 << 60, 100)))) if below == 0 else 0
        assert list(db.execute(catalogue["due"].sql, ("default", 1, below, 0, 100))) == []
    db.close()
    assert found == 100
    assert steps < LATER


async def test_a_claim_passes_over_tenants_whose_jobs_are_due_later(store) -> None:
    tenants = [await store.add_tenant(f"t{number}") for number in range(300)]
    await store.enqueue([NewJob("later", tenant_id=tenant, delay_us=HOUR) for tenant in tenants for _ in range(3)])
    await store.enqueue([NewJob("due", tenant_id=tenants[150])])
    worker = await store.create(WORKER, name="w", incarnation="w", workspace_id="w")
    assert [job.kind for job in await store.claim(worker, ["default"], 9, HOUR, claim_id=1)] == ["due"]


@pytest.mark.parametrize("priorities", [1, 7])
async def test_one_priority_after_the_other_is_taken_until_there_are_enough(store, priorities: int) -> None:
    jobs = [NewJob("due", priority=place % priorities) for place in range(30)]
    await store.enqueue(jobs)
    worker = await store.create(WORKER, name="w", incarnation="w", workspace_id="w")
    taken = [
        job.priority
        for number in range(4)
        for job in await store.claim(worker, ["default", "other"], 8, HOUR, claim_id=number)
    ]
    assert taken == sorted([job.priority for job in jobs], reverse=True)
