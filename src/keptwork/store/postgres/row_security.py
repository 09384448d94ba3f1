"""Row-level security of a PostgreSQL database: the tables' owner sees all rows, the role keptwork_app one tenant's.

Migrations create these policies and grants for the role that runs them. A dump restored under another owner lacks them,
and a role created later never got them. `restore_access` creates all of them again for the present owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import asyncpg

from keptwork.errors import HoldsNoRows, SeesNoRows
from keptwork.store.migrations import Tell, log
from keptwork.store.postgres.connections import APP_ROLE
from keptwork.store.postgres.lock_retry import Bounded, patiently
from keptwork.store.url import DatabaseUrl

_TENANT = "nullif(current_setting('keptwork.tenant', true), '')::int"
_OWN = f"USING (tenant_id = {_TENANT})"
_OWN_AND_SHARED = f"USING (tenant_id = ANY (ARRAY[0, {_TENANT}]))"


class Access(NamedTuple):
    """The policy and the grants of the role keptwork_app on one table."""

    policy: str | None = _OWN
    grants: tuple[str, ...] = ("SELECT, INSERT, UPDATE, DELETE",)


_WRITTEN_ONCE = Access(grants=("SELECT, INSERT",))
_NEVER_DELETED = Access(grants=("SELECT, INSERT, UPDATE",))
_KEY_ENDS = "UPDATE (expires_at, revoked_at, revoked_by, last_used_at, replaced_by)"

TABLES = {
    "agent_audits": _WRITTEN_ONCE,
    "agent_jobs": Access(),
    "api_keys": Access(grants=("SELECT, INSERT", _KEY_ENDS)),
    "approvals": Access(),
    "artifacts": Access(),
    "blobs": Access(),
    "breakers": Access(),
    "budgets": _NEVER_DELETED,
    "checkpoints": Access(),
    "counters": Access(),
    "crew_quotas": Access(),
    "crews": Access(),
    "events": Access(),
    "idempotency_keys": Access(),
    "jobs": Access(),
    "ledger": Access(grants=("SELECT",)),
    "limit_rules": Access("FOR SELECT USING (true)"),
    "limit_uses": Access(_OWN_AND_SHARED),
    "limit_wakes": Access(_OWN_AND_SHARED),
    "limits": Access(_OWN_AND_SHARED),
    "outbox": _NEVER_DELETED,
    "queues": Access(),
    "recent_jobs": Access(_OWN_AND_SHARED),
    "retention": Access(),
    "runs": Access(),
    "schedules": Access(),
    "signals": Access(),
    "steps": Access(),
    "telemetry": Access(),
    "templates": _WRITTEN_ONCE,
    "tenants": Access(f"USING (id = {_TENANT})", ("SELECT",)),
    "token_buckets": Access(None, ()),
    "transcripts": Access(),
    "waits": Access(),
    "workers": Access(),
    "workstreams": Access(),
}
"""Every table with row-level security."""

# As in the first migration: a login that may not create the role leaves it to an administrator.
_APP_ROLE = """DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        CREATE ROLE keptwork_app NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$"""

_MEMBERSHIP = """DO $$ BEGIN
    EXECUTE format('GRANT keptwork_app TO %I',
        (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('jobs')));
EXCEPTION WHEN undefined_object OR insufficient_privilege THEN NULL;
END $$"""

_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('jobs')"

_PRESENT = """SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1::text[]) ORDER BY relname"""

_BESIDES = """DO $$ DECLARE function regprocedure;
BEGIN
    FOR function IN SELECT oid FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace AND proname = 'keptwork_enqueue' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keptwork_app') THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO keptwork_app', function);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT USAGE ON SEQUENCE keptwork_pages, keptwork_event_ids TO keptwork_app;
        IF NOT has_schema_privilege('keptwork_app', current_schema(), 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO keptwork_app', current_schema());
        END IF;
    END IF;
END $$"""

# Names and owners instead of numbers, so that an object dropped and created again the same way compares equal.
_PICTURE = """SELECT c.relname, concat_ws(' ', c.relrowsecurity, c.relforcerowsecurity, c.relacl,
    (SELECT string_agg(concat_ws(' ', p.polname, p.polcmd, p.polroles::regrole[],
        pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)), ', ' ORDER BY p.polname)
     FROM pg_policy AS p WHERE p.polrelid = c.oid),
    (SELECT string_agg(concat_ws(' ', a.attname, a.attacl), ', ' ORDER BY a.attnum)
     FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)) AS access
