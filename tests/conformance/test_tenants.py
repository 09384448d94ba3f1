"""Tenants: a foreign one's entity is as one that does not exist; on PostgreSQL the database itself sees to it."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from keptwork.core.lifecycles import JOB, WORKER
from keptwork.core.schedule_rules import Rule
from keptwork.errors import StoreError
from keptwork.store import Blob, NewJob, Store
from keptwork.store.contract.access import NewApiKey
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.agents_transcripts import NewLine
from keptwork.store.contract.budgets import NewBudget, NewCharge
from keptwork.store.contract.checkpoints import Save
from keptwork.store.contract.flows_templates import NewTemplate
from keptwork.store.contract.outbox import NewDelivery
from keptwork.store.contract.queues import Schedule
from keptwork.store.contract.records import Counter, Expiry, LimitRule
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.contract.store import Store as Promises
from keptwork.store.contract.waits_approvals import NewApproval
from keptwork.store.contract.waits_signals import NewSignal
from keptwork.store.postgres.store import PostgresStore, PostgresTransaction
from tests.conformance.promises import keeps
from tests.conformance.stage import CREATED, NEEDED, claim, decided, entity, log, moved, queued, worker
from tests.support.postgres_server import PostgresServer

OURS, THEIRS = 1, 2


@keeps(Reader.get, "Return None for another tenant's entity, as for one that does not exist")
async def test_an_entity_of_another_tenant_is_none_like_one_that_does_not_exist(
    store: Store, other_tenant: int
) -> None:
    for name, lifecycle in CREATED.items():
        id = await store.create(lifecycle, tenant_id=other_tenant, **NEEDED[name])
        assert await store.get(lifecycle, id, OURS) is None
        assert await store.get(lifecycle, id + 1, OURS) is None
        assert await store.get(lifecycle, id, other_tenant) == await entity(store, lifecycle, id)
    (job,) = await store.enqueue([NewJob("kind", tenant_id=other_tenant)])
    assert await store.get(JOB, job, OURS) is await store.get(JOB, 12345, OURS) is None
    assert await store.get(JOB, job, other_tenant) is not None


async def test_a_tenants_transaction_does_that_tenants_work(store: Store, other_tenant: int) -> None:
    async with store.transaction(tenant_id=other_tenant) as transaction:
        owner = await worker(transaction, tenant_id=other_tenant)
        (id,) = await transaction.enqueue([NewJob("kind", tenant_id=other_tenant, key="k")])
        (job,) = await claim(transaction, owner, tenant_id=other_tenant)
        assert job.id == id
        await moved(transaction, JOB, id, "start", by="holder")
        kept = await transaction.keep_artifact(job, "report", Blob.of(b"abc"), "text/plain")
        assert await transaction.artifacts(other_tenant, id) == [kept]
        assert await transaction.drop_unused_blobs(await transaction.now(), 10) == 0
        await transaction.set_queue_paused("default", True, tenant_id=other_tenant)
        assert await transaction.recall(other_tenant, "POST /jobs", "k", "h") is None
        await transaction.answer(other_tenant, "POST /jobs", "k", "1")
        assert await transaction.tenant("other") == other_tenant
    row = await entity(store, JOB, id)
    assert (row["state"], row["tenant_id"]) == ("running", other_tenant)
    assert [event.tenant_id for event in await log(store)] == [other_tenant] * 4


@keeps(Writer.add_tenant, "Return the ID of the tenant with this name, and create the tenant if it does not exist")
@keeps(Reader.tenants, "Return all tenants in the order of their creation")
async def test_a_tenant_is_added_once_and_listed(store: Store) -> None:
    added = [await store.add_tenant(name) for name in ("zoe", "ann", "zoe")]
    assert added == [2, 3, 2]
    assert [(tenant.id, tenant.name) for tenant in await store.tenants()] == [(1, "default"), (2, "zoe"), (3, "ann")]
    assert await store.tenant("ann") == 3


async def test_tenants_added_at_the_same_time_get_numbers_of_their_own(store: Store) -> None:
    added = await asyncio.gather(*[store.add_tenant(f"t-{number % 8}") for number in range(16)])
    assert len(set(added)) == 8
    assert added[:8] == added[8:]
    assert len(await store.tenants()) == 9


@keeps(
    Writer.set_tenant_limits,
    "Store a tenant's own request limits, or remove them with None",
    "Return False if there is no such tenant",
)
@keeps(
    Reader.tenant_limits,
    "Return the limits last set for a tenant as JSON",
    "Return None if none were set or the tenant does not exist",
)
async def test_limits_are_kept_with_their_tenant(store: Store, other_tenant: int) -> None:
    assert await store.tenant_limits(other_tenant) is await store.tenant_limits(99) is None
    assert await store.set_tenant_limits(other_tenant, '{"max_queued": 1}')
    assert await store.set_tenant_limits(other_tenant, '{"max_queued": 2}')
    assert not await store.set_tenant_limits(99, "{}")
    assert [tenant.limits for tenant in await store.tenants()] == [None, '{"max_queued": 2}']
    assert await store.tenant_limits(other_tenant) == '{"max_queued": 2}'
    assert await store.set_tenant_limits(other_tenant, None)
    assert await store.tenant_limits(other_tenant) is None


@keeps(Reader.waiting_jobs, "Return how many jobs of a tenant are queued, held or not, counting at most `most`")
async def test_all_jobs_of_a_tenant_that_are_queued_count_as_waiting(store: Store, other_tenant: int) -> None:
    assert await store.waiting_jobs(OURS, 100) == 0
    for tenant_id in (OURS, other_tenant):
        jobs = [NewJob("kind", tenant_id=tenant_id, queue=queue) for queue in ("a", "b", "b", "c")]
        held = [NewJob("kind", tenant_id=tenant_id, held_by=f"breaker:{tool}") for tool in ("x", "x", "y")]
        limited = [
            NewJob("kind", tenant_id=tenant_id, limit_key=f"tenant:{kind}", held_by="limit") for kind in ("k", "l", "l")
        ]
        await store.enqueue([*jobs, *held, *limited, NewJob("later", tenant_id=tenant_id, delay_us=1 << 50)])
    assert len(await claim(store, await worker(store), 2, "b", tenant_id=OURS)) == 2
    assert await store.waiting_jobs(OURS, 100) == 9
    assert await store.waiting_jobs(other_tenant, 100) == 11
    assert await store.waiting_jobs(other_tenant, 5) == 5
    assert await store.waiting_jobs(99, 100) == 0


# --- the second lock, on PostgreSQL only


@pytest.fixture
async def peopled(postgres_store: Store) -> Store:
    """Two tenants, each with a row in every table that says whose it is."""
    hand = await asyncpg.connect(_url(postgres_store))
    await hand.execute("INSERT INTO tenants (id, name, created_at) VALUES (2, 'other', 0)")
    await hand.close()
    for tenant_id in (OURS, THEIRS):
        await postgres_store.enqueue([NewJob("kind", tenant_id=tenant_id)])
        for name, lifecycle in CREATED.items():
            await postgres_store.create(lifecycle, tenant_id=tenant_id, **NEEDED[name])
        await postgres_store.set_queue_paused("paused", True, tenant_id=tenant_id)
        hourly = Schedule.of("hourly", NewJob("k", tenant_id=tenant_id), Rule.of(every="1h"), "all", "test", 1)
        await postgres_store.put_schedule(hourly)
        await postgres_store.recall(tenant_id, "POST /jobs", "k", "h")
        await postgres_store.count([Counter(tenant_id, "seen", "{}", 1)])
        await postgres_store.enqueue_unique(NewJob("kind", tenant_id=tenant_id), "u", 1)
        await postgres_store.put_template(NewTemplate(tenant_id, "run", "flow", "{}"))
        await postgres_store.put_delivery(
            NewDelivery(tenant_id, "run", tenant_id, 2, "run.failed", "https://a.b/", "{}")
        )
        await postgres_store.set_quotas(tenant_id, {0: 7})
        await postgres_store.put_api_key(NewApiKey(tenant_id, "ann", "read", f"{tenant_id:064x}", "test"))
        await postgres_store.make_budgets([NewBudget(tenant_id, 0, "tenant", "total", None, 80, "config")])
        await postgres_store.open_charge(NewCharge(tenant_id, tenant_id, None, "turn 1", "p", "m", 1, 20_773))
        record = AgentAudit(
            tenant_id, tenant_id, 2, "say hello", "Completed", None, "[]", None, 0, 3, 1, 9, 9, 9, "", 1, 2
        )
        await postgres_store.put_agent_audit(record)
        await _limit_something(postgres_store, tenant_id)
        ended = await worker(postgres_store, "TERMINATED", tenant_id=tenant_id)
        await postgres_store.record_telemetry(WORKER, ended, "beat", "{}", ttl_us=1, tenant_id=tenant_id)
        await postgres_store.prune(WORKER, [ended], Expiry({"TERMINATED": 1 << 60}))
    await _keep_something(postgres_store)
    return postgres_store


async def _limit_something(store: Store, tenant_id: int) -> None:
    """A start that counts, a key, and a job that waits for a later look."""
    await store.declare_limits([LimitRule("job", "limited", 1, 9, 1 << 50, "tenant")])
    waits = NewJob("limited", tenant_id=tenant_id, queue="limited", limit_key="tenant:limited", held_by="limit")
    await store.enqueue([waits])
    await store.pump()
    await claim(store, await worker(store, name="counter"), 1, "limited", start=True)
    await store.enqueue([waits._replace(delay_us=1 << 50)])


async def _keep_something(store: Store) -> None:
    for job in await claim(store, await worker(store, name="keeper"), start=True):
        await store.keep_artifact(job, "report", Blob.of(b"abc"), "text/plain")
        await store.checkpoint([Save(job, "step", "1")])
        await store.say(job, [NewLine(0, 0, Blob.of(b"hello"))])
        await store.open_approval(job, NewApproval("step", "Ship?"))
        await store.send_signal(NewSignal(job.tenant_id, "go", "1", "key"))
        await moved(store, JOB, job.id, "release", by="holder")
    for job in await claim(store, await worker(store, name="sleeper"), start=True):
        waits = {"waits_for": "event a, event b", "waits": [("event a", None, 0), ("event b", None, 0)]}
        await moved(store, JOB, job.id, "snooze", by="holder", values={"run_at": 1, **waits})


def _url(store: Store) -> str:
    assert isinstance(store, PostgresStore)
    return store._url.text


async def tables(connection: asyncpg.Connection) -> list[str]:
    """Every table that says whose its rows are."""
    rows = await connection.fetch(
        "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant_id' "
        "AND table_schema = current_schema() ORDER BY 1"
    )
    return [row[0] for row in rows]


async def tenants_seen(connection: asyncpg.Connection) -> dict[str, list[int]]:
    """Whose rows plain SQL shows, by table."""
    seen = {}
    for table in await tables(connection):
        rows = await connection.fetch(f"SELECT DISTINCT tenant_id FROM {table} ORDER BY 1")
        seen[table] = [row[0] for row in rows]
    return seen


@keeps(Promises.transaction, "With a tenant, PostgreSQL lets it read and write only that tenant's rows")
async def test_plain_sql_in_a_tenants_transaction_sees_no_foreign_row_in_any_table(peopled: Store) -> None:
    async with peopled.transaction(tenant_id=THEIRS) as transaction:
        assert isinstance(transaction, PostgresTransaction)
        assert await transaction._own.fetchval("SELECT current_user") == "keptwork_app"
        seen = await tenants_seen(transaction._own)
        assert [row[0] for row in await transaction._own.fetch("SELECT id FROM tenants")] == [THEIRS]
    assert set(seen) >= {
        "jobs",
        "events",
        "queues",
        "idempotency_keys",
        "blobs",
        "artifacts",
        *(kind.table for kind in CREATED.values()),
    }
    assert seen == {table: [THEIRS] for table in seen}
    async with peopled.transaction() as engine:
        assert isinstance(engine, PostgresTransaction)
        assert await tenants_seen(engine._own) == {table: [OURS, THEIRS] for table in seen}


@keeps(Promises.transaction, "With a tenant, PostgreSQL lets it read and write only that tenant's rows")
async def test_a_tenants_transaction_cannot_touch_a_foreign_row(peopled: Store) -> None:
    ours, *_ = [event.entity_id for event in await log(peopled, type="job_enqueued", tenant_id=OURS)]
    cancel = await decided(peopled, JOB, ours, "cancel")
    async with peopled.transaction(tenant_id=THEIRS) as transaction:
        assert await transaction.get(JOB, ours, None) is None
        assert await transaction.apply([cancel]) == [cancel]
        assert await transaction.event_count() == await peopled.event_count(THEIRS)
        assert {event.tenant_id for event in await log(transaction)} == {THEIRS}
    assert (await entity(peopled, JOB, ours))["state"] == "queued"


async def test_a_tenants_transaction_cannot_insert_for_a_foreign_one(peopled: Store) -> None:
    before = await peopled.event_count()
    with pytest.raises(StoreError, match="row-level security"):
        async with peopled.transaction(tenant_id=THEIRS) as transaction:
            await queued(transaction, tenant_id=OURS)
    for name, lifecycle in CREATED.items():
        with pytest.raises(StoreError, match="row-level security"):
            async with peopled.transaction(tenant_id=THEIRS) as transaction:
                await transaction.create(lifecycle, tenant_id=OURS, **{**NEEDED[name], **_another(name)})
    assert await peopled.event_count() == before


def _another(name: str) -> dict[str, str]:
    return {"name": "another"} if "name" in NEEDED[name] else {}


async def test_the_connection_is_the_engines_again_after_a_tenants_transaction(peopled: Store) -> None:
    async with peopled.transaction(tenant_id=THEIRS) as transaction:
        assert isinstance(transaction, PostgresTransaction)
        used = await transaction._own.fetchval("SELECT pg_backend_pid()")
    async with peopled.transaction() as engine:
        assert isinstance(engine, PostgresTransaction)
        assert await engine._own.fetchval("SELECT pg_backend_pid()") == used
        assert await engine.event_count() == await peopled.event_count() > await peopled.event_count(THEIRS)


async def test_a_session_of_the_app_role_without_a_tenant_sees_nothing(peopled: Store) -> None:
    connection = await asyncpg.connect(_url(peopled))
    names = await tables(connection)
    await connection.execute("SET ROLE keptwork_app")
    for setting in (None, ""):
        if setting is not None:
            await connection.execute("SELECT set_config('keptwork.tenant', $1, false)", setting)
        for table in [*names, "tenants"]:
            assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0, table
    await connection.close()


async def test_a_plain_role_that_was_granted_a_table_sees_nothing_without_a_tenant(
    peopled: Store, postgres_server: PostgresServer
) -> None:
    database = _url(peopled).rpartition("/")[2]
    role = f"plain_{database}"
    postgres_server.superuser_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    postgres_server.superuser_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", database)
    try:
        connection = await asyncpg.connect(postgres_server.url(database, role, "plain"))
        assert await tenants_seen(connection) == {table: [] for table in await tables(connection)}
        await connection.execute("SELECT set_config('keptwork.tenant', '2', false)")
        assert set(map(tuple, (await tenants_seen(connection)).values())) == {(THEIRS,)}
        await connection.close()
    finally:
        postgres_server.superuser_sql(f"DROP OWNED BY {role}", database)
        postgres_server.superuser_sql(f"DROP ROLE {role}")
