"""A schema as text, to compare: everything a migration makes, in an order of its own."""

from __future__ import annotations

from tests.store.hands import Hand

_SQLITE = "SELECT type || ' ' || name || ': ' || coalesce(sql, '') AS line FROM sqlite_schema"

# Every kind of thing a migration makes; {s} is the schema it is made in.
_POSTGRES = """
WITH s AS (SELECT '{s}'::regnamespace AS oid)
SELECT 'relation ' || relname || ' ' || relkind::text || relrowsecurity || relforcerowsecurity
    || coalesce(reloptions::text, '') || coalesce(relacl::text, '') || pg_get_userbyid(relowner) AS line
    FROM pg_class, s WHERE relnamespace = s.oid
UNION ALL SELECT 'column ' || attrelid::regclass || '.' || attname || ' ' || format_type(atttypid, atttypmod)
    || attnotnull || coalesce(pg_get_expr(adbin, adrelid), '')
    FROM s, pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = s.oid AND attnum > 0 AND relkind IN ('r', 'i', 'S')
UNION ALL SELECT 'index ' || pg_get_indexdef(indexrelid) FROM s, pg_index JOIN pg_class ON pg_class.oid = indrelid
    WHERE relnamespace = s.oid
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(pg_constraint.oid)
    FROM pg_constraint, s WHERE connamespace = s.oid
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(pg_trigger.oid) || tgenabled::text
    FROM s, pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = s.oid
UNION ALL SELECT 'function ' || pg_get_functiondef(pg_proc.oid) FROM s, pg_proc WHERE pronamespace = s.oid
UNION ALL SELECT 'policy ' || pg_policies::text FROM pg_policies WHERE schemaname = '{s}'
UNION ALL SELECT 'sequence ' || sequencename || ' ' || min_value || ' ' || max_value || cycle FROM pg_sequences
    WHERE schemaname = '{s}'
"""


def picture(hand: Hand, schema: str = "public") -> list[str]:
    """The lines that say what is there; two databases with the same lines have the same schema."""
    query = _SQLITE if hand.dialect == "sqlite" else _POSTGRES.format(s=schema)
    return sorted(row["line"].replace(f"{schema}.", "").replace(schema, "S") for row in hand.rows(query))


def is_empty(hand: Hand, schema: str = "public") -> bool:
    """Whether nothing at all is there: no table, no function, no sequence."""
    if hand.dialect == "sqlite":
        return hand.rows("SELECT 1 FROM sqlite_schema") == []
    found = "SELECT 1 FROM pg_class WHERE relnamespace = '{s}'::regnamespace UNION ALL "
    found += "SELECT 1 FROM pg_proc WHERE pronamespace = '{s}'::regnamespace LIMIT 1"
    return hand.rows(found.format(s=schema)) == []


def history(hand: Hand, schema: str = "") -> list[tuple[int, str]]:
    """The migrations that were applied, as the database tells."""
    table = f"{schema}.keptwork_migrations" if schema else "keptwork_migrations"
    return [(row["number"], row["name"]) for row in hand.rows(f"SELECT number, name FROM {table} ORDER BY number")]
