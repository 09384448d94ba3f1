"""`keptwork migrate`: making a database, bringing it up to date, and only looking."""

from __future__ import annotations

import json

import apsw

from keptwork.store.dialect import SQLITE
from keptwork.store.migrations import migrations, newest
from tests.support.command import run


def test_a_dry_run_lists_what_is_pending_and_makes_nothing(tmp_path):
    done = run("migrate", "--dry-run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0001 foundation" in done.stdout
    assert "Nothing was changed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json_has_the_sql(tmp_path):
    found = json.loads(run("migrate", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert found["database"] == "sqlite:///keptwork.db"
    assert [entry["number"] for entry in found["pending"]] == [migration.number for migration in migrations(SQLITE)]
    assert found["pending"][0]["sql"][0].startswith("CREATE TABLE tenants")
    assert list(tmp_path.iterdir()) == []


def test_the_sql_it_prints_is_the_schema_it_makes(tmp_path):
    script = run("migrate", "--sql", cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []
    by_hand = apsw.Connection(":memory:")
    by_hand.execute(script)
    assert run("migrate", cwd=tmp_path).returncode == 0
    made = apsw.Connection(str(tmp_path / "keptwork.db"))
    schema = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE '%keptwork_migrations%' ORDER BY type, name"
    assert by_hand.execute(schema).fetchall() == made.execute(schema).fetchall()
    made.close()


def test_migrating_says_what_it_did_and_a_second_time_that_nothing_is_left(sqlite_url, postgres_url):
    for url in (sqlite_url, postgres_url):
        first = json.loads(run("migrate", "--json", "--db", url).stdout)
        assert [entry["number"] for entry in first["applied"]] == list(range(1, newest() + 1))
        assert json.loads(run("migrate", "--json", "--db", url).stdout)["applied"] == []
        assert run("migrate", "--db", url).stdout.endswith(" is up to date.\n")
        assert run("migrate", "--dry-run", "--db", url).stdout.endswith(" is up to date.\n")


def test_a_dry_run_leaves_an_empty_postgres_database_empty(postgres_server, postgres_url):
    assert len(json.loads(run("migrate", "--dry-run", "--json", "--db", postgres_url).stdout)["pending"]) == newest()
    count = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    assert postgres_server.superuser_sql(count, postgres_url.rpartition("/")[2]) == "0"


def test_a_dry_run_of_a_database_that_is_behind_changes_nothing(tmp_path):
    run("migrate", cwd=tmp_path)
    path = tmp_path / "keptwork.db"
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM keptwork_migrations WHERE number > 1")
    db.close()
    before = path.read_bytes()
    found = json.loads(run("migrate", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert [entry["number"] for entry in found["pending"]] == list(range(2, newest() + 1))
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["keptwork.db"]
