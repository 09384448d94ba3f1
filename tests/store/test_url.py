"""Database URLs: what each names, what is refused, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from keptwork.errors import BadDatabaseUrl, UnknownScheme
from keptwork.store.postgres.connections_server import wanted
from keptwork.store.url import database_url, redacted


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///work.db", "work.db"),
        ("sqlite:///a/b/work.db", "a/b/work.db"),
        ("sqlite:////var/lib/work.db", "/var/lib/work.db"),
        ("sqlite:///with%20space.db", "with space.db"),
        ("sqlite:///100%25.db", "100%.db"),
        ("sqlite://:memory:", ":memory:"),
        ("sqlite:///:memory:", ":memory:"),
        ("sqlite://", ":memory:"),
        ("sqlite:///what%3F.db", "what?.db"),
        ("sqlite:///work.db?synchronous=normal", "work.db"),
        ("sqlite:///:memory:?synchronous=full", ":memory:"),
    ],
)
def test_a_sqlite_url_names_a_file_or_memory(text: str, path: str) -> None:
    assert database_url(text)[:3] == ("sqlite", text, path)


def test_a_sqlite_url_says_when_a_commit_is_on_the_disk_and_keeps_saying_so_wherever_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_url("sqlite:///work.db").synchronous == "full"
    normal = database_url("sqlite:///wo rk.db?synchronous=normal")
    again = database_url(normal.lasting)
    assert (normal.synchronous, again.synchronous) == ("normal", "normal")
    assert again.path == str(tmp_path / "wo rk.db")
    assert database_url(database_url("sqlite:///work.db").lasting)[2:4] == (str(tmp_path / "work.db"), "full")


@pytest.mark.parametrize("text", ["postgresql://ann@db/work", "postgres://ann:pw@db:5433/work?search_path=other"])
def test_a_postgres_url_is_passed_on_as_it_is(text: str) -> None:
    assert database_url(text)[:2] == ("postgres", text)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("postgresql://db/work", 1),
        ("postgresql:///work", 1),
        ("postgresql://ann:p@w@db1:5432,db2:5433/work", 2),
        ("postgresql://[::1]:5432,[::2],db3/work", 3),
    ],
)
def test_a_postgres_url_may_name_several_servers(text: str, servers: int) -> None:
    assert database_url(text).servers == servers


def test_of_several_servers_the_one_that_takes_writes_is_wanted_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)
    assert wanted(database_url("postgresql://db/work")) is None
    assert wanted(database_url("postgresql://db1,db2/work")) == "read-write"
    assert wanted(database_url("postgresql://db1,db2/work?target_session_attrs=any")) is None
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    assert wanted(database_url("postgresql://db1,db2/work")) is None


def test_without_a_url_it_is_the_environments_and_without_that_a_file_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPTWORK_DB", "postgresql://db/work")
    assert database_url().text == "postgresql://db/work"
    assert database_url("sqlite:///given.db").path == "given.db"
    monkeypatch.setenv("KEPTWORK_DB", "")
    assert database_url().path == "keptwork.db"
    monkeypatch.delenv("KEPTWORK_DB")
    assert database_url(None).path == "keptwork.db"


@pytest.mark.parametrize("text", ["mysql://db/work", "SQLITE:///x.db", "file:///x.db", "http://db", "://x"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UnknownScheme, match=r"use sqlite:///.* or postgresql://"):
        database_url(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("work.db", "it has no scheme"),
        ("sqlite:work.db", "it has no scheme"),
        ("sqlite://work.db", "three slashes"),
        ("sqlite://host/work.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///nul%00.db", "NUL"),
        ("sqlite:///work.db?synchronous=off", r"there may be \?synchronous=full or \?synchronous=normal"),
        ("sqlite:///work.db?synchronous=", "synchronous=normal"),
        ("sqlite:///work.db?synchronous=full&synchronous=normal", "synchronous=normal"),
        ("sqlite:///work.db?mode=ro", "a . in a path is written %3F"),
        ("sqlite:///what?.db", "a . in a path is written %3F"),
        ("postgresql://db:port/work", "the port is not a number"),
        ("postgresql://db:99999/work", "the port is not a number"),
        ("postgresql://db1:5432,db2:port/work", "the port is not a number"),
    ],
)
def test_a_url_that_names_nothing_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadDatabaseUrl, match=why):
        database_url(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:secret@db/work", "postgresql://ann:***@db/work"),
        ("postgresql://ann:sec:ret@db:5432/work", "postgresql://ann:***@db:5432/work"),
        ("postgresql://ann:s%40cret@db/work", "postgresql://ann:***@db/work"),
        ("postgresql://ann:secret@evil@db/work", "postgresql://ann:***@db/work"),
        ("postgresql://:secret@db/work", "postgresql://:***@db/work"),
        ("postgresql://ann@db/work", "postgresql://ann@db/work"),
        ("postgresql:///work", "postgresql:///work"),
        ("postgresql://db/work?user=ann&password=secret", "postgresql://db/work?user=ann&password=***"),
        ("postgresql://db/work?sslpassword=secret&port=1", "postgresql://db/work?sslpassword=***&port=1"),
        ("postgresql://db/work?PASSWORD=secret", "postgresql://db/work?PASSWORD=***"),
        ("postgresql://db/work#secret", "postgresql://db/work"),
        ("sqlite:////var/lib/work.db", "sqlite:////var/lib/work.db"),
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
    ],
)
def test_a_url_is_shown_without_its_password(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert "secret" not in redacted(text)


@pytest.mark.parametrize("text", ["postgresql://ann:secret@[db/work", "ann:secret@db/work", "mysql://a:secret@db/w"])
def test_the_password_of_a_url_that_cannot_be_read_is_not_shown_either(text: str) -> None:
    assert "secret" not in redacted(text)
    with pytest.raises((BadDatabaseUrl, UnknownScheme)) as refused:
        database_url(text)
    assert "secret" not in str(refused.value)