FROM pg_class AS c
WHERE c.relnamespace = current_schema()::regnamespace
    AND (c.relname = ANY($1::text[]) OR c.relname IN ('keptwork_pages', 'keptwork_event_ids'))
UNION ALL SELECT proname, coalesce(proacl::text, '') FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proname = 'keptwork_enqueue' ORDER BY 1"""

# A policy applies to its roles and their members. A session that sets a tenant sees that tenant's rows.
_UNSEEN = """SELECT current_user, pg_get_userbyid(c.relowner) AS owner FROM pg_class AS c
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('keptwork_migrations'))
    AND c.relname = ANY($1::text[]) AND row_security_active(c.oid)
    AND nullif(current_setting('keptwork.tenant', true), '') IS NULL
    AND NOT EXISTS (SELECT FROM pg_policy AS p, unnest(p.polroles) AS role WHERE p.polrelid = c.oid
        AND p.polname = 'engine' AND CASE WHEN role = 0 THEN true ELSE pg_has_role(role, 'USAGE') END)
ORDER BY c.relname LIMIT 1"""


async def refuse_unseen(connection: asyncpg.Connection, url: DatabaseUrl) -> None:
    """Raise `SeesNoRows` if row-level security hides the rows of a Keptwork table from this login. Raise `HoldsNoRows`
    if the dump of such a login was restored here, since every database has a tenant."""
    found = await connection.fetchrow(_UNSEEN, list(TABLES))
    if found is not None:
        raise SeesNoRows(url=url.shown, login=found[0], owner=found[1])
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM tenants)"):
        raise HoldsNoRows(url=url.shown)


async def restore_access(connection: asyncpg.Connection, tell: Tell = log.warning) -> list[str]:
    """Restore every policy and grant for the owner of the tables. Return the names of those that differ now.

    The owner is granted the role keptwork_app, which is created if this login may create it. Grants by other roles
    stay.
    """
    before = dict(await connection.fetch(_PICTURE, list(TABLES)))
    await patiently(connection, partial(_restore, connection), tell)
    after = dict(await connection.fetch(_PICTURE, list(TABLES)))
    return [name for name, access in after.items() if before.get(name) != access]


async def _restore(connection: asyncpg.Connection, bounded: Bounded) -> None:
    await connection.execute(_APP_ROLE)
    await connection.execute(_MEMBERSHIP)
    await connection.execute("SELECT set_config('role', $1, true)", await connection.fetchval(_OWNER))
    has_app = await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", APP_ROLE)
    for (table,) in await connection.fetch(_PRESENT, list(TABLES)):
        for statement in _statements(table, has_app):
            await connection.execute(bounded(statement))
    await connection.execute(_BESIDES)


def _statements(table: str, has_app: bool) -> Iterator[str]:
    access = TABLES[table]
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    yield f"DROP POLICY IF EXISTS engine ON {table}"
    yield f"CREATE POLICY engine ON {table} TO CURRENT_USER USING (true) WITH CHECK (true)"
    if access.policy is not None:
        yield f"DROP POLICY IF EXISTS tenant ON {table}"
        yield f"CREATE POLICY tenant ON {table} {access.policy}"
    if has_app:
        yield from (f"GRANT {grant} ON {table} TO {APP_ROLE}" for grant in access.grants)
