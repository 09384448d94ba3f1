"""Migrated databases that one test after the other uses: to make one takes many times as long as to empty one.

One is used again only if its schema is as it was made and nobody is connected to it any longer. Otherwise it is
dropped, and so is one that was used often, for what was deleted is still in its files.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tests.support.postgres_server import PostgresServer, SqlFailed

MOST_USES = 40

# The guards forbid it, for every session but a superuser's that poses as a replica.
EMPTY = """SET session_replication_role = replica;
DO $$ DECLARE named text; BEGIN
    FOR named IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
            AND relname <> 'keptwork_migrations' AND pg_relation_size(oid) > 0 LOOP
        EXECUTE format('DELETE FROM %I', named);
    END LOOP;
END $$;
INSERT INTO tenants (id, name, created_at) VALUES (1, 'default', 0)"""

REWIND = "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence"

# Whatever is changed in it, by hand, by ANALYZE or by a rewrite, the database is no longer what it was. A transaction
# writes its number into each row that it changes. Rows of pg_class are also changed in place, and functions are put
# back: they are compared as a whole.
SCHEMA = """SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
    SELECT c::text FROM pg_class AS c WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT p::text FROM pg_proc AS p WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT m::text FROM keptwork_migrations AS m
    UNION ALL SELECT concat(datacl, datallowconn, datconnlimit) FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT setconfig::text FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = setdatabase
        WHERE datname = current_database()
    UNION ALL SELECT concat(catalog, ' ', count(*), ' ', sum(written::text::bigint)) FROM (
        SELECT 'namespace', xmin FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'
        UNION ALL SELECT 'attribute', a.xmin FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid
            WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT 'attrdef', xmin FROM pg_attrdef
        UNION ALL SELECT 'trigger', xmin FROM pg_trigger
        UNION ALL SELECT 'index', i.xmin FROM pg_index AS i JOIN pg_class AS c ON c.oid = indexrelid
            WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT 'constraint', xmin FROM pg_constraint
        UNION ALL SELECT 'policy', xmin FROM pg_policy
        UNION ALL SELECT 'sequence', xmin FROM pg_sequence
    ) AS rows (catalog, written) GROUP BY catalog
) AS schema (line)"""

# Whoever has just hung up has a moment to be gone.
UNLESS_IN_USE = """DO $$ BEGIN
    FOR round IN 1..20 LOOP
        IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
    RAISE 'somebody is still connected';
END $$"""


class Stock:
    """The databases of one server that are free, copies of a migrated one."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server, self._template = server, template
        self._free: list[str] = []
        self._uses: dict[str, int] = {}
        self._schema: str | None = None

    def take(self) -> str:
        """The URL of a database as it was made."""
        url = self._free.pop() if self._free else self._server.create_database(template=self._template)
        self._uses[url] = self._uses.get(url, 0) + 1
        if self._schema is None:
            self._schema = self._sql(url, SCHEMA)
        return url

    def give_back(self, url: str) -> None:
        """It is another's next, or gone."""
        if self._uses[url] < MOST_USES and self._is_as_it_was_made(url):
            self._free.append(url)
        else:
            self._server.drop_database(url)

    def close(self) -> None:
        """Drops those that are free."""
        while self._free:
            self._server.drop_database(self._free.pop())

    def _is_as_it_was_made(self, url: str) -> bool:
        unless_changed = f"DO $$ BEGIN IF ({SCHEMA}) <> '{self._schema}' THEN RAISE 'it has changed'; END IF; END $$"
        try:
            self._sql(url, "; ".join((UNLESS_IN_USE, unless_changed, EMPTY, REWIND)))
        except SqlFailed:
            return False
        return True

    def _sql(self, url: str, statement: str) -> str:
        return self._server.superuser_sql(statement, urlsplit(url).path.lstrip("/"))
