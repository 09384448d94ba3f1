"""The migration files: numbered without a gap, cut into statements, and in step with the declarations."""

from __future__ import annotations

from importlib.resources import files

import pytest

from keptwork.store import migrations
from keptwork.store.dialect import POSTGRES, SQLITE, Dialect

DIALECTS = pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)


def test_the_newest_guards_migration_is_that_of_the_declarations() -> None:
    declared, installed = migrations.fingerprint(), migrations.declared_fingerprint()
    assert installed == declared, (
        f"a lifecycle or a guard has changed: its triggers now have the fingerprint {declared}, the newest guards "
        f"migration was written for {installed}. Databases that exist keep the old triggers until a migration brings "
        f"the new ones: add schema/{migrations.newest() + 1:04}_WHAT_CHANGED.sql with the line `--: guards {declared}` "
        f"(or, before the last one was ever released, write the new word into it)"
    )


def test_a_changed_declaration_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = migrations.fingerprint()
    changed = [*migrations.guards(SQLITE)[:-1], "CREATE TRIGGER keptwork_changed"]
    monkeypatch.setattr(migrations, "sqlite_guards", lambda: changed)
    assert migrations.fingerprint() != before


@DIALECTS
def test_migrations_are_numbered_from_one_without_a_gap(dialect: Dialect) -> None:
    numbers = [migration.number for migration in migrations.migrations(dialect)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert migrations.newest() == numbers[-1]


@DIALECTS
def test_only_the_last_guards_migration_installs_the_triggers(dialect: Dialect) -> None:
    installing = [migration for migration in migrations.migrations(dialect) if migration.replaces_guards]
    assert len(installing) == 1
    assert set(migrations.guards(dialect)) <= set(installing[0].statements)


@DIALECTS
def test_every_word_in_braces_has_been_filled_in(dialect: Dialect) -> None:
    for migration in migrations.migrations(dialect):
        for statement in migration.statements:
            assert "{entity}" not in statement
            assert "{time}" not in statement


def test_no_file_of_the_folder_is_overlooked() -> None:
    stems = {f"{m.number:04}_{m.name}" for m in migrations.migrations(SQLITE)}
    endings = [".sql", *(f".{d}{when}.sql" for d in ("sqlite", "postgres") for when in ("", ".before"))]
    expected = {stem + ending for stem in stems for ending in endings}
    assert {entry.name for entry in files("keptwork.store").joinpath("schema").iterdir()} - {"__pycache__"} <= expected


def test_a_file_is_cut_where_a_line_ends_with_a_semicolon() -> None:
    assert migrations.split("CREATE TABLE a (x);\n\nCREATE TABLE b (\n    y\n);\n") == [
        "CREATE TABLE a (x)",
        "CREATE TABLE b (\n    y\n)",
    ]


def test_comments_before_a_statement_are_left_out_and_those_within_stay() -> None:
    assert migrations.split("-- why\n\n-- more\nSELECT 1, -- one\n  2;\n-- the end\n") == ["SELECT 1, -- one\n  2"]


def test_a_body_in_dollars_is_not_cut() -> None:
    function = "CREATE FUNCTION f() AS $$\nBEGIN\n    RETURN 1;\nEND;\n$$"
    assert migrations.split(f"{function};\nSELECT 1;") == [function, "SELECT 1"]


def test_a_body_in_dollars_on_one_line_ends_there() -> None:
    assert migrations.split("SELECT $$a;b$$;\nSELECT 2;") == ["SELECT $$a;b$$", "SELECT 2"]


def test_a_semicolon_in_the_middle_of_a_line_does_not_cut() -> None:
    assert migrations.split("SELECT 'a;b';\n") == ["SELECT 'a;b'"]
