"""The second lock as the HTTP API uses it: on PostgreSQL a narrowed store works for one tenant and for nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.records import DEFAULT_TENANT
from keptwork.store.contract.store import Store as Promises
from keptwork.store.postgres.connections import AppConnection
from keptwork.store.postgres.store import PostgresStore
from tests.acceptance.write_calls import CALLS, Call, examine
from tests.conformance.promises import keeps
from tests.conformance.stage import eventually
from tests.conformance.test_tenants import OURS, THEIRS, peopled, tenants_seen
from tests.support.postgres_server import PostgresServer

__all__ = ["peopled"]

ENGINES = {
    "add_tenant",
    "close_charge",
    "count",
    "declare_limits",
    "forget_budgets",
    "forget_deliveries",
    "keep_bucket",
    "lock_bucket",
    "open_charge",
    "put_seal",
    "set_tenant_limits",
    "take_duty",
}
"""What belongs to no tenant, or is for nobody to change who asks over HTTP: the engine does these."""


QUICK = ("enqueue", "succeed", "claim and start", "request", "put_api_key", "set_tenant_limits", "take_duty")
"""Those of the calls that are made every time; the others in the long form."""


@keeps(Promises.narrowed, "Return this database for the requests of one tenant")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.chaos) for name in CALLS]
)
async def test_a_tenants_writes_are_all_done_by_its_narrowed_store(postgres_store: Store, name: str) -> None:
    call: Call = CALLS[name]
    given = await call.arrange(postgres_store)
    before = await postgres_store.event_count()
    narrowed = postgres_store.narrowed(DEFAULT_TENANT)
    if call.verb in ENGINES:
        with pytest.raises(StoreError, match=r"permission denied|row-level security"):
            await call.make(narrowed, given, False)
        return
    await examine(call, postgres_store, given, await call.make(narrowed, given, False), before)


@keeps(Promises.narrowed, "PostgreSQL lets the returned store read and write no other tenant's rows in any request")
async def test_plain_sql_on_a_narrowed_session_sees_no_foreign_row_in_any_table(peopled: Store) -> None:
    for tenant_id in (THEIRS, OURS, THEIRS):
        async with _session(peopled, tenant_id) as session:
            assert await session.fetchval("SELECT current_user") == "keptwork_app"
            seen = await tenants_seen(session)
            await session.execute("RESET ALL")  # even so it is no engine: it sees nothing, until it is told again
            assert set(map(tuple, (await tenants_seen(session)).values())) == {()}
            await session.execute("SELECT set_config('keptwork.tenant', $1, false)", str(tenant_id))
        assert seen == {table: [tenant_id] for table in seen}
        assert "jobs" in seen


def _session(store: Store, tenant_id: int) -> Any:
    narrowed = store.narrowed(tenant_id)
    assert isinstance(narrowed, PostgresStore)
    return narrowed._connection()


@keeps(Promises.narrowed, "PostgreSQL lets the returned store read and write no other tenant's rows in any request")
async def test_a_foreign_job_is_neither_found_nor_cancelled_nor_made(peopled: Store) -> None:
    (ours,) = await peopled.enqueue([NewJob("kind", tenant_id=OURS)])
    narrowed = peopled.narrowed(THEIRS)
    assert await narrowed.get(JOB, ours, None) is None
    assert await narrowed.rows(JOB, [ours]) == []
    assert {row["tenant_id"] for row in await narrowed.jobs(limit=1000)} == {THEIRS}
    assert {event.tenant_id for event in await narrowed.events(limit=1000)} == {THEIRS}
    with pytest.raises(StoreError, match="row-level security"):
        await narrowed.enqueue([NewJob("kind", tenant_id=OURS)])


async def mixed_up(store: Store, tenants: list[int]) -> set[tuple[int, int]]:
    """Which tenants saw rows of which, of many that ask at the same time over few sessions."""

    async def seen(tenant_id: int) -> set[tuple[int, int]]:
        async with store.narrowed(tenant_id).snapshot() as inside:
            rows = await inside.jobs(limit=1000, columns=("tenant_id",))
        plain = await store.narrowed(tenant_id).jobs(limit=1000, columns=("tenant_id",))
        return {(tenant_id, row["tenant_id"]) for row in [*rows, *plain]}

    found = await asyncio.gather(*(seen(tenant_id) for tenant_id in tenants * 20))
    return set().union(*found)


@keeps(Promises.narrowed, "PostgreSQL lets the returned store read and write no other tenant's rows in any request")
async def test_sessions_that_change_hands_take_nothing_with_them(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [await postgres_store.add_tenant(f"t-{number}") for number in range(12)]
    await postgres_store.enqueue([NewJob("kind", tenant_id=tenant_id) for tenant_id in tenants])
    assert await mixed_up(postgres_store, tenants) == {(tenant_id, tenant_id) for tenant_id in tenants}

    async def once(self: AppConnection, tenant_id: int) -> None:
        if self.narrowed_to is None:
            await narrow(self, tenant_id)

    narrow = AppConnection.narrow
    monkeypatch.setattr(AppConnection, "narrow", once)  # a twin that leaves a session with whom it had first
    assert any(owner != tenant_id for tenant_id, owner in await mixed_up(postgres_store, tenants))


async def test_sessions_that_the_server_has_ended_meanwhile_are_passed_over(postgres_store: Store) -> None:
    tenants = [await postgres_store.add_tenant(f"t-{number}") for number in range(3)]
    await postgres_store.enqueue([NewJob("kind", tenant_id=tenant_id) for tenant_id in tenants])
    assert await mixed_up(postgres_store, tenants) == {(tenant_id, tenant_id) for tenant_id in tenants}
    async with postgres_store.transaction() as engine:
        ended = await engine.fetch(
            "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", _at_hand(postgres_store)
        )
    assert len(ended) > 1
    await eventually(lambda: _are_taken_back(postgres_store))
    assert await mixed_up(postgres_store, tenants) == {(tenant_id, tenant_id) for tenant_id in tenants}


async def _are_taken_back(store: Store) -> bool:
    """The driver's pool takes a session back as soon as it hears that it was ended."""
    assert isinstance(store, PostgresStore)
    assert store._app is not None
    return all(one._con is None for one in store._app._at_hand)


def _at_hand(store: Store) -> list[int]:
    assert isinstance(store, PostgresStore)
    assert store._app is not None
    return [one.get_server_pid() for one in store._app._at_hand]


async def test_a_request_that_is_cut_off_leaves_no_session_in_doubt(postgres_store: Store) -> None:
    other = await postgres_store.add_tenant("other")
    await postgres_store.enqueue([NewJob("kind", tenant_id=tenant_id) for tenant_id in (OURS, other)])
    for number in range(60):
        tenant_id = (OURS, other)[number % 2]
        asked = asyncio.create_task(postgres_store.narrowed(tenant_id).jobs())
        await asyncio.sleep(number % 6 * 0.0001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        for known in (OURS, other):
            assert {row["tenant_id"] for row in await postgres_store.narrowed(known).jobs()} == {known}


@keeps(
    Promises.cannot_narrow,
    "Return why `narrowed` cannot be used",
    "its role is missing or lacks a right",
    "Return None if it can",
)
async def test_a_role_that_is_missing_or_lacks_a_right_is_told(
    store: Store, postgres_copy: str, postgres_server: PostgresServer
) -> None:
    assert await store.cannot_narrow() is None
    database = postgres_copy.rpartition("/")[2]
    postgres_server.superuser_sql("REVOKE SELECT ON runs FROM keptwork_app", database)
    copy = await open_store(postgres_copy)
    assert await copy.cannot_narrow() == "keptwork_app may not read runs"
    await copy.close()
    role = f"stranger_{database}"
    postgres_server.superuser_sql(f"CREATE ROLE {role} LOGIN BYPASSRLS PASSWORD 'x'")
    postgres_server.superuser_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", database)
    try:
        stranger = await open_store(postgres_server.url(database, role, "x"))
        assert 'permission denied to set role "keptwork_app"' in str(await stranger.cannot_narrow())
        await stranger.close()
    finally:
        postgres_server.superuser_sql(f"DROP OWNED BY {role}", database)
        postgres_server.superuser_sql(f"DROP ROLE {role}")


@keeps(Promises.narrowed, "Closing this store closes the returned one")
async def test_closing_the_store_ends_the_sessions_of_tenants(postgres_copy: str) -> None:
    opened = await open_store(postgres_copy)
    narrowed = opened.narrowed(DEFAULT_TENANT)
    assert await narrowed.jobs() == []
    await opened.close()
    with pytest.raises(StoreError):
        await narrowed.jobs()
